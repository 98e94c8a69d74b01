// Reversible segmentation of raw text into tokens (text/tokenizer.py). Offsets count UTF-16 units.

import { isObject } from "./engine-file.js";
import { RnnsearchError } from "./errors.js";
import { letterCase, trueCased } from "./letter-case.js";
import { hasLetters, isInvisible } from "./letters.js";
import { Normalization, rawSpan } from "./normalization.js";
import { PRETOKEN_PATTERN, pretokenize, requireText } from "./pretokenizer.js";
import { bpeEncoder, unigramEncoder, wordEncoder } from "./subwords.js";
import { isMark, isUnknown, SPACE_MARKER, SPECIALS, UNK } from "./vocabulary.js";

const utf8 = new TextEncoder();
const UNICODE_SPACE = /^\p{White_Space}/u; // as in the pattern: without U+001C to U+001F
const BPE_OPTIONS = {
  dropout: null,
  continuing_subword_prefix: null,
  end_of_word_suffix: null,
  fuse_unk: false,
  byte_fallback: true,
};

const invalid = (problem) =>
  new RnnsearchError(`the tokenizer must be one that rnnsearch saved: ${problem}`);

/** Return the byte of a byte token, or null for other tokens. */
function byteOf(name) {
  const match = /^<0x([0-9A-F]{2})>$/.exec(name);
  return match && parseInt(match[1], 16);
}

export class Tokenizer {
  #encodePretoken;
  #splits; // ids of rare tokens -> ids of their parts
  #bytes;
  /** Changes of raw text before it is segmented. */
  normalization;

  /**
   * Read a tokenizer. Throw an RnnsearchError if it is not one of rnnsearch.
   * @param {string} json The contents of a file written by `Tokenizer.save` in Python.
   */
  constructor(json) {
    const { model, rare, normalization } = parse(json);
    this.normalization = normalization;
    /** Names of the tokens in the file, by id. */
    this.names = readNames(model);
    if (SPECIALS.some((name, id) => this.names[id] !== name)) {
      throw invalid(`its first tokens are not ${SPECIALS.join(", ")}`);
    }
    const ids = new Map(this.names.map((name, id) => [name, id]));
    /** True if tokens are whole words. */
    this.isWordLevel = model.type === "WordLevel";
    /** Tokens as they are displayed, by id. */
    this.tokens = this.names.map((name) => name.replaceAll(" ", SPACE_MARKER));
    /** Ids of the tokens that stand for unknown words. */
    this.unknownIds = new Set([...this.names.keys()].filter((id) => isUnknownId(this.names[id], id)));
    /** False for a vocabulary without letters, such as one of digits. */
    this.hasLetters = this.names.some((name, id) => !isSpecial(name, id) && hasLetters(name));
    this.#encodePretoken = createEncoder(model, ids);
    this.#splits = rare.length ? splitsOf(model, ids, rare) : new Map();
    this.#bytes = this.names.map((name, id) => bytesOf(name, id));
  }

  get length() {
    return this.names.length;
  }

  /** Return the UTF-8 bytes that a token adds to decoded text. */
  tokenBytes(id) {
    return this.#bytes[id];
  }

  /** Encode a text for translation: like encode, but text that shows nothing has no tokens. */
  encodeSource(text) {
    requireText(text);
    const normalized = this.normalization.apply(text);
    const type = this.normalization.isActive ? letterCase(normalized.text) : null;
    if (type) normalized.text = this.trueCased(normalized.text, type);
    const encoded = { ...this.#encodeNormalized(text, normalized), case: type };
    return isInvisible(text) ? { text, ids: [], tokens: [], offsets: [] } : encoded;
  }

  /** Return a normalised text in the letter case of this vocabulary. */
  trueCased(text, type) {
    return trueCased(text, type, this.normalization.language, (word) => this.encode(word).ids);
  }

  /**
   * Encode a text. Throw an RnnsearchError if it is not valid Unicode.
   * @returns {{text: string, ids: number[], tokens: string[], offsets: [number, number][]}}
   */
  encode(text) {
    requireText(text);
    return this.#encodeNormalized(text, this.normalization.apply(text));
  }

  #encodeNormalized(text, normalized) {
    const encoded = this.encodeExactly(normalized.text);
    const offsets = encoded.offsets.map((span) => rawSpan(normalized, span, text.length));
    return { ...encoded, text, offsets };
  }

  /** Encode a text as it is, without normalisation. */
  encodeExactly(text) {
    const pretokens = text ? pretokenize(` ${text}`) : [];
    const ids = pretokens
      .flatMap((pretoken) => this.#encodePretoken(pretoken))
      .flatMap((id) => this.#splits.get(id) ?? [id]);
    const offsets = this.#spans(pretokens, ids).map(([start, end]) =>
      text[start] === " " ? [start + 1, Math.max(start + 1, end)] : [start, end],
    );
    // The inserted space covers no character, but would get the first one if it is a token of its own.
    const startsWithSpace = this.names[ids[0]] === " " || UNICODE_SPACE.test(text);
    if (offsets.length && startsWithSpace) offsets[0] = [0, 0];
    return { text, ids, tokens: ids.map((id) => this.tokens[id]), offsets };
  }

  /** Return the characters that each token covers; the inserted space at the start does not count. */
  #spans(pretokens, ids) {
    const spans = [];
    let position = -1;
    const append = (length) => {
      spans.push([Math.max(position, 0), position + length]);
      position += length;
    };
    if (this.isWordLevel) {
      for (const pretoken of pretokens) append(pretoken.length);
      return spans;
    }
    for (const id of ids) {
      const byte = byteOf(this.names[id]);
      const isContinuation = byte !== null && byte >= 0x80 && byte < 0xc0;
      if (isContinuation) spans.push(spans.at(-1));
      else if (byte === null) append(this.names[id].length);
      else append(byte < 0xf0 ? 1 : 2); // four bytes are two UTF-16 units
    }
    return spans;
  }

