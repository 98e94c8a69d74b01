// Sentence boundaries in raw text, by the rules of rnnsearch/text/sentences.py, which documents them.
// sentence-rules.js is written by export/web_page.py, from rnnsearch/text/sentence_rules.py.

import { isInvisible } from "../module/letters.js";
import { WHITE_SPACE } from "../module/pretokenizer.js";
import TABLES from "./sentence-rules.js";

const QUOTES = "\"'“”„‘’‚«»‹›「」『』";
const CLOSING_BRACKETS = ")]}）】》";
const CLOSERS = QUOTES + CLOSING_BRACKETS;
const OPENERS = `${QUOTES}([{¿¡-–—*•（【《`;
const LATE_CLOSERS = "”’»›)]}）」』】》";
const FULL_STOPS = "。！？｡．။។៕";
const TERMINATORS = `.!?…؟۔।॥։።‽⁇⁈⁉‼${FULL_STOPS}`;
const CONTINUATIONS = ",;:،、，";
const CJK = "\\u3040-\\u30ff\\u3400-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{2ffff}";
const MAX_BRACKET_CHARACTERS = 200;
const MAX_LIST_NUMBER = 8;
const MAX_ABBREVIATION = 8;
const UNSPACED_LANGUAGES = new Set("ja km lo my th zh".split(" "));
const escaped = (characters) => characters.replace(/[\]\\^[(){}*-]/g, "\\$&");
const LINE = /[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+/g;
const SPACE = new RegExp(`[${WHITE_SPACE}]`);
const WORD = new RegExp(`[^${WHITE_SPACE}]+`, "g");
const AFTER_HALF_WIDTH = `[${CJK}${escaped(`${CLOSERS}（【《`)}]`;
const HALF_WIDTH = `(?<=[${CJK}])[!?.]+(?=${AFTER_HALF_WIDTH})`;
const FULL_STOP = new RegExp(`(?:[${FULL_STOPS}]+|${HALF_WIDTH})[${escaped(CLOSERS)}]*`, "gu");
const CJK_START = new RegExp(`^[^]*[${CJK}]`, "u");
const QUOTATIVE = /^(?:と(?!ても|ころ|にかく|りあえず)|って|という|など)/;
const SPEAKER = /^[^。！？，,：:；\s没沒]{1,4}(?:[说說问問喊]道?|[答叫]?道)[。，！：,]/u;
const NUMBER = /^\p{Nd}+(?:\.\p{Nd}+)*$/u;
const DATE = /^\p{Nd}{1,2}(?:\.\p{Nd}{1,2})?$/u;
const ROMAN = /^[IVXLCDM]+$/;
const DOTTED = /^(?:[\p{L}\p{N}_]\.)+[\p{L}\p{N}_]$/u;
const LETTERS = /^[\p{L}\p{Nl}\p{No}]+/u;
const I_WORDS = new Set(["I", "I'm", "I'll", "I've", "I'd"]);
const baseLanguage = (code) => (code ?? "").toLowerCase().split(/[-_]/)[0];
const hasText = (word) => /[\p{L}\p{N}]/u.test(word);
const isNumeric = (text) => /^\p{Nd}+$/u.test(text);
const wordsOf = (list) => (list ?? "").split(" ").filter(Boolean);
const NAME_PARTICLES = new Set(wordsOf(TABLES.name_particles));
const rulesByLanguage = new Map();

/** Return the rules of a language; those of all languages together if it has no entries. */
function rulesOf(language) {
  if (!rulesByLanguage.has(language)) {
    const isKnown = language in TABLES.starters;
    const setOf = (table) => {
      const languages = isKnown ? ["", language] : Object.keys(table);
      return new Set(languages.flatMap((code) => wordsOf(table[code])));
    };
    rulesByLanguage.set(language, {
      always: setOf(TABLES.always),
      numeric: setOf(TABLES.numeric),
      ending: setOf(TABLES.ending),
      starters: setOf(TABLES.starters),
      suffixes: [...setOf(TABLES.suffixes)],
      clitics: setOf(TABLES.clitics),
      endingLetters: setOf(TABLES.ending_letters),
      speechVerbs: setOf(TABLES.speech_verbs),
      hasOrdinals: wordsOf(TABLES.ordinals).includes(language),
    });
  }
  return rulesByLanguage.get(language);
}

function trimStart(word, characters) {
  let start = 0;
  while (start < word.length && characters.includes(word[start])) start += 1;
  return word.slice(start);
}

function trimEnd(word, characters) {
  let end = word.length;
  while (end > 0 && characters.includes(word[end - 1])) end -= 1;
  return word.slice(0, end);
}

/** Return the span [start, end) of a sentence without the white space around it. */
function withoutSpace(text, start, end) {
  let [first, last] = [start, end];
  while (first < last && SPACE.test(text[first])) first += 1;
  while (last > first && SPACE.test(text[last - 1])) last -= 1;
  return [first, last];
}

/** Return [start, end) of each sentence, without the white space around it. */
export function sentenceSpans(text, language) {
  const spans = [];
  for (const line of text.matchAll(LINE)) {
    let begin = line.index;
    const { ends } = new Line(line[0], baseLanguage(language));
    for (const lineOffset of [...ends, line[0].length]) {
      const end = line.index + lineOffset;
      if (!isInvisible(text.slice(begin, end))) spans.push(withoutSpace(text, begin, end));
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

/** A line and the positions inside it where sentences end, found in linear time. */
class Line {
  ends = [];
  #line;
  #language;
  #rules;
  #words;
  #starts;
  #next; // for each word, the first word from there on that is not only opening punctuation
  #hasText = false; // true if the sentence has a letter or digit before the current word

  constructor(line, language) {
    this.#line = line;
    this.#language = language;
    this.#rules = rulesOf(language);
    const matches = [...line.matchAll(WORD)];
    this.#words = matches.map(([word]) => word);
    this.#starts = matches.map(({ index }) => index);
    this.#next = this.#nextWords();
    for (let n = 0; n < this.#words.length; ) n = this.#readWord(n);
  }

  #nextWords() {
    const next = new Array(this.#words.length + 1).fill(this.#words.length);
    for (let n = this.#words.length - 1; n >= 0; n--) {
      const bare = trimStart(this.#words[n], OPENERS);
      const isClitic = this.#rules.clitics.has(bare) && bare !== this.#words[n];
      next[n] = !bare || isClitic ? next[n + 1] : n;
    }
    return next;
  }

  /** Add the ends in and after a word; return the index of the next word to read. */
  #readWord(n) {
    const start = this.#starts[n];
    const whole = this.#words[n];
    for (const stop of whole.matchAll(FULL_STOP)) {
      if (this.#endsAtFullStop(start, stop)) this.#endAt(start + stop.index + stop[0].length);
    }
    const word = whole.slice(Math.max(0, this.#sentenceStart - start));
    const stem = trimEnd(trimEnd(word, CLOSERS), TERMINATORS);
    const ending = word.slice(stem.length);
    const hadText = this.#hasText;
    this.#hasText = hadText || hasText(word);
    if (!trimEnd(ending, CLOSERS) || !this.#hasText) return n + 1;
    let last = n;
    while (last + 1 < this.#words.length && !trimStart(this.#words[last + 1], LATE_CLOSERS)) last += 1;
    if (last + 1 < this.#words.length && this.#endsAfter(n, stem, ending, last + 1, !hadText)) {
      this.#endAt(this.#starts[last] + this.#words[last].length);
    }
    return last + 1;
  }

  get #sentenceStart() {
    return this.ends.at(-1) ?? 0;
  }

  #endAt(position) {
    this.ends.push(position);
    this.#hasText = false;
  }

  #endsAtFullStop(start, { 0: stop, index, input: word }) {
    const after = word.slice(index + stop.length, index + stop.length + 10);
    if (stop === "．" && isNumeric(word.slice(index - 1, index))) {
      const first = Math.max(0, this.#sentenceStart - start, index - MAX_LIST_NUMBER);
      const isListNumber = !this.#hasText && isNumeric(word.slice(first, index));
      return !(/^\p{Nd}/u.test(after) || isListNumber);
    }
    const closer = stop.at(-1);
    if (!CLOSERS.includes(closer)) return true;
    if (this.#language === "ja" && QUOTATIVE.test(after)) return false;
    if (this.#language === "zh" && SPEAKER.test(after)) return false;
    const isInner = CLOSING_BRACKETS.includes(closer) && this.#isInnerBracket(start + index);
    return !isInner || !after;
  }

  #isInnerBracket(end) {
    const text = this.#line.slice(Math.max(this.#sentenceStart, end - MAX_BRACKET_CHARACTERS), end);
    const opened = Math.max(...[..."([{（【《"].map((bracket) => text.lastIndexOf(bracket)));
    return opened >= 0 && hasText(text.slice(0, opened));
  }

  #endsAfter(n, stem, ending, following, isFirst) {
    const next = this.#next[following];
    const nextWord = this.#words[next] ?? "";
    const bare = trimStart(nextWord, OPENERS);
    if (/^\p{Lowercase}/u.test(bare) || (bare && CONTINUATIONS.includes(bare[0]))) return false;
    if (CLOSING_BRACKETS.includes(ending.at(-1))) {
      const end = this.#starts[n] + this.#words[n].length;
      if (!trimStart(stem, OPENERS) || this.#isInnerBracket(end - 1)) return false;
    }
    if (this.#language === "en" && this.#isEnglishContinuation(ending, next)) return false;
    if (trimEnd(ending, CLOSERS) !== ".") return true;
    const around = OPENERS + CLOSERS;
    const word = trimEnd(trimStart(stem, around), around).replace(CJK_START, "");
    return !this.#isAbbreviation(n, word, isFirst, nextWord);
  }

  #isEnglishContinuation(ending, next) {
    if (ending === "..." || ending === "…") return I_WORDS.has(this.#words[next]);
    if (!QUOTES.includes(ending.at(-1)) || this.#isStarter(this.#words[next] ?? "")) return false;
    return this.#rules.speechVerbs.has(trimEnd(this.#words[next + 1] ?? "", ".,;:"));
  }

  #isAbbreviation(n, word, isFirst, nextWord) {
    const rules = this.#rules;
    const starts = this.#isStarter(nextWord);
    if (NUMBER.test(word)) return isFirst || (rules.hasOrdinals && DATE.test(word) && !starts);
    if (ROMAN.test(word) && word.length > 1 && (isFirst || rules.hasOrdinals)) return isFirst || !starts;
    if (rules.endingLetters.has(word)) return false;
    const startsWithDigit = /^\p{Nd}/u.test(trimStart(nextWord, OPENERS));
    for (const key of this.#keys(n, word)) {
      if (rules.always.has(key) || rules.suffixes.some((suffix) => key.endsWith(suffix))) return true;
      if (rules.numeric.has(key) && startsWithDigit) return true;
      if (rules.ending.has(key)) return !starts;
    }
    if (DOTTED.test(word)) return !starts;
    if (/^\p{L}$/u.test(word)) return !starts || this.#isParticle(nextWord);
    return false;
  }

  #keys(n, word) {
    const key = word.toLowerCase();
    const keys = [key];
    const around = OPENERS + CLOSERS;
    const before = n ? trimEnd(trimStart(this.#words[n - 1], around), around) : "";
    if (before.endsWith(".") && [...before.slice(0, 2 * MAX_ABBREVIATION + 1)].length <= MAX_ABBREVIATION) {
      keys.unshift(before.toLowerCase() + key);
    }
    const elision = key.replaceAll("’", "'").split("'").at(-1);
    return elision === key ? keys : [...keys, elision];
  }

  #isStarter(word) {
    const bare = trimStart(word, OPENERS);
    const [match] = LETTERS.exec(bare) ?? [];
    if (match === undefined) return false;
    const letters = match.toLowerCase();
    const after = bare[match.length];
    if (after === "." && [...letters].length === 1) return false;
    const { starters } = this.#rules;
    return starters.has(letters) || ((after === "'" || after === "’") && starters.has(`${letters}'`));
  }

  #isParticle(word) {
    const [match] = LETTERS.exec(trimStart(word, OPENERS)) ?? [];
    return match !== undefined && NAME_PARTICLES.has(match.toLowerCase());
  }
}
