// Lays out the layers and steps of a program in the engine's memory, each once (engine/layout.py), and runs them.

import { damagedHeader, PRECISIONS } from "./engine-file.js";
import { RnnsearchError } from "./errors.js";
import { concatenate, dequantize, sum } from "./matrices.js";
import { LINE_TOO_LONG } from "./wasm-engine.js";

const FP32 = PRECISIONS.indexOf("fp32");
const INT8 = PRECISIONS.indexOf("int8");
const PRODUCT = 2; // `What` of engine/structs.py
const POSITIONS_PER_PART = 8;

export class Layout {
  #engine;
  #network;
  #file;
  #precision;
  #layers = new Map(); // key -> {number, inputs, outputs}

  /** Lay out in a network of the engine what the file contains. */
  constructor(engine, network, file) {
    this.#engine = engine;
    this.#network = network;
    this.#file = file;
    this.#precision = file.precision;
  }

  /** Release the file's arrays when everything has been laid out. */
  finish() {
    this.#file = null;
  }

  /** Throw the error for sizes that do not fit: of the file, or, after finish(), of a sentence. */
  refuse() {
    throw this.#file ? damagedHeader() : new RnnsearchError(LINE_TOO_LONG);
  }

  /**
   * Lay out layers with the same inputs as one, their outputs concatenated.
   * @param {[[string, number, number, number, number], string | null][]} layers
   *   Block [array, row, rows, column, columns] and bias of each.
   * @returns {{number: number, inputs: number, outputs: number}}
   */
  layer(layers, precision = this.#precision) {
    const key = JSON.stringify([layers, precision]);
    if (!this.#layers.has(key)) this.#layers.set(key, this.#createLayer(layers, precision));
    return this.#layers.get(key);
  }

  #createLayer(layers, precision) {
    const blocks = layers.map(([block]) => this.#readBlock(block));
    const isQuantized = Boolean(blocks[0].scale);
    if (blocks.some(({ scale }) => Boolean(scale) !== isQuantized)) this.refuse();
    const [[[, , , , inputs]]] = layers;
    const outputs = sum(blocks.map(({ rows }) => rows));
    let values = concatenate(blocks.map((block) => block.values));
    let scale = isQuantized ? concatenate(blocks.map((block) => block.scale)) : null;
    if (isQuantized && precision !== INT8) {
      values = dequantize(values, scale, inputs);
      scale = null;
    }
    const biases = layers.map(([[, , rows], name]) =>
      name === null ? new Float32Array(rows) : this.#file.vector(name),
    );
    const create = (...pointers) =>
      this.#engine.c.recurrent_add_layer(this.#network, precision, outputs, inputs, ...pointers);
    const number = this.#engine.withArrays([values, scale, concatenate(biases)], create);
    return number < 0 ? this.refuse() : { number, inputs, outputs };
  }

  /** Copy a block of a weight. */
  #readBlock([name, row, rows, column, columns]) {
    const weight = this.#file.weight(name);
    const fits = (start, count, size) =>
      Number.isInteger(start + count) && start >= 0 && count >= 1 && start + count <= size;
    if (!fits(row, rows, weight.rows) || !fits(column, columns, weight.columns)) this.refuse();
    const lines = Array.from({ length: rows }, (_, n) => {
      const start = (row + n) * weight.columns + column;
      return weight.values.subarray(start, start + columns);
    });
    const scale = weight.scale && weight.scale.subarray(row, row + rows);
    return { rows, values: concatenate(lines), scale };
  }

  /**
   * Lay out the step of a cell or of the decoder and return its number.
   * @param {Array} step A step of the program.
   * @param {number} precision
   * @param {object} decoder Attention, the layer of the input words, and the readout's position; only of a decoder.
   */
  step([inputs, sums, values, reads, parts, bias, states], precision, decoder = {}) {
    const {
      key = 0,
      annotation = 0,
      heads = 1,
      scale = 1,
      reach = -1,
      spread = 0,
      vector = null,
      features = [],
      wordLayer = -1,
      readout = -1,
    } = decoder;
    const inputSize = sum(inputs.map(([block]) => block[2]));
    // The integers in the order in which the engine reads them (ops/native/web/recurrent_api.cpp).
    const integers = [inputSize, sums, values, reads, key, annotation, heads, reach];
    integers.push(states.length, ...states.flat(), wordLayer, readout);
    integers.push(features.length, ...features.flatMap(({ sizes }) => sizes), parts.length);
    const vectorOffsets = new Map(); // of the parts' own vectors, concatenated
    let vectorsLength = 0;
    for (const [what, size, positions, before, weight, name] of parts) {
      const layer = what === PRODUCT ? this.layer([[weight, null]], precision).number : -1;
      const count = name === null ? 0 : this.#file.vector(name).length;
      if (count && !vectorOffsets.has(name)) {
        vectorOffsets.set(name, vectorsLength);
        vectorsLength += count;
      }
      const padding = new Array(POSITIONS_PER_PART - positions.length).fill(-1);
      integers.push(what, size, before, layer, vectorOffsets.get(name) ?? 0, count);
      integers.push(...positions, ...padding);
    }
    const arrays = [
      Int32Array.from(integers),
      this.#file.vector(bias),
      concatenate([...vectorOffsets.keys()].map((name) => this.#file.vector(name))),
      vector === null ? null : this.#file.vector(vector),
    ];
    const create = (...pointers) => this.#engine.c.recurrent_add_step(this.#network, scale, spread, ...pointers);
    const number = this.#engine.withArrays(arrays, create);
    return number < 0 ? this.refuse() : number;
  }

  /** Lay out an encoder cell; `wide` cells read their inputs in fp32 whatever the precision. */
  cell(step, wide) {
    const [inputs, , , , , , states] = step;
    return {
      inputs: this.layer(inputs, wide ? FP32 : this.#precision),
      step: this.step(step, FP32),
      sizes: states.map(([, size]) => size),
    };
  }

  /** Apply an optional layer of the program to rows. */
  affine(layer, x) {
    return layer ? this.#linear(this.layer([layer]), x) : x;
  }

  #linear({ number, inputs, outputs }, x) {
    const apply = (...pointers) => this.#engine.c.recurrent_apply_layer(this.#network, number, ...pointers);
    const pointer = this.#engine.withArrays([x], apply) || this.refuse();
    return this.#readFloats(pointer, (x.length / inputs) * outputs);
  }

  /**
   * Run a cell over sentences.
   * @returns {{outputs: Float32Array, last: Float32Array[]}} Outputs [B, J, D], 0 on padding, and last states by part.
   */
  sequence({ inputs, step, sizes }, x, lengths, J, backward) {
    const B = lengths.length;
    const projected = this.#linear(inputs, x);
    const run = (...pointers) =>
      this.#engine.c.recurrent_run_cell(this.#network, step, backward, ...pointers) || this.refuse();
    const pointer = this.#engine.withArrays([projected, Int32Array.from(lengths)], run);
    const outputs = this.#readFloats(pointer, B * J * sizes[0]);
    const stateSize = sum(sizes) + 1;
    const states = this.#readFloats(this.#engine.c.recurrent_final_states(this.#network), B * stateSize);
    let offset = 0;
    const last = sizes.map((size) => {
      const rows = lengths.map((_, b) => {
        const start = b * stateSize + offset;
        return states.subarray(start, start + size);
      });
      offset += size;
      return concatenate(rows);
    });
    return { outputs, last };
  }

  #readFloats(pointer, count) {
    return new Float32Array(this.#engine.c.memory.buffer, pointer, count).slice();
  }
}
