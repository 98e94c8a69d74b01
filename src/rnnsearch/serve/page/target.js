// The right pane: the translation, each word of it one that can be pointed at, focused and exchanged.

import { $, allow, element, focusOne, roving } from "./dom.js";
import { describe, light, revealSentence, unlight } from "./lighting.js";
import { toast } from "./status.js";
import { hypothesis, isPreferred, on, pieces, prefer, sentence, sentences, setCurrent } from "./store.js";
import { state, targetText, whyWait } from "./store.js";
import { openMenu } from "./wordmenu.js";

const pane = $("target");
const LEVELS = [0.9, 0.7, 0.5, 0.3];

/** How doubtful a word is: 0 (sure) to 4. */
const doubt = (probability) => {
  const level = LEVELS.findIndex((least) => probability >= least);
  return probability == null ? 0 : level < 0 ? LEVELS.length : level;
};

function wordSpan(found, sentence, n) {
  const word = found.words[n];
  return element("span", {
    className: "word",
    textContent: found.text.slice(word.start, word.end),
    tabIndex: -1,
    role: "button",
    "aria-haspopup": "menu",
    dataset: { sentence, word: n, doubt: doubt(word.confidence ?? word.probability) },
  });
}

function sentenceParts(index) {
  const found = hypothesis(index);
  const parts = [];
  let at = 0;
  (found?.words ?? []).forEach((word, n) => {
    if (word.start > at) parts.push(found.text.slice(at, word.start));
    parts.push(wordSpan(found, index, n));
    at = word.end;
  });
  if (found && at < found.text.length) parts.push(found.text.slice(at));
  return parts;
}

function render() {
  unlight();
  const parts = pieces().map((piece) =>
    piece.sentence === null
      ? piece.text
      : element("span", { className: "sentence", dataset: { of: piece.sentence } }, ...sentenceParts(piece.sentence)),
  );
  pane.replaceChildren(...parts);
  const first = pane.querySelector(".word");
  if (first) first.tabIndex = 0;
  const any = Boolean(state.answer);
  $("target-empty").hidden = any;
  $("tools").hidden = $("copy").hidden = !any;
  showStale();
  showCurrent();
}

function showStale() {
  pane.classList.toggle("is-stale", state.stale);
  allow($("copy"), whyWait());
}

/** Which sentence the tools are about, where there are several. */
function showCurrent() {
  const count = sentences().length;
  $("stepper").hidden = count < 2;
  $("sentence-at").textContent = `Sentence ${state.current + 1} of ${count}`;
  allow($("sentence-before"), state.current ? "" : "This is the first sentence");
  allow($("sentence-after"), state.current < count - 1 ? "" : "This is the last sentence");
  $("undo").hidden = !isPreferred();
  for (const part of pane.querySelectorAll(".sentence")) {
    part.classList.toggle("is-current", count > 1 && Number(part.dataset.of) === state.current);
  }
}

const placeOf = (target) => {
  const span = target.closest?.(".word");
  return span && { side: "target", sentence: Number(span.dataset.sentence), word: Number(span.dataset.word), span };
};

function focused(place) {
  place.span.setAttribute("aria-label", describe(hypothesis(place.sentence), "target", place.word));
  setCurrent(place.sentence);
  light(place);
}

async function copy() {
  const text = targetText();
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text); // a page over plain http has no clipboard of its own
  }
  toast("Copied");
}

function copyBySelection(text) {
  const holder = element("textarea", { value: text, className: "hidden-text" });
  const before = document.activeElement;
  document.body.append(holder);
  holder.select();
  document.execCommand("copy");
  holder.remove();
  before?.focus();
}

/** The words' colours, and what they mean, shown or hidden. */
function confidence() {
  const shown = $("legend").hidden;
  $("legend").hidden = !shown;
  pane.classList.toggle("show-doubt", shown);
  $("show-confidence").setAttribute("aria-pressed", String(shown));
}

export function start() {
  roving(pane, ".word", { horizontal: true });
  // not pointerover, which comes too where the pane scrolls below a pointer that rests
  pane.addEventListener("pointermove", (event) => {
    const place = event.pointerType === "mouse" && placeOf(event.target);
    if (place) light(place);
  });
  pane.addEventListener("pointerleave", unlight);
  pane.addEventListener("focusin", (event) => placeOf(event.target) && focused(placeOf(event.target)));
  // in the menu the word is still the one that is looked at, and a finger has no other way to see its light
  pane.addEventListener("focusout", (event) => event.relatedTarget?.closest("#word-menu") || unlight());
  const open = (event) => {
    const place = placeOf(event.target);
    if (!place || !getSelection().isCollapsed) return;
    event.preventDefault();
    focusOne(pane.querySelectorAll(".word"), place.span);
    openMenu(place.sentence, place.word, place.span);
  };
  pane.addEventListener("click", open);
  pane.addEventListener("keydown", (event) => (event.key === "Enter" || event.key === " ") && open(event));
  $("copy").addEventListener("click", copy);
  $("show-confidence").addEventListener("click", confidence);
  $("undo").addEventListener("click", () => prefer(sentence(), null));
  $("sentence-before").addEventListener("click", () => setCurrent(state.current - 1));
  $("sentence-after").addEventListener("click", () => setCurrent(state.current + 1));
  on("answer", render);
  on("target", render);
  on("current", () => {
    showCurrent();
    revealSentence(state.current);
  });
  on("stale", showStale);
  on("partial", (text) => {
    pane.textContent = text;
    $("target-empty").hidden = true;
  });
}
