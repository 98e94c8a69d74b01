// Interactive completion: the user types the start of a translation, the model suggests the rest.

import * as backend from "./backend.js";
import { $, debounced, element, setUnavailable } from "./dom.js";
import { forceDecode } from "./forced-decoding.js";
import * as status from "./status.js";
import { hypothesis, isPreferred, on, prefer, sentence, state } from "./store.js";
import { firstWord } from "./text.js";

const COUNT = 5; // completions
const field = $("writer");
const mirror = $("ghost-mirror");
const requestSoon = debounced(requestCompletions, 120);
let running = null; // the AbortController of the running request
let suggestion = ""; // the text that the model would add to the field's
let sentenceIndex = -1; // of the sentence that is being written

const isOpen = () => !$("writing").hidden;

function toggle() {
  if (isOpen()) close();
  else open();
}

function open() {
  const entry = sentence();
  if (!entry) return;
  sentenceIndex = state.current;
  $("writing").hidden = false;
  $("reading").hidden = true;
  $("show-writer").setAttribute("aria-pressed", "true");
  $("writing-source").textContent = entry.source;
  field.value = isPreferred() ? hypothesis().text : "";
  suggest(field.value ? "" : entry.best[0].text);
  $("completions").replaceChildren();
  field.focus();
  requestCompletions();
}

function close() {
  if (!isOpen()) return;
  requestSoon.cancel();
  running?.abort();
  sentenceIndex = -1;
  $("writing").hidden = true;
  $("reading").hidden = false;
  $("show-writer").setAttribute("aria-pressed", "false");
}

/** Show a suggestion as ghost text, with its first word underlined. */
function suggest(text) {
  suggestion = text;
  const next = firstWord(suggestion);
  const [space] = /^\s*/.exec(next);
  mirror.replaceChildren(
    field.value + space,
    element("span", { className: "ghost ghost-next", textContent: next.slice(space.length) }),
    element("span", { className: "ghost", textContent: suggestion.slice(next.length) }),
    "\u200b",
  );
  setUnavailable($("writer-accept-word"), next ? "" : "No suggestion");
  setUnavailable($("writer-accept-all"), next ? "" : "No suggestion");
  setUnavailable($("writer-apply"), field.value.trim() ? "" : "Type or accept a word first");
  field.dir = getComputedStyle(mirror).direction; // an empty field takes the direction of the ghost text
}

async function requestCompletions() {
  running?.abort();
  const controller = new AbortController();
  running = controller;
  const prefix = field.value;
  try {
    const text = sentence(sentenceIndex).source;
    const request = { text, prefix, n_best: COUNT, model: state.model.name };
    const completions = await backend.complete(request, controller.signal);
    if (controller !== running || field.value !== prefix) return;
    suggest(completions[0]?.rest ?? "");
    showCompletions(completions.slice(1), prefix);
    const next = firstWord(suggestion).trim();
    $("suggestion-status").textContent = next ? `Suggestion: ${next}` : "";
    status.clearError();
  } catch (error) {
    if (controller === running) status.showError(error, isOpen() ? requestCompletions : null);
  }
}

/** List the completions that differ from the suggestion. */
function showCompletions(completions, prefix) {
  const rests = new Set(completions.map(({ rest }) => rest));
  rests.delete(suggestion);
  rests.delete("");
  const items = [...rests].map((rest) => {
    const textContent = differingPart(rest);
    const text = element("span", { dir: "auto", lang: state.model.target, textContent });
    const button = element("button", { type: "button", className: "choice" }, text);
    button.addEventListener("click", () => setText(prefix + rest));
    return element("li", {}, button);
  });
  $("completions").replaceChildren(...items);
}

/** Return a completion from the first word in which it differs from the suggestion. */
function differingPart(completion) {
  const [shown, words] = [suggestion, completion].map((text) => text.trim().split(/\s+/));
  const first = words.findIndex((word, n) => word !== shown[n]);
  return `… ${words.slice(Math.max(0, first)).join(" ")}`;
}

function setText(text) {
  field.value = text;
  field.focus();
  field.setSelectionRange(text.length, text.length);
  suggest("");
  requestSoon();
}

/** Move text from the start of the suggestion into the field. */
function accept(text) {
  if (!text) return;
  const rest = suggestion.slice(text.length);
  field.value += text;
  suggest(rest);
  status.announce(text.trim());
  requestSoon();
}

function onInput(event) {
  // Keep the suggestion while the user types along it; otherwise the ghost text would flicker.
  const typed = event.inputType === "insertText" ? event.data : null;
  suggest(typed && suggestion.startsWith(typed) ? suggestion.slice(typed.length) : "");
  if (event.isComposing) requestSoon.cancel(); // an input method is composing: not text yet
  else requestSoon();
}

function onKeydown(event) {
  if (event.isComposing) return; // Tab, Enter and Esc belong to the input method
  if (event.key === "Escape") {
    event.preventDefault();
    $("writer-apply").focus(); // leaves the field, in which Tab accepts words (WCAG 2.1.2)
    return;
  }
  if (event.shiftKey || event.altKey || event.metaKey) return;
  if (event.key === "Tab" && !event.ctrlKey && suggestion && caretIsAtEnd()) {
    event.preventDefault();
    accept(firstWord(suggestion));
  } else if (event.key === "Enter") {
    event.preventDefault(); // a sentence is one line
    if (event.ctrlKey && suggestion) accept(suggestion);
    else $("writer-apply").click(); // shows the reason if it is unavailable
  }
}

function caretIsAtEnd() {
  const end = field.value.length;
  return field.selectionStart === end && field.selectionEnd === end;
}

/** Use the written text as the translation of the sentence. */
async function apply() {
  const entry = sentence(sentenceIndex);
  const text = field.value.trimEnd();
  requestSoon.cancel();
  running?.abort();
  try {
    prefer(entry, await forceDecode(entry.source, text));
  } catch (error) {
    status.showError(error, apply);
    return;
  }
  close();
  status.announce(text);
  $("show-writer").focus();
}

/** Keep the text of the sentence that was being written, and go on with the current one. */
async function switchSentence() {
  if (!isOpen()) return;
  const entry = sentence(sentenceIndex);
  const text = field.value.trimEnd();
  const focused = document.activeElement;
  close();
  open();
  if (focused === $("source")) focused.focus();
  try {
    if (text) prefer(entry, await forceDecode(entry.source, text));
  } catch (error) {
    status.showError(error);
  }
}

export function start() {
  $("show-writer").addEventListener("click", toggle);
  $("writer-apply").addEventListener("click", apply);
  $("writer-accept-word").addEventListener("click", () => accept(firstWord(suggestion)));
  $("writer-accept-all").addEventListener("click", () => accept(suggestion));
  $("writer-cancel").addEventListener("click", () => {
    close();
    $("show-writer").focus();
  });
  field.addEventListener("input", onInput);
  field.addEventListener("compositionend", requestSoon);
  field.addEventListener("keydown", onKeydown);
  on("answer", () => {
    const entry = sentence(sentenceIndex);
    const isSameSentence = entry?.source === $("writing-source").textContent && !entry.texts;
    if (isOpen() && !isSameSentence) close();
    setUnavailable($("show-writer"), sentence()?.texts ? "Suggestions need a sentence in one language" : "");
  });
  on("current", switchSentence);
}
