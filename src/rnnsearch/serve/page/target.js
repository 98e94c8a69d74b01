// The target pane: the translation, whose words can be pointed at, focused and replaced.

import { $, element, focusItem, rovingFocus, setUnavailable } from "./dom.js";
import { clearHighlight, describeWord, highlight, revealSentence } from "./highlight.js";
import { isDoubtfulSentence, isDoubtfulWord } from "./notes.js";
import { toast } from "./status.js";
import {
  hypothesis,
  isPreferred,
  on,
  pendingReason,
  prefer,
  sentence,
  sentences,
  setCurrent,
  state,
  targetSegments,
  targetText,
} from "./store.js";
import { openWordMenu } from "./word-menu.js";

const pane = $("target");
const CONFIDENCE_LEVELS = [0.9, 0.7, 0.5, 0.3]; // also in the legend of index.html

/** Return how uncertain a word is, from 0 (certain) to 4. */
function uncertainty(probability) {
  if (probability == null) return 0;
  const level = CONFIDENCE_LEVELS.findIndex((threshold) => probability >= threshold);
  return level < 0 ? CONFIDENCE_LEVELS.length : level;
}

function wordSpan({ text, words }, sentenceIndex, wordIndex) {
  const { start, end, confidence, probability } = words[wordIndex];
  const isDoubtful = isDoubtfulWord(words[wordIndex]) && !isPreferred(sentenceIndex);
  return element("span", {
    className: isDoubtful ? "word is-doubtful" : "word",
    textContent: text.slice(start, end),
    tabIndex: -1,
    role: "button",
    "aria-haspopup": "menu",
    dataset: {
      sentence: sentenceIndex,
      word: wordIndex,
      uncertainty: uncertainty(confidence ?? probability),
    },
  });
}

function sentenceNodes(index) {
  const shown = hypothesis(index);
  if (!shown) return [];
  const nodes = [];
  let position = 0;
  shown.words.forEach((word, n) => {
    if (word.start > position) nodes.push(shown.text.slice(position, word.start));
    nodes.push(wordSpan(shown, index, n));
    position = word.end;
  });
  if (position < shown.text.length) nodes.push(shown.text.slice(position));
  return nodes;
}

function segmentNode({ text, sentence: index }) {
  if (index === null) return text;
  const className = isDoubtfulSentence(index) ? "sentence is-doubtful" : "sentence";
  const properties = { className, dataset: { index } };
  return element("span", properties, ...sentenceNodes(index));
}

function render() {
  clearHighlight();
  pane.replaceChildren(...targetSegments().map(segmentNode));
  const firstWord = pane.querySelector(".word");
  if (firstWord) firstWord.tabIndex = 0;
  const translated = Boolean(state.answer);
  $("target-empty").hidden = translated;
  $("toolbar").hidden = !translated;
  $("copy").hidden = !translated;
  renderStale();
  renderCurrent();
}

function renderStale() {
  pane.classList.toggle("is-stale", state.stale && !state.growing);
  setUnavailable($("copy"), pendingReason());
}

/** Show which sentence the tools apply to, if there are several. */
function renderCurrent() {
  const count = sentences().length;
  $("stepper").hidden = count < 2;
  $("sentence-position").textContent = `Sentence ${state.current + 1} of ${count}`;
  const isLast = state.current >= count - 1;
  setUnavailable($("previous-sentence"), state.current ? "" : "This is the first sentence");
  setUnavailable($("next-sentence"), isLast ? "This is the last sentence" : "");
  $("undo").hidden = !isPreferred();
  for (const span of pane.querySelectorAll(".sentence")) {
    const isCurrent = Number(span.dataset.index) === state.current;
    span.classList.toggle("is-current", count > 1 && isCurrent);
  }
}

/** Return the word that an event's target belongs to. */
function wordOf(target) {
  const span = target.closest?.(".word");
  if (!span) return null;
  const [sentenceIndex, word] = [span.dataset.sentence, span.dataset.word].map(Number);
  return { side: "target", sentence: sentenceIndex, word, span };
}

function onWordFocus(word) {
  const description = describeWord(hypothesis(word.sentence), "target", word.word);
  word.span.setAttribute("aria-label", description);
  setCurrent(word.sentence);
  highlight(word);
}

function openMenu(event) {
  const word = wordOf(event.target);
  if (!word || !getSelection().isCollapsed) return;
  event.preventDefault();
  focusItem(pane.querySelectorAll(".word"), word.span);
  openWordMenu(word.sentence, word.word, word.span);
}

async function copy() {
  const text = targetText();
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text); // the Clipboard API needs a secure context
  }
  toast("Copied");
}

function copyBySelection(text) {
  const field = element("textarea", { value: text, className: "visually-hidden" });
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
  focused?.focus();
}

function toggleConfidence() {
  const show = $("legend").hidden;
  $("legend").hidden = !show;
  pane.classList.toggle("show-confidence", show);
  $("show-confidence").setAttribute("aria-pressed", String(show));
}

export function start() {
  rovingFocus(pane, ".word", { horizontal: true });
  // Not pointerover, which also fires when the pane scrolls under a resting pointer.
  pane.addEventListener("pointermove", (event) => {
    const word = event.pointerType === "mouse" && wordOf(event.target);
    if (word) highlight(word);
  });
  pane.addEventListener("pointerleave", clearHighlight);
  pane.addEventListener("focusin", (event) => wordOf(event.target) && onWordFocus(wordOf(event.target)));
  // Keep the highlight while the word's menu is open; touch screens have no other way to show it.
  pane.addEventListener("focusout", (event) => {
    if (!event.relatedTarget?.closest("#word-menu")) clearHighlight();
  });
  pane.addEventListener("click", openMenu);
  pane.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") openMenu(event);
  });
  $("copy").addEventListener("click", copy);
  $("show-confidence").addEventListener("click", toggleConfidence);
  $("undo").addEventListener("click", () => prefer(sentence(), null));
  $("previous-sentence").addEventListener("click", () => setCurrent(state.current - 1));
  $("next-sentence").addEventListener("click", () => setCurrent(state.current + 1));
  on("answer", render);
  on("target", render);
  on("current", () => {
    renderCurrent();
    revealSentence(state.current);
  });
  on("stale", renderStale);
  on("partial", (text) => {
    pane.textContent = text;
    $("target-empty").hidden = Boolean(text);
  });
}
