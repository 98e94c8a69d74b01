// A sentence's given translation as the model sees it: its words, their probabilities and attention.

import * as api from "./api.js";
import { cut } from "./text.js";
import { state } from "./store.js";

/** The hypothesis of `text` for a source sentence. Without an answer of the model's, its words alone. */
export async function forced(source, text, signal) {
  if (!text.trim()) return bare(source, text);
  const answer = await api.translate({ text: source, prefix: text, model: state.model.name }, signal);
  const best = answer.sentences.length === 1 ? answer.sentences[0].best[0] : null;
  return best?.text.startsWith(text) ? cut(best, text.length) : bare(source, text);
}

function bare(source, text) {
  const words = (of) =>
    [...of.matchAll(/\S+/g)].map((m) => ({ text: m[0], start: m.index, end: m.index + m[0].length }));
  return {
    text,
    source_words: words(source),
    words: words(text).map((word) => ({ ...word, probability: null })),
    alignment: [],
    attention: null,
  };
}
