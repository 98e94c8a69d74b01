// Translation with an engine file: the same texts, scores and alignments as rnnsearch.runtime in Python.
//
//   import { load } from "rnnsearch";
//   const translator = await load("en-de.rnn");
//   console.log((await translator.translate("A man sits on a bench.")).text);

import { copiedTexts, copyHypothesis } from "./copies.js";
import { damagedHeader, isObject, readEngineFile } from "./engine-file.js";
import { RnnsearchError } from "./errors.js";
import { inCaseOf } from "./letter-case.js";
import { Prefixes, restorePrefix } from "./prefixes.js";
import { Recurrent } from "./recurrent.js";
import { RNNsearch } from "./rnnsearch.js";
import { checkedSettings, MAX_ROWS } from "./settings.js";
import { Tokenizer } from "./tokenizer.js";
import { EOS, SPECIALS } from "./vocabulary.js";
import { alignWords, wordSpans } from "./words.js";

export { RnnsearchError };

const MAX_ATTENTION_WEIGHTS = 2 ** 24; // in memory at a time
const MAX_SCORES = 2 ** 25; // in memory at a time
const MIN_COVERAGE = 1e-6; // coverage of a source token without attention, in the coverage penalty
const compiledEngines = new Map(); // url -> promise of a WebAssembly.Module

/**
 * Load a model. Throw an RnnsearchError, with a message of one sentence, if it cannot be used.
 * @param {string | URL | Uint8Array | ArrayBuffer} model URL or contents of an engine file.
 * @param {object} options
 * @param {string | URL | Uint8Array | ArrayBuffer | WebAssembly.Module} options.wasm
 *   The engine, if it is not next to this file.
 * @returns {Promise<Translator>}
 */
export async function load(model, { wasm = new URL("./engine.wasm", import.meta.url) } = {}) {
  const [bytes, engine] = await Promise.all([readBytes(model), compileEngine(wasm)]);
  return new Translator(await readEngineFile(bytes), engine);
}

async function readBytes(source) {
  if (ArrayBuffer.isView(source)) {
    return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  }
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  let response;
  try {
    response = await fetch(source);
  } catch {
    throw new RnnsearchError(`${source}: cannot be fetched`);
  }
  if (!response.ok) {
    const status = `${response.status} ${response.statusText}`.trim();
    throw new RnnsearchError(`${source}: cannot be fetched: ${status}`);
  }
  return new Uint8Array(await response.arrayBuffer());
}

async function compileEngine(source) {
  if (source instanceof WebAssembly.Module) return source;
  const key = source instanceof URL ? source.href : source;
  if (!compiledEngines.has(key)) {
    const compiling = readBytes(source).then((bytes) => WebAssembly.compile(bytes));
    compiledEngines.set(key, compiling);
  }
  try {
    return await compiledEngines.get(key);
  } catch (error) {
    compiledEngines.delete(key);
    if (error instanceof RnnsearchError) throw error;
    throw new RnnsearchError("the engine needs a browser with WebAssembly SIMD (2023 or later)");
  }
}

// What an empty sentence is translated to, and the result of a search in which no token was allowed.
const EMPTY = { tokens: [], tokenScores: [], attention: null, finished: true };
const BLOCKED = { ...EMPTY, finished: false };

/** A model that translates raw text. index.d.ts documents its methods and results. */
export class Translator {
  #engine;
  #source;
  #target;
  #settings;
  #alignsReadWords;
  #prefixes = null; // created when first needed

  constructor(file, wasm) {
    const { header } = file;
    this.#settings = checkedSettings(header.search);
    this.#alignsReadWords = header.aligns_read_words === true;
    const isPair = (value) =>
      Array.isArray(value) && value.length === 2 && value.every((one) => typeof one === "string");
    if (!isPair(header.tokenizers) || !isPair(header.languages)) throw damagedHeader();
    const [source, target] = header.tokenizers;
    this.#source = new Tokenizer(source);
    this.#target = source === target ? this.#source : new Tokenizer(target);
    const Engine = header.system === "recurrent" ? Recurrent : RNNsearch;
    this.#engine = new Engine(wasm, file);
    const [sourceSize, targetSize] = this.#engine.vocabularySizes;
    if (sourceSize !== this.#source.length || targetSize !== this.#target.length) {
      throw damagedHeader();
    }
    this.languages = header.languages;
    const about = isObject(header.about) ? header.about : {};
    this.about = { ...about, scores: header.scores ?? null, precision: header.kind };
  }

