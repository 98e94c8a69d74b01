// From sentences to what a decoder reads and begins with (engine/recurrent.py).

import { seen } from "./attention.js";
import { beside, means, scaled, sum, turned, whole } from "./rows.js";
import { EOS } from "./vocabulary.js";

export class Encoder {
  #layout;
  #program;
  #source;
  #cells;
  remembered; // numbers that features remember of a source position

  /** program: {readsEnd, reverse, first, attention}, `layers` of cells; source: the embeddings of its words. */
  constructor(layout, layers, program, source) {
    [this.#layout, this.#program, this.#source] = [layout, program, source];
    this.#cells = layers.map(([cells, adds, wide]) => ({ cells: cells.map((cell) => layout.cell(cell, wide)), adds }));
    const features = program.attention?.features ?? [];
    this.remembered = sum(features.map(({ sizes: [units] }) => whole(units) || 1));
  }

  /** Keys, annotations, mask, centres, what features prepare, and states, of sentences, the longest first. */
  encode(sentences) {
    const { readsEnd, reverse, first, attention } = this.#program;
    const [B, J, E] = [sentences.length, sentences[0].length + 1, this.#source.columns];
    const x = new Float32Array(B * J * E);
    sentences.forEach((ids, b) => [...ids, EOS].forEach((id, j) => x.set(this.#word(id), (b * J + j) * E)));
    const lengths = sentences.map((ids) => Math.max(1, ids.length + (readsEnd ? 1 : 0)));
    const { outputs, summary, finals } = this.#encoded(reverse ? turned(x, lengths, J) : x, lengths, J);
    const annotations = this.#layout.affine(attention?.projection, reverse ? turned(outputs, lengths, J) : outputs);
    const found = { summary, mean: means(annotations, lengths, J) };
    const remembered = J * this.remembered;
    const states = [[new Float32Array(B * remembered), remembered]];
    states.push(...first.map((one) => [this.#first(one, found, finals, B), one[0]]), [new Float32Array(B), 1]);
    return [...seen(attention, this.#layout, annotations, x, lengths, J), beside(states, B)];
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
      const both = cells.map((cell, n) => this.#layout.sequence(cell, read, lengths, J, n));
      const outputs = beside(both.map((one, n) => [one.outputs, cells[n].sizes[0]]), B * J);
      finals.push(cells[0].sizes.map((_, part) => beside(both.map((one, n) => [one.last[part], cells[n].sizes[part]]), B)));
      summary = both.at(-1).last[0];
      if (adds && outputs.length !== read.length) this.#layout.refuse();
      read = adds ? outputs.map((value, n) => value + read[n]) : outputs;
    }
    return { outputs: read, summary, finals };
  }

  #first([size, of, parts, layer, name, begin], found, finals, B) {
    if (of === "zeros") return new Float32Array(B * size);
    const last = (one) => [one, one.length / B];
    const read = of === "finals" ? beside(parts.map(([n, part]) => last(finals[n][part])), B) : found[of];
    const made = this.#layout.affine(layer, read);
    const width = made.length / B;
    if (!(begin >= 0 && size >= 1 && begin + size <= width)) this.#layout.refuse();
    const bent = { "": (value) => value, tanh: Math.tanh, relu: (value) => Math.max(value, 0) }[name];
    return Float32Array.from({ length: B * size }, (_, n) => bent(made[Math.floor(n / size) * width + begin + (n % size)]));
  }
}
