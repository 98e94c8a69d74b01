// Sentences in capital letters and headlines in title case, which a model reads in ordinary letter case, and
// translations in capital letters (text/letter_case.py).

import { mainLanguage, SPACE_CLASS } from "./normalization.js";

const MIN_UPPER_WORDS = 2; // of a sentence in capital letters; a single word may be an acronym
const MIN_TITLE_WORDS = 4; // of a headline in title case; fewer words may be a name
const LETTER = "[\\p{L}\\p{Nl}\\p{No}]";
const LETTERS = new RegExp(`${LETTER}+`, "gu");
const JOINED_LETTERS = new RegExp(`${LETTER}+(?:['’]${LETTER}+)*`, "gu");
const ENDS_WITH_LETTER = new RegExp(`${LETTER}$`, "u");
const CONTRACTION = /^['’](?:[stmd]|re|ve|ll)$/i;
const WORD = new RegExp(`[^${SPACE_CLASS}]+`, "gu");
const SYMBOL = /[0-9@_/\\{}<>%$#&=+|[\]~^*\0-\x1f]/u;
const EDGES = `.,:;!?"'()«»“”„‚‘’`;
const TURKIC = ["tr", "az"];
/** Names that are read in place of placeholders (text/vocabulary.py). */
const SUBSTITUTE_NAMES = new Set(
  "Tom Maria Boston Berlin Paris Anna John London Peter Robert Linda Madrid".split(" "),
);

const isUpper = (text) => text.toLowerCase() !== text && text === text.toUpperCase();

function lower(word, language) {
  const isTurkic = TURKIC.includes(mainLanguage(language));
  const mapped = isTurkic ? word.replaceAll("I", "ı").replaceAll("İ", "i") : word;
  const result = mapped.toLowerCase();
  return result.length === word.length ? result : mapped;
}

function upper(character, language) {
  const isDotted = character === "i" && TURKIC.includes(mainLanguage(language));
  return isDotted ? "İ" : character.toUpperCase();
}

/** Return the words of letters as [start, word], without those with digits or symbols. */
function letterWords(text, pattern) {
  const words = [];
  for (const { 0: word, index } of text.matchAll(WORD)) {
    if (SYMBOL.test(word)) continue;
    for (const match of word.matchAll(pattern)) words.push([index + match.index, match[0]]);
  }
  return words;
}

/** Return "upper" or "title" for a sentence that should be read in another letter case, or null. */
export function letterCase(text) {
  const counts = { upper: 0, title: 0, single: 0 };
  for (const [, word] of letterWords(text, JOINED_LETTERS)) {
    if (word.toUpperCase() === word.toLowerCase() || SUBSTITUTE_NAMES.has(word)) continue;
    const [first] = word;
    if (!isUpper(first)) return null;
    if (word === first) counts.single++;
    else if (isUpper(word)) counts.upper++;
    else counts.title++;
  }
  if (counts.upper >= MIN_UPPER_WORDS && !counts.title) return "upper";
  const isTitle = counts.title + counts.single >= MIN_TITLE_WORDS && counts.title > counts.upper + counts.single;
  return isTitle ? "title" : null;
}

/**
 * Return a text with its words in the letter case that is the most usual in a vocabulary. Its length stays.
 * @param {(word: string) => number[]} encode Returns the ids of a word.
 */
export function trueCased(text, type, language, encode) {
  const first = text.search(new RegExp(LETTER, "u"));
  const parts = [];
  let position = 0;
  for (const [start, word] of letterWords(text, LETTERS)) {
    const [initial] = word;
    if (!isUpper(type === "upper" ? word : initial)) continue;
    const lowerCase = lower(word, language);
    let choices = [lowerCase, initial + lowerCase.slice(initial.length), word];
    const end = start + word.length;
    const isContraction =
      CONTRACTION.test(text.slice(start - 1, end)) && ENDS_WITH_LETTER.test(text.slice(0, start - 1).slice(-2));
    if (start === first) choices = choices.slice(1);
    else if (start > 1 && isContraction) choices = choices.slice(0, 1);
    parts.push(text.slice(position, start), mostUsual(choices, encode));
    position = end;
  }
  return parts.join("") + text.slice(position);
}

/** Return the form with the fewest tokens; of single tokens, the one with the lowest id. */
function mostUsual(choices, encode) {
  const ranked = choices.map((form) => {
    const ids = encode(form);
    return [form, ids.length, ids.length === 1 ? ids[0] : 0];
  });
  const isBetter = ([, count, id], [, bestCount, bestId]) =>
    count < bestCount || (count === bestCount && id < bestId);
  return ranked.reduce((best, one) => (isBetter(one, best) ? one : best))[0];
}

/** Return the spans of the words with digits or symbols, without the punctuation around them. */
function symbolSpans(text) {
  const spans = [];
  for (const { 0: word, index } of text.matchAll(WORD)) {
    if (!SYMBOL.test(word)) continue;
    let [start, end] = [0, word.length];
    while (EDGES.includes(word[start])) start++;
    while (EDGES.includes(word[end - 1])) end--;
    spans.push([index + start, index + end]);
  }
  return spans;
}

/** Return a decoded text in the letter case of its source; text before `start` stays. */
export function inCaseOf(target, source, language, start = 0) {
  if (source.case !== "upper") return target;
  const slices = (text) => symbolSpans(text).map((span) => [span, text.slice(...span)]);
  const known = new Set(slices(source.text).map(([, word]) => word));
  const kept = slices(target.text).filter(([, word]) => known.has(word));
  const isKept = new Uint8Array(target.text.length).fill(1, 0, start);
  for (const [span] of kept) isKept.fill(1, ...span);
  const parts = [];
  const positions = [];
  let position = 0;
  let length = 0;
  for (const character of target.text) {
    const written = isKept[position] ? character : upper(character, language);
    for (let unit = 0; unit < character.length; unit++) positions.push(length);
    parts.push(written);
    length += written.length;
    position += character.length;
  }
  positions.push(length);
  const offsets = target.offsets.map((span) => span.map((offset) => positions[offset]));
  return { ...target, text: parts.join(""), offsets };
}
