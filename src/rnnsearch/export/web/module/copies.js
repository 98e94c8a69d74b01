// Translations of texts without letters, such as "5" or "---": the texts themselves (translator/copies.py).

import { hasLetters, isInvisible } from "./letters.js";

/**
 * Return the indices of the texts that are their own translation.
 * @param {{text}[]} sources
 * @param {Tokenizer} tokenizer The source tokenizer. If it has no letters, digits are a language of their own.
 * @param {string[] | null} prefixes Text that the translations begin with, one per text.
 * @returns {Set<number>}
 */
export function copiedTexts(sources, tokenizer, prefixes) {
  const isCopy = ({ text }, n) =>
    !hasLetters(text) && !isInvisible(text) && text.startsWith(prefixes?.[n] ?? "");
  return new Set(tokenizer.hasLetters ? [...sources.keys()].filter((n) => isCopy(sources[n], n)) : []);
}

/**
 * Return a text as the result of a search that is certain of each token.
 * @param {{ids, offsets}} source The text as source tokens.
 * @param {{ids, offsets}} target The same text as target tokens.
 */
export function copyHypothesis(source, target, attends, alignsReadWords) {
  const weights = overlap(source, target);
  const rows = alignsReadWords ? [weights[0], ...weights.slice(0, -1)] : weights;
  return {
    tokens: target.ids,
    tokenScores: new Array(weights.length).fill(0),
    attention: attends ? rows : null,
    finished: true,
  };
}

/** Return weights [target tokens][source tokens] with EOS: the fraction of a token's characters in each token. */
function overlap(source, target) {
  const width = source.ids.length + 1;
  const spaces = new Map();
  source.offsets.forEach(([start, end], j) => start === end && spaces.set(start, j));
  const rows = target.offsets.map(([start, tokenEnd]) => {
    const row = new Float32Array(width);
    if (start === tokenEnd && spaces.has(start)) {
      row[spaces.get(start)] = 1;
      return row;
    }
    const end = Math.max(tokenEnd, start + 1); // a token that is only a space covers no character
    for (let j = firstAfter(source.offsets, start); j < width - 1 && source.offsets[j][0] < end; j++) {
      row[j] = Math.min(end, source.offsets[j][1]) - Math.max(start, source.offsets[j][0]);
    }
    const total = row.reduce((sum, weight) => sum + weight, 0);
    if (total) return row.map((weight) => weight / total);
    row[width - 1] = 1;
    return row;
  });
  const last = new Float32Array(width);
  last[width - 1] = 1;
  return [...rows, last];
}

/** Return the index of the first token that ends after a character. */
function firstAfter(offsets, start) {
  let low = 0;
  let high = offsets.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (offsets[middle][1] <= start) low = middle + 1;
    else high = middle;
  }
  return low;
}
