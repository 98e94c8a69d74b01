// The n-best translations of the current sentence, one of which may take the place of the best.

import * as api from "./api.js";
import { $, allow, element, percent } from "./dom.js";
import * as status from "./status.js";
import { hypothesis, on, prefer, sentence, state } from "./store.js";

const COUNT = 6;
const list = $("alternatives-list");
let asking = null;
let known = { key: null, best: [] };

/** How likely a translation is next to the model's first choice, in words: at least so much as likely. */
const LIKELY = [
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

async function refresh() {
  if ($("alternatives").hidden) return;
  asking?.abort();
  asking = null;
  const at = sentence();
  if (!at) {
    list.replaceChildren();
    return;
  }
  const key = `${state.model.name}\n${at.source}`;
  if (known.key !== key) {
    const wait = "The translations of this sentence are not there yet";
    list.querySelectorAll("button").forEach((button) => allow(button, wait));
    const mine = (asking = new AbortController());
    try {
      const answer = await api.translate({ text: at.source, n_best: COUNT, model: state.model.name }, mine.signal);
      known = { key, best: answer.sentences.flatMap((s) => s.best) };
    } catch (error) {
      if (mine === asking) list.replaceChildren(); // what stands there is of another sentence
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
      const likely = element("span", { className: "note", textContent: likelihood(other) });
      const button = element("button", { type: "button", className: "choice" }, text, likely);
      if (known.best.includes(other)) button.title = `Log-probability normalised by length: ${other.score.toFixed(3)}`;
      if (other.text === chosen.text) button.setAttribute("aria-current", "true");
      button.addEventListener("click", () => pick(other));
      return element("li", {}, button);
    }),
  );
}

/** How likely a translation is next to the model's first choice. Scores are what the list is ranked by, of whatever
 * length; times the first's norm of its length their difference is that of two log-probabilities. */
function likelihood(other) {
  const [first] = known.best;
  if (!known.best.includes(other)) return "your choice";
  if (other === first) return "first choice";
  const share = Math.exp((other.score - first.score) * (first.score ? first.log_prob / first.score : 1));
  return `${LIKELY.find(([least]) => share >= least)[1]} (${percent(share)})`;
}

/** An alternative's text, with the words that the chosen translation does not have in bold. */
function marked(text, chosen) {
  const have = new Set(chosen.split(/\s+/));
  return text.split(/(\s+)/).map((part) =>
    !part.trim() || have.has(part) ? part : element("mark", { textContent: part }),
  );
}

function pick(other) {
  prefer(sentence(), other);
  status.announce(other.text);
  list.querySelector("[aria-current]")?.focus();
}

export function start() {
  $("show-alternatives").addEventListener("click", toggle);
  on("answer", refresh);
  on("target", refresh);
  on("current", refresh);
}
