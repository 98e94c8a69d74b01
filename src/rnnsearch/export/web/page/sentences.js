// Sentence boundaries in raw text, by the rules of rnnsearch/text/sentences.py.

import { isInvisible } from "../module/letters.js";
import { WHITE_SPACE } from "../module/pretokenizer.js";

const CLOSERS = "\"'”’»›)]}）」』】》";
const OPENERS = "\"'“„‘‚«‹([{¿¡-–—*•「『（【《";
const TERMINATORS = ".!?…؟۔।॥։።";
const ORDINAL_LANGUAGES = new Set("cs da de et fi hr hu is lv nb nn no pl sk sl sr".split(" "));
const UNSPACED_LANGUAGES = new Set("ja km lo my th zh".split(" "));
const ABBREVIATIONS = new Set(
  `mr mrs ms dr prof rev gen col sgt capt lt hon st sr jr mt vs nos fig figs vol pp ed eds approx dept est
  e.g i.e cf al resp ca evtl bzw ggf z.b d.h u.a z.t o.ä vgl abs bd hr fr frl nr str tel geb gest inkl zzgl
  mme mlle mm av env ex p.ex sra srta dña pág núm ud uds sig dott ing avv sig.ra ecc p.es
  jan feb apr jun jul aug sep sept oct okt nov dec dez т.е т.д т.п ул им ст стр рис`
    .split(/\s+/),
);
const escaped = (characters) => characters.replace(/[\]\\^-]/g, "\\$&");
const LINE = /[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+/g;
const WORD = new RegExp(`[^${WHITE_SPACE}]+`, "g");
const CJK_FULL_STOP = new RegExp(`[。！？｡．]+[${escaped(CLOSERS)}]*`, "g");
const FINAL_CLOSERS = new RegExp(`[${escaped(CLOSERS)}]+$`);
const FINAL_TERMINATORS = new RegExp(`[${escaped(TERMINATORS)}]+$`);
const INITIAL_OPENERS = new RegExp(`^[${escaped(OPENERS)}]+`);
const INITIAL_SPACE = new RegExp(`^[${WHITE_SPACE}]+`);
const FINAL_SPACE = new RegExp(`[${WHITE_SPACE}]+$`);
const baseLanguage = (code) => code.toLowerCase().split(/[-_]/)[0];

/** Return [start, end) of each sentence, without the white space around it. */
export function sentenceSpans(text, language) {
  const spans = [];
  for (const line of text.matchAll(LINE)) {
    let begin = line.index;
    for (const lineOffset of [...sentenceEnds(line[0], language), line[0].length]) {
      const end = line.index + lineOffset;
      const sentence = text.slice(begin, end);
      const start = end - sentence.replace(INITIAL_SPACE, "").length;
      if (!isInvisible(sentence)) spans.push([start, begin + sentence.replace(FINAL_SPACE, "").length]);
      begin = end;
    }
  }
  return spans;
}

/**
 * Replace each span of a text. A space is inserted between sentences that had none, unless the target language is
 * written without spaces.
 * @returns {[string, [number, number][]]} The new text, and the span of each replacement in it.
 */
export function rejoin(text, spans, replacements, targetLanguage) {
  const usesSpaces = !UNSPACED_LANGUAGES.has(baseLanguage(targetLanguage));
  const newSpans = [];
  let result = "";
  let position = 0;
  spans.forEach(([start, end], n) => {
    let gap = text.slice(position, start);
    if (!gap && position && usesSpaces) gap = " ";
    result += gap;
    newSpans.push([result.length, result.length + replacements[n].length]);
    result += replacements[n];
    position = end;
  });
  return [result + text.slice(position), newSpans];
}

/** Return the offsets in a line at which sentences end. */
function sentenceEnds(line, language) {
  const ends = [];
  const words = [...line.matchAll(WORD)];
  words.forEach(({ 0: word, index }, n) => {
    const end = index + word.length;
    for (const stop of word.matchAll(CJK_FULL_STOP)) ends.push(index + stop.index + stop[0].length);
    const stem = word.replace(FINAL_CLOSERS, "").replace(FINAL_TERMINATORS, "");
    const suffix = word.slice(stem.length);
    const next = words[n + 1];
    const isTerminated = Boolean(suffix.replace(FINAL_CLOSERS, ""));
    if (!isTerminated || !next || ends.at(-1) === end || !canBeginSentence(next[0])) return;
    if (suffix !== "." || !endsWithPeriod(stem, n === 0, language)) ends.push(end);
  });
  return ends;
}

/** Return true unless the word begins with a lower-case letter. */
function canBeginSentence(word) {
  return !/^\p{Lowercase}/u.test(word.replace(INITIAL_OPENERS, ""));
}

/** Return true if a period after the word belongs to it: an ordinal, an initial or an abbreviation. */
function endsWithPeriod(stem, isFirstInLine, language) {
  const word = stem.replace(INITIAL_OPENERS, "");
  const length = [...word].length;
  if (/^\p{Nd}+$/u.test(word)) {
    return isFirstInLine || (length <= 2 && ORDINAL_LANGUAGES.has(baseLanguage(language)));
  }
  if (length === 1) return /^\p{Uppercase}$/u.test(word) && word !== "I";
  return ABBREVIATIONS.has(word.toLowerCase()) || /^([\p{L}\p{N}_]\.)+[\p{L}\p{N}_]$/u.test(word);
}
