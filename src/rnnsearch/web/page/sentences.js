// Sentences of raw text that people paste: where each begins and ends (text/sentences.py has the same rules).

import { SPACE } from "../module/pieces.js";

const LINE = /[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+/g;
const [CLOSERS, TERMINATORS] = ["\"'”’»›)]}）」』】》", ".!?…؟۔।॥։።"];
const OPENERS = "\"'“„‘‚«‹([{¿¡-–—*•「『（【《";
const ORDINALS = new Set("cs da de et fi hr hu is lv nb nn no pl sk sl sr".split(" "));
const UNSPACED = new Set("ja km lo my th zh".split(" "));
const ABBREVIATIONS = new Set(
  `mr mrs ms dr prof rev gen col sgt capt lt hon st sr jr mt vs nos fig figs vol pp ed eds approx dept est
  e.g i.e cf al resp ca evtl bzw ggf z.b d.h u.a z.t o.ä vgl abs bd hr fr frl nr str tel geb gest inkl zzgl
  mme mlle mm av env ex p.ex sra srta dña pág núm ud uds sig dott ing avv sig.ra ecc p.es
  jan feb apr jun jul aug sep sept oct okt nov dec dez т.е т.д т.п ул им ст стр рис`
    .split(/\s+/),
);
const escaped = (characters) => characters.replace(/[\]\\^-]/g, "\\$&");
const FULL_STOP = new RegExp(`[。！？｡．]+[${escaped(CLOSERS)}]*`, "g");
const [CLOSED, TERMINATED] = [CLOSERS, TERMINATORS].map((some) => new RegExp(`[${escaped(some)}]+$`));
const OPENED = new RegExp(`^[${escaped(OPENERS)}]+`);
const WORD = new RegExp(`[^${SPACE}]+`, "g");
const [LEFT, RIGHT] = [new RegExp(`^[${SPACE}]+`), new RegExp(`[${SPACE}]+$`)];
const base = (code) => code.toLowerCase().split(/[-_]/)[0];

/** [start, end) of each sentence, without the white space around it. */
export function sentenceSpans(text, language) {
  const spans = [];
  for (const line of text.matchAll(LINE)) {
    let begin = line.index;
    for (const end of [...ends(line[0], language), line[0].length]) {
      const stop = line.index + end;
      const piece = text.slice(begin, stop);
      const start = begin + piece.length - piece.replace(LEFT, "").length;
      if (start < stop) spans.push([start, begin + piece.replace(RIGHT, "").length]);
      begin = stop;
    }
  }
  return spans;
}

/** The text with each span replaced by its new text, and where each of these stands in it. */
export function rejoin(text, spans, fresh, target) {
  const placed = [];
  let made = "";
  let at = 0;
  spans.forEach(([start, end], n) => {
    let gap = text.slice(at, start);
    if (!gap && at && !UNSPACED.has(base(target))) gap = " ";
    made += gap;
    placed.push([made.length, made.length + fresh[n].length]);
    made += fresh[n];
    at = end;
  });
  return [made + text.slice(at), placed];
}

/** Where sentences end inside a line. */
function ends(line, language) {
  const found = [];
  const words = [...line.matchAll(WORD)];
  words.forEach((match, number) => {
    const word = match[0];
    const end = match.index + word.length;
    for (const stop of word.matchAll(FULL_STOP)) found.push(match.index + stop.index + stop[0].length);
    const before = word.replace(CLOSED, "").replace(TERMINATED, "");
    const after = word.slice(before.length);
    const following = words[number + 1];
    if (!after.replace(CLOSED, "") || !following || found.at(-1) === end || !begins(following[0])) return;
    if (after !== "." || !abbreviated(before, number === 0, language)) found.push(end);
  });
  return found;
}

/** Whether a sentence can begin with this word: not with a small letter. */
function begins(word) {
  const bare = word.replace(OPENED, "");
  return !/^\p{Lowercase}/u.test(bare);
}

/** Whether a period after it belongs to the word; `first`: of its line. */
function abbreviated(given, first, language) {
  const word = given.replace(OPENED, "");
  if (/^\p{Nd}+$/u.test(word)) return first || ([...word].length <= 2 && ORDINALS.has(base(language)));
  if ([...word].length === 1) return /^\p{Uppercase}$/u.test(word) && word !== "I";
  return ABBREVIATIONS.has(word.toLowerCase()) || /^([\p{L}\p{N}_]\.)+[\p{L}\p{N}_]$/u.test(word);
}
