// Any recurrent model whose computation is a program (engine/program.py, engine/recurrent.py). The engine runs cells,
// layers and search (ops/native/web/recurrent_api.cpp).

import { readAttention } from "./attention.js";
import { Encoder } from "./encoder.js";
import { damagedHeader } from "./engine-file.js";
import { Layout } from "./layout.js";
import { sum } from "./matrices.js";
import { isProgram } from "./program.js";
import { UNK } from "./vocabulary.js";
import { encodeRequest, WasmEngine } from "./wasm-engine.js";

const [ADDITIVE, DOT] = [7, 8]; // `What` of engine/structs.py
const MAX_FLOATS = 2 ** 26; // in the engine at a time (ops/native/web/request.h)

const fail = () => {
  throw damagedHeader();
};

/** Return the number of floats that a step needs per row. */
function rowSize([, sums, values, reads, , , states]) {
  return sums + 2 * values + reads + sum(states.map(([, size]) => size)) + 1;
}

export class Recurrent extends WasmEngine {
  #network = 0;
  #encoder;
  #decoder;
  #output;
  #encoderRowSize; // maximum of all cells
  #decoderRowSize;

  /** Load a file that readEngineFile has read. Throw an RnnsearchError if its arrays and program do not match. */
  constructor(wasm, file) {
    super(wasm);
    try {
      this.run(() => this.#load(file));
    } catch (error) {
      const isInvalid = error instanceof TypeError || error instanceof RangeError;
      throw isInvalid ? damagedHeader() : error;
    }
  }

  #load(file) {
    const { program } = file.header;
    if (!isProgram(program)) fail();
    const [[layers, readsEnd, reverse], attentionData, initialStates, step, readout] = program;
    const attention = attentionData && readAttention(attentionData, file.weight);
    const source = file.weight("source_embedding");
    const target = file.weight("target_embedding");
    const output = file.weight("output");
    this.vocabularySizes = [source.rows, target.rows];
    this.attends = attention !== null;
    this.#encoderRowSize = Math.max(...layers.flatMap(([cells]) => cells.map(rowSize)));
    this.#decoderRowSize = rowSize(step);
    const create = (...pointers) =>
      this.c.recurrent_create(...this.vocabularySizes, target.columns, ...pointers) || fail();
    this.#network = this.withArrays([target.values, target.scale], create);
    const layout = new Layout(this, this.#network, file);
    const encoderProgram = { readsEnd, reverse, initialStates, attention };
    this.#encoder = new Encoder(layout, layers, encoderProgram, source);
    const wordLayer = layout.layer(step[0]).number;
    const attentionSizes = attention && sizesOf(attention, step, layers, source);
    const decoder = { wordLayer, readout, ...attentionSizes, ...attention };
    this.#decoder = layout.step(step, file.precision, decoder);
    const outputBlock = ["output", 0, output.rows, 0, output.columns];
    this.#output = layout.layer([[outputBlock, "output.bias"]]).number;
    this.#translateOneWord();
    layout.finish();
  }

  /** Translate a sentence of one word, because sizes that do not match are only noticed then. */
  #translateOneWord() {
    const sentences = [[UNK, UNK]];
    const settings = { beam: 1, nBest: 1, length_norm: "power" };
    const request = encodeRequest(sentences, [1], null, settings);
    if (this.search(sentences, request, 1, 0) < 0) fail();
  }

  setTokenBytes(sizes) {
    const call = (...pointers) => this.c.recurrent_set_token_bytes(this.#network, ...pointers);
    this.run(() => this.withArrays([Int32Array.from(sizes)], call));
  }

  maxSentences(length, beam) {
    const memory = length * this.#encoder.featureMemory;
    const encoderFloats = this.#encoderRowSize * length;
    const decoderFloats = (this.#decoderRowSize + memory) * beam;
    return MAX_FLOATS / Math.max(encoderFloats, decoderFloats);
  }

  search(sentences, request, lengthPenalty, coveragePenalty) {
    const check = (...pointers) => this.c.recurrent_check_request(this.#network, ...pointers);
    if (this.withArrays([request], check) < 0) return -1;
    const arrays = [request, ...this.#encoder.encode(sentences)];
    const settings = [this.#decoder, this.#output, lengthPenalty, coveragePenalty];
    const call = (...pointers) => this.c.recurrent_search(this.#network, ...settings, ...pointers);
    return this.withArrays(arrays, call);
  }
}

/** Return the sizes of the keys and values that a step attends to. */
function sizesOf({ projection, values, words }, step, layers, source) {
  const [, , , , parts] = step;
  const [, key] = parts.find(([what]) => what === ADDITIVE || what === DOT);
  const [topCells] = layers.at(-1);
  const outputSize = ([, , , , , , [[, size]]]) => size; // of a cell: its first state
  let annotation = sum(topCells.map(outputSize));
  for (const layer of [projection, values]) {
    if (!layer) continue;
    const [[, , rows]] = layer;
    annotation = rows;
  }
  return { key, annotation: annotation + (words ? source.columns : 0) };
}
