// The language bar: source language, target language, and the model if several translate the same pair.

import * as backend from "./backend.js";
import { $, element, placePopover, setUnavailable } from "./dom.js";
import * as status from "./status.js";
import { emit, setAnswer, state, targetText } from "./store.js";

const unique = (entries) => [...new Map(entries).entries()];

function fillOptions(select, entries, selected) {
  const options = entries.map(([value, label]) => element("option", { value, textContent: label }));
  select.replaceChildren(...options);
  select.value = selected;
}

/** Return a model for the reverse direction, if there is one. */
function reverseModel() {
  const { model } = state;
  return state.models.find((m) => m.source === model?.target && m.target === model?.source);
}

/** Return the target language of a model, and the language through which two models translate. */
function targetLabel(model) {
  const name = model.target_name || model.target;
  return model.pivot ? `${name} (via ${model.pivot_name})` : name;
}

function selectModel(model) {
  state.model = model;
  const sameSource = state.models.filter((m) => m.source === model.source);
  const samePair = sameSource.filter((m) => m.target === model.target);
  const sources = state.models.map((m) => [m.source, m.source_name || m.source]);
  const targets = sameSource.map((m) => [m.target, targetLabel(m)]);
  fillOptions($("from"), unique(sources), model.source);
  fillOptions($("to"), unique(targets), model.target);
  fillOptions($("model"), samePair.map((m) => [m.name, m.name]), model.name);
  $("model-label").hidden = samePair.length < 2;
  $("model-score").hidden = model.score == null;
  $("model-score").textContent = `BLEU ${model.score?.toFixed(1)} on the dev set`;
  const [from, to] = [model.target_name || model.target, model.source_name || model.source];
  setUnavailable($("swap"), reverseModel() ? "" : `No model translates ${from} into ${to}`);
  $("source").lang = model.source;
  for (const id of ["target", "writer", "ghost-mirror"]) $(id).lang = model.target;
  emit("model");
}

/** Reverse the direction; the translation becomes the source text. */
function swapLanguages() {
  const model = reverseModel();
  const text = targetText();
  setAnswer("", null);
  selectModel(model);
  if (text) emit("replace-source", text);
}

async function load() {
  try {
    state.models = await backend.listModels();
  } catch (error) {
    status.showError(error, load);
    return;
  }
  if (state.models.length) {
    selectModel(state.models[0]);
  } else {
    status.showBanner("The server has no model. Start it with: rnnsearch serve MODEL");
  }
}

export function start() {
  const selectMatching = (matches) => {
    const sameTarget = state.models.find((m) => matches(m) && m.target === state.model.target);
    selectModel(sameTarget ?? state.models.find(matches));
  };
  const [from, to, model] = [$("from"), $("to"), $("model")];
  from.addEventListener("change", () => selectMatching((m) => m.source === from.value));
  to.addEventListener("change", () =>
    selectMatching((m) => m.source === from.value && m.target === to.value),
  );
  model.addEventListener("change", () =>
    selectModel(state.models.find((m) => m.name === model.value)),
  );
  $("swap").addEventListener("click", swapLanguages);
  setUnavailable($("swap"), "Languages are still loading");
  $("model-score-help").addEventListener("toggle", () =>
    placePopover($("model-score-help"), $("model-score")),
  );
  return load();
}
