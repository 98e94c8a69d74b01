// The engine compiled to WebAssembly (ops/native/web): memory for its arguments, search requests, and their results.

import { RnnsearchError } from "./errors.js";
import { EOS } from "./vocabulary.js";

export const LINE_TOO_LONG = "a line is too long for the engine: split it into shorter lines";
export const ENGINE_FAILED = "the engine ran out of memory or failed: load the model again";

/**
 * A model in an instance of the engine. Subclasses set
 *   vocabularySizes  [source, target]
 *   attends          true if the model has attention
 * and implement
 *   search(sentences, request, lengthPenalty, coveragePenalty)
 *                    Run the engine's search: 1 on success, 0 if scores are not finite, -1 if the request is invalid.
 *   setTokenBytes(sizes)
 *                    Set the number of bytes of each target token, which searches with prefixes need.
 */
export class WasmEngine {
  #failed = false;

  /** @param {WebAssembly.Module} wasm */
  constructor(wasm) {
    /** The functions that the engine exports. */
    this.c = new WebAssembly.Instance(wasm, {}).exports;
    this.c._initialize();
  }

  /** Return how many sentences of a length fit in memory with a beam. */
  maxSentences() {
    return Infinity;
  }

  /** Copy arrays to the engine's memory during a call, which gets the pointer and the length of each. */
  withArrays(arrays, call) {
    const pointers = arrays.map((array) => (array ? this.#copyToMemory(array) : 0));
    try {
      return call(...arrays.flatMap((array, n) => [pointers[n], array?.length ?? 0]));
    } finally {
      for (const pointer of pointers) if (pointer) this.c.release(pointer);
    }
  }

  #copyToMemory(array) {
    const pointer = this.c.allocate(Math.max(1, array.byteLength));
    if (!pointer) throw new WebAssembly.RuntimeError();
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    new Uint8Array(this.c.memory.buffer, pointer, bytes.length).set(bytes);
    return pointer;
  }

  /** Run work with the engine. After a failure the instance cannot be used again: its memory may be inconsistent. */
  run(work) {
    if (this.#failed) throw new RnnsearchError(ENGINE_FAILED);
    try {
      return work();
    } catch (error) {
      if (error instanceof RnnsearchError) throw error;
      this.#failed = true;
      const isEngineError = error instanceof WebAssembly.RuntimeError || error instanceof RangeError;
      throw isEngineError ? new RnnsearchError(ENGINE_FAILED) : error;
    }
  }

  /**
   * Return the n best hypotheses of each sentence.
   * @param {number[][]} sentences Ids, longest sentence first.
   * @param {number[]} maxLengths Of the hypotheses of each sentence.
   * @param {{ids, rest}[] | null} prefixes
   * @param {object} settings Search settings.
   */
  nBest(sentences, maxLengths, prefixes, settings) {
    const request = encodeRequest(sentences, maxLengths, prefixes, settings);
    return this.run(() => {
      const { length_penalty: lengthPenalty, coverage_penalty: coveragePenalty } = settings;
      const status = this.search(sentences, request, lengthPenalty, coveragePenalty);
      if (status === 0) throw new RnnsearchError("the scores of a sentence must be numbers; got NaN");
      if (status < 0) throw new RnnsearchError(LINE_TOO_LONG);
      return this.#readHypotheses(sentences, settings.nBest, Math.max(...maxLengths) + 1);
    });
  }

  /** Read the results of the last search: hypotheses of at most T tokens. */
  #readHypotheses(sentences, nBest, T) {
    const J = sentences[0].length + 1;
    const perHypothesis = (pointer) =>
      new BigInt64Array(this.c.memory.buffer, pointer, sentences.length * nBest);
    const lengths = perHypothesis(this.c.lengths());
    const finished = perHypothesis(this.c.finished());
    return sentences.map((ids, b) => {
      const hypotheses = [];
      for (let row = b * nBest; row < (b + 1) * nBest && lengths[row]; row++) {
        const hypothesis = this.#readHypothesis(row, Number(lengths[row]), T, J, ids.length + 1);
        hypotheses.push({ ...hypothesis, finished: finished[row] === 1n });
      }
      return hypotheses;
    });
  }

  #readHypothesis(row, length, T, J, sourceLength) {
    const { buffer } = this.c.memory;
    const ids = new BigInt64Array(buffer, this.c.tokens() + 8 * row * T, length);
    const tokens = Array.from(ids, Number);
    const tokenScores = [...new Float32Array(buffer, this.c.scores() + 4 * row * T, length)];
    const weights = (t) => {
      const pointer = this.c.alphas() + 4 * (row * T + t) * J;
      return new Float32Array(buffer, pointer, sourceLength).slice();
    };
    const attention = this.attends ? tokens.map((_, t) => weights(t)) : null;
    return { tokens, tokenScores, attention };
  }
}

/** Encode a request as integers, in the order in which the engine reads them (ops/native/web/request.h). */
export function encodeRequest(sentences, maxLengths, prefixes, { beam, nBest, length_norm: norm }) {
  const forced = (prefixes ?? []).map(({ ids }) => ids);
  const maxForced = Math.max(0, ...forced.map((ids) => ids.length));
  const integers = [sentences.length, beam, nBest, norm === "gnmt" ? 1 : 0];
  const append = (values) => {
    for (const value of values) integers.push(value);
  };
  append([maxForced, prefixes ? 1 : 0]);
  append(sentences.map((ids) => ids.length + 1));
  append(maxLengths);
  for (const ids of sentences) append([...ids, EOS]);
  for (const ids of forced) {
    append(ids);
    append(new Array(maxForced - ids.length).fill(-1));
  }
  if (prefixes) {
    const rests = prefixes.map(({ rest }) => rest);
    const choices = rests.flat(); // the allowed tokens at each byte of all prefixes
    append(offsetsOf(rests));
    append(offsetsOf(choices));
    for (const ids of choices) append(ids);
  }
  return Int32Array.from(integers);
}

/** Return where each list starts in the concatenation of all, and where the last one ends. */
function offsetsOf(lists) {
  const offsets = [0];
  for (const list of lists) offsets.push(offsets.at(-1) + list.length);
  return offsets;
}
