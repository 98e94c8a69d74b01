// Translate with a model that `rnnsearch export MODEL FOLDER --format onnx` wrote.
//
//   npm install onnxruntime-web @huggingface/tokenizers
//   node translate.mjs FOLDER [BEAM] < input > output
//
// In a web page, the same class works with fetched files. Beam search is implemented here, outside of the graphs. The
// tokenizer library supports subwords (bpe, unigram), but not models of whole words.

import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

import { Tokenizer } from "@huggingface/tokenizers";
import * as ort from "onnxruntime-web";

const BYTE_TOKEN = /^<0x([0-9A-F]{2})>$/;

export class Translator {
  // Loads a model; read(name) returns the bytes of a file of the exported folder.
  static async load(read) {
    const json = async (name) => JSON.parse(new TextDecoder().decode(await read(name)));
    const self = new Translator();
    self.model = await json("model.json");
    const files = [await json("source.json"), await json("target.json")];
    if (files[0].model.type === "WordLevel") throw new Error("models of whole words need another tokenizer library");
    [self.source, self.target] = files.map((file) => new Tokenizer(file, {}));
    self.encoder = await ort.InferenceSession.create(await read("encoder.onnx"));
    self.step = await ort.InferenceSession.create(await read("step.onnx"));
    return self;
  }

  async translate(text, beam = this.model.search.beam) {
    if (text === "") return "";
    // Some subwords are never used on the source side and are split into smaller ones.
    const ids = this.source.encode(text).ids.flatMap((id) => this.model.apart[id] ?? [id]);
    return this.text(await this.search(ids, beam));
  }

  // Returns the text of target tokens, each with its preceding space; some are single bytes, such as <0xE2>.
  text(ids) {
    const bytes = ids.flatMap((id) => {
      const token = id === this.model.symbols.unk ? " <unk>" : this.target.id_to_token(id);
      const byte = BYTE_TOKEN.exec(token);
      return byte ? [parseInt(byte[1], 16)] : [...new TextEncoder().encode(token)];
    });
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(bytes)).replace(/^ /, "");
  }

  // Returns the ids of the best translation of a sentence; a beam of 1 is greedy search.
  async search(ids, beam) {
    const { symbols: special, search: options } = this.model;
    const encoded = await this.encoder.run({ source: integers([...ids, special.eos], [1, ids.length + 1]) });
    const memory = select("memory.", encoded);
    let state = select("state.", encoded);
    const maxLength = Math.floor(options.max_ratio * ids.length) + options.max_extra;
    const usesCoverage = options.coverage_penalty > 0 && beam > 1;
    let live = [{ ids: [], logProb: 0, coverage: new Float32Array(ids.length + 1) }];
    const finished = [];
    const best = () => finished.reduce((a, b) => (b.score > a.score ? b : a));
    for (let length = 1; length <= maxLength + 1; length++) {
      const y = integers(live.map((hypothesis) => hypothesis.ids.at(-1) ?? special.bos), [live.length]);
      const sentence = integers(live.map(() => 0), [live.length]);
      const outputs = await this.step.run({ y, sentence, ...memory, ...state });
      const [rows, V] = outputs.log_probs.dims;
      if (usesCoverage) {
        live.forEach((hypothesis, row) => {
          hypothesis.coverage = sum(hypothesis.coverage, rowOf(outputs.attention, row));
        });
      }
      // Twice the beam size is enough for `beam` live hypotheses, however many of the best continuations end.
      const continuations = top(2 * beam, rows * V, (index) => {
        const token = index % V;
        if (token === special.pad || token === special.bos) return -Infinity;
        return Math.fround(live[Math.floor(index / V)].logProb + outputs.log_probs.data[index]);
      });
      const next = [];
      continuations.forEach(({ index, value: logProb }, rank) => {
        const parent = Math.floor(index / V);
        const token = index % V;
        const { ids: prefix, coverage } = live[parent];
        if (token !== special.eos) {
          next.push({ ids: [...prefix, token], logProb, coverage, parent });
        } else if (rank < beam) {
          finished.push({ ids: prefix, score: this.score(logProb, length, usesCoverage ? coverage : null) });
        }
      });
      if (length > maxLength) break;
      live = next.slice(0, beam);
      const parents = live.map((hypothesis) => hypothesis.parent);
      state = Object.fromEntries(
        Object.entries(select("next.", outputs)).map(([name, tensor]) => [
          name.replace("next", "state"),
          gather(tensor, parents),
        ]),
      );
      if (finished.length >= beam) break;
      // No hypothesis can score more than if it reached the maximum length without any loss of probability.
      if (beam > 1 && finished.length && this.score(live[0].logProb, maxLength + 1, null) <= best().score) break;
    }
    return finished.length ? best().ids : live[0].ids;
  }

  // Returns log P(Y|X) / norm(|Y|), plus the coverage penalty (Wu et al. 2016, eq. 14).
  score(logProb, length, coverage) {
    const { length_norm, length_penalty, coverage_penalty } = this.model.search;
    const score = logProb / (length_norm === "power" ? length : (5 + length) / 6) ** length_penalty;
    const logs =
      coverage === null ? [] : [...coverage.slice(0, -1)].map((c) => Math.log(Math.min(Math.max(c, 1e-6), 1)));
    return score + coverage_penalty * logs.reduce((a, b) => a + b, 0);
  }
}

const integers = (values, dims) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), dims);

// Returns the outputs whose name starts with a prefix.
const select = (prefix, outputs) =>
  Object.fromEntries(Object.entries(outputs).filter(([name]) => name.startsWith(prefix)));

const rowOf = (tensor, row) => {
  const size = tensor.data.length / tensor.dims[0];
  return tensor.data.subarray(row * size, (row + 1) * size);
};

const sum = (a, b) => a.map((x, index) => x + b[index]);

// Returns the given rows of a tensor.
function gather(tensor, rows) {
  const size = tensor.data.length / tensor.dims[0];
  const data = new tensor.data.constructor(rows.length * size);
  rows.forEach((row, index) => data.set(rowOf(tensor, row), index * size));
  return new ort.Tensor(tensor.type, data, [rows.length, ...tensor.dims.slice(1)]);
}

// Returns the n largest of `count` values, largest first; of equal values, the one with the lower index comes first.
function top(n, count, valueAt) {
  const best = [];
  for (let index = 0; index < count; index++) {
    const value = valueAt(index);
    if (best.length === n && value <= best[n - 1].value) continue;
    let rank = best.length;
    while (rank > 0 && value > best[rank - 1].value) rank--;
    best.splice(rank, 0, { index, value });
    if (best.length > n) best.pop();
  }
  return best;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [, , folder, beam] = process.argv;
  const translator = await Translator.load((name) => readFile(`${folder}/${name}`));
  const chunks = [];
  for await (const chunk of process.stdin) chunks.push(chunk);
  const text = new TextDecoder().decode(Buffer.concat(chunks)); // drops a byte order mark
  for (const line of text.split(/\r?\n/).slice(0, /(^|\n)$/.test(text) ? -1 : undefined)) {
    console.log(await translator.translate(line, beam === undefined ? undefined : Number(beam)));
  }
}
