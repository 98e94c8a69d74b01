// Any recurrent model whose computation is written as a program (engine/program.py), as engine/recurrent.py runs it. Cells,
// layers and search are the engine's (kernels/native/web/recurrent.cpp).

import { attentionOf } from "./attention.js";
import { Encoder } from "./encoder.js";
import { damaged } from "./file.js";
import { Layout } from "./layout.js";
import { Native, request } from "./native.js";
import { isProgram } from "./program.js";
import { sum } from "./rows.js";
import { UNK } from "./vocabulary.js";

const [ADDITIVE, DOT] = [7, 8]; // `What` of engine/parts.py
const NUMBERS = 2 ** 26; // that the engine has at a time (web/request.h)

const fail = () => {
  throw damaged();
};

/** Numbers that a row of a step has. */
const rowSize = ([, sums, values, reads, , , states]) => sums + 2 * values + reads + sum(states.map(([, size]) => size)) + 1;

export class Recurrent extends Native {
  #network = 0;
  #encoder;
  #largest; // numbers that a row of the encoder has, and one of the decoder
  #decoder;
  #output;

  /** wasm: a compiled module. file: what file.js has read. Errors: RnnsearchError where arrays and program do not fit. */
  constructor(wasm, file) {
    super(wasm);
    try {
      this.run(() => this.#take(file));
    } catch (error) {
      throw error instanceof TypeError || error instanceof RangeError ? damaged() : error;
    }
  }

  #take(file) {
    if (!isProgram(file.header.program)) fail();
    const [[layers, readsEnd, reverse], told, first, step, readout] = file.header.program;
    const attention = told && attentionOf(told, file.weight);
    const [source, target, output] = ["source_embedding", "target_embedding", "output"].map(file.weight);
    [this.words, this.attends] = [[source.rows, target.rows], attention !== null];
    this.#largest = [Math.max(...layers.flatMap(([cells]) => cells.map(rowSize))), rowSize(step)];
    const made = (...given) => this.c.network(...this.words, target.columns, ...given) || fail();
    this.#network = this.lent([target.values, target.scale], made);
    const layout = new Layout(this, this.#network, file);
    this.#encoder = new Encoder(layout, layers, { readsEnd, reverse, first, attention }, source);
    const reads = layout.layer(step[0]).number;
    const attended = attention && sizesOf(attention, step, layers, source);
    this.#decoder = layout.machine(step, file.kind, { reads, readout, ...attended, ...attention });
    this.#output = layout.layer([[["output", 0, output.rows, 0, output.columns], "output.bias"]]).number;
    this.#translateOne();
    layout.finish();
  }

  /** Sizes that do not fit each other are seen at the first sentence: this. */
  #translateOne() {
    const search = { beam: 1, nBest: 1, length_norm: "power" };
    const ints = Int32Array.from(request([[UNK, UNK]], [1], null, search));
    if (this.asked([[UNK, UNK]], ints, 1, 0) < 0) fail();
  }

  /** The bytes of each target symbol, before anything is to be spelled. */
  spell(sizes) {
    this.run(() => this.lent([Int32Array.from(sizes)], (...given) => this.c.spelled(this.#network, ...given)));
  }

  atOnce(symbols, beam) {
    const [cell, step] = this.#largest;
    const remembered = symbols * this.#encoder.remembered;
    return NUMBERS / Math.max(cell * symbols, (step + remembered) * beam);
  }

  asked(sentences, ints, length, coverage) {
    if (this.lent([ints], (...given) => this.c.asks(this.#network, ...given)) < 0) return -1;
    const arrays = [ints, ...this.#encoder.encode(sentences)];
    const call = (...given) => this.c.search(this.#network, this.#decoder, this.#output, length, coverage, ...given);
    return this.lent(arrays, call);
  }
}

/** The sizes of the keys and values that a step attends to. */
function sizesOf({ projection, values, words }, step, layers, source) {
  const [, key] = step[4].find(([what]) => what === ADDITIVE || what === DOT);
  let annotation = sum(layers.at(-1)[0].map((cell) => cell[6][0][1]));
  for (const layer of [projection, values]) if (layer) annotation = layer[0][2];
  return { key, annotation: annotation + (words ? source.columns : 0) };
}
