// What goes between scripts and the engine in WebAssembly (kernels/native/web): arrays that are lent to it, requests for
// translations, and what it finds.

import { RnnsearchError } from "./errors.js";
import { EOS } from "./vocabulary.js";

export const LONG = "a line is longer than the engine takes: give it in shorter ones";
export const FAILED = "the engine has run out of memory, or failed: load the model again";

/** A model in the engine. Those of a kind have what it does with a request: asked(sentences, ints, length and coverage
 * penalty), 1, 0 (scores are no numbers) or -1 (no such request); words, [of source, of target]; and whether it attends. */
export class Native {
  #broken = false;

  /** How many sentences of so many symbols it takes at a time, with a beam. */
  atOnce() {
    return Infinity;
  }

  constructor(wasm) {
    this.c = new WebAssembly.Instance(wasm, {}).exports;
    this.c._initialize();
  }

  /** Call with arrays that lie in the engine's memory meanwhile: the address and the length of each. */
  lent(arrays, call) {
    const places = arrays.map((array) => {
      if (!array) return 0;
      const place = this.c.room(Math.max(1, array.byteLength));
      if (!place) throw new WebAssembly.RuntimeError();
      const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
      new Uint8Array(this.c.memory.buffer, place, bytes.length).set(bytes);
      return place;
    });
    try {
      return call(...arrays.flatMap((array, n) => [places[n], array?.length ?? 0]));
    } finally {
      for (const place of places) if (place) this.c.release(place);
    }
  }

  run(work) {
    if (this.#broken) throw new RnnsearchError(FAILED);
    try {
      return work();
    } catch (error) {
      if (error instanceof RnnsearchError) throw error;
      this.#broken = true; // what it had begun to write may be half written
      if (error instanceof WebAssembly.RuntimeError || error instanceof RangeError) throw new RnnsearchError(FAILED);
      throw error;
    }
  }

  /** Hypotheses of sentences (ids, the longest first), the n best of each. begins: {ids, rest} of each; or null. */
  search(sentences, most, begins, search) {
    const ints = Int32Array.from(request(sentences, most, begins, search));
    return this.run(() => {
      const said = this.asked(sentences, ints, search.length_penalty, search.coverage_penalty);
      if (said === 0) throw new RnnsearchError("the scores of a sentence must be numbers; got NaN");
      if (said < 0) throw new RnnsearchError(LONG);
      return this.#found(sentences, search.nBest, Math.max(...most) + 1);
    });
  }

  #found(sentences, n, T) {
    const buffer = this.c.memory.buffer;
    const each = (name) => new BigInt64Array(buffer, this.c[name](), sentences.length * n);
    const [lengths, finished] = [each("lengths"), each("finished")];
    const J = sentences[0].length + 1;
    return sentences.map((ids, b) => {
      const found = [];
      for (let row = b * n; row < (b + 1) * n && lengths[row]; row++) {
        const length = Number(lengths[row]);
        const tokens = Array.from(new BigInt64Array(buffer, this.c.tokens() + 8 * row * T, length), Number);
        const tokenScores = [...new Float32Array(buffer, this.c.scores() + 4 * row * T, length)];
        const weights = (t) => new Float32Array(buffer, this.c.alphas() + 4 * (row * T + t) * J, ids.length + 1).slice();
        const attention = this.attends ? tokens.map((_, t) => weights(t)) : null;
        found.push({ tokens, tokenScores, attention, finished: finished[row] === 1n });
      }
      return found;
    });
  }
}

/** The integers of a request, in the order that `Request` of web/request.h reads them. */
export function* request(sentences, most, begins, { beam, nBest, length_norm: norm }) {
  const [forced, rests] = [begins?.map((begin) => begin.ids) ?? [], begins?.map((begin) => begin.rest) ?? []];
  const P = Math.max(0, ...forced.map((ids) => ids.length));
  yield* [sentences.length, beam, nBest, norm === "gnmt" ? 1 : 0, P, begins ? 1 : 0];
  for (const ids of sentences) yield ids.length + 1;
  yield* most;
  for (const ids of sentences) {
    yield* ids;
    yield EOS;
  }
  for (const ids of forced) for (let n = 0; n < P; n++) yield ids[n] ?? -1;
  if (!begins) return;
  yield* sums(rests);
  const ways = rests.flat();
  yield* sums(ways);
  for (const way of ways) yield* way;
}

/** 0, and where each of some lists ends when they stand one after another. */
function* sums(lists) {
  let at = 0;
  yield at;
  for (const list of lists) yield (at += list.length);
}
