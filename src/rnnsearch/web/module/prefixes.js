// The beginning of a text, typed by a user, as what a translation's symbols must begin with (text/prefixes.py). Whole words
// are the symbols that they are segmented into; of the last word the bytes are given, and for each the symbols that agree.

import { SPECIALS, UNK } from "./vocabulary.js";

const LONGEST_END = 8; // symbols of a last word that may be spelled otherwise, at most
const utf8 = new TextEncoder();
/** Bytes as text, a unit each, which can be sorted and compared. */
const binary = (bytes) => String.fromCharCode(...bytes);

export class Prefixes {
  #tokenizer;
  #known;
  #words; // that stand for some word or other, with the space before it: one may follow a prefix that ends with a space
  #longest;

  constructor(tokenizer) {
    this.#tokenizer = tokenizer;
    this.#known = tokenizer.names
      .map((_, id) => [binary(tokenizer.spelling(id)), id])
      .filter(([spelling, id]) => id >= SPECIALS.length && spelling && !tokenizer.unknown.has(id))
      .sort(([a, m], [b, n]) => (a < b ? -1 : a > b ? 1 : m - n));
    this.#words = tokenizer.words ? [...tokenizer.unknown].sort((a, b) => a - b) : [];
    this.#longest = Math.max(0, ...this.#known.map(([spelling]) => spelling.length));
  }

  /** {text, ids, rest, unknown}: the first symbols, the ways of each byte behind them, and what each UNK stands for. */
  read(text) {
    const whole = this.#tokenizer.segment(text);
    if (!text) return { text, ids: [], rest: [], unknown: new Map() };
    const forced = this.#beforeLastWord(whole);
    const unknown = unknownOf(whole);
    const before = new Map([...unknown].filter(([place]) => place < forced));
    const end = whole.ids.slice(forced);
    const known = !end.includes(UNK);
    const bytes = (id) => [...this.#tokenizer.spelling(id)];
    const spelled = known ? end.flatMap(bytes) : utf8.encode(` ${text}`.slice(begin(whole, forced)));
    const rest = this.#ways(binary(spelled));
    if (known || rest[0]?.length) return { text, ids: whole.ids.slice(0, forced), rest, unknown: before };
    return { text, ids: whole.ids, rest: [], unknown };
  }

  /** The number of symbols before the last word's space, or before its last few symbols. */
  #beforeLastWord(whole) {
    const space = ` ${whole.text}`.lastIndexOf(" ");
    const count = whole.ids.filter((_, n) => begin(whole, n) < space).length;
    return Math.max(count, whole.ids.length - LONGEST_END);
  }

  /** For each place in `rest`, the symbols after which the remainder can still be spelled. */
  #ways(rest) {
    const ways = Array.from(rest, () => []);
    for (let place = rest.length - 1; place >= 0; place--) {
      const left = rest.slice(place);
      const found = [...this.#symbols(left, true), ...(left === " " ? this.#words : [])];
      for (let size = 1; size <= Math.min(this.#longest, left.length - 1); size++) {
        if (ways[place + size].length) found.push(...this.#symbols(left.slice(0, size), false));
      }
      ways[place] = found;
    }
    return ways;
  }

  /** The symbols of exactly these bytes; with `longer`, those that begin with them. */
  #symbols(spelling, longer) {
    let [low, high] = [0, this.#known.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#known[middle][0] < spelling) low = middle + 1;
      else high = middle;
    }
    const found = [];
    for (; low < this.#known.length; low++) {
      const [own, id] = this.#known[low];
      if (!(longer ? own.startsWith(spelling) : own === spelling)) break;
      found.push(id);
    }
    return found;
  }
}

/** Where symbol n begins in the text with a space before it: where the one before it ends. */
const begin = (whole, n) => (n === 0 ? 0 : whole.offsets[n - 1][1] + 1);

/** The text of each unknown symbol, the space before it with it, by its place. */
function unknownOf(whole) {
  const spaced = ` ${whole.text}`;
  const places = whole.ids.flatMap((id, n) => (id === UNK ? [n] : []));
  return new Map(places.map((n) => [n, spaced.slice(begin(whole, n), whole.offsets[n][1] + 1)]));
}
