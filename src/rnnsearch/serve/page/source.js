// The source pane: a text area over a mirror that paints the highlighted words.

import { TYPING_PAUSE } from "./backend.js";
import { $, debounced, element } from "./dom.js";
import { clearHighlight, highlight, revealSentence } from "./highlight.js";
import { canGrow, translateWords } from "./simultaneous.js";
import { hypothesis, on, sentences, setCurrent, setStale, state } from "./store.js";
import { cancelTranslation, hasText, translateNow } from "./translate.js";

const field = $("source");
const mirror = $("source-mirror");
const translateSoon = debounced(translateNow, TYPING_PAUSE);
const COMPLETE_PAUSE = 1000; // milliseconds after which a text that ends with a sentence is complete
const translateCompleteSoon = debounced(translateNow, COMPLETE_PAUSE);
const SENTENCE_END = /[.!?\u2026\u3002\uff01\uff1f\u061f\u0964]\p{P}*\s*$/u;
const PASTED = ["insertFromPaste", "insertFromDrop"]; // input that is complete

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

/** Translate the text that the user has typed: soon, or word by word. */
function translateTyped() {
  cancelPending();
  if (!state.growing) {
    translateSoon();
    return;
  }
  cancelTranslation();
  translateWords();
  if (SENTENCE_END.test(field.value)) translateCompleteSoon();
}

function onInput(event) {
  renderMirror();
  state.growing = Boolean(event) && !PASTED.includes(event.inputType) && canGrow(field.value);
  setStale();
  const length = [...field.value].length;
  const unit = length === 1 ? "character" : "characters";
  $("count").textContent = length ? `${length.toLocaleString("en")} ${unit}` : "";
  $("clear").hidden = !length;
  if (event?.isComposing) cancelPending(); // an input method is composing: not text yet
  else translateTyped();
}

function cancelPending() {
  translateSoon.cancel();
  translateCompleteSoon.cancel();
}

/** Translate the text now. */
function translateAll() {
  cancelPending();
  translateNow();
}

function setText(text) {
  field.value = text;
  onInput();
  translateAll();
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
  field.addEventListener("compositionend", translateTyped);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.ctrlKey) {
      event.preventDefault();
      translateAll();
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
  field.addEventListener("blur", () => {
    clearHighlight();
    // The field stays the active element of a window that is left.
    if (state.growing && document.activeElement !== field) translateAll();
  });
  $("clear").addEventListener("click", () => {
    setText("");
    field.focus();
  });
  on("answer", () => {
    renderMirror();
    revealSentence(sentenceAtCaret());
  });
  on("target", renderMirror);
  on("model", () => hasText() && translateAll());
  on("not-simultaneous", () => hasText() && translateAll());
  on("replace-source", setText);
  renderMirror();
}
