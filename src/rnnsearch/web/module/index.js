// Translation with one engine file, as rnnsearch.runtime does it in Python: the same texts, scores and alignments.
//
//   import { load } from "rnnsearch";
//   const translator = await load("en-de.rnn");
//   console.log((await translator.translate("A man sits on a bench.")).text);

import { RnnsearchError } from "./errors.js";
import { damaged, isObject, read } from "./file.js";
import { Prefixes } from "./prefixes.js";
import { Recurrent } from "./recurrent.js";
import { RNNsearch } from "./rnnsearch.js";
import { MOST_ROWS, settings } from "./settings.js";
import { Tokenizer } from "./tokenizer.js";
import { EOS, SPECIALS } from "./vocabulary.js";
import { inWords, wordSpans } from "./words.js";

export { RnnsearchError };

const ATTENDED = 2 ** 24; // weights of attention in memory at a time
const SCORED = 2 ** 25; // scores in memory at a time
const LEAST = 1e-6; // what a source symbol that was never attended to counts as
const compiled = new Map();

/** A model, from the address of an engine file or its bytes. wasm: the engine's address or bytes, where it is not beside
 * this file. Errors: RnnsearchError, one sentence. */
export async function load(model, { wasm = new URL("./engine.wasm", import.meta.url) } = {}) {
  const [bytes, engine] = await Promise.all([bytesOf(model), engineOf(wasm)]);
  return new Translator(await read(bytes), engine);
}

async function bytesOf(given) {
  if (ArrayBuffer.isView(given)) return new Uint8Array(given.buffer, given.byteOffset, given.byteLength);
  if (given instanceof ArrayBuffer) return new Uint8Array(given);
  let answer;
  try {
    answer = await fetch(given);
  } catch {
    throw new RnnsearchError(`${given}: cannot be fetched`);
  }
  if (!answer.ok) throw new RnnsearchError(`${given}: cannot be fetched: ${answer.status} ${answer.statusText}`.trim());
  return new Uint8Array(await answer.arrayBuffer());
}

async function engineOf(given) {
  if (given instanceof WebAssembly.Module) return given;
  const key = given instanceof URL ? given.href : given;
  if (!compiled.has(key)) compiled.set(key, bytesOf(given).then((bytes) => WebAssembly.compile(bytes)));
  try {
    return await compiled.get(key);
  } catch (error) {
    compiled.delete(key);
    if (error instanceof RnnsearchError) throw error;
    throw new RnnsearchError("the engine needs a browser with WebAssembly and its SIMD (of 2023 or later)");
  }
}

export class Translator {
  #engine;
  #source;
  #target;
  #search;
  #ofRead;
  #prefixes = null;

