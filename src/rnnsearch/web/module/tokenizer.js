// One reversible segmentation of raw text into symbols (text/tokenizer.py): text -> ids, symbols, places -> text. Places
// count UTF-16 units here.

import { RnnsearchError } from "./errors.js";
import { isObject } from "./file.js";
import { pieces, PIECES, SPACE, wellFormed } from "./pieces.js";
import { bytePairs, unigram, words } from "./subwords.js";
import { isMark, isUnknown, MARKER, SPECIALS, UNK } from "./vocabulary.js";

const utf8 = new TextEncoder();
const SPACED = /^\p{White_Space}/u; // of which the pattern knows, but not U+001C to U+001F
const BLANK = new RegExp(`^[${SPACE}]*$`);
const BPE = {
  dropout: null,
  continuing_subword_prefix: null,
  end_of_word_suffix: null,
  fuse_unk: false,
  byte_fallback: true,
};
const foreign = (what) => new RnnsearchError(`a tokenizer must be one that rnnsearch saved; got ${what}`);

/** The byte that a symbol's name stands for, or null. */
function byteOf(name) {
  const found = /^<0x([0-9A-F]{2})>$/.exec(name);
  return found && parseInt(found[1], 16);
}

export class Tokenizer {
  #encode;
  #rare;
  #bytes;
  words;

  /** Of the JSON that `Tokenizer.save` writes. Errors: RnnsearchError for another. */
  constructor(text) {
    let whole = null;
    try {
      whole = JSON.parse(text);
    } catch {
      // is told of below
    }
    const { model, normalizer, pre_tokenizer: split, rare = [] } = isObject(whole) ? whole : {};
    if (!isObject(model)) throw foreign("something else");
    if (normalizer?.type !== "Prepend" || normalizer.prepend !== " ") {
      throw foreign("one that does not put a space before the text");
    }
    if (split?.type !== "Split" || split.pattern?.Regex !== PIECES || split.behavior !== "Isolated" || split.invert) {
      throw foreign("one that splits the text by another pattern");
    }
    if (whole.added_tokens?.length || whole.truncation || whole.padding || whole.post_processor) {
      throw foreign("one that adds to the text, or cuts it");
    }
    this.names = namesOf(model);
    const ids = new Map(this.names.map((name, id) => [name, id]));
    if (SPECIALS.some((name, id) => this.names[id] !== name)) {
      throw foreign(`one whose first symbols are not ${SPECIALS.join(", ")}`);
    }
    this.words = model.type === "WordLevel";
    this.#encode = encoder(model, ids);
    this.#rare = rare.length ? parts(model, ids, rare) : new Map();
    this.symbols = this.names.map((name) => name.replaceAll(" ", MARKER));
    this.#bytes = this.names.map((name, id) => spellingOf(name, id));
    this.unknown = new Set([...this.names.keys()].filter((id) => standsForOthers(this.names[id], id)));
  }

  get length() {
    return this.names.length;
  }

  /** The UTF-8 that an id adds to a joined text. */
  spelling(id) {
    return this.#bytes[id];
  }

  /** What is translated of a text: as `segment`, but nothing of white space alone. */
  toTranslate(text) {
    const source = this.segment(text);
    return BLANK.test(text) ? { text, ids: [], symbols: [], offsets: [] } : source;
  }

  /** {text, ids, symbols, offsets} of a text. Errors: RnnsearchError for one that is not valid Unicode. */
  segment(text) {
    const own = wellFormed(text) ? pieces(` ${text}`) : [];
    const ids = own.flatMap((piece) => this.#encode(piece)).flatMap((id) => this.#rare.get(id) ?? [id]);
    const offsets = this.#spans(own, ids, text).map(([start, end]) =>
      text[start] === " " ? [start + 1, Math.max(start + 1, end)] : [start, end],
    );
    // A symbol that is the space put before the text covers nothing, yet is given the first character.
    if (offsets.length && (this.names[ids[0]] === " " || SPACED.test(text))) offsets[0] = [0, 0];
    return { text, ids, symbols: ids.map((id) => this.symbols[id]), offsets };
  }

