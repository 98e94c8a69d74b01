// The menu of alternatives for one word; the model translates the rest of the sentence after the chosen word.

import * as backend from "./backend.js";
import { $, byPointer, element, focusItem, percent, placePopover, rovingFocus } from "./dom.js";
import { forceDecode } from "./forced-decoding.js";
import { describeWord } from "./highlight.js";
import * as status from "./status.js";
import { hypothesis, on, prefer, sentence, state } from "./store.js";

const COUNT = 6;
const menu = $("word-menu");
let running = null; // the AbortController of the running request
let owner = null; // the word that the menu belongs to: {index, word, sentence}

/** Open the menu at a word of the target pane. */
export async function openWordMenu(index, word, span) {
  running?.abort();
  const controller = new AbortController();
  running = controller;
  owner = { index, word, sentence: sentence(index) };
  const shown = hypothesis(index);
  const title = element("h2", { textContent: `Alternatives for “${shown.words[word].text}”` });
  // On a touch screen the menu may cover the line with the word's details.
  const textContent = describeWord(shown, "target", word);
  const details = byPointer([], [element("p", { className: "note", textContent })]);
  const header = [title, ...details];
  const placeholder = element("p", { className: "note", textContent: "Loading…" });
  menu.replaceChildren(...header, placeholder);
  menu.showPopover();
  placePopover(menu, span);
  if (owner.sentence.texts) {
    placeholder.textContent = "Alternatives for words need a sentence in one language.";
    return;
  }
  try {
    const request = {
      text: owner.sentence.source,
      translation: shown.text,
      word,
      n_best: COUNT,
      model: state.model.name,
    };
    const alternatives = await backend.alternatives(request, controller.signal);
    if (controller !== running) return;
    if (alternatives.length) showItems(header, alternatives);
    else placeholder.textContent = "No alternatives for this word.";
    placePopover(menu, span);
  } catch (error) {
    if (error.name === "AbortError") return;
    menu.hidePopover();
    status.showError(error);
  }
}

function showItems(header, alternatives) {
  const items = alternatives.map(menuItem);
  menu.replaceChildren(...header, ...items);
  focusItem(items, items[0]);
}

function menuItem({ word, probability, text }) {
  return element(
    "button",
    {
      type: "button",
      className: "choice",
      role: "menuitem",
      tabIndex: -1,
      onclick: () => choose(text),
    },
    element("span", { dir: "auto", lang: state.model.target, textContent: word }),
    element("span", { className: "note", textContent: percent(probability) }),
  );
}

async function choose(text) {
  const { index, word, sentence: entry } = owner;
  menu.hidePopover();
  try {
    prefer(entry, await forceDecode(entry.source, text));
    status.announce(text);
    focusWord(index, word);
  } catch (error) {
    status.showError(error);
  }
}

function focusWord(index, word) {
  const spans = [...$("target").querySelectorAll(".word")];
  const isWord = ({ dataset }) => Number(dataset.sentence) === index && Number(dataset.word) === word;
  const span = spans.find(isWord);
  if (span) focusItem(spans, span);
}

export function start() {
  rovingFocus(menu, ".choice");
  menu.addEventListener("keydown", (event) => event.key === "Tab" && menu.hidePopover());
  menu.addEventListener("toggle", (event) => {
    if (event.newState !== "closed") return;
    running?.abort();
    const focusLost = [document.body, null].includes(document.activeElement);
    if (owner && focusLost) focusWord(owner.index, owner.word);
  });
  const close = () => menu.matches(":popover-open") && menu.hidePopover();
  addEventListener("resize", close);
  on("answer", close); // the word may no longer exist
}
