// The n-best translations of the current sentence, one of which may take the place of the best.

import * as api from "./api.js";
import { $, element } from "./dom.js";
import * as status from "./status.js";
import { hypothesis, on, prefer, sentence, state } from "./store.js";

const COUNT = 6;
const list = $("alternatives-list");
let asking = null;
let known = { key: null, best: [] };

export function toggle() {
  const open = $("alternatives").hidden;
  $("alternatives").hidden = !open;
  $("show-alternatives").setAttribute("aria-expanded", String(open));
  if (open) refresh();
}

async function refresh() {
  if ($("alternatives").hidden) return;
  asking?.abort();
  const at = sentence();
  if (!at) {
    list.replaceChildren();
    return;
  }
  const key = `${state.model.name}\n${at.source}`;
  if (known.key !== key) {
    const mine = (asking = new AbortController());
    try {
      const answer = await api.translate({ text: at.source, n_best: COUNT, model: state.model.name }, mine.signal);
      known = { key, best: answer.sentences.flatMap((s) => s.best) };
    } catch (error) {
      status.fault(error);
      return;
    }
    if (mine !== asking) return;
  }
  render();
}

function render() {
  const chosen = hypothesis();
  if (!chosen) return;
  const best = known.best.some((other) => other.text === chosen.text) ? known.best : [chosen, ...known.best];
  list.replaceChildren(
    ...best.map((other) => {
      const text = element("span", { dir: "auto", lang: state.model.target }, ...marked(other.text, chosen.text));
      const score = element("span", { className: "note", title: "Score: mean log-probability of a symbol" });
      score.textContent = other.score == null ? "yours" : other.score.toFixed(2).replace("-", "−");
      const button = element("button", { type: "button", className: "choice" }, text, score);
      if (other.text === chosen.text) button.setAttribute("aria-current", "true");
      button.addEventListener("click", () => pick(other));
      return element("li", {}, button);
    }),
  );
}

/** An alternative's text, with the words that the chosen translation does not have in bold. */
function marked(text, chosen) {
  const have = new Set(chosen.split(/\s+/));
  return text.split(/(\s+)/).map((part) =>
    !part.trim() || have.has(part) ? part : element("mark", { textContent: part }),
  );
}

function pick(other) {
  prefer(state.current, other);
  status.announce(other.text);
  list.querySelector("[aria-current]")?.focus();
}

export function start() {
  $("show-alternatives").addEventListener("click", toggle);
  on("answer", refresh);
  on("target", refresh);
  on("current", refresh);
}