  /** What each symbol covers; the space put before the text counts in none. */
  #spans(own, ids, text) {
    const spans = [];
    let at = -1;
    const cover = (length) => {
      spans.push([Math.max(at, 0), at + length]);
      at += length;
    };
    if (this.words) {
      for (const piece of own) cover(piece.length);
      return spans;
    }
    for (const id of ids) {
      const byte = byteOf(this.names[id]);
      if (byte !== null && byte >= 0x80 && byte < 0xc0) spans.push(spans.at(-1));
      else cover(byte === null ? this.names[id].length : byte < 0xf0 ? 1 : 2);
    }
    return spans;
  }

  /** The text of ids, and what each covers. unknown: what UNKs stand for, a leading space with it, by their places. */
  joined(ids, unknown = new Map()) {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    let text = "";
    const spans = ids.map((id, place) => {
      const spelling = unknown.has(place) ? utf8.encode(unknown.get(place)) : this.#bytes[id];
      const start = text.length;
      text += decoder.decode(spelling, { stream: true });
      const end = spelling.length ? Math.max(text.length, start + 1) : start;
      return [text[start] === " " ? start + 1 : start, end];
    });
    text += decoder.decode();
    const shift = text.startsWith(" ") ? 1 : 0;
    const offsets = spans.map((span) => span.map((place) => Math.max(0, place - shift)));
    return { text: text.slice(shift), ids, symbols: ids.map((id) => this.symbols[id]), offsets };
  }
}

/** The library's names of the ids, in their order. */
function namesOf(model) {
  const { type, vocab } = model;
  if (type === "Unigram") {
    if (model.unk_id !== UNK || model.byte_fallback !== true || !Array.isArray(vocab)) {
      throw foreign("a Unigram model with other options");
    }
    const fine = (row) => Array.isArray(row) && typeof row[0] === "string" && typeof row[1] === "number";
    if (!vocab.every(fine)) throw foreign("a damaged one");
    return distinct(vocab.map(([name]) => name));
  }
  if (type !== "WordLevel" && type !== "BPE") throw foreign(`one of model ${String(type).slice(0, 20)}`);
  if (!isObject(vocab) || model.unk_token !== SPECIALS[UNK]) throw foreign("a damaged one");
  if (type === "BPE" && Object.entries(BPE).some(([name, value]) => (model[name] ?? null) !== value)) {
    throw foreign("a BPE model with other options");
  }
  const names = [];
  for (const [name, id] of Object.entries(vocab)) names[id] = name;
  if (names.length !== Object.keys(vocab).length || names.includes(undefined)) {
    throw foreign("one whose ids do not count the symbols from 0");
  }
  return names;
}

function distinct(names) {
  if (new Set(names).size < names.length) throw foreign("one with a symbol twice");
  return names;
}

function encoder(model, ids) {
  if (model.type === "WordLevel") return words(ids);
  if (model.type === "Unigram") return unigram(ids, model.vocab);
  const fine = ([left, right]) => ids.has(left) && ids.has(right) && ids.has(left + right);
  if (!Array.isArray(model.merges) || !model.merges.every((pair) => Array.isArray(pair) && fine(pair))) {
    throw foreign("one with merges of other symbols");
  }
  return bytePairs(ids, model.merges);
}

/** What rare symbols are taken apart into, until no part is rare or was merged (Sennrich et al. 2017). */
function parts(model, ids, rare) {
  if (!Array.isArray(rare) || model.type !== "BPE") throw foreign("rare symbols that nothing merged");
  const [apart, found] = [new Set(rare), new Map()];
  for (const [left, right] of model.merges) {
    const [merged, a, b] = [left + right, left, right].map((name) => ids.get(name));
    if (!apart.has(merged) || found.has(merged)) continue;
    found.set(merged, [...(found.get(a) ?? [a]), ...(found.get(b) ?? [b])]);
  }
  return found;
}

const standsForOthers = (name, id) => id === UNK || (id >= SPECIALS.length && isUnknown(name));

function spellingOf(name, id) {
  if (standsForOthers(name, id)) return utf8.encode(` ${SPECIALS[UNK]}`);
  if (id < SPECIALS.length || isMark(name)) return new Uint8Array(0);
  const byte = byteOf(name);
  return byte === null ? utf8.encode(name) : Uint8Array.of(byte);
}
