// DOM helpers.

export const $ = (id) => document.getElementById(id);

/** Create an element with properties, attributes or dataset entries, and children. */
export function element(name, properties = {}, ...children) {
  const created = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "dataset") Object.assign(created.dataset, value);
    else if (key in created) created[key] = value;
    else created.setAttribute(key, value);
  }
  created.append(...children);
  return created;
}

/** Create an SVG element with attributes. */
export function svgElement(name, attributes = {}, text = "") {
  const created = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) created.setAttribute(key, value);
  if (text) created.textContent = text;
  return created;
}

/** Create an icon of the sprite in index.html. */
export function icon(name) {
  const svg = svgElement("svg", { "aria-hidden": "true" });
  svg.append(svgElement("use", { href: `#i-${name}` }));
  return svg;
}

const defaultTitles = new WeakMap();

/**
 * Make a button unavailable for a reason, or available if the reason is empty. An unavailable button can still be
 * focused: its title is the reason, and pressing it shows the reason (see status.js).
 */
export function setUnavailable(button, reason) {
  if (!defaultTitles.has(button)) defaultTitles.set(button, button.title);
  button.title = reason || defaultTitles.get(button);
  button.setAttribute("aria-disabled", String(Boolean(reason)));
}

/** Return a function that runs the action after `wait` milliseconds without calls; it has a method cancel(). */
export function debounced(action, wait) {
  let timer = 0;
  const run = (...args) => {
    clearTimeout(timer);
    timer = setTimeout(action, wait, ...args);
  };
  run.cancel = () => clearTimeout(timer);
  return run;
}

/** Let arrow keys, Home and End move the focus among the items of a list, which are one tab stop. */
export function rovingFocus(list, selector, { horizontal = false } = {}) {
  list.addEventListener("keydown", (event) => {
    const items = [...list.querySelectorAll(selector)];
    const current = items.indexOf(document.activeElement);
    if (current < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const right = getComputedStyle(items[current]).direction === "rtl" ? -1 : 1;
    const steps = {
      ArrowDown: 1,
      ArrowUp: -1,
      ...(horizontal && { ArrowRight: right, ArrowLeft: -right }),
    };
    let next = { Home: 0, End: items.length - 1 }[event.key];
    if (event.key in steps) next = current + steps[event.key];
    if (next === undefined) return;
    event.preventDefault();
    focusItem(items, items[Math.max(0, Math.min(items.length - 1, next))]);
  });
}

/** Focus one of several items and make it their only tab stop. */
export function focusItem(items, chosen) {
  for (const item of items) item.tabIndex = item === chosen ? 0 : -1;
  chosen?.focus();
}

/** Place a popover below an element, or above it if there is no space below. */
export function placePopover(popover, anchor) {
  const box = anchor.getBoundingClientRect();
  const { width, height } = popover.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - width - 8));
  const below = box.bottom + 6;
  const fitsBelow = below + height < innerHeight || box.top < height + 6;
  const top = fitsBelow ? below : box.top - height - 6;
  popover.style.left = `${left}px`;
  popover.style.top = `${Math.max(8, Math.min(top, innerHeight - height - 8))}px`;
}

/** Offer a blob as a download. */
export function saveAs(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const touchDevice = matchMedia("(pointer: coarse)");

/** Return the wording for a mouse or the one for a touch screen. */
export const byPointer = (mouse, touch) => (touchDevice.matches ? touch : mouse);

export function percent(fraction) {
  return fraction > 0 && fraction < 0.005 ? "<1%" : `${Math.round(100 * fraction)}%`;
}
