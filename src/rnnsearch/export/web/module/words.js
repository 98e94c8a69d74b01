// Words of a sentence, and word alignments from attention weights of tokens (text/alignments.py, text/alignments.py).

import { WHITE_SPACE } from "./pretokenizer.js";

const NO_WORD = -1;
const OUTER_SPACE = new RegExp(`^[${WHITE_SPACE}]+|[${WHITE_SPACE}]+$`, "g");

/** Return [start, end) of each word. Only ASCII white space separates words. */
export function wordSpans(text) {
  const matches = [...text.matchAll(/[^ \t\n\r\f\v]+/g)];
  return matches.map(({ 0: word, index }) => [index, index + word.length]);
}

/** Return the index of each token's word, or NO_WORD. */
function wordsOfTokens({ text, offsets }) {
  const spans = wordSpans(text);
  return offsets.map(([start, end]) => {
    let low = 0;
    let high = spans.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (spans[middle][1] <= start) low = middle + 1;
      else high = middle;
    }
    const isInside = low < spans.length && spans[low][0] < Math.max(end, start + 1);
    return isInside ? low : NO_WORD;
  });
}

function isPunctuation(text, start, end) {
  const splitsPair = end > start && /[\ud800-\udbff]/.test(text[end - 1] ?? "");
  const token = text.slice(start, splitsPair ? end + 1 : end);
  return /^[\p{P}\p{S}]+$/u.test(token.replace(OUTER_SPACE, ""));
}

/** Remove punctuation tokens from words that also have other tokens. */
function withoutPunctuation(words, { text, offsets }) {
  const isMark = offsets.map(([start, end]) => isPunctuation(text, start, end));
  const spokenWords = new Set(words.filter((_, n) => !isMark[n]));
  return words.map((word, n) => (isMark[n] && spokenWords.has(word) ? NO_WORD : word));
}

/**
 * List each target token once per word: an unknown token may stand for several words.
 * @returns {{tokens: number[], words: number[]}}
 */
function expandTargetTokens(target, wordOfToken) {
  const spans = wordSpans(target.text);
  const tokens = [];
  const words = [];
  wordOfToken.forEach((first, token) => {
    const [start, end] = target.offsets[token];
    tokens.push(token);
    words.push(first);
    if (first === NO_WORD) return;
    for (let word = first + 1; word < spans.length; word++) {
      if (spans[word][0] < start || spans[word][0] >= end) continue;
      tokens.push(token);
      words.push(word);
    }
  });
  return { tokens, words };
}

/** Sum attention over the tokens of each source word, and average it over the tokens of each target word. */
function attentionOfWords(attention, targetWords, sourceWords) {
  const [height, width] = [targetWords, sourceWords].map((words) => Math.max(NO_WORD, ...words) + 1);
  const weights = Array.from({ length: height }, () => new Array(width).fill(0));
  const counts = new Array(height).fill(0);
  targetWords.forEach((row, i) => {
    if (row === NO_WORD) return;
    counts[row] += 1;
    sourceWords.forEach((column, j) => {
      if (column !== NO_WORD) weights[row][column] += attention[i][j];
    });
  });
  return weights.map((row, n) => row.map((weight) => weight / Math.max(1, counts[n])));
}

/** Link the word of each target token to the word of the source token with the highest weight. */
function linksOf(attention, targetWords, sourceWords) {
  const columns = [...sourceWords.keys()].filter((j) => sourceWords[j] !== NO_WORD);
  const links = new Map();
  targetWords.forEach((word, i) => {
    if (word === NO_WORD || !columns.length) return;
    const best = columns.reduce((max, j) => (attention[i][j] > attention[i][max] ? j : max));
    if (attention[i][best] > 0) links.set(`${sourceWords[best]} ${word}`, [sourceWords[best], word]);
  });
  return [...links.values()].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
}

/**
 * Return the word alignment of a translation.
 * @param {{text, offsets}} source
 * @param {{text, offsets}} target
 * @param {Float32Array[] | null} attention Weights [tokens][source tokens].
 * @param {boolean} alignsReadWords True if a token's alignment is the attention at the next position, which has read
 *   it. A truncated translation has no such row for its last token.
 */
export function alignWords(source, target, attention, alignsReadWords) {
  const tokenWords = wordsOfTokens(target);
  if (!attention) return { wordAttention: null, alignment: [], tokenWords };
  const sourceWords = withoutPunctuation(wordsOfTokens(source), source);
  const { tokens, words } = expandTargetTokens(target, withoutPunctuation(tokenWords, target));
  const noWeights = new Array(sourceWords.length).fill(0);
  const rows = tokens.map((n) => attention[alignsReadWords ? n + 1 : n] ?? noWeights);
  const weights = attentionOfWords(rows, words, sourceWords);
  const width = wordSpans(source.text).length;
  const wordAttention = wordSpans(target.text).map((_, i) =>
    Array.from({ length: width }, (_, j) => weights[i]?.[j] ?? 0),
  );
  return { wordAttention, alignment: linksOf(rows, words, sourceWords), tokenWords };
}
