// Translation in a thread of its own: one request after the other; those that are given up meanwhile are left out.

import { load } from "../module/index.js";
import { FAILED } from "../module/native.js";
import { wordSpans } from "../module/words.js";
import { rejoin, sentenceSpans } from "./sentences.js";

const KEPT = 2000; // translated sentences that are remembered
const models = new Map(); // name -> promise of a translator
const known = new Map(); // what was asked -> what was found
const waiting = [];
const given = new Set(); // numbers of requests that were given up
let working = false;

/** name, file: of models.json. */
function translator({ name, file }) {
  if (!models.has(name)) {
    const loading = load(new URL(`../${file}`, import.meta.url));
    loading.catch(() => models.delete(name)); // another time it may be there
    models.set(name, loading);
  }
  return models.get(name);
}

const oneLine = (text) => text.replace(/[\n\r]/g, " ");
const words = (text) => wordSpans(text).map(([start, end]) => ({ text: text.slice(start, end), start, end }));

/** One translation, as the page shows it. */
function shown(t) {
  const scores = t.words.map(() => []);
  t.tokenWords.forEach((word, n) => word >= 0 && scores[word].push(t.tokenScores[n]));
  scores.forEach((own, n) => own.length || (scores[n] = scores[n - 1] ?? []));
  const mean = (own) => (own.length ? Math.exp(own.reduce((sum, score) => sum + score, 0) / own.length) : 1);
  return {
    text: oneLine(t.text),
    source_words: words(t.source),
    words: words(t.text).map((word, n) => ({ ...word, probability: mean(scores[n]) })),
    first: scores.map((own) => Math.exp(own.reduce((sum, score) => sum + score, 0))), // of a word after those before it
    alignment: t.alignment,
    attention: t.wordAttention,
    score: t.score,
    log_prob: t.logProb,
    blocked: !t.finished && !t.tokens.length,
  };
}

/** What the engine finds. One that has failed is forgotten: the next request loads it anew. */
async function translated(own, model, sentences, options) {
  try {
    return await own.translate(sentences, options);
  } catch (error) {
    if (error.message === FAILED) models.delete(model.name);
    throw error;
  }
}

/** The n best of each sentence, those that are remembered at once. */
async function found(model, sentences, { beam, nBest, prefix }) {
  const own = await translator(model);
  const keyOf = (sentence) => JSON.stringify([model.name, sentence, beam, nBest, prefix]);
  const missing = [...new Set(sentences)].filter((sentence) => !known.has(keyOf(sentence)));
  const old = new Map(sentences.map((sentence) => [sentence, known.get(keyOf(sentence))]));
  if (known.size + missing.length > KEPT) known.clear();
  const prefixes = prefix && missing.map(() => prefix);
  const answers = missing.length ? await translated(own, model, missing, { beam, nBest, prefixes }) : [];
  missing.forEach((sentence, n) => {
    old.set(sentence, answers[n].map(shown));
    known.set(keyOf(sentence), old.get(sentence));
  });
  return sentences.map((sentence) => old.get(sentence));
}

async function translate({ model, text, beam, n_best: nBest = 1, prefix }) {
  const spans = prefix ? [[0, text.length]] : sentenceSpans(text, model.source);
  const sources = spans.map(([start, end]) => text.slice(start, end));
  const best = await found(model, sources, { beam, nBest, prefix });
  const [whole, targets] = rejoin(text, spans, best.map((own) => own[0].text), model.target);
  const sentences = spans.map(([start, end], n) => ({ source: sources[n], start, end, best: best[n] }));
  return { text: whole, sentences, target_spans: targets };
}

/** Translations that begin as given, letter for letter. */
async function complete({ model, text, prefix, n_best: nBest = 5 }) {
  const [best] = await found(model, [text], { nBest, prefix: prefix || undefined });
  const rests = new Map();
  for (const one of best) {
    const rest = one.text.slice(prefix.length);
    if (one.blocked || rests.has(rest)) continue;
    rests.set(rest, { text: prefix + rest, rest, next: /^\s*\S*/.exec(rest)[0], score: one.score });
  }
  return [...rests.values()];
}

/** Other words in the place of a word of a translation, the likeliest first; what follows is found anew. */
async function alternatives({ model, text, translation, word, n_best: count = 5 }) {
  const [start, end] = wordSpans(translation)[word];
  const prefix = translation.slice(0, start) || undefined;
  const [best] = await found(model, [text], { nBest: 2 * count + 4, prefix });
  const core = (one) => one.replace(/^[^\p{L}\p{N}_]+|[^\p{L}\p{N}_]+$/gu, "");
  const present = core(translation.slice(start, end));
  const different = new Map();
  for (const one of best) {
    const other = one.words[word]?.text;
    if (other === undefined || core(other) === present || different.has(core(other))) continue;
    different.set(core(other), { word: other, probability: one.first[word], text: one.text });
  }
  return [...different.values()].sort((a, b) => b.probability - a.probability).slice(0, count);
}

const WORK = { translate, complete, alternatives };

async function work() {
  working = true;
  while (waiting.length) {
    await new Promise((go) => setTimeout(go)); // what came meanwhile, among it that a request is given up
    const { number, what, asked } = waiting.shift();
    if (given.delete(number)) continue;
    try {
      postMessage({ number, answer: await WORK[what](asked) });
    } catch (error) {
      postMessage({ number, fault: error.message });
    }
    given.delete(number);
  }
  working = false;
}

onmessage = ({ data }) => {
  if (data.what === "give up") {
    given.add(data.number);
    return;
  }
  waiting.push(data);
  if (!working) work();
};
