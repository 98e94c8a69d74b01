// Runs the engine in a worker, one request after another. Cancelled requests that have not started are skipped.

import { load } from "../module/index.js";
import { SPACE_MARKER, SPECIALS, UNK } from "../module/vocabulary.js";
import { ENGINE_FAILED } from "../module/wasm-engine.js";
import { wordSpans } from "../module/words.js";
import { rejoin, sentenceSpans } from "./sentences.js";

const MAX_CACHED_SENTENCES = 2000;
const translators = new Map(); // model name -> promise of a Translator
const cache = new Map(); // key of a sentence and its options -> hypotheses
const queue = [];
const cancelled = new Set(); // request ids
let running = false;

/** Load the model {name, file} of models.json, once. */
function translatorOf({ name, file }) {
  if (!translators.has(name)) {
    const loading = load(new URL(`../${file}`, import.meta.url));
    loading.catch(() => translators.delete(name)); // try again with the next request
    translators.set(name, loading);
  }
  return translators.get(name);
}

const oneLine = (text) => text.replace(/[\n\r]/g, " ");
const splitWords = (text) =>
  wordSpans(text).map(([start, end]) => ({ text: text.slice(start, end), start, end }));

/** Convert a Translation to a hypothesis with the fields of the HTTP API. */
function toHypothesis(translation) {
  const wordScores = scoresOfWords(translation);
  const words = splitWords(translation.text).map((word, n) => {
    const scores = wordScores[n];
    const probability = scores.length ? Math.exp(sum(scores) / scores.length) : 1;
    return { ...word, probability };
  });
  return {
    text: oneLine(translation.text),
    source_words: splitWords(translation.source),
    words,
    // The probability of each word given the words before it; only used in this file.
    conditional: wordScores.map((scores) => Math.exp(sum(scores))),
    alignment: translation.alignment,
    unknown: unknownRate(translation.sourceTokens.slice(0, -1)),
    attention: translation.wordAttention,
    score: translation.score,
    log_prob: translation.logProb,
    blocked: !translation.finished && !translation.tokens.length,
  };
}

/** Return the token scores of each word. A word without tokens shares those of the word before it. */
function scoresOfWords({ words, tokenWords, tokenScores }) {
  const scores = words.map(() => []);
  tokenWords.forEach((word, n) => word >= 0 && scores[word].push(tokenScores[n]));
  scores.forEach((own, n) => {
    if (!own.length) scores[n] = scores[n - 1] ?? [];
  });
  return scores;
}

/** Return the fraction of the source tokens that the model does not know (translator/confidence.py). */
function unknownRate(tokens) {
  let known = 0;
  let unknown = 0;
  let followsByte = false;
  for (const token of tokens) {
    const isByte = /^<0x[89A-F][0-9A-F]>$/.test(token);
    if (isByte) unknown += followsByte ? 0 : 1;
    else if (token === SPECIALS[UNK]) unknown += 1;
    else known += token === SPACE_MARKER ? 0 : 1;
    followsByte = isByte;
  }
  return unknown / Math.max(known + unknown, 1);
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

/** Translate sentences. After a failure of the engine the next request loads the model again. */
async function runEngine(model, sentences, options) {
  const translator = await translatorOf(model);
  try {
    return await translator.translate(sentences, options);
  } catch (error) {
    if (error.message === ENGINE_FAILED) translators.delete(model.name);
    throw error;
  }
}

/** Return the n best hypotheses of each sentence, from the cache if possible. */
async function nBestHypotheses(model, sentences, { beam, nBest, prefix }) {
  await translatorOf(model);
  const keyOf = (sentence) => JSON.stringify([model.name, sentence, beam, nBest, prefix]);
  const missing = [...new Set(sentences)].filter((sentence) => !cache.has(keyOf(sentence)));
  const results = new Map(sentences.map((sentence) => [sentence, cache.get(keyOf(sentence))]));
  if (cache.size + missing.length > MAX_CACHED_SENTENCES) cache.clear();
  if (missing.length) {
    const prefixes = prefix && missing.map(() => prefix);
    const translations = await runEngine(model, missing, { beam, nBest, prefixes });
    missing.forEach((sentence, n) => {
      const hypotheses = translations[n].map(toHypothesis);
      results.set(sentence, hypotheses);
      cache.set(keyOf(sentence), hypotheses);
    });
  }
  return sentences.map((sentence) => results.get(sentence));
}

async function translate({ model, text, beam, n_best: nBest = 1, prefix }) {
  const spans = prefix ? [[0, text.length]] : sentenceSpans(text, model.source);
  const sources = spans.map(([start, end]) => text.slice(start, end));
  const nBestLists = await nBestHypotheses(model, sources, { beam, nBest, prefix });
  const translations = nBestLists.map(([best]) => best.text);
  const [whole, targetSpans] = rejoin(text, spans, translations, model.target);
  const sentences = spans.map(([start, end], n) => ({
    source: sources[n],
    start,
    end,
    best: nBestLists[n],
  }));
  return { text: whole, sentences, target_spans: targetSpans };
}

/** Return completions of a prefix. */
async function complete({ model, text, prefix, n_best: nBest = 5 }) {
  const options = { nBest, prefix: prefix || undefined };
  const [hypotheses] = await nBestHypotheses(model, [text], options);
  const completions = new Map(); // by their rests, which must differ
  for (const { text: translation, blocked, score } of hypotheses) {
    const rest = translation.slice(prefix.length);
    if (blocked || completions.has(rest)) continue;
    const [next] = /^\s*\S*/.exec(rest);
    completions.set(rest, { text: prefix + rest, rest, next, score });
  }
  return [...completions.values()];
}

/** Return other words for one word of a translation, most probable first, each with a new rest of the sentence. */
async function alternatives({ model, text, translation, word, n_best: count = 5 }) {
  const [start, end] = wordSpans(translation)[word];
  const prefix = translation.slice(0, start) || undefined;
  // The words of an n-best list repeat, so the list is longer than the number of alternatives.
  const [hypotheses] = await nBestHypotheses(model, [text], { nBest: 2 * count + 4, prefix });
  const current = withoutPunctuation(translation.slice(start, end));
  const found = new Map();
  for (const hypothesis of hypotheses) {
    const other = hypothesis.words[word]?.text;
    if (other === undefined) continue;
    const key = withoutPunctuation(other);
    if (key === current || found.has(key)) continue;
    const probability = hypothesis.conditional[word];
    found.set(key, { word: other, probability, text: hypothesis.text });
  }
  const byProbability = [...found.values()].sort((a, b) => b.probability - a.probability);
  return byProbability.slice(0, count);
}

function withoutPunctuation(word) {
  return word.replace(/^[^\p{L}\p{N}_]+|[^\p{L}\p{N}_]+$/gu, "");
}

const HANDLERS = { translate, complete, alternatives };

async function processQueue() {
  running = true;
  while (queue.length) {
    await new Promise((resolve) => setTimeout(resolve)); // receive messages, among them cancellations
    const { id, type, request } = queue.shift();
    if (cancelled.delete(id)) continue;
    try {
      postMessage({ id, result: await HANDLERS[type](request) });
    } catch (error) {
      postMessage({ id, error: error.message });
    }
    cancelled.delete(id);
  }
  running = false;
}

onmessage = ({ data }) => {
  if (data.type === "cancel") {
    cancelled.add(data.id);
    return;
  }
  queue.push(data);
  if (!running) processQueue();
};
