// Which model translates: from, to, and the model where several know a direction.

import * as api from "./api.js";
import { $, allow, element, placeAt } from "./dom.js";
import * as status from "./status.js";
import { emit, setAnswer, state, targetText } from "./store.js";

const unique = (items) => [...new Map(items).entries()];

function fill(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, label]) => element("option", { value, textContent: label })));
  select.value = chosen;
}

const reverse = () => state.models.find((m) => m.source === state.model?.target && m.target === state.model?.source);
const languageName = (code) =>
  state.models.flatMap((m) => [[m.source, m.source_name], [m.target, m.target_name]]).find(([c]) => c === code)?.[1] ?? code;

/** Use a model and show it in the chooser. */
function use(model) {
  state.model = model;
  const from = state.models.filter((m) => m.source === model.source);
  const both = from.filter((m) => m.target === model.target);
  fill($("from"), unique(state.models.map((m) => [m.source, m.source_name || m.source])), model.source);
  fill($("to"), unique(from.map((m) => [m.target, m.target_name || m.target])), model.target);
  fill($("model"), both.map((m) => [m.name, m.name]), model.name);
  $("model-label").hidden = both.length < 2;
  $("model-note").hidden = model.score == null;
  $("model-note").textContent = `BLEU ${model.score?.toFixed(1)} on text kept aside`;
  const names = [languageName(model.target), languageName(model.source)];
  allow($("swap"), reverse() ? "" : `No model here translates ${names[0]} into ${names[1]}`);
  $("source").lang = model.source;
  for (const id of ["target", "writer", "ghost-mirror"]) $(id).lang = model.target;
  emit("model");
}

/** Translate the other way, beginning with the translation. */
function swap() {
  const other = reverse();
  const text = targetText();
  setAnswer("", null);
  use(other);
  if (text) emit("replace-source", text);
}

async function load() {
  try {
    state.models = await api.models();
  } catch (error) {
    status.fault(error, load);
    return;
  }
  if (state.models.length) {
    use(state.models[0]);
  } else {
    status.show("The server has no model; start it with one: rnnsearch serve MODEL.");
  }
}

export function start() {
  const choose = (fits) => {
    const kept = state.models.find((m) => fits(m) && m.target === state.model.target);
    use(kept ?? state.models.find(fits));
  };
  $("from").addEventListener("change", () => choose((m) => m.source === $("from").value));
  $("to").addEventListener("change", () => choose((m) => m.source === $("from").value && m.target === $("to").value));
  $("model").addEventListener("change", () => use(state.models.find((m) => m.name === $("model").value)));
  $("swap").addEventListener("click", swap);
  allow($("swap"), "The server has not said yet what it translates");
  $("model-said").addEventListener("toggle", () => placeAt($("model-said"), $("model-note")));
  return load();
}
