// Any recurrent model whose computation is written as a program (engine/program.py): what engine/recurrent.py does around
// layers, cells and search, which the engine does (kernels/native/web/recurrent.cpp).

import { RnnsearchError } from "./errors.js";
import { damaged } from "./file.js";
import { LONG, Native, request } from "./native.js";
import { isProgram } from "./program.js";
import { EOS, UNK } from "./vocabulary.js";

const [FP32, INT8] = [0, 2]; // kinds of products, by file.js's KINDS
const [PRODUCT, ADDITIVE, DOT] = [2, 7, 8]; // `What` of engine/parts.py
const PLACES = 8; // of a part
const UNIT = 16; // sizes are rounded up to this (engine/packed.py)
const NUMBERS = 2 ** 26; // that the engine has at a time (web/request.h)

const fail = () => {
  throw damaged();
};
const sum = (numbers) => numbers.reduce((all, n) => all + n, 0);
const whole = (units) => Math.ceil(units / UNIT) * UNIT;

/** Arrays one behind the other, of the type of the first. */
function joined(arrays) {
  const all = new (arrays[0]?.constructor ?? Float32Array)(sum(arrays.map((array) => array.length)));
  let at = 0;
  for (const array of arrays) {
    all.set(array, at);
    at += array.length;
  }
  return all;
}

/** Rows of bytes as numbers. */
const scaled = (values, scale, width) => Float32Array.from(values, (value, n) => value * scale[Math.floor(n / width)]);

/** Rows of so many numbers as one array, each one's parts side by side: [values, width] of each part. */
function beside(parts, count) {
  if (parts.length === 1) return parts[0][0];
  const width = sum(parts.map(([, own]) => own));
  const all = new Float32Array(count * width);
  let at = 0;
  for (const [values, own] of parts) {
    for (let n = 0; n < count; n++) all.set(values.subarray(n * own, (n + 1) * own), n * width + at);
    at += own;
  }
  return all;
}

/** Each sentence's words [B, J, E] from last to first, its end symbol last. */
function turned(x, lengths, J) {
  const E = x.length / (lengths.length * J);
  const all = x.slice();
  lengths.forEach((length, b) => {
    for (let j = 0; j + 1 < length; j++) {
      const [from, to] = [b * J + length - 2 - j, b * J + j].map((place) => place * E);
      all.set(x.subarray(from, from + E), to);
    }
  });
  return all;
}

/** The mean of each sentence's annotations. */
function means(annotations, lengths, J) {
  const H = annotations.length / (lengths.length * J);
  const all = new Float32Array(lengths.length * H);
  lengths.forEach((length, b) => {
    for (let j = 0; j < length; j++) for (let k = 0; k < H; k++) all[b * H + k] += annotations[(b * J + j) * H + k];
    for (let k = 0; k < H; k++) all[b * H + k] /= length;
  });
  return all;
}

/** An attention as its program has it, by names. */
function attentionOf(given, weight) {
  const [projection, keys, positions, values, words, heads, scale, reach, spread, follows, vector, place, ...rest] = given;
  const features = rest[0].map(([units, neighbours, keeps, fixed, kept, layer, fertility]) => {
    return { sizes: [units, neighbours, keeps, fixed, kept], layer, fertility };
  });
  const table = positions === null ? null : { ...weight(positions) };
  if (table?.scale) table.values = scaled(table.values, table.scale, table.columns);
  return { projection, keys, positions: table, values, words, heads, scale, reach, spread, follows, vector, place, features };
}

