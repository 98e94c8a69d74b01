// Runs a model's encoder and computes the decoder's initial states (engine/recurrent.py).

import { attentionInputs } from "./attention.js";
import {
  concatenateColumns,
  dequantize,
  lastAnnotations,
  meanAnnotations,
  reverseWords,
  roundUp,
  sum,
} from "./matrices.js";
import { EOS } from "./vocabulary.js";

const FUNCTIONS = {
  "": (value) => value,
  tanh: Math.tanh,
  relu: (value) => Math.max(value, 0),
};

export class Encoder {
  #layout;
  #program;
  #embeddings;
  #layers;
  /** Number of floats that the features of the attention store per source position. */
  featureMemory;

  /**
   * @param {Layout} layout
   * @param {Array} layers Encoder layers of the program.
   * @param {{readsEnd: boolean, reverse: boolean, initialStates: Array, attention: object | null}} program
   * @param {Weight} embeddings Of source words.
   */
  constructor(layout, layers, program, embeddings) {
    this.#layout = layout;
    this.#program = program;
    this.#embeddings = embeddings;
    this.#layers = layers.map(([cells, adds, wide]) => ({
      cells: cells.map((cell) => layout.cell(cell, wide)),
      adds,
    }));
    const features = program.attention?.features ?? [];
    this.featureMemory = sum(features.map(({ sizes: [units] }) => roundUp(units) || 1));
  }

  /**
   * Encode sentences.
   * @param {number[][]} sentences Ids, longest sentence first.
   * @returns {Array} The inputs of the attention (see attentionInputs) and the decoder's initial states.
   */
  encode(sentences) {
    const { readsEnd, reverse, initialStates, attention } = this.#program;
    const B = sentences.length;
    const J = sentences[0].length + 1;
    const x = this.#embed(sentences, J);
    const lengths = sentences.map((ids) => Math.max(1, ids.length + (readsEnd ? 1 : 0)));
    const words = lengths.map((length) => length - (readsEnd ? 1 : 0));
    const inOrder = (rows) => (reverse ? reverseWords(rows, words, J) : rows);
    const { outputs, summary, finals } = this.#runLayers(inOrder(x), lengths, J);
    const annotations = this.#layout.affine(attention?.projection, inOrder(outputs));
    const sources = {
      summary,
      mean: meanAnnotations(annotations, lengths, J),
      last: lastAnnotations(annotations, lengths, J),
    };
    const memory = J * this.featureMemory;
    const states = [[new Float32Array(B * memory), memory]];
    for (const initial of initialStates) {
      const [size] = initial;
      states.push([this.#initialState(initial, sources, finals, B), size]);
    }
    states.push([new Float32Array(B), 1]);
    const inputs = attentionInputs(attention, this.#layout, annotations, x, lengths, J);
    return [...inputs, concatenateColumns(states, B)];
  }

  /** Return the embedded words of sentences and their end symbols [B, J, E]. */
  #embed(sentences, J) {
    const { values, scale, columns: E } = this.#embeddings;
    const x = new Float32Array(sentences.length * J * E);
    sentences.forEach((ids, b) => {
      [...ids, EOS].forEach((id, j) => {
        const row = values.subarray(id * E, (id + 1) * E);
        const floats = scale ? dequantize(row, scale.subarray(id, id + 1), E) : row;
        x.set(floats, (b * J + j) * E);
      });
    });
    return x;
  }

  /** Return outputs [B, J, H], the last output of the top layer, and the last states of each layer by part. */
  #runLayers(x, lengths, J) {
    const B = lengths.length;
    const finals = [];
    let inputs = x;
    let summary = null;
    for (const { cells, adds } of this.#layers) {
      const results = cells.map((cell, n) => this.#layout.sequence(cell, inputs, lengths, J, n));
      const sizeOf = (n, part) => cells[n].sizes[part];
      const outputs = concatenateColumns(results.map((one, n) => [one.outputs, sizeOf(n, 0)]), B * J);
      const lastStates = cells[0].sizes.map((_, part) =>
        concatenateColumns(results.map(({ last }, n) => [last[part], sizeOf(n, part)]), B),
      );
      finals.push(lastStates);
      summary = results.at(-1).last[0];
      if (adds && outputs.length !== inputs.length) this.#layout.refuse();
      const below = inputs;
      inputs = adds ? outputs.map((value, n) => value + below[n]) : outputs;
    }
    return { outputs: inputs, summary, finals };
  }

  #initialState([size, from, parts, layer, functionName, begin], sources, finals, B) {
    if (from === "zeros") return new Float32Array(B * size);
    const withColumns = (values) => [values, values.length / B];
    const input =
      from === "finals"
        ? concatenateColumns(parts.map(([n, part]) => withColumns(finals[n][part])), B)
        : sources[from];
    const output = this.#layout.affine(layer, input);
    const columns = output.length / B;
    if (!(begin >= 0 && size >= 1 && begin + size <= columns)) this.#layout.refuse();
    const activation = FUNCTIONS[functionName];
    return Float32Array.from({ length: B * size }, (_, n) =>
      activation(output[Math.floor(n / size) * columns + begin + (n % size)]),
    );
  }
}
