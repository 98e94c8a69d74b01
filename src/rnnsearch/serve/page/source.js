// The left pane: the text to translate. A field over a mirror that paints the words below it.

import { $, debounced, element } from "./dom.js";
import { light, revealSentence, unlight } from "./lighting.js";
import { hypothesis, on, sentences, setCurrent, setStale, state } from "./store.js";
import { PAUSE, translateNow } from "./translate.js";

const field = $("source");
const mirror = $("source-mirror");
const later = debounced(translateNow, PAUSE);

/** Put the field's text into the mirror: plain, or with a span for each word once an answer fits it. */
function paint() {
  const text = field.value;
  const parts = [];
  let at = 0;
  const until = (end) => end > at && parts.push(text.slice(at, (at = end)));
  if (text === state.text) {
    sentences().forEach((sentence, index) => {
      (hypothesis(index)?.source_words ?? []).forEach((word, n) => {
        until(sentence.start + word.start);
        at = sentence.start + word.end;
        const shown = text.slice(sentence.start + word.start, at);
        parts.push(element("span", { className: "word", textContent: shown, dataset: { sentence: index, word: n } }));
      });
    });
  }
  until(text.length);
  mirror.replaceChildren(...parts, "\u200b"); // a last empty line has its height too
}

/** The text is another. One that is still being composed (an input method's) is not translated yet. */
function changed(event) {
  paint();
  setStale();
  const length = [...field.value].length;
  $("count").textContent = length ? `${length.toLocaleString("en")} character${length === 1 ? "" : "s"}` : "";
  $("clear").hidden = !length;
  if (event?.isComposing) later.cancel();
  else later();
}

function setText(text) {
  field.value = text;
  changed();
  later.cancel();
  translateNow();
}

/** The mirror's word below a point, although the field lies above it. */
function wordAt(x, y) {
  const found = document.elementsFromPoint(x, y).find((e) => e.parentElement === mirror && e.dataset.word);
  return found && { side: "source", sentence: Number(found.dataset.sentence), word: Number(found.dataset.word) };
}

/** Index of the sentence that the caret is in, where its translation is there; else -1. */
function sentenceAtCaret() {
  if (document.activeElement !== field || field.value !== state.text) return -1;
  const caret = field.selectionStart;
  return sentences().findIndex((s) => s.start <= caret && caret <= s.end);
}

/** The word that the caret is in, so that the keyboard lights words as the mouse does. */
function wordAtCaret() {
  const index = sentenceAtCaret();
  if (index < 0) return;
  setCurrent(index);
  const at = field.selectionStart - sentences()[index].start;
  const word = (hypothesis(index)?.source_words ?? []).findIndex((w) => w.start <= at && at <= w.end);
  if (word >= 0) light({ side: "source", sentence: index, word });
}

export function start() {
  field.addEventListener("input", changed);
  field.addEventListener("compositionend", later);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.ctrlKey) {
      event.preventDefault();
      later.cancel();
      translateNow();
    }
  });
  field.addEventListener("keyup", (event) => event.key.startsWith("Arrow") && wordAtCaret());
  field.addEventListener("click", wordAtCaret);
  field.addEventListener("pointermove", (event) => {
    const word = event.pointerType === "mouse" && wordAt(event.clientX, event.clientY);
    if (word) light(word);
    else unlight();
  });
  field.addEventListener("pointerleave", unlight);
  field.addEventListener("blur", unlight);
  $("clear").addEventListener("click", () => {
    setText("");
    field.focus();
  });
  on("answer", () => {
    paint();
    revealSentence(sentenceAtCaret()); // the translation of what is being typed
  });
  on("target", paint);
  on("model", () => field.value.trim() && translateNow());
  on("replace-source", setText);
  paint();
}
