// Other words for a word of the translation: choose one, and the model finds the rest anew.

import * as api from "./api.js";
import { $, element, focusOne, percent, roving } from "./dom.js";
import { forced } from "./forced.js";
import * as status from "./status.js";
import { hypothesis, prefer, sentence, state } from "./store.js";

const menu = $("word-menu");
let asking = null;
let owner = null;

/** Open the menu at a word of the target pane. */
export async function openMenu(index, word, span) {
  asking?.abort();
  const mine = (asking = new AbortController());
  owner = { index, word };
  const found = hypothesis(index);
  const title = element("h2", { textContent: `Instead of “${found.words[word].text}”` });
  const waiting = element("p", { className: "note", textContent: "Looking …" });
  menu.replaceChildren(title, waiting);
  menu.showPopover();
  place(span);
  try {
    const request = { text: sentence(index).source, translation: found.text, word, n_best: 6, model: state.model.name };
    const others = await api.alternatives(request, mine.signal);
    if (mine !== asking) return;
    if (others.length) fill(title, others);
    else waiting.textContent = "The model has no other word here.";
    place(span);
  } catch (error) {
    if (error.name === "AbortError") return;
    menu.hidePopover();
    status.fault(error);
  }
}

function fill(title, others) {
  const items = others.map((other) =>
    element(
      "button",
      { type: "button", className: "choice", role: "menuitem", tabIndex: -1, onclick: () => take(other.text) },
      element("span", { dir: "auto", lang: state.model.target, textContent: other.word }),
      element("span", { className: "note", textContent: percent(other.probability) }),
    ),
  );
  menu.replaceChildren(title, ...items);
  focusOne(items, items[0]);
}

/** Below the word, inside the window; above it where there is no room below. */
function place(span) {
  const at = span.getBoundingClientRect();
  const { width, height } = menu.getBoundingClientRect();
  const left = Math.max(8, Math.min(at.left, innerWidth - width - 8));
  const below = at.bottom + 6;
  const top = below + height < innerHeight || at.top < height + 6 ? below : at.top - height - 6;
  menu.style.left = `${left}px`;
  menu.style.top = `${Math.max(8, Math.min(top, innerHeight - height - 8))}px`;
}

async function take(text) {
  const { index, word } = owner;
  menu.hidePopover();
  try {
    prefer(index, await forced(sentence(index).source, text));
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
  addEventListener("resize", () => menu.matches(":popover-open") && menu.hidePopover());
}
