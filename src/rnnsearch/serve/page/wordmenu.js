// Other words for a word of the translation: choose one, and the model finds the rest anew.

import * as api from "./api.js";
import { $, byPointer, element, focusOne, percent, placeAt, roving } from "./dom.js";
import { forced } from "./forced.js";
import { describe } from "./lighting.js";
import * as status from "./status.js";
import { hypothesis, on, prefer, sentence, state } from "./store.js";

const menu = $("word-menu");
let asking = null;
let owner = null;

/** Open the menu at a word of the target pane. */
export async function openMenu(index, word, span) {
  asking?.abort();
  const mine = (asking = new AbortController());
  owner = { index, word, sentence: sentence(index) };
  const found = hypothesis(index);
  const title = element("h2", { textContent: `Instead of “${found.words[word].text}”` });
  // a menu at a finger may hide the line below the translation
  const head = [title, ...byPointer([], [element("p", { className: "note", textContent: describe(found, "target", word) })])];
  const waiting = element("p", { className: "note", textContent: "Looking …" });
  menu.replaceChildren(...head, waiting);
  menu.showPopover();
  placeAt(menu, span);
  try {
    const request = { text: owner.sentence.source, translation: found.text, word, n_best: 6, model: state.model.name };
    const others = await api.alternatives(request, mine.signal);
    if (mine !== asking) return;
    if (others.length) fill(head, others);
    else waiting.textContent = "The model has no other word here.";
    placeAt(menu, span);
  } catch (error) {
    if (error.name === "AbortError") return;
    menu.hidePopover();
    status.fault(error);
  }
}

function fill(head, others) {
  const items = others.map((other) =>
    element(
      "button",
      { type: "button", className: "choice", role: "menuitem", tabIndex: -1, onclick: () => take(other.text) },
      element("span", { dir: "auto", lang: state.model.target, textContent: other.word }),
      element("span", { className: "note", textContent: percent(other.probability) }),
    ),
  );
  menu.replaceChildren(...head, ...items);
  focusOne(items, items[0]);
}

async function take(text) {
  const { index, word, sentence: of } = owner;
  menu.hidePopover();
  try {
    prefer(of, await forced(of.source, text));
    status.announce(text);
    focusWord(index, word);
  } catch (error) {
    status.fault(error);
  }
}

function focusWord(index, word) {
  const words = $("target").querySelectorAll(".word");
  const at = [...words].find((w) => Number(w.dataset.sentence) === index && Number(w.dataset.word) === word);
  if (at) focusOne(words, at);
}

export function start() {
  roving(menu, ".choice");
  menu.addEventListener("keydown", (event) => event.key === "Tab" && menu.hidePopover());
  menu.addEventListener("toggle", (event) => {
    if (event.newState === "closed") asking?.abort();
    if (event.newState === "closed" && owner && [document.body, null].includes(document.activeElement)) {
      focusWord(owner.index, owner.word);
    }
  });
  const close = () => menu.matches(":popover-open") && menu.hidePopover();
  addEventListener("resize", close);
  on("answer", close); // its word is no longer there
}
