// Translate with what `rnnsearch export MODEL FOLDER --format onnx` wrote: node translate.mjs FOLDER < in > out
//
// npm install onnxruntime-web @huggingface/tokenizers
//
// In a page the same class works with files that are fetched. The beam is here, outside the graphs. The tokenizers'
// library knows subwords (bpe, unigram), but no models of whole words.

import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

import { Tokenizer } from "@huggingface/tokenizers";
import * as ort from "onnxruntime-web";

const BYTE = /^<0x([0-9A-F]{2})>$/;

export class Translator {
  // read(name): the bytes of a file of the exported folder.
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
    const ids = this.source.encode(text).ids.flatMap((id) => this.model.apart[id] ?? [id]);
    return this.text(await this.search(ids, beam));
  }

  // The symbols one after another, each with the space before it; some are bytes of a character, as <0xE2>.
  text(ids) {
    const bytes = ids.flatMap((id) => {
      const name = id === this.model.symbols.unk ? " <unk>" : this.target.id_to_token(id);
      const byte = BYTE.exec(name);
      return byte ? [parseInt(byte[1], 16)] : [...new TextEncoder().encode(name)];
    });
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(bytes)).replace(/^ /, "");
  }

  // The ids of the best translation of a sentence; with a beam of 1, greedily.
  async search(ids, beam) {
    const { symbols, search: options } = this.model;
    const begun = await this.encoder.run({ source: integers([...ids, symbols.eos], [1, ids.length + 1]) });
    const memory = begins("memory.", begun);
    let state = begins("state.", begun);
    const most = Math.floor(options.max_ratio * ids.length) + options.max_extra;
    const covers = options.coverage_penalty > 0 && beam > 1;
    let live = [{ ids: [], worth: 0, covered: new Float32Array(ids.length + 1) }];
    const finished = [];
    const best = () => finished.reduce((a, b) => (b.score > a.score ? b : a));
    for (let length = 1; length <= most + 1; length++) {
      const y = integers(live.map((own) => own.ids.at(-1) ?? symbols.bos), [live.length]);
      const sentence = integers(live.map(() => 0), [live.length]);
      const found = await this.step.run({ y, sentence, ...memory, ...state });
      const [rows, V] = found.log_probs.dims;
      if (covers) live.forEach((own, row) => (own.covered = sum(own.covered, rowOf(found.attention, row))));
      // The best continuations, of which as many as the beam is wide live on, however many end.
      const chosen = top(2 * beam, rows * V, (place) => {
        const token = place % V;
        const never = token === symbols.pad || token === symbols.bos;
        return never ? -Infinity : Math.fround(live[Math.floor(place / V)].worth + found.log_probs.data[place]);
      });
      const next = [];
      chosen.forEach(({ place, worth }, rank) => {
        const parent = Math.floor(place / V);
        const { ids: own, covered } = live[parent];
        if (place % V !== symbols.eos) next.push({ ids: [...own, place % V], worth, covered, parent });
        else if (rank < beam) finished.push({ ids: own, score: this.score(worth, length, covers ? covered : null) });
      });
      if (length > most) break;
      live = next.slice(0, beam);
      state = Object.fromEntries(
        Object.entries(begins("next.", found)).map(([name, rows]) => [
          name.replace("next", "state"),
          gathered(rows, live.map((own) => own.parent)),
        ]),
      );
      // No hypothesis scores more than if it went on, for nothing, to its greatest length.
      if (finished.length >= beam) break;
      if (beam > 1 && finished.length && this.score(live[0].worth, most + 1, null) <= best().score) break;
    }
    return finished.length ? best().ids : live[0].ids;
  }

  // log P(Y|X) / norm(|Y|), and the penalty for what was not attended to (Wu et al. 2016, eq. 14).
  score(worth, length, covered) {
    const { length_norm, length_penalty, coverage_penalty } = this.model.search;
    const score = worth / (length_norm === "power" ? length : (5 + length) / 6) ** length_penalty;
    const logs = covered === null ? [] : [...covered.slice(0, -1)].map((c) => Math.log(Math.min(Math.max(c, 1e-6), 1)));
    return score + coverage_penalty * logs.reduce((a, b) => a + b, 0);
  }
}

const integers = (numbers, dims) => new ort.Tensor("int64", BigInt64Array.from(numbers, BigInt), dims);

const begins = (prefix, found) =>
  Object.fromEntries(Object.entries(found).filter(([name]) => name.startsWith(prefix)));

const rowOf = (tensor, row) => {
  const size = tensor.data.length / tensor.dims[0];
  return tensor.data.subarray(row * size, (row + 1) * size);
};

const sum = (a, b) => a.map((x, place) => x + b[place]);

// Rows of a tensor, in another order and number.
function gathered(tensor, rows) {
  const size = tensor.data.length / tensor.dims[0];
  const data = new tensor.data.constructor(rows.length * size);
  rows.forEach((row, place) => data.set(rowOf(tensor, row), place * size));
  return new ort.Tensor(tensor.type, data, [rows.length, ...tensor.dims.slice(1)]);
}

// The n places of the greatest numbers, greatest first, the lower place among equals.
function top(n, count, numberAt) {
  const best = [];
  for (let place = 0; place < count; place++) {
    const worth = numberAt(place);
    if (best.length === n && worth <= best[n - 1].worth) continue;
    let at = best.length;
    while (at > 0 && worth > best[at - 1].worth) at--;
    best.splice(at, 0, { place, worth });
    if (best.length > n) best.pop();
  }
  return best;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [, , folder, beam] = process.argv;
  const translator = await Translator.load((name) => readFile(`${folder}/${name}`));
  const chunks = [];
  for await (const chunk of process.stdin) chunks.push(chunk);
  const text = new TextDecoder().decode(Buffer.concat(chunks)); // without its byte order mark
  for (const line of text.split(/\r?\n/).slice(0, /(^|\n)$/.test(text) ? -1 : undefined)) {
    console.log(await translator.translate(line, beam === undefined ? undefined : Number(beam)));
  }
}
