// RNNsearch in the engine (engine/rnnsearch.py, ops/native/web/rnnsearch_api.cpp).

import { damagedHeader } from "./engine-file.js";
import { roundUp } from "./matrices.js";
import { WasmEngine } from "./wasm-engine.js";

const GRU_MATRICES = ["input", "gates", "candidate"];
const ENCODER_MATRICES = ["forward", "backward"].flatMap((direction) =>
  GRU_MATRICES.map((matrix) => `encoder.${direction}.${matrix}`),
);
const EMBEDDINGS = ["source_embedding", "target_embedding"];
// The order is that of the engine, which knows matrices by number.
const MATRICES = [
  ...ENCODER_MATRICES,
  "key",
  "initial",
  "from_state",
  "from_context",
  "candidate",
  "from_word",
  "output",
  ...EMBEDDINGS,
];

const fail = () => {
  throw damagedHeader();
};

export class RNNsearch extends WasmEngine {
  #model = 0;
  attends = true;

  /** Load a file that readEngineFile has read. Throw an RnnsearchError if its arrays and sizes do not match. */
  constructor(wasm, file) {
    super(wasm);
    this.run(() => this.#load(file));
  }

  #load({ header, precision, has, vector, weight }) {
    const { encoder, state, pool } = Object(header.sizes);
    const scoreVector = vector("vector");
    const embeddings = EMBEDDINGS.map(weight);
    const readout = weight("from_word").rows - 3 * roundUp(state);
    this.vocabularySizes = embeddings.map(({ rows }) => rows);
    const embeddingSizes = embeddings.map(({ columns }) => columns);
    const sizes = [encoder, state, pool, scoreVector.length, readout];
    sizes.push(...this.vocabularySizes, ...embeddingSizes);
    const isSize = (size) => Number.isInteger(size) && size > 0 && size < 2 ** 31;
    if (!sizes.every(isSize)) fail();
    this.#model = this.c.rnnsearch_create(precision, ...sizes) || fail();
    MATRICES.forEach((name, number) => {
      const { rows, columns, values, scale } = weight(name);
      const bias = has(`${name}.bias`) ? vector(`${name}.bias`) : null;
      const layOut = (...pointers) =>
        this.c.rnnsearch_set_array(this.#model, number, rows, columns, ...pointers) || fail();
      this.withArrays([values, scale, bias], layOut);
    });
    this.withArrays([scoreVector], (...pointers) => this.c.rnnsearch_finish(this.#model, ...pointers) || fail());
  }

  setTokenBytes(sizes) {
    const call = (...pointers) => this.c.rnnsearch_set_token_bytes(this.#model, ...pointers);
    this.run(() => this.withArrays([Int32Array.from(sizes)], call));
  }

  search(_, request, lengthPenalty, coveragePenalty) {
    const call = (...pointers) =>
      this.c.rnnsearch_translate(this.#model, ...pointers, lengthPenalty, coveragePenalty);
    return this.withArrays([request], call);
  }
}
