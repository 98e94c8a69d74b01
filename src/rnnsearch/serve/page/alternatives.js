// The n-best list of the current sentence; one of its translations can replace the displayed one.

import * as backend from "./backend.js";
import { $, element, percent, setUnavailable } from "./dom.js";
import * as status from "./status.js";
import { hypothesis, isPreferred, on, prefer, sentence, sentenceKey, state } from "./store.js";

const N_BEST = 6;
const list = $("alternatives-list");
let running = null; // the AbortController of the running request
let cached = { key: null, best: [] }; // the n-best list of one sentence

// Wording for the likelihood relative to the model's first choice, by its lower bound.
const LIKELIHOODS = [
  [0.7, "nearly as likely"],
  [0.1, "less likely"],
  [0.01, "much less likely"],
  [0, "unlikely"],
];

function toggle() {
  const open = $("alternatives").hidden;
  $("alternatives").hidden = !open;
  $("show-alternatives").setAttribute("aria-expanded", String(open));
  if (open) refresh();
}

/** Update the list if it is open. */
async function refresh() {
  if ($("alternatives").hidden) return;
  running?.abort();
  running = null;
  const current = sentence();
  if (!current) {
    list.replaceChildren();
    return;
  }
  const key = `${state.model.name}\n${sentenceKey(current)}`;
  if (cached.key === key || (await fetchNBest(current, key))) render();
}

/** Fetch the n-best list of a sentence; return false on errors, or if another request has replaced this one. */
async function fetchNBest(current, key) {
  for (const button of list.querySelectorAll("button")) {
    setUnavailable(button, "Alternatives are still loading");
  }
  const controller = new AbortController();
  running = controller;
  try {
    const text = current.texts ? [current.texts] : current.source;
    const request = { text, n_best: N_BEST, model: state.model.name };
    const answer = await backend.translate(request, controller.signal);
    cached = { key, best: answer.sentences.flatMap(({ best }) => best) };
  } catch (error) {
    if (controller === running) list.replaceChildren(); // it is the list of another sentence
    status.showError(error);
    return false;
  }
  return controller === running;
}

function render() {
  const chosen = hypothesis();
  if (!chosen) return;
  const listed = cached.best.some(({ text }) => text === chosen.text);
  const translations = listed ? cached.best : [chosen, ...cached.best];
  list.replaceChildren(...translations.map((translation) => listItem(translation, chosen)));
}

function listItem(translation, chosen) {
  const words = markNewWords(translation.text, chosen.text);
  const text = element("span", { dir: "auto", lang: state.model.target }, ...words);
  const note = element("span", { className: "note", textContent: likelihood(translation) });
  const button = element("button", { type: "button", className: "choice" }, text, note);
  if (cached.best.includes(translation)) {
    button.title = `Length-normalised log-probability: ${translation.score.toFixed(3)}`;
  }
  if (translation.text === chosen.text) button.setAttribute("aria-current", "true");
  button.addEventListener("click", () => choose(translation));
  return element("li", {}, button);
}

/**
 * Describe how likely a translation is compared with the model's first choice. Scores are normalised by length;
 * their difference is scaled back by the norm of the first choice's length.
 */
function likelihood(translation) {
  const [first] = cached.best;
  if (!cached.best.includes(translation)) return isPreferred() ? "your choice" : "simultaneous";
  if (translation === first) return "first choice";
  const norm = first.score ? first.log_prob / first.score : 1;
  const ratio = Math.exp((translation.score - first.score) * norm);
  const [, wording] = LIKELIHOODS.find(([threshold]) => ratio >= threshold);
  return `${wording} (${percent(ratio)})`;
}

/** Return the nodes of a translation, with the words that the chosen one does not have marked. */
function markNewWords(text, chosen) {
  const known = new Set(chosen.split(/\s+/));
  return text.split(/(\s+)/).map((word) => {
    const isKnown = !word.trim() || known.has(word);
    return isKnown ? word : element("mark", { textContent: word });
  });
}

function choose(translation) {
  prefer(sentence(), translation);
  status.announce(translation.text);
  list.querySelector("[aria-current]")?.focus();
}

export function start() {
  $("show-alternatives").addEventListener("click", toggle);
  on("answer", refresh);
  on("target", refresh);
  on("current", refresh);
}