  constructor(file, wasm) {
    const { header } = file;
    this.#search = settings(header.search);
    this.#ofRead = header.aligns_read_words === true;
    const [source, target, ...more] = Array.isArray(header.tokenizers) ? header.tokenizers : [];
    const codes = header.languages;
    if (more.length || typeof source !== "string" || typeof target !== "string") throw damaged();
    if (!Array.isArray(codes) || codes.length !== 2 || !codes.every((code) => typeof code === "string")) throw damaged();
    this.#source = new Tokenizer(source);
    this.#target = source === target ? this.#source : new Tokenizer(target);
    this.#engine = new (header.system === "recurrent" ? Recurrent : RNNsearch)(wasm, file);
    if (this.#engine.words[0] !== this.#source.length || this.#engine.words[1] !== this.#target.length) throw damaged();
    this.languages = codes;
    this.about = { ...(isObject(header.about) ? header.about : {}), scores: header.scores ?? null, precision: header.kind };
  }

  /** Translate a text, or each of a list; one line in is one line out. Without nBest the best of each, with it lists. */
  async translate(text, { beam, nBest, prefixes } = {}) {
    const many = Array.isArray(text);
    const begins = prefixes === undefined || many ? prefixes : [prefixes].flat();
    const found = this.nBest(many ? text : [text], nBest ?? 1, beam, begins);
    const own = nBest === undefined ? found.map(([best]) => best) : found;
    return many ? own : own[0];
  }

  /** The n best of each text, at once. */
  nBest(texts, nBest, beam = Math.max(this.#search.beam, nBest), prefixes = null) {
    if (!Array.isArray(texts) || !Array.isArray(prefixes ?? [])) {
      throw new RnnsearchError("texts must be a list, and prefixes another, one for each text");
    }
    if (!(Number.isInteger(nBest) && Number.isInteger(beam) && 1 <= nBest && nBest <= beam && beam <= MOST_ROWS)) {
      const told = `(${beam}), which is at most ${MOST_ROWS}; got ${nBest}`;
      throw new RnnsearchError(`nBest must be between 1 and the beam ${told}`);
    }
    if (prefixes && prefixes.length !== texts.length) {
      throw new RnnsearchError(`prefixes must be one a sentence (${texts.length}); got ${prefixes.length}`);
    }
    const sources = texts.map((text) => this.#source.toTranslate(text));
    const begins = prefixes && prefixes.map((prefix) => this.#read(prefix));
    const found = sources.map((source, n) => {
      if (!source.ids.length && begins?.[n].text) {
        throw new RnnsearchError(`the prefix of sentence ${n} (counting from 0) is of an empty sentence`);
      }
      return [this.#made(source, { tokens: [], tokenScores: [], attention: null, finished: true }, null)];
    });
    const search = { ...this.#search, beam, nBest };
    for (const batch of this.#batches(sources, beam)) {
      const ids = batch.map((n) => sources[n].ids);
      const own = begins && batch.map((n) => begins[n]);
      const begun = (b) => (own ? own[b].ids.length + own[b].rest.length : 0);
      const most = ids.map((id, b) => Math.max(this.#most(id.length), 1 + begun(b)));
      this.#engine.search(ids, most, own, search).forEach((hypotheses, b) => {
        const blocked = { tokens: [], tokenScores: [], attention: null, finished: false };
        const all = hypotheses.length ? hypotheses : [blocked];
        found[batch[b]] = all.map((one) => this.#made(sources[batch[b]], one, own?.[b]));
      });
    }
    return found;
  }

  #most(symbols) {
    return Math.floor(this.#search.max_ratio * symbols) + this.#search.max_extra;
  }

  /** The numbers of the sentences that are not empty, the longest first, as many at a time as there is room for. */
  *#batches(sources, beam) {
    const length = (n) => sources[n].ids.length;
    const order = [...sources.keys()].filter(length).sort((m, n) => length(n) - length(m));
    for (let at = 0; at < order.length; ) {
      const symbols = length(order[at]) + 1;
      const room = Math.min(
        this.#search.batch_sentences,
        MOST_ROWS / beam,
        SCORED / (beam * this.#target.length),
        ATTENDED / (beam * symbols * this.#most(symbols)),
        this.#engine.atOnce(symbols, beam),
      );
      yield order.slice(at, (at += Math.max(1, Math.floor(room))));
    }
  }

  #read(prefix) {
    if (!this.#prefixes) {
      this.#prefixes = new Prefixes(this.#target);
      this.#engine.spell(this.#target.names.map((_, id) => this.#target.spelling(id).length));
    }
    return this.#prefixes.read(prefix);
  }

  #made(source, { tokens, tokenScores, attention, finished }, begin) {
    const ended = finished && tokens.length > 0;
    const target = this.#target.joined(ended ? tokens.slice(0, -1) : tokens, begin?.unknown);
    const logProb = tokenScores.reduce((sum, score) => Math.fround(sum + score), 0);
    const { wordAttention, alignment, tokenWords } = inWords(source, target, attention, this.#ofRead);
    const wordsOf = ({ text }) => wordSpans(text).map(([start, end]) => text.slice(start, end));
    return {
      source: source.text,
      text: target.text,
      score: this.#score(logProb, tokenScores.length, attention),
      logProb,
      finished,
      tokens: [...target.symbols, ...(ended ? [SPECIALS[EOS]] : [])],
      tokenScores,
      sourceTokens: [...source.symbols, SPECIALS[EOS]],
      attention,
      sourceWords: wordsOf(source),
      words: wordsOf(target),
      wordAttention,
      alignment,
      tokenWords: [...tokenWords, ...(ended ? [-1] : [])],
    };
  }

  /** The log-probability by the norm of its length, and the coverage penalty (search/ranking.py). */
  #score(logProb, length, attention) {
    if (!length) return 0;
    const { length_norm: norm, length_penalty: exponent, coverage_penalty: beta } = this.#search;
    const score = logProb / (norm === "gnmt" ? (5 + length) / 6 : length) ** exponent;
    if (!beta || !attention) return score;
    let covered = 0;
    for (let j = 0; j + 1 < attention[0].length; j++) {
      const attended = attention.reduce((sum, row) => Math.fround(sum + row[j]), 0);
      covered += Math.log(Math.min(1, Math.max(LEAST, attended)));
    }
    return score + beta * covered;
  }
}