  /**
   * Decode ids to text.
   * @param {number[]} ids
   * @param {Map<number, string>} unknownWords Text of UNK tokens by position, with the space before it.
   * @returns {{text: string, ids: number[], tokens: string[], offsets: [number, number][]}}
   */
  decode(ids, unknownWords = new Map()) {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    let text = "";
    const spans = ids.map((id, position) => {
      const word = unknownWords.get(position);
      const bytes = word === undefined ? this.#bytes[id] : utf8.encode(word);
      const start = text.length;
      text += decoder.decode(bytes, { stream: true });
      const end = bytes.length ? Math.max(text.length, start + 1) : start;
      return [text[start] === " " ? start + 1 : start, end];
    });
    text += decoder.decode();
    const shift = text.startsWith(" ") ? 1 : 0;
    const offsets = spans.map((span) => span.map((offset) => Math.max(0, offset - shift)));
    const tokens = ids.map((id) => this.tokens[id]);
    return { text: this.normalization.restore(text.slice(shift)), ids, tokens, offsets };
  }
}

/** Parse a tokenizer file and check everything that does not depend on the type of model. */
function parse(json) {
  let contents = null;
  try {
    contents = JSON.parse(json);
  } catch {
    // Rejected below.
  }
  if (!isObject(contents) || !isObject(contents.model)) throw invalid("it has no model");
  const { model, normalizer, pre_tokenizer: pretokenizer, rare = [], normalization: settings } = contents;
  if (normalizer?.type !== "Prepend" || normalizer.prepend !== " ") {
    throw invalid("it does not insert a space before the text");
  }
  const splitsIsolated = pretokenizer?.type === "Split" && pretokenizer.behavior === "Isolated";
  if (!splitsIsolated || pretokenizer.pattern?.Regex !== PRETOKEN_PATTERN || pretokenizer.invert) {
    throw invalid("it splits the text by another pattern");
  }
  if (contents.added_tokens?.length || contents.truncation || contents.padding || contents.post_processor) {
    throw invalid("it adds tokens or truncates the text");
  }
  const hasSettings = settings !== undefined;
  if (hasSettings && !(isObject(settings) && Normalization.isValid(settings))) {
    throw invalid("it normalises text in an unknown way");
  }
  return { model, rare, normalization: new Normalization(settings) };
}

/** Return the names of all tokens in the order of their ids. */
function readNames(model) {
  const { type, vocab } = model;
  if (type === "Unigram") return readUnigramNames(model);
  if (type !== "WordLevel" && type !== "BPE") throw invalid(`its model is ${String(type).slice(0, 20)}`);
  if (!isObject(vocab) || model.unk_token !== SPECIALS[UNK]) throw invalid("it is damaged");
  const hasOption = ([name, value]) => (model[name] ?? null) === value;
  if (type === "BPE" && !Object.entries(BPE_OPTIONS).every(hasOption)) {
    throw invalid("its BPE model has other options");
  }
  const names = [];
  for (const [name, id] of Object.entries(vocab)) names[id] = name;
  if (names.length !== Object.keys(vocab).length || names.includes(undefined)) {
    throw invalid("its ids do not count from 0");
  }
  return names;
}

function readUnigramNames({ vocab, unk_id: unknownId, byte_fallback: byteFallback }) {
  if (unknownId !== UNK || byteFallback !== true || !Array.isArray(vocab)) {
    throw invalid("its unigram model has other options");
  }
  const isEntry = (entry) =>
    Array.isArray(entry) && typeof entry[0] === "string" && typeof entry[1] === "number";
  if (!vocab.every(isEntry)) throw invalid("it is damaged");
  const names = vocab.map(([name]) => name);
  if (new Set(names).size < names.length) throw invalid("it has the same token twice");
  return names;
}

function createEncoder(model, ids) {
  if (model.type === "WordLevel") return wordEncoder(ids);
  if (model.type === "Unigram") return unigramEncoder(ids, model.vocab);
  const isMerge = (pair) =>
    Array.isArray(pair) && ids.has(pair[0]) && ids.has(pair[1]) && ids.has(pair[0] + pair[1]);
  if (!Array.isArray(model.merges) || !model.merges.every(isMerge)) {
    throw invalid("its merges contain unknown tokens");
  }
  return bpeEncoder(ids, model.merges);
}

/** Split each rare token into the tokens that it was merged from, recursively (Sennrich et al. 2017). */
function splitsOf(model, ids, rare) {
  if (!Array.isArray(rare) || model.type !== "BPE") throw invalid("its rare tokens are not merged ones");
  const rareIds = new Set(rare);
  const splits = new Map();
  for (const [left, right] of model.merges) {
    const merged = ids.get(left + right);
    if (!rareIds.has(merged) || splits.has(merged)) continue;
    const parts = [ids.get(left), ids.get(right)];
    splits.set(merged, parts.flatMap((id) => splits.get(id) ?? [id]));
  }
  return splits;
}

const isSpecial = (name, id) => id < SPECIALS.length || byteOf(name) !== null || isMark(name);

const isUnknownId = (name, id) => id === UNK || (id >= SPECIALS.length && isUnknown(name));

function bytesOf(name, id) {
  if (isUnknownId(name, id)) return utf8.encode(` ${SPECIALS[UNK]}`);
  if (id < SPECIALS.length || isMark(name)) return new Uint8Array(0);
  const byte = byteOf(name);
  return byte === null ? utf8.encode(name) : Uint8Array.of(byte);
}
