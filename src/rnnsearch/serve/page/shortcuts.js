// Keyboard shortcuts, and the dialog that lists them.

import { $, element } from "./dom.js";

/** Shortcuts with Alt by physical key, because Alt changes the typed character on some systems: key, action, button. */
const ALT_KEYS = {
  KeyA: ["A", "Show alternative translations of the sentence", "show-alternatives"],
  KeyM: ["M", "Show the attention heat map", "show-map"],
  KeyW: ["W", "Write the translation with suggestions", "show-writer"],
  KeyP: ["P", "Shade words by confidence", "show-confidence"],
  KeyC: ["C", "Copy the translation", "copy"],
  KeyX: ["X", "Swap the languages", "swap"],
  KeyL: ["L", "Toggle the dark theme", "theme"],
};

const altShortcuts = Object.values(ALT_KEYS).map(([key, action]) => [["Alt", key], action]);

const GROUPS = [
  ["Anywhere", [...altShortcuts, [["?"], "Show this help (outside text fields)"]]],
  ["Source text", [
    [["Ctrl", "Enter"], "Translate now"],
    [["←", "→"], "Highlight aligned words at the caret"],
  ]],
  ["Translation", [
    [["←", "→"], "Move between words"],
    [["Enter"], "Show alternatives for a word"],
    [["Esc"], "Close the menu"],
  ]],
  ["Writing", [
    [["Tab"], "Accept the next word"],
    [["Ctrl", "Enter"], "Accept the whole suggestion"],
    [["Enter"], "Use the translation"],
    [["Esc"], "Leave the field"],
  ]],
  ["Heat map", [
    [["←", "↑", "→", "↓"], "Move between cells"],
    [["+", "−", "0"], "Zoom in, zoom out, fit to window"],
  ]],
];

function helpTable([title, shortcuts]) {
  const rows = shortcuts.map(([keys, action]) => {
    const kbds = keys.flatMap((key, n) => [n ? " " : "", element("kbd", { textContent: key })]);
    const header = element("th", { scope: "row" }, ...kbds);
    return element("tr", {}, header, element("td", { textContent: action }));
  });
  const caption = element("caption", { textContent: title });
  return element("table", {}, caption, element("tbody", {}, ...rows));
}

const isMac = /Mac|iP(hone|ad|od)/.test(navigator.platform); // Alt (Option) types characters there

const isField = (target) => target.matches?.("textarea, input, select, [contenteditable]");

function onKeydown(event) {
  const typesCharacter = isMac && event.altKey && isField(event.target);
  if (typesCharacter || document.querySelector("dialog[open]")) return;
  const onlyAlt = event.altKey && !event.ctrlKey && !event.metaKey && !event.shiftKey;
  if (onlyAlt && ALT_KEYS[event.code]) {
    event.preventDefault();
    const [, , id] = ALT_KEYS[event.code];
    if ($(id).checkVisibility()) $(id).click();
  } else if (event.key === "?" && !isField(event.target)) {
    event.preventDefault();
    $("help").showModal();
  }
}

export function start() {
  $("help-body").append(...GROUPS.map(helpTable));
  $("help-open").addEventListener("click", () => $("help").showModal());
  document.addEventListener("keydown", onKeydown);
  for (const dialog of document.querySelectorAll("dialog")) {
    const close = () => dialog.close();
    dialog.querySelector("[data-close]").addEventListener("click", close);
    dialog.addEventListener("click", (event) => event.target === dialog && close()); // the backdrop
  }
}
