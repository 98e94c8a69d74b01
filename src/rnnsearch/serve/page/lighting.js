// Words that belong together light up: in proportion to the attention that one paid to the other.

import { $, percent } from "./dom.js";
import { hypothesis } from "./store.js";

const LEAST = 0.04; // attention below this is not worth a colour or a word
const MOST = 4; // words that the line below the translation names
const HINT = "Point at a word to see what it is aligned with; click one for other words.";
let lit = [];

/** How much of each other side's word belongs to a word: [[index, weight], ...]. */
export function weights(found, side, word) {
  if (found.attention) {
    const row = side === "target" ? (found.attention[word] ?? []) : found.attention.map((r) => r[word] ?? 0);
    return [...row.entries()].filter(([, weight]) => weight >= LEAST);
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
  $("detail").textContent = describe(found, side, word, links);
}

/** A word in words: how sure the model was, and where it came from or went to. */
export function describe(found, side, word, links = weights(found, side, word)) {
  const [own, others] = side === "target" ? [found.words, found.source_words] : [found.source_words, found.words];
  const strongest = links.toSorted((a, b) => b[1] - a[1]).slice(0, MOST);
  const named = strongest.map(([n, weight]) => `${others[n]?.text ?? ""} ${found.attention ? percent(weight) : ""}`.trim());
  const sure = side === "target" && own[word].probability != null ? `, ${percent(own[word].probability)} sure` : "";
  const arrow = side === "target" ? "from" : "to";
  return `${own[word].text}${sure}${named.length ? ` · ${arrow} ${named.join(", ")}` : ""}`;
}

export function unlight() {
  for (const span of lit) {
    span.classList.remove("is-lit", "is-pointed");
    span.style.removeProperty("--weight");
  }
  lit = [];
  $("detail").textContent = hypothesis() ? HINT : "";
}
