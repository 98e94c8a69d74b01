// Simultaneous translation: while the user types, the part of the translation that later words cannot change.
//
// Only models that do not read ahead can do this. `state.growing` is true until the text counts as complete (see
// source.js); then its rest is translated, and the translation has the tools of an ordinary one.

import * as backend from "./backend.js";
import { $, byPointer } from "./dom.js";
import { forceDecode, unscored } from "./forced-decoding.js";
import * as status from "./status.js";
import { chosen, emit, on, sentences as answeredSentences, setGrowing, state, targetText } from "./store.js";

const MAX_CHARACTERS = 2000; // of the text after the sentences that are kept
const HINT = byPointer(
  "Press Ctrl+Enter when the text is complete, to translate the rest.",
  "Leave the text field when the text is complete, to translate the rest.",
);
let isOn = true;
let isRunning = false;
let latest = { text: "", sentences: [] }; // the translation so far, as {source, start, end, text, complete, best}
let requested = null; // the words of the last request; null if it must be sent again
let displayed = { source: "", text: "" };

/** Return the number of characters that two texts have in common at the start. */
function commonLength(one, other) {
  let length = 0;
  while (length < one.length && one[length] === other[length]) length += 1;
  return length;
}

/** Return the sentences so far that a text begins with, and the offset of the first one to translate. */
function kept(text) {
  const { sentences } = latest;
  const length = commonLength(latest.text, text);
  // A sentence has ended if the next one has begun, so neither may have changed.
  const count = sentences.findIndex((_, index) => !(sentences[index + 1]?.end <= length));
  return count > 0 ? [sentences.slice(0, count), sentences[count].start] : [[], 0];
}

/** Return the sentences of a text with their translations. */
async function translate(text, complete, signal) {
  const [first, offset] = kept(text);
  const request = { text: text.slice(offset), complete, model: state.model.name };
  const rest = await backend.simultaneous(request, signal);
  return [...first, ...rest.map((entry) => ({ ...entry, start: entry.start + offset, end: entry.end + offset }))];
}

/** Return the translation of a text and the span of each sentence in it; line breaks are those of the text. */
function joined(text, sentences) {
  let translation = "";
  let position = 0;
  const spans = sentences.map((entry, index) => {
    const lineBreaks = text.slice(position, entry.start).replace(/[^\n]/g, "");
    position = entry.end;
    translation += lineBreaks || (index ? " " : "");
    const start = translation.length;
    translation += (entry.complete && chosen(entry)?.text) || entry.text;
    return [start, translation.length];
  });
  return { translation, spans };
}

/** Return a text without the last word, if that may go on. */
const completeWords = (text) => /^[^]*\s/.exec(text)?.[0] ?? "";

/** Show the translation of the words in the text field, and of those that are typed meanwhile. */
export async function translateWords() {
  if (isRunning) return;
  isRunning = true;
  try {
    while (state.growing && requested !== completeWords($("source").value)) {
      const text = completeWords($("source").value);
      requested = text;
      const before = latest;
      const sentences = await translate(text, false);
      if (state.growing && latest === before) show(text, sentences);
    }
  } catch (error) {
    requested = null;
    status.showError(error, translateWords);
  } finally {
    isRunning = false;
  }
}

function show(text, sentences) {
  status.clearError();
  const { translation } = joined(text, sentences);
  // A text that was complete has its whole translation, which stays until other words follow.
  const isShown = text.startsWith(displayed.source) && displayed.text.startsWith(translation);
  if (!isShown) {
    setGrowing(translation);
    displayed = { source: text, text: translation };
  }
  latest = { text, sentences };
  $("word-details").textContent = HINT;
  renderLag();
}

/** Return the translation of a complete text, which begins with the displayed one, as an ordinary answer. */
export async function translateComplete(text, signal) {
  const entries = await translate(text, true, signal);
  const withBest = async (entry) => ({ ...entry, best: entry.best ?? [await scored(entry, signal)] });
  const sentences = await Promise.all(entries.map(withBest));
  const { translation, spans } = joined(text, sentences);
  return { text: translation, sentences, target_spans: spans };
}

/** Return the translation of a sentence with its scores and attention. */
async function scored({ source, text }, signal) {
  try {
    return await forceDecode(source, text, signal);
  } catch (error) {
    if (error.status !== 400) throw error;
    return unscored(source, text); // more than one sentence in an ordinary translation
  }
}

/** Return true if the translation of a text can grow while the user types it. */
export function canGrow(text) {
  if (!isOn || !state.model?.simultaneous || !text.trim()) return false;
  const [, offset] = kept(text);
  return text.length - offset <= MAX_CHARACTERS;
}

/** Show by how many words the translations of the sentences are behind on average. */
function renderLag() {
  const lags = latest.sentences.map(({ average_lagging: lag }) => lag).filter((lag) => lag != null);
  const mean = lags.reduce((sum, lag) => sum + lag, 0) / lags.length;
  $("lag").textContent = lags.length ? `${mean.toFixed(1)} words behind on average` : "";
}

/** Keep the sentences of an answer. */
function onAnswer() {
  requested = null;
  const entries = answeredSentences().filter(({ best }) => best.length);
  latest = {
    text: state.text,
    sentences: entries.map((entry) => ({ ...entry, text: entry.best[0].text, complete: true })),
  };
  onTarget();
  renderLag();
}

function onTarget() {
  displayed = { source: state.text, text: targetText() };
}

function onModel() {
  state.growing = false;
  requested = null;
  latest = { text: "", sentences: [] };
  $("simultaneous-tools").hidden = !state.model.simultaneous;
  renderLag();
}

/** Switch it on or off; without it, texts are translated with beam search. */
function toggle() {
  isOn = !isOn;
  $("simultaneous").setAttribute("aria-pressed", String(isOn));
  state.growing = false;
  requested = null;
  if (!isOn) emit("not-simultaneous");
}

export function start() {
  $("simultaneous").addEventListener("click", toggle);
  on("answer", onAnswer);
  on("target", onTarget);
  on("model", onModel);
}
