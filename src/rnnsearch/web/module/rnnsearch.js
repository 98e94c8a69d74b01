// RNNsearch in the engine (engine/rnnsearch.py; kernels/native/web/rnnsearch.cpp).

import { damaged } from "./file.js";
import { Native } from "./native.js";

const GRU = ["input", "gates", "candidate"];
const ENCODER = ["forward", "backward"].flatMap((way) => GRU.map((part) => `encoder.${way}.${part}`));
const MATRICES = [...ENCODER, "key", "initial", "from_state", "from_context", "candidate", "from_word", "output"];
const TABLES = ["source_embedding", "target_embedding"];

export class RNNsearch extends Native {
  #model = 0;
  attends = true;

  /** wasm: a compiled module. file: what file.js has read. Errors: RnnsearchError where arrays and sizes do not fit. */
  constructor(wasm, file) {
    super(wasm);
    this.run(() => this.#take(file));
  }

  #take({ header, kind, has, row, weight }) {
    const { encoder, state, pool } = Object(header.sizes);
    const fail = () => {
      throw damaged();
    };
    const [vector, fromWord, ...tables] = [row("vector"), ...["from_word", ...TABLES].map(weight)];
    const readout = fromWord.rows - 3 * Math.ceil(state / 16) * 16;
    const sizes = [encoder, state, pool, vector.length, readout, ...tables.map((table) => table.rows)];
    sizes.push(...tables.map((table) => table.columns));
    if (!sizes.every((size) => Number.isInteger(size) && size > 0 && size < 2 ** 31)) fail();
    this.#model = this.c.model(kind, ...sizes) || fail();
    [...MATRICES, ...TABLES].forEach((name, part) => {
      const { rows, columns, values, scale } = weight(name);
      const bias = has(`${name}.bias`) ? row(`${name}.bias`) : null;
      const lay = (...given) => this.c.lay(this.#model, part, rows, columns, ...given) || fail();
      this.lent([values, scale, bias], lay);
    });
    this.lent([vector], (...given) => this.c.finish(this.#model, ...given) || fail());
    this.words = tables.map((table) => table.rows);
  }

  /** The bytes of each target symbol, before anything is to be spelled. */
  spell(sizes) {
    this.run(() => this.lent([Int32Array.from(sizes)], (...given) => this.c.spell(this.#model, ...given)));
  }

  asked(_, ints, length, coverage) {
    return this.lent([ints], (...given) => this.c.translate(this.#model, ...given, length, coverage));
  }
}
