// Highlights aligned words: by the links of the model's aligner, or in proportion to attention weights.

import { $, byPointer, percent } from "./dom.js";
import { hypothesis, state } from "./store.js";
import { languageName } from "./text.js";

const MIN_WEIGHT = 0.04; // lower attention weights are neither coloured nor named
const MAX_NAMED_WORDS = 4;
const HINT = byPointer(
  "Point at a word to see its alignment; click a translated word for alternatives.",
  "Tap a word to see its alignment; a translated word also shows alternatives.",
);
let highlighted = []; // spans; the first is the active word

/** Return true if alignment links are used: an aligner's, which are more accurate, or without attention weights. */
function usesLinks(shown) {
  return !shown.attention || (state.model?.aligner && shown.alignment.length > 0);
}

/** Return the aligned words of the other side as [index, weight], highest weight first. */
function alignedWords(shown, side, word) {
  if (usesLinks(shown)) {
    const [here, there] = side === "target" ? [1, 0] : [0, 1];
    const links = shown.alignment.filter((link) => link[here] === word);
    return links.map((link) => [link[there], 1]);
  }
  const weights =
    side === "target"
      ? (shown.attention[word] ?? [])
      : shown.attention.map((row) => row[word] ?? 0);
  const entries = [...weights.entries()].filter(([, weight]) => weight >= MIN_WEIGHT);
  return entries.sort((a, b) => b[1] - a[1]);
}

function spanOf(side, sentence, word) {
  const container = $(side === "target" ? "target" : "source-mirror");
  return container.querySelector(`[data-sentence="${sentence}"][data-word="${word}"]`);
}

/**
 * Highlight a word and the words aligned with it, and describe it below the translation.
 * @param {{side: "source" | "target", sentence: number, word: number}} position
 */
export function highlight({ side, sentence, word }) {
  const shown = hypothesis(sentence);
  const active = shown && spanOf(side, sentence, word);
  if (!active || highlighted[0] === active) return;
  clearHighlight();
  active.classList.add("is-active");
  highlighted = [active];
  const aligned = alignedWords(shown, side, word);
  const otherSide = side === "target" ? "source" : "target";
  for (const [index, weight] of aligned) {
    const span = spanOf(otherSide, sentence, index);
    if (!span) continue;
    span.style.setProperty("--weight", Math.min(1, weight).toFixed(3));
    span.classList.add("is-aligned");
    highlighted.push(span);
  }
  if (highlighted.length > 1) reveal(highlighted[1]);
  $("word-details").textContent = describeWord(shown, side, word, aligned);
}

export function clearHighlight() {
  for (const span of highlighted) {
    span.classList.remove("is-aligned", "is-active");
    span.style.removeProperty("--weight");
  }
  highlighted = [];
  $("word-details").textContent = hypothesis() ? HINT : "";
}

function isInView(span) {
  const [box, pane] = [span, span.closest(".scroll-area")].map((e) => e.getBoundingClientRect());
  return box.top >= pane.top && box.bottom <= pane.bottom;
}

/** Scroll the pane of a word, but not the page, until the word is visible. */
function reveal(span) {
  if (isInView(span)) return;
  const pane = span.closest(".scroll-area");
  const offset = span.getBoundingClientRect().top - pane.getBoundingClientRect().top;
  pane.scrollTop += offset - pane.clientHeight / 3;
}

/** Scroll both panes until a word of the sentence is visible. */
export function revealSentence(index) {
  for (const id of ["source-mirror", "target"]) {
    const words = [...$(id).querySelectorAll(`[data-sentence="${index}"]`)];
    if (words.length && !words.some(isInView)) reveal(words[0]);
  }
}

const REPLACED_BY = {
  copy: ", copied from the source",
  dictionary: ", from the dictionary",
  spelled: ", spelled by the model",
};

/** Describe a word: its confidence, how it was replaced, and the words aligned with it. */
export function describeWord(shown, side, index, aligned = alignedWords(shown, side, index)) {
  const isTarget = side === "target";
  const word = (isTarget ? shown.words : shown.source_words)[index];
  const otherWords = isTarget ? shown.source_words : shown.words;
  const probability = isTarget ? (word.confidence ?? word.probability) : null;
  const confidence = probability == null ? "" : `, ${percent(probability)} confidence`;
  const replaced = REPLACED_BY[word.replaced] ?? "";
  const names = aligned.slice(0, MAX_NAMED_WORDS).map(([n, weight]) => {
    const text = otherWords[n]?.text ?? "";
    return usesLinks(shown) ? text : `${text} ${percent(weight)}`.trim();
  });
  const alignment = names.length ? ` · aligned with ${names.join(", ")}` : "";
  const others = isTarget ? otherSources(shown, index) : "";
  return `${word.text}${confidence}${replaced}${alignment}${others}`;
}

/** Describe the words of further sources that are aligned with a word of the translation. */
function otherSources(shown, index) {
  return (state.model?.sources ?? []).slice(1).map((code) => {
    const { words, alignment } = shown.sources?.[code] ?? { words: [], alignment: [] };
    const links = alignment.filter(([, target]) => target === index).slice(0, MAX_NAMED_WORDS);
    return links.length ? ` · ${languageName(code)}: ${links.map(([n]) => words[n].text).join(", ")}` : "";
  }).join("");
}
