// Keys for everything, and the page that lists them.

import { $, element } from "./dom.js";

/** Alt and a key, by where it is on the keyboard (Alt changes what a key types on some systems), and its button. */
const KEYS = {
  KeyA: ["A", "Show other translations of the sentence", "show-alternatives"],
  KeyM: ["M", "Show attention as a heat map", "show-map"],
  KeyW: ["W", "Write the translation with completion", "show-writer"],
  KeyP: ["P", "Shade words by probability", "show-confidence"],
  KeyC: ["C", "Copy the translation", "copy"],
  KeyX: ["X", "Swap the languages", "swap"],
  KeyL: ["L", "Light or dark", "theme"],
};

const TABLE = [
  ["Anywhere", [...Object.values(KEYS).map(([key, said]) => [["Alt", key], said]), [["?"], "Show these keys, outside a field"]]],
  ["In the text", [
    [["Ctrl", "Enter"], "Translate now"],
    [["←", "→"], "Light the words aligned with the one at the caret"],
  ]],
  ["In the translation", [
    [["←", "→"], "Go from word to word"],
    [["Enter"], "Show other words"],
    [["Esc"], "Close them"],
  ]],
  ["When writing", [
    [["Tab"], "Take the next word"],
    [["Ctrl", "Enter"], "Take all the rest"],
    [["Enter"], "Use the text"],
    [["Esc"], "Leave the field"],
  ]],
  ["In the heat map", [
    [["←", "↑", "→", "↓"], "Go from cell to cell"],
    [["+", "−", "0"], "Zoom in, zoom out, fit"],
  ]],
];

function tableOf([title, rows]) {
  const lines = rows.map(([keys, said]) => {
    const names = keys.flatMap((key, n) => [n ? " " : "", element("kbd", { textContent: key })]);
    return element("tr", {}, element("th", { scope: "row" }, ...names), element("td", { textContent: said }));
  });
  return element("table", {}, element("caption", { textContent: title }), element("tbody", {}, ...lines));
}

const MAC = /Mac|iP(hone|ad|od)/.test(navigator.platform); // where Alt (Option) types letters of its own

const inField = (target) => target.matches?.("textarea, input, select, [contenteditable]");

function pressed(event) {
  if (document.querySelector("dialog[open]") || (MAC && event.altKey && inField(event.target))) return;
  if (event.altKey && !event.ctrlKey && !event.metaKey && !event.shiftKey && KEYS[event.code]) {
    event.preventDefault();
    const button = $(KEYS[event.code][2]);
    if (button.checkVisibility()) button.click();
  } else if (event.key === "?" && !inField(event.target)) {
    event.preventDefault();
    $("help").showModal();
  }
}

export function start() {
  $("help-body").append(...TABLE.map(tableOf));
  $("help-open").addEventListener("click", () => $("help").showModal());
  document.addEventListener("keydown", pressed);
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // the backdrop
  }
}
