// Layers and steps of a program laid out in the engine, each once (engine/layout.py), and what they make of rows.

import { RnnsearchError } from "./errors.js";
import { damaged } from "./file.js";
import { LONG } from "./native.js";
import { joined, scaled, sum } from "./rows.js";

const [FP32, INT8] = [0, 2]; // kinds of products, by file.js's KINDS
const PRODUCT = 2; // `What` of engine/parts.py
const PLACES = 8; // of a part

export class Layout {
  #native;
  #network;
  #file;
  #kind;
  #laid = new Map();

  /** native: the model in the engine, its `network` there. file: what file.js has read. */
  constructor(native, network, file) {
    [this.#native, this.#network, this.#file, this.#kind] = [native, network, file, file.kind];
  }

  /** All is laid out, and what it was made of can go. */
  finish() {
    this.#file = null;
  }

  /** Layers that read the same numbers, one below the other: {number, inputs, outputs}. A layer: [[array, row, rows, column,
   * columns], bias]. */
  layer(layers, kind = this.#kind) {
    const key = JSON.stringify([layers, kind]);
    if (!this.#laid.has(key)) this.#laid.set(key, this.#lay(layers, kind));
    return this.#laid.get(key);
  }

  #lay(layers, kind) {
    const blocks = layers.map(([rows]) => this.#block(rows));
    if (blocks.some((block) => Boolean(block.scale) !== Boolean(blocks[0].scale))) this.refuse();
    const [inputs, outputs] = [layers[0][0][4], sum(blocks.map((block) => block.rows))];
    let values = joined(blocks.map((block) => block.values));
    let scale = blocks[0].scale && joined(blocks.map((block) => block.scale));
    if (scale && kind !== INT8) [values, scale] = [scaled(values, scale, inputs), null];
    const bias = joined(layers.map(([rows, name]) => (name === null ? new Float32Array(rows[2]) : this.#file.row(name))));
    const lay = (...given) => this.#native.c.layer(this.#network, kind, outputs, inputs, ...given);
    const number = this.#native.lent([values, scale, bias], lay);
    return number < 0 ? this.refuse() : { number, inputs, outputs };
  }

  #block([name, row, rows, column, columns]) {
    const whole = this.#file.weight(name);
    const fits = (begin, count, all) => Number.isInteger(begin + count) && begin >= 0 && count >= 1 && begin + count <= all;
    if (!fits(row, rows, whole.rows) || !fits(column, columns, whole.columns)) this.refuse();
    const line = (n) => whole.values.subarray((row + n) * whole.columns + column, (row + n) * whole.columns + column + columns);
    const values = joined(Array.from({ length: rows }, (_, n) => line(n)));
    return { rows, values, scale: whole.scale && whole.scale.subarray(row, row + rows) };
  }

  /** A step of a cell, or of the decoder with the layer of its words, what it attends to and where its readout begins. */
  machine([inputs, sums, values, read, parts, bias, states], kind, decoder = {}) {
    const { key = 0, annotation = 0, heads = 1, scale = 1, reach = -1, spread = 0, vector = null } = decoder;
    const { features = [], reads = -1, readout = -1 } = decoder;
    const said = [sum(inputs.map(([rows]) => rows[2])), sums, values, read, key, annotation, heads, reach];
    said.push(states.length, ...states.flat(), reads, readout);
    said.push(features.length, ...features.flatMap((feature) => feature.sizes), parts.length);
    const own = new Map(); // where each array's numbers begin
    let owns = 0;
    for (const [what, size, at, before, weight, name] of parts) {
      const layer = what === PRODUCT ? this.layer([[weight, null]], kind).number : -1;
      const count = name === null ? 0 : this.#file.row(name).length;
      if (count && !own.has(name)) {
        own.set(name, owns);
        owns += count;
      }
      said.push(what, size, before, layer, own.get(name) ?? 0, count, ...at, ...Array(PLACES - at.length).fill(-1));
    }
    const numbers = joined([...own.keys()].map((name) => this.#file.row(name)));
    const arrays = [Int32Array.from(said), this.#file.row(bias), numbers];
    const given = [...arrays, vector === null ? null : this.#file.row(vector)];
    const number = this.#native.lent(given, (...lent) => this.#native.c.machine(this.#network, scale, spread, ...lent));
    return number < 0 ? this.refuse() : number;
  }

  cell(machine, wide) {
    const sizes = machine[6].map(([, size]) => size);
    return { inputs: this.layer(machine[0], wide ? FP32 : this.#kind), step: this.machine(machine, FP32), sizes };
  }

  /** A layer of the program; x where there is none. */
  affine(layer, x) {
    return layer ? this.linear(this.layer([layer]), x) : x;
  }

  linear({ number, inputs, outputs }, x) {
    const place = this.#native.lent([x], (...given) => this.#native.c.apply(this.#network, number, ...given)) || this.refuse();
    return this.numbers(place, (x.length / inputs) * outputs);
  }

  /** What does not fit does not before all is laid out; later a line is too long. */
  refuse() {
    throw this.#file ? damaged() : new RnnsearchError(LONG);
  }

  /** A cell's outputs [B, J, D], 0 on padding, and its last states by part. */
  sequence({ inputs, step, sizes }, x, lengths, J, backward) {
    const [B, share] = [lengths.length, this.linear(inputs, x)];
    const call = (...given) => this.#native.c.sequence(this.#network, step, backward, ...given) || this.refuse();
    const outputs = this.numbers(this.#native.lent([share, Int32Array.from(lengths)], call), B * J * sizes[0]);
    const S = sum(sizes) + 1;
    const states = this.numbers(this.#native.c.last_states(this.#network), B * S);
    const row = (b, at, own) => states.subarray(b * S + at, b * S + at + own);
    const part = (own, at) => joined([...Array(B).keys()].map((b) => row(b, at, own)));
    return { outputs, last: sizes.map((own, n) => part(own, sum(sizes.slice(0, n)))) };
  }

  numbers(place, count) {
    return new Float32Array(this.#native.c.memory.buffer, place, count).slice();
  }
}