  /** Translate a text or a list of texts; with nBest, return a list of translations for each. */
  async translate(text, { beam, nBest, prefixes } = {}) {
    const isList = Array.isArray(text);
    const prefixList = prefixes === undefined || isList ? prefixes : [prefixes].flat();
    const lists = this.nBest(isList ? text : [text], nBest ?? 1, beam, prefixList);
    const results = nBest === undefined ? lists.map(([best]) => best) : lists;
    return isList ? results : results[0];
  }

  /** Return the n best translations of each text, synchronously. */
  nBest(texts, nBest, beam = Math.max(this.#settings.beam, nBest), prefixes = null) {
    this.#checkArguments(texts, nBest, beam, prefixes);
    const encoded = texts.map((text) => this.#source.encodeSource(text));
    const copied = copiedTexts(encoded, this.#source, prefixes);
    const sources = encoded.map((source, n) => (copied.has(n) ? { ...source, ids: [] } : source));
    const constraints =
      prefixes && prefixes.map((prefix, n) => this.#readPrefix(copied.has(n) ? "" : prefix, sources[n]));
    sources.forEach(({ ids }, n) => {
      if (!ids.length && constraints?.[n].text) {
        throw new RnnsearchError(`sentence ${n} (counting from 0) is empty but has a prefix`);
      }
    });
    const results = encoded.map((source, n) => [
      copied.has(n) ? this.#copy(source) : this.#toTranslation(source, EMPTY, null),
    ]);
    const settings = { ...this.#settings, beam, nBest };
    for (const batch of this.#batches(sources, beam)) {
      const ids = batch.map((n) => sources[n].ids);
      const batchConstraints = constraints && batch.map((n) => constraints[n]);
      const maxLengths = ids.map(({ length }, b) => {
        const constraint = batchConstraints?.[b];
        const prefixLength = constraint ? constraint.ids.length + constraint.rest.length : 0;
        return Math.max(this.#maxLength(length), 1 + prefixLength);
      });
      const nBestLists = this.#engine.nBest(ids, maxLengths, batchConstraints, settings);
      nBestLists.forEach((list, b) => {
        const n = batch[b];
        const hypotheses = list.length ? list : [BLOCKED];
        results[n] = hypotheses.map((hypothesis) =>
          this.#toTranslation(sources[n], hypothesis, constraints?.[n]),
        );
      });
    }
    return results;
  }

  #checkArguments(texts, nBest, beam, prefixes) {
    if (!Array.isArray(texts)) throw new RnnsearchError("texts must be a list");
    if (prefixes && !Array.isArray(prefixes)) {
      throw new RnnsearchError("prefixes must be a list with one prefix per text");
    }
    const areIntegers = Number.isInteger(nBest) && Number.isInteger(beam);
    if (!areIntegers || nBest < 1 || nBest > beam || beam > MAX_ROWS) {
      const limits = `nBest must be between 1 and the beam, which must be at most ${MAX_ROWS}`;
      throw new RnnsearchError(`${limits}; got nBest ${nBest} and beam ${beam}`);
    }
    if (prefixes && prefixes.length !== texts.length) {
      throw new RnnsearchError(`prefixes must be one per text (${texts.length}); got ${prefixes.length}`);
    }
  }

  /** Return the maximum number of target tokens. */
  #maxLength(sourceLength) {
    const { max_ratio: maxRatio, max_extra: maxExtra } = this.#settings;
    return Math.floor(maxRatio * sourceLength) + maxExtra;
  }

  /** Yield the indices of the non-empty sentences, longest first, in batches that fit in memory. */
  *#batches(sources, beam) {
    const lengthOf = (n) => sources[n].ids.length;
    const order = [...sources.keys()].filter(lengthOf).sort((m, n) => lengthOf(n) - lengthOf(m));
    for (let start = 0; start < order.length; ) {
      const length = lengthOf(order[start]) + 1;
      const limit = Math.min(
        this.#settings.batch_sentences,
        MAX_ROWS / beam,
        MAX_SCORES / (beam * this.#target.length),
        MAX_ATTENTION_WEIGHTS / (beam * length * this.#maxLength(length)),
        this.#engine.maxSentences(length, beam),
      );
      const end = start + Math.max(1, Math.floor(limit));
      yield order.slice(start, end);
      start = end;
    }
  }

  #readPrefix(prefix, source) {
    if (!this.#prefixes) {
      this.#prefixes = new Prefixes(this.#target);
      const sizes = this.#target.names.map((_, id) => this.#target.tokenBytes(id).length);
      this.#engine.setTokenBytes(sizes);
    }
    return this.#prefixes.read(prefix, source.case === "upper");
  }

  /** Return a text without letters as its own translation. */
  #copy(source) {
    const target = this.#target.encode(source.text);
    const hypothesis = copyHypothesis(source, target, this.#engine.attends, this.#alignsReadWords);
    const translation = this.#makeTranslation(source, target, hypothesis, true);
    return { ...translation, score: 0, alignment: translation.words.map((_, n) => [n, n]) };
  }

  #toTranslation(source, hypothesis, constraint) {
    const { tokens: ids, finished } = hypothesis;
    const endsWithEos = finished && ids.length > 0;
    const textIds = endsWithEos ? ids.slice(0, -1) : ids;
    const decoded = this.#target.decode(textIds, constraint?.unknownWords);
    const target = this.#finish(decoded, source, constraint);
    return this.#makeTranslation(source, target, hypothesis, endsWithEos);
  }

  #makeTranslation(source, target, { tokenScores, attention, finished }, endsWithEos) {
    const logProb = tokenScores.reduce((sum, score) => Math.fround(sum + score), 0);
    const alignment = alignWords(source, target, attention, this.#alignsReadWords);
    return {
      source: source.text,
      text: target.text,
      score: this.#score(logProb, tokenScores.length, attention),
      logProb,
      finished,
      tokens: endsWithEos ? [...target.tokens, SPECIALS[EOS]] : target.tokens,
      tokenScores,
      sourceTokens: [...source.tokens, SPECIALS[EOS]],
      attention,
      sourceWords: splitWords(source.text),
      words: splitWords(target.text),
      wordAttention: alignment.wordAttention,
      alignment: alignment.alignment,
      tokenWords: endsWithEos ? [...alignment.tokenWords, -1] : alignment.tokenWords,
    };
  }

  /** Return a decoded text as users see it: with the exact prefix, in the letter case of its source. */
  #finish(target, source, constraint) {
    const { normalization } = this.#target;
    const restored = constraint ? restorePrefix(constraint, target, normalization) : target;
    return inCaseOf(restored, source, normalization.language, constraint?.text.length);
  }

  /** Return the log-probability divided by the length norm, plus the coverage penalty (search/ranking.py). */
  #score(logProb, length, attention) {
    if (!length) return 0;
    const { length_norm: norm, length_penalty: exponent, coverage_penalty: beta } = this.#settings;
    const normLength = norm === "gnmt" ? (5 + length) / 6 : length;
    const score = logProb / normLength ** exponent;
    if (!beta || !attention) return score;
    const sourceLength = attention[0].length - 1; // without the end symbol
    let penalty = 0;
    for (let j = 0; j < sourceLength; j++) {
      const coverage = attention.reduce((sum, row) => Math.fround(sum + row[j]), 0);
      penalty += Math.log(Math.min(1, Math.max(MIN_COVERAGE, coverage)));
    }
    return score + beta * penalty;
  }
}

function splitWords(text) {
  return wordSpans(text).map(([start, end]) => text.slice(start, end));
}
