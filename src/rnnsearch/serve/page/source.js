// The source pane: a text area over a mirror that paints the highlighted words.

import { TYPING_PAUSE } from "./backend.js";
import { $, debounced, element } from "./dom.js";
import { clearHighlight, highlight, revealSentence } from "./highlight.js";
import { hypothesis, on, sentences, setCurrent, setStale, state } from "./store.js";
import { hasText, translateNow } from "./translate.js";

const field = $("source");
const mirror = $("source-mirror");
const translateSoon = debounced(translateNow, TYPING_PAUSE);

/** Copy the text into the mirror, with a span per word if the translation is of this text. */
function renderMirror() {
  const text = field.value;
  const nodes = [];
  let position = 0;
  const appendUntil = (end) => {
    if (end > position) nodes.push(text.slice(position, end));
    position = end;
  };
  if (text === state.text) {
    sentences().forEach(({ start }, sentence) => {
      (hypothesis(sentence)?.source_words ?? []).forEach((word, index) => {
        appendUntil(start + word.start);
        position = start + word.end;
        const textContent = text.slice(start + word.start, position);
        const dataset = { sentence, word: index };
        nodes.push(element("span", { className: "word", textContent, dataset }));
      });
    });
  }
  appendUntil(text.length);
  mirror.replaceChildren(...nodes, "\u200b"); // gives an empty last line its height
}

function onInput(event) {
  renderMirror();
  setStale();
  const length = [...field.value].length;
  const unit = length === 1 ? "character" : "characters";
  $("count").textContent = length ? `${length.toLocaleString("en")} ${unit}` : "";
  $("clear").hidden = !length;
  if (event?.isComposing) translateSoon.cancel(); // an input method is composing: not text yet
  else translateSoon();
}

function setText(text) {
  field.value = text;
  onInput();
  translateSoon.cancel();
  translateNow();
}

/** Return the word of the mirror at a point; the text area itself covers it. */
function wordAt(x, y) {
  const isWord = (node) => node.parentElement === mirror && node.dataset.word;
  const span = document.elementsFromPoint(x, y).find(isWord);
  if (!span) return null;
  return { side: "source", sentence: Number(span.dataset.sentence), word: Number(span.dataset.word) };
}

/** Return the index of the sentence at the caret, or -1 if there is no translation of this text. */
function sentenceAtCaret() {
  if (document.activeElement !== field || field.value !== state.text) return -1;
  const caret = field.selectionStart;
  return sentences().findIndex(({ start, end }) => start <= caret && caret <= end);
}

/** Highlight the word at the caret, so that the keyboard does what the mouse does. */
function highlightAtCaret() {
  const sentence = sentenceAtCaret();
  if (sentence < 0) return;
  setCurrent(sentence);
  const caret = field.selectionStart - sentences()[sentence].start;
  const words = hypothesis(sentence)?.source_words ?? [];
  const word = words.findIndex(({ start, end }) => start <= caret && caret <= end);
  if (word >= 0) highlight({ side: "source", sentence, word });
}

export function start() {
  field.addEventListener("input", onInput);
  field.addEventListener("compositionend", translateSoon);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.ctrlKey) {
      event.preventDefault();
      translateSoon.cancel();
      translateNow();
    }
  });
  field.addEventListener("keyup", (event) => event.key.startsWith("Arrow") && highlightAtCaret());
  field.addEventListener("click", highlightAtCaret);
  field.addEventListener("pointermove", (event) => {
    const word = event.pointerType === "mouse" && wordAt(event.clientX, event.clientY);
    if (word) highlight(word);
    else clearHighlight();
  });
  field.addEventListener("pointerleave", clearHighlight);
  field.addEventListener("blur", clearHighlight);
  $("clear").addEventListener("click", () => {
    setText("");
    field.focus();
  });
  on("answer", () => {
    renderMirror();
    revealSentence(sentenceAtCaret());
  });
  on("target", renderMirror);
  on("model", () => hasText() && translateNow());
  on("replace-source", setText);
  renderMirror();
}
