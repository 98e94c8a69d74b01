// Notes about a text and its translation, shown without being requested: text that the model cannot read, and low
// confidence.

import { $, element, icon, percent } from "./dom.js";
import { hypothesis, isPreferred, on, sentences, state } from "./store.js";

const MIN_WORD_CONFIDENCE = 0.3;
const MIN_SENTENCE_CONFIDENCE = 0.4;
const MAX_UNKNOWN_RATE = 0.25; // of the tokens of a text
const MAX_NAMED_SENTENCES = 5;
const NAMED_SCRIPTS = { Jpan: ["Hira", "Kana", "Hani"], Kore: ["Hang", "Hani"], Hans: ["Hani"], Hant: ["Hani"] };
const SECOND_SCRIPTS = { az: "Cyrl", bs: "Cyrl", kk: "Latn", ku: "Arab", pa: "Arab", sr: "Latn", uz: "Cyrl" };

/** Return true if a word has a low confidence. Words of models that are not calibrated have no confidence. */
export const isDoubtfulWord = ({ confidence }) => confidence != null && confidence < MIN_WORD_CONFIDENCE;

/** Return true if the model's translation of a sentence has a low confidence; what the user chose has none. */
export function isDoubtfulSentence(index) {
  const confidence = hypothesis(index)?.confidence;
  return !isPreferred(index) && confidence != null && confidence < MIN_SENTENCE_CONFIDENCE;
}

/** Return true if a text shows nothing: spaces, control and invisible characters. */
function isInvisible(text) {
  return /^[\p{Z}\p{C}\u115f\u1160\u2800\u3164\uffa0]*$/u.test(text);
}

/** Return the codes of the scripts that a language is written in, or [] if they are not known. */
function scriptsOf(language) {
  try {
    const { language: code, script } = new Intl.Locale(language).maximize();
    return [...(NAMED_SCRIPTS[script] ?? [script]), SECOND_SCRIPTS[code]].filter(Boolean);
  } catch {
    return []; // not a code of a language
  }
}

/** Return true if most letters of a text are of other scripts than its language. */
function isInOtherScript(text, language) {
  const scripts = scriptsOf(language);
  if (!scripts.length) return false;
  const letters = text.match(/\p{L}/gu) ?? [];
  const pattern = `[${scripts.map((script) => `\\p{scx=${script}}`).join("")}]`;
  return letters.length > 2 * (text.match(new RegExp(`(?=\\p{L})${pattern}`, "gu")) ?? []).length;
}

/** Return the fraction of the text that the model does not know, from 0 to 1. */
function unknownRate() {
  let unknown = 0;
  let words = 0;
  sentences().forEach((_, index) => {
    const shown = hypothesis(index);
    const count = shown?.source_words.length ?? 0;
    unknown += (shown?.unknown ?? 0) * count;
    words += count;
  });
  return words ? unknown / words : 0;
}

/** Return a note about the source text, or "". */
function textNote({ text, answer, model }) {
  const isOnlyInOthers = answer?.sentences[0]?.texts && isInvisible(text);
  if (isOnlyInOthers) return ""; // a sentence in several languages, but not in the first one
  if (text && isInvisible(text)) {
    return "There is nothing to translate: the text has only spaces or invisible characters.";
  }
  if (!answer) return "";
  if (!/\p{L}/u.test(text)) return "The text has no letters, so it is copied.";
  const language = model.source_name || model.source;
  if (isInOtherScript(text, model.source)) {
    return `The text is not in the script of ${language}, so the translation is probably wrong. Check the languages above.`;
  }
  if (unknownRate() > MAX_UNKNOWN_RATE) {
    return "The model does not know many words or characters of this text, so the translation is probably wrong.";
  }
  return "";
}

/** Return a note about the sentences and words with a low confidence, or "". */
function confidenceNote() {
  const indices = [...sentences().keys()];
  const parts = [];
  const doubtful = indices.filter(isDoubtfulSentence).map((index) => index + 1);
  if (doubtful.length) {
    const place = indices.length > 1 ? sentenceList(doubtful) : "this translation";
    parts.push(`Low confidence in ${place}: check it before you use it.`);
  }
  const hasDoubtfulWord = (index) => !isPreferred(index) && hypothesis(index)?.words.some(isDoubtfulWord);
  if (indices.some(hasDoubtfulWord)) {
    parts.push(`Words with a wavy line have less than ${percent(MIN_WORD_CONFIDENCE)} confidence.`);
  }
  return parts.join(" ");
}

function sentenceList(numbers) {
  const named = numbers.slice(0, MAX_NAMED_SENTENCES).map(String);
  const others = numbers.length - named.length;
  if (others) named.push(`${others} more`);
  const list = named.length > 1 ? `${named.slice(0, -1).join(", ")} and ${named.at(-1)}` : named[0];
  return `${numbers.length > 1 ? "sentences" : "sentence"} ${list}`;
}

function render() {
  const notes = [textNote(state), confidenceNote()];
  const items = notes.filter(Boolean).map((note) => element("li", {}, icon("caution"), note));
  $("notes").replaceChildren(...items);
}

export function start() {
  on("answer", render);
  on("target", render);
}