export class Recurrent extends Native {
  #network = 0;
  #program;
  #kind;
  #file;
  #laid = new Map();
  #source;
  #cells;
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
    [this.#file, this.#kind] = [file, file.kind];
    if (!isProgram(file.header.program)) fail();
    const [encoder, attention, first, step, readout] = file.header.program;
    const [layers, readsEnd, reverse] = encoder;
    this.#program = { readsEnd, reverse, first, attention: attention && attentionOf(attention, file.weight) };
    this.attends = attention !== null;
    const [source, target, output] = ["source_embedding", "target_embedding", "output"].map(file.weight);
    this.#source = source;
    const rowSize = ([, sums, values, reads, , , states]) => sums + 2 * values + reads + sum(states.map(([, size]) => size)) + 1;
    this.#largest = [Math.max(...layers.flatMap(([cells]) => cells.map(rowSize))), rowSize(step)];
    this.words = [source.rows, target.rows];
    const made = (...given) => this.c.network(...this.words, target.columns, ...given) || fail();
    this.#network = this.lent([target.values, target.scale], made);
    this.#cells = layers.map(([cells, adds, wide]) => ({ cells: cells.map((cell) => this.#cell(cell, wide)), adds }));
    const reads = this.#layer(step[0], this.#kind).number;
    this.#decoder = this.#machine(step, this.#kind, { reads, readout, ...this.#attended(step, layers) });
    this.#output = this.#layer([[["output", 0, output.rows, 0, output.columns], "output.bias"]], this.#kind).number;
    this.#translateOne();
    this.#file = null; // all is laid out
  }

