// The words of a raw sentence, and from attention over symbols to links between words (text/spans.py, text/alignments.py,
// translation.py).

import { SPACE } from "./pieces.js";

const NO_WORD = -1;
const EDGES = new RegExp(`^[${SPACE}]+|[${SPACE}]+$`, "g");

/** Where each word begins and ends; ASCII white space is what separates words. */
export const wordSpans = (text) => [...text.matchAll(/[^ \t\n\r\f\v]+/g)].map((m) => [m.index, m.index + m[0].length]);

/** The word that each symbol lies in, or -1. */
function wordOfSymbol(text, offsets) {
  const spans = wordSpans(text);
  return offsets.map(([start, end]) => {
    let [low, high] = [0, spans.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (spans[middle][1] <= start) low = middle + 1;
      else high = middle;
    }
    return low < spans.length && spans[low][0] < Math.max(end, start + 1) ? low : NO_WORD;
  });
}

function isPunctuation(text, start, end) {
  if (/[\ud800-\udbff]/.test(text[end - 1] ?? "") && end > start) end++; // of a character in two units both
  return /^[\p{P}\p{S}]+$/u.test(text.slice(start, end).replace(EDGES, ""));
}

/** The same, where punctuation that has a symbol of its own beside others in its word is of none. */
function withoutPunctuation(found, text, offsets) {
  const marks = offsets.map(([start, end]) => isPunctuation(text, start, end));
  const spoken = new Set(found.filter((_, n) => !marks[n]));
  return found.map((word, n) => (marks[n] && spoken.has(word) ? NO_WORD : word));
}

/** [target words][source words]: the mean over a target word's symbols of the sum over a source word's. */
function ofWords(attention, rows, columns) {
  const [height, width] = [rows, columns].map((own) => Math.max(NO_WORD, ...own) + 1);
  const found = Array.from({ length: height }, () => new Array(width).fill(0));
  const counts = new Array(height).fill(0);
  rows.forEach((row, i) => {
    if (row === NO_WORD) return;
    counts[row]++;
    columns.forEach((column, j) => column === NO_WORD || (found[row][column] += attention[i][j]));
  });
  return found.map((row, n) => row.map((sum) => sum / Math.max(1, counts[n])));
}

/** A symbol once for each word: an unknown one may stand for several. */
function eachWord(target, words) {
  const spans = wordSpans(target.text);
  const [symbols, found] = [[], []];
  words.forEach((word, n) => {
    const [start, end] = target.offsets[n];
    const more = word === NO_WORD ? [] : [...spans.keys()].slice(word + 1);
    for (const w of [word, ...more.filter((w) => start <= spans[w][0] && spans[w][0] < end)]) {
      symbols.push(n);
      found.push(w);
    }
  });
  return [symbols, found];
}

/** Each symbol of a row links its word to that of the column of the most, the first of equals. */
function links(attention, rows, columns) {
  const own = [...columns.keys()].filter((j) => columns[j] !== NO_WORD);
  const found = new Map();
  rows.forEach((word, i) => {
    if (word === NO_WORD || !own.length) return;
    const most = own.reduce((best, j) => (attention[i][j] > attention[i][best] ? j : best));
    if (attention[i][most] > 0) found.set(`${columns[most]} ${word}`, [columns[most], word]);
  });
  return [...found.values()];
}

const sorted = (pairs) => pairs.sort((a, b) => a[0] - b[0] || a[1] - b[1]);

/** What a translation says of words: {wordAttention, alignment, tokenWords}. attention: [tokens][source tokens], of the
 * symbols that were predicted or, ofRead, just read, whose rows are one further on, that of a cut translation's last zeros. */
export function inWords(source, target, attention, ofRead) {
  const rows = wordOfSymbol(target.text, target.offsets);
  if (!attention) return { wordAttention: null, alignment: [], tokenWords: rows };
  const columns = withoutPunctuation(wordOfSymbol(source.text, source.offsets), source.text, source.offsets);
  const [symbols, words] = eachWord(target, withoutPunctuation(rows, target.text, target.offsets));
  const spoken = symbols.map((n) => attention[ofRead ? n + 1 : n] ?? new Array(columns.length).fill(0));
  const found = ofWords(spoken, words, columns);
  const width = wordSpans(source.text).length;
  const wordAttention = wordSpans(target.text).map((_, n) => Array.from({ length: width }, (_, i) => found[n]?.[i] ?? 0));
  return { wordAttention, alignment: sorted(links(spoken, words, columns)), tokenWords: rows };
}
