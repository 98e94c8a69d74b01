// Words that belong together light up: by the aligner's links, or in proportion to the attention that one paid to the
// other.

import { $, byPointer, percent } from "./dom.js";
import { hypothesis, state } from "./store.js";

const LEAST = 0.04; // attention below this is not worth a colour or a word
const MOST = 4; // words that the line below the translation names
const HINT = byPointer(
  "Point at a word to see what it is aligned with; click one for other words.",
  "Tap a word to see what it is aligned with; a translated one offers other words too.",
);
let lit = [];

/** Whether links say what belongs together: an aligner's, which are surer than attention, or all that there is. */
const linked = (found) => !found.attention || (state.model?.aligner && found.alignment.length > 0);

/** How much of each other side's word belongs to a word, the most first: [[index, weight], ...]. */
function weights(found, side, word) {
  if (!linked(found)) {
    const row = side === "target" ? (found.attention[word] ?? []) : found.attention.map((r) => r[word] ?? 0);
    return [...row.entries()].filter(([, weight]) => weight >= LEAST).sort((a, b) => b[1] - a[1]);
  }
  const [here, there] = side === "target" ? [1, 0] : [0, 1];
  return found.alignment.filter((link) => link[here] === word).map((link) => [link[there], 1]);
}

const spanOf = (side, sentence, word) =>
  $(side === "target" ? "target" : "source-mirror").querySelector(
    `[data-sentence="${sentence}"][data-word="${word}"]`,
  );

/** Light a word and those it is aligned with, and say so below the translation. */
export function light({ side, sentence, word }) {
  const found = hypothesis(sentence);
  const own = found && spanOf(side, sentence, word);
  if (!own || lit[0] === own) return;
  unlight();
  own.classList.add("is-pointed");
  lit = [own];
  const links = weights(found, side, word);
  for (const [index, weight] of links) {
    const span = spanOf(side === "target" ? "source" : "target", sentence, index);
    if (!span) continue;
    span.style.setProperty("--weight", Math.min(1, weight).toFixed(3));
    span.classList.add("is-lit");
    lit.push(span);
  }
  if (lit.length > 1) reveal(lit[1]);
  $("detail").textContent = describe(found, side, word, links);
}

function isInView(span) {
  const [box, pane] = [span, span.closest(".scrolls")].map((e) => e.getBoundingClientRect());
  return box.top >= pane.top && box.bottom <= pane.bottom;
}

/** Bring a word into the view of its pane; the page stays where it is. */
function reveal(span) {
  if (isInView(span)) return;
  const pane = span.closest(".scrolls");
  pane.scrollTop += span.getBoundingClientRect().top - pane.getBoundingClientRect().top - pane.clientHeight / 3;
}

/** The same for a sentence in both panes, of which a word in view is enough. */
export function revealSentence(index) {
  for (const side of ["source-mirror", "target"]) {
    const words = [...$(side).querySelectorAll(`[data-sentence="${index}"]`)];
    if (words.length && !words.some(isInView)) reveal(words[0]);
  }
}

/** A word in words: how sure the model was, and where it came from or went to. */
export function describe(found, side, word, links = weights(found, side, word)) {
  const [own, others] = side === "target" ? [found.words, found.source_words] : [found.source_words, found.words];
  const named = links.slice(0, MOST).map(([n, weight]) => `${others[n]?.text ?? ""} ${linked(found) ? "" : percent(weight)}`.trim());
  const known = side === "target" ? own[word].confidence ?? own[word].probability : null;
  const sure = known == null ? "" : `, ${percent(known)} sure`;
  const replaced = { copy: ", copied", dictionary: ", from the dictionary", spelled: ", spelled" }[own[word].replaced] ?? "";
  const arrow = side === "target" ? "from" : "to";
  return `${own[word].text}${sure}${replaced}${named.length ? ` · ${arrow} ${named.join(", ")}` : ""}`;
}

export function unlight() {
  for (const span of lit) {
    span.classList.remove("is-lit", "is-pointed");
    span.style.removeProperty("--weight");
  }
  lit = [];
  $("detail").textContent = hypothesis() ? HINT : "";
}