  /** Sizes that do not fit each other are seen at the first sentence: this. */
  #translateOne() {
    const search = { beam: 1, nBest: 1, length_norm: "power" };
    const ints = Int32Array.from(request([[UNK, UNK]], [1], null, search));
    if (this.asked([[UNK, UNK]], ints, 1, 0) < 0) fail();
  }

  /** What a step attends to. */
  #attended(step, layers) {
    const { attention } = this.#program;
    if (!attention) return {};
    const [, key] = step[4].find(([what]) => what === ADDITIVE || what === DOT);
    let annotation = sum(layers.at(-1)[0].map((cell) => cell[6][0][1]));
    for (const layer of [attention.projection, attention.values]) if (layer) annotation = layer[0][2];
    return { key, annotation: annotation + (attention.words ? this.#source.columns : 0), ...attention };
  }

  /** Layers that read the same numbers, one below the other: {number, inputs, outputs}. A layer: [[array, row, rows, column,
   * columns], bias]. */
  #layer(layers, kind) {
    const key = JSON.stringify([layers, kind]);
    if (!this.#laid.has(key)) this.#laid.set(key, this.#lay(layers, kind));
    return this.#laid.get(key);
  }

  #lay(layers, kind) {
    const blocks = layers.map(([rows]) => this.#block(rows));
    if (blocks.some((block) => Boolean(block.scale) !== Boolean(blocks[0].scale))) fail();
    const [inputs, outputs] = [layers[0][0][4], sum(blocks.map((block) => block.rows))];
    let values = joined(blocks.map((block) => block.values));
    let scale = blocks[0].scale && joined(blocks.map((block) => block.scale));
    if (scale && kind !== INT8) [values, scale] = [scaled(values, scale, inputs), null];
    const bias = joined(layers.map(([rows, name]) => (name === null ? new Float32Array(rows[2]) : this.#file.row(name))));
    const lay = (...given) => this.c.layer(this.#network, kind, outputs, inputs, ...given);
    const number = this.lent([values, scale, bias], lay);
    return number < 0 ? fail() : { number, inputs, outputs };
  }

  #block([name, row, rows, column, columns]) {
    const whole = this.#file.weight(name);
    const fits = (begin, count, all) => Number.isInteger(begin + count) && begin >= 0 && count >= 1 && begin + count <= all;
    if (!fits(row, rows, whole.rows) || !fits(column, columns, whole.columns)) fail();
    const line = (n) => whole.values.subarray((row + n) * whole.columns + column, (row + n) * whole.columns + column + columns);
    const values = joined(Array.from({ length: rows }, (_, n) => line(n)));
    return { rows, values, scale: whole.scale && whole.scale.subarray(row, row + rows) };
  }

  /** A step of a cell, or of the decoder with the layer of its words, what it attends to and where its readout begins. */
  #machine([inputs, sums, values, read, parts, bias, states], kind, decoder = {}) {
    const { key = 0, annotation = 0, heads = 1, scale = 1, reach = -1, spread = 0, vector = null } = decoder;
    const { features = [], reads = -1, readout = -1 } = decoder;
    const said = [sum(inputs.map(([rows]) => rows[2])), sums, values, read, key, annotation, heads, reach];
    said.push(states.length, ...states.flat(), reads, readout);
    said.push(features.length, ...features.flatMap((feature) => feature.sizes), parts.length);
    const own = new Map(); // where each array's numbers begin
    let owns = 0;
    for (const [what, size, at, before, weight, name] of parts) {
      const layer = what === PRODUCT ? this.#layer([[weight, null]], kind).number : -1;
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
    const number = this.lent(given, (...lent) => this.c.machine(this.#network, scale, spread, ...lent));
    return number < 0 ? fail() : number;
  }

  #cell(machine, wide) {
    const sizes = machine[6].map(([, size]) => size);
    return { inputs: this.#layer(machine[0], wide ? FP32 : this.#kind), step: this.#machine(machine, FP32), sizes };
  }

  /** The bytes of each target symbol, before anything is to be spelled. */
  spell(sizes) {
    this.run(() => this.lent([Int32Array.from(sizes)], (...given) => this.c.spelled(this.#network, ...given)));
  }

  atOnce(symbols, beam) {
    const [cell, step] = this.#largest;
    const remembered = symbols * this.#remembered;
    return NUMBERS / Math.max(cell * symbols, (step + remembered) * beam);
  }

  /** Numbers that features remember of a source position. */
  get #remembered() {
    return sum((this.#program.attention?.features ?? []).map(({ sizes: [units] }) => whole(units) || 1));
  }

  asked(sentences, ints, length, coverage) {
    if (this.lent([ints], (...given) => this.c.asks(this.#network, ...given)) < 0) return -1;
    const arrays = [ints, ...this.#encode(sentences)];
    const call = (...given) => this.c.search(this.#network, this.#decoder, this.#output, length, coverage, ...given);
    return this.lent(arrays, call);
  }

  /** Keys, annotations, mask, centres, what features prepare, and states, of sentences, the longest first. */
  #encode(sentences) {
    const { readsEnd, reverse, first, attention } = this.#program;
    const [B, J, E] = [sentences.length, sentences[0].length + 1, this.#source.columns];
    const x = new Float32Array(B * J * E);
    sentences.forEach((ids, b) => [...ids, EOS].forEach((id, j) => x.set(this.#word(id), (b * J + j) * E)));
    const lengths = sentences.map((ids) => Math.max(1, ids.length + (readsEnd ? 1 : 0)));
    const { outputs, summary, finals } = this.#encoded(reverse ? turned(x, lengths, J) : x, lengths, J);
    const annotations = this.#affine(attention?.projection, reverse ? turned(outputs, lengths, J) : outputs);
    const found = { summary, mean: means(annotations, lengths, J) };
    const remembered = J * this.#remembered;
    const states = [[new Float32Array(B * remembered), remembered]];
    states.push(...first.map((one) => [this.#first(one, found, finals, B), one[0]]), [new Float32Array(B), 1]);
    return [...this.#seen(annotations, x, lengths, J), beside(states, B)];
  }

  #word(id) {
    const { values, scale, columns } = this.#source;
    const row = values.subarray(id * columns, (id + 1) * columns);
    return scale ? scaled(row, scale.subarray(id, id + 1), columns) : row;
  }

  /** The outputs of all layers [B, J, H], the top one's own last output, and the last states of each by part. */
  #encoded(x, lengths, J) {
    const [B, finals] = [lengths.length, []];
    let read = x;
    let summary;
    for (const { cells, adds } of this.#cells) {
      const both = cells.map((cell, n) => this.#sequence(cell, read, lengths, J, n));
      const outputs = beside(both.map((one, n) => [one.outputs, cells[n].sizes[0]]), B * J);
      finals.push(cells[0].sizes.map((_, part) => beside(both.map((one, n) => [one.last[part], cells[n].sizes[part]]), B)));
      summary = both.at(-1).last[0];
      if (adds && outputs.length !== read.length) fail();
      read = adds ? outputs.map((value, n) => value + read[n]) : outputs;
    }
    return { outputs: read, summary, finals };
  }

  /** A cell's outputs [B, J, D], 0 on padding, and its last states by part. */
  #sequence({ inputs, step, sizes }, x, lengths, J, backward) {
    const [B, share] = [lengths.length, this.#linear(inputs, x)];
    const call = (...given) => this.c.sequence(this.#network, step, backward, ...given) || this.#refuse();
    const outputs = this.#numbers(this.lent([share, Int32Array.from(lengths)], call), B * J * sizes[0]);
    const S = sum(sizes) + 1;
    const states = this.#numbers(this.c.last_states(this.#network), B * S);
    const begin = sizes.map((_, part) => sum(sizes.slice(0, part)));
    const part = (own, at) => beside([...Array(B).keys()].map((b) => [states.subarray(b * S + at, b * S + at + own), own]), 1);
    return { outputs, last: sizes.map((own, n) => part(own, begin[n])) };
  }

  #first([size, of, parts, layer, name, begin], found, finals, B) {
    if (of === "zeros") return new Float32Array(B * size);
    const last = (one) => [one, one.length / B];
    const read = of === "finals" ? beside(parts.map(([n, part]) => last(finals[n][part])), B) : found[of];
    const made = this.#affine(layer, read);
    const width = made.length / B;
    if (!(begin >= 0 && size >= 1 && begin + size <= width)) fail();
    const bent = { "": (value) => value, tanh: Math.tanh, relu: (value) => Math.max(value, 0) }[name];
    return Float32Array.from({ length: B * size }, (_, n) => bent(made[Math.floor(n / size) * width + begin + (n % size)]));
  }

  /** Keys, values, mask, centres, and what features prepare, of annotations [B, J, H] and words; nothing without attention. */
  #seen(annotations, x, lengths, J) {
    const { attention } = this.#program;
    if (!attention) return [null, null, null, null, null];
    const B = lengths.length;
    const places = [...Array(B * J).keys()].map((n) => [Math.floor(n / J), n % J]);
    const mask = Uint8Array.from(places, ([b, j]) => j < lengths[b]);
    let keys = this.#affine(attention.keys, annotations);
    if (attention.positions !== null) keys = this.#positions(mask, B, J);
    if (attention.place) {
      const told = Float32Array.from(places.flatMap(([b, j]) => [Math.log1p(j + 1), Math.log1p(lengths[b])]));
      const share = this.#affine(attention.place, told);
      if (share.length !== keys.length) fail();
      keys = keys.map((value, n) => value + share[n]);
    }
    const values = this.#affine(attention.values, annotations);
    const each = (array) => [array, array.length / (B * J)];
    const prepared = attention.features.map((feature) => each(this.#prepared(feature, annotations, B * J)));
    return [
      keys,
      attention.words ? beside([each(values), each(x)], B * J) : values,
      mask,
      attention.follows ? Float32Array.from(places, ([b, j]) => Math.min(j, lengths[b] - 1)) : null,
      prepared.length ? beside(prepared, B * J) : null,
    ];
  }

  /** A key for each position that has one; the mask loses the others. */
  #positions(mask, B, J) {
    const { values, rows, columns } = this.#program.attention.positions;
    const keys = new Float32Array(B * J * columns);
    const known = Math.min(J, rows);
    for (let b = 0; b < B; b++) {
      keys.set(values.subarray(0, known * columns), b * J * columns);
      mask.fill(0, b * J + known, (b + 1) * J);
    }
    return keys;
  }

  /** What a feature computes once a sentence: [B, J, 1], or of a GRU its gates, each in whole vectors. */
  #prepared({ sizes: [units], layer, fertility }, annotations, count) {
    if (!layer) return new Float32Array(count).fill(1);
    const made = this.#affine(layer, annotations);
    if (made.length !== count * (3 * units || 1)) fail();
    if (!units) return made.map((value) => Math.fround(1 + Math.fround(Math.exp(-value))) / Math.fround(fertility));
    const wide = whole(units);
    const gates = new Float32Array(3 * count * wide);
    for (let n = 0; n < 3 * count; n++) gates.set(made.subarray(n * units, (n + 1) * units), n * wide);
    return gates;
  }

  /** A layer of the program; x where there is none. */
  #affine(layer, x) {
    return layer ? this.#linear(this.#layer([layer], this.#kind), x) : x;
  }

  #linear({ number, inputs, outputs }, x) {
    const place = this.lent([x], (...given) => this.c.apply(this.#network, number, ...given)) || this.#refuse();
    return this.#numbers(place, (x.length / inputs) * outputs);
  }

  /** What does not fit does not before all is laid out; later a line is too long. */
  #refuse() {
    throw this.#file ? damaged() : new RnnsearchError(LONG);
  }

  #numbers(place, count) {
    return new Float32Array(this.c.memory.buffer, place, count).slice();
  }
}
