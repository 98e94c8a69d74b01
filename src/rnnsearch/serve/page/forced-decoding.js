// Scores and attention of a translation that the user chose or wrote.

import * as backend from "./backend.js";
import { state } from "./store.js";
import { truncated } from "./text.js";

/** Return the hypothesis of a given translation; without scores and attention if the model cannot produce it. */
export async function forceDecode(source, text, signal) {
  if (!text.trim()) return unscored(source, text);
  const request = { text: source, prefix: text, model: state.model.name };
  const answer = await backend.translate(request, signal);
  const best = answer.sentences.length === 1 ? answer.sentences[0].best[0] : null;
  return best?.text.startsWith(text) ? truncated(best, text.length) : unscored(source, text);
}

/** Return a hypothesis without scores and attention. */
export function unscored(source, text) {
  return {
    text,
    source_words: splitWords(source),
    words: splitWords(text).map((word) => ({ ...word, probability: null })),
    alignment: [],
    attention: null,
  };
}

function splitWords(text) {
  const matches = [...text.matchAll(/\S+/g)];
  return matches.map(({ 0: word, index }) => ({ text: word, start: index, end: index + word.length }));
}
