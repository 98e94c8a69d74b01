// The engine in WebAssembly (kernels/native/web/engine.cpp), and what goes between it and scripts.

import { RnnsearchError } from "./errors.js";
import { damaged } from "./file.js";

const GRU = ["input", "gates", "candidate"];
const ENCODER = ["forward", "backward"].flatMap((way) => GRU.map((part) => `encoder.${way}.${part}`));
const MATRICES = [...ENCODER, "key", "initial", "from_state", "from_context", "candidate", "from_word", "output"];
const TABLES = ["source_embedding", "target_embedding"];
const FAILED = "the engine has run out of memory, or failed: load the model again";

const isRow = (array) => !array || array.values instanceof Float32Array;

export class Engine {
  #c;
  #model = 0;
  #broken = false;

  /** wasm: a compiled module. file: what file.js has read. Errors: RnnsearchError where arrays and sizes do not fit. */
  constructor(wasm, file) {
    this.#c = new WebAssembly.Instance(wasm, {}).exports;
    this.#c._initialize();
    this.#run(() => this.#take(file));
  }

  #take({ header, kind, array }) {
    const { encoder, state, pool } = Object(header.sizes);
    const need = (name) => array(name) ?? fail();
    const fail = () => {
      throw damaged();
    };
    const [vector, fromWord, ...tables] = ["vector", "from_word", ...TABLES].map(need);
    const readout = fromWord.shape[0] - 3 * Math.ceil(state / 16) * 16;
    const ofTables = [0, 1].flatMap((axis) => tables.map((table) => table.shape[axis]));
    const sizes = [encoder, state, pool, vector.shape[0], readout, ...ofTables];
    if (!sizes.every((size) => Number.isInteger(size) && size > 0 && size < 2 ** 31)) fail();
    this.#model = this.#c.model(kind, ...sizes) || fail();
    [...MATRICES, ...TABLES].forEach((name, part) => {
      const [own, scale, bias] = [need(name), array(`${name}.scale`), array(`${name}.bias`)];
      const bytes = own.values instanceof Int8Array;
      const shape = own.shape.length === 2 ? own.shape : fail();
      if (bytes !== Boolean(scale) || ![scale, bias].every(isRow)) fail();
      const lay = (...given) => this.#c.lay(this.#model, part, ...shape, ...given) || fail();
      this.#lent([own.values, scale?.values, bias?.values], lay);
    });
    if (!isRow(vector)) fail();
    this.#lent([vector.values], (...given) => this.#c.finish(this.#model, ...given) || fail());
    this.words = tables.map((table) => table.shape[0]);
  }

  /** The bytes of each target symbol, before anything is to be spelled. */
  spell(sizes) {
    this.#run(() => this.#lent([Int32Array.from(sizes)], (...given) => this.#c.spell(this.#model, ...given)));
  }

  /** Call with arrays that lie in the engine's memory meanwhile: the address and the length of each. */
  #lent(arrays, call) {
    const places = arrays.map((array) => {
      if (!array) return 0;
      const place = this.#c.room(Math.max(1, array.byteLength));
      if (!place) throw new WebAssembly.RuntimeError();
      const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
      new Uint8Array(this.#c.memory.buffer, place, bytes.length).set(bytes);
      return place;
    });
    try {
      return call(...arrays.flatMap((array, n) => [places[n], array?.length ?? 0]));
    } finally {
      for (const place of places) if (place) this.#c.release(place);
    }
  }

  #run(work) {
    if (this.#broken) throw new RnnsearchError(FAILED);
    try {
      return work();
    } catch (error) {
      if (error instanceof RnnsearchError) throw error;
      this.#broken = true; // what it had begun to write may be half written
      if (error instanceof WebAssembly.RuntimeError) throw new RnnsearchError(FAILED);
      throw error;
    }
  }

  /** Hypotheses of sentences (ids, the longest first), the n best of each. begins: {ids, rest} of each; or null. */
  search(sentences, most, begins, search) {
    const asked = Int32Array.from(request(sentences, most, begins, search));
    const { length_penalty: length, coverage_penalty: coverage } = search;
    const call = (place, count) => this.#c.translate(this.#model, place, count, length, coverage);
    return this.#run(() => {
      const said = this.#lent([asked], call);
      if (said === 0) throw new RnnsearchError("the scores of a sentence must be numbers; got NaN");
      if (said < 0) throw new RnnsearchError("a line is longer than the engine takes: give it in shorter ones");
      return this.#found(sentences, search.nBest, Math.max(...most) + 1);
    });
  }

  #found(sentences, n, T) {
    const buffer = this.#c.memory.buffer;
    const each = (name) => new BigInt64Array(buffer, this.#c[name](), sentences.length * n);
    const [lengths, finished] = [each("lengths"), each("finished")];
    const J = sentences[0].length + 1;
    return sentences.map((ids, b) => {
      const found = [];
      for (let row = b * n; row < (b + 1) * n && lengths[row]; row++) {
        const length = Number(lengths[row]);
        const tokens = Array.from(new BigInt64Array(buffer, this.#c.tokens() + 8 * row * T, length), Number);
        const tokenScores = [...new Float32Array(buffer, this.#c.scores() + 4 * row * T, length)];
        const weights = (t) => new Float32Array(buffer, this.#c.alphas() + 4 * (row * T + t) * J, ids.length + 1).slice();
        const attention = tokens.map((_, t) => weights(t));
        found.push({ tokens, tokenScores, attention, finished: finished[row] === 1n });
      }
      return found;
    });
  }
}

/** The integers of a request, in the order that engine.cpp reads them. */
function* request(sentences, most, begins, { beam, nBest, length_norm: norm }) {
  const [forced, rests] = [begins?.map((begin) => begin.ids) ?? [], begins?.map((begin) => begin.rest) ?? []];
  const P = Math.max(0, ...forced.map((ids) => ids.length));
  yield* [sentences.length, beam, nBest, norm === "gnmt" ? 1 : 0, P, begins ? 1 : 0];
  for (const ids of sentences) yield ids.length + 1;
  yield* most;
  for (const ids of sentences) {
    yield* ids;
    yield 3; // EOS
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
