// Small helpers over the document.

export const $ = (id) => document.getElementById(id);

/** An element with properties (dataset and attributes under their own names) and children. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "dataset") Object.assign(made.dataset, value);
    else if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** An icon of the page's sprite. */
export function icon(name) {
  const svg = vector("svg", { "aria-hidden": "true" });
  svg.append(vector("use", { href: `#i-${name}` }));
  return svg;
}

/** An SVG element with attributes. */
export function vector(name, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

const usual = new WeakMap(); // the titles of buttons that can be used

/** Let a button be used; or grey it, and its title, which pressing it says too (status.js), is why it cannot be. */
export function allow(button, whyNot = "") {
  if (!usual.has(button)) usual.set(button, button.title);
  button.title = whyNot || usual.get(button);
  button.setAttribute("aria-disabled", String(Boolean(whyNot)));
}

/** A function that runs `action` once calls have ceased for `wait` milliseconds; `.cancel()` forgets it. */
export function debounced(action, wait) {
  let timer = 0;
  const run = (...given) => {
    clearTimeout(timer);
    timer = setTimeout(action, wait, ...given);
  };
  run.cancel = () => clearTimeout(timer);
  return run;
}

/** Arrow keys, Home and End among the children of a list, one of which is in the tab order. */
export function roving(list, selector, { horizontal = false } = {}) {
  list.addEventListener("keydown", (event) => {
    const items = [...list.querySelectorAll(selector)];
    const at = items.indexOf(document.activeElement);
    if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const right = getComputedStyle(items[at]).direction === "rtl" ? -1 : 1;
    const steps = { ArrowDown: 1, ArrowUp: -1, ...(horizontal && { ArrowRight: right, ArrowLeft: -right }) };
    const to = { Home: 0, End: items.length - 1 }[event.key] ?? (steps[event.key] && at + steps[event.key]);
    if (to === undefined) return;
    event.preventDefault();
    focusOne(items, items[Math.max(0, Math.min(items.length - 1, to))]);
  });
}

/** Focus one of several items and take it, and it alone, into the tab order. */
export function focusOne(items, chosen) {
  for (const item of items) item.tabIndex = item === chosen ? 0 : -1;
  chosen?.focus();
}

/** Put a popover below an element, inside the window; above it where there is no room below. */
export function placeAt(box, anchor) {
  const at = anchor.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const left = Math.max(8, Math.min(at.left, innerWidth - width - 8));
  const below = at.bottom + 6;
  const top = below + height < innerHeight || at.top < height + 6 ? below : at.top - height - 6;
  box.style.left = `${left}px`;
  box.style.top = `${Math.max(8, Math.min(top, innerHeight - height - 8))}px`;
}

/** Have the browser save a blob as a file of this name. */
export function saveAs(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const coarse = matchMedia("(pointer: coarse)");

/** The one or the other wording: a finger taps, and cannot point at anything without touching it. */
export const byPointer = (fine, finger) => (coarse.matches ? finger : fine);

export const percent = (share) => (share > 0 && share < 0.005 ? "<1%" : `${Math.round(100 * share)}%`);
