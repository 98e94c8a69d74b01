// What the page knows, and who is told when it changes.

export const state = {
  models: [],
  model: null, // one of models
  text: "", // what was translated
  answer: null, // its translation (text.localised), or null
  stale: false, // whether another text, or another model, has been asked for since
  current: 0, // index of the sentence that alternatives, attention and the writer are about
};

/** The hypotheses that the reader preferred, by model and source sentence: they outlive further typing elsewhere. */
const preferred = new Map();
const keyOf = (sentence) => `${state.model?.name}\n${sentence.source}`;

const bus = new EventTarget();
export const on = (name, action) => bus.addEventListener(name, (event) => action(event.detail));
export const emit = (name, detail) => bus.dispatchEvent(new CustomEvent(name, { detail }));

export const sentences = () => state.answer?.sentences ?? [];
export const sentence = (index = state.current) => sentences()[index] ?? null;
export const hypothesis = (index = state.current) => {
  const found = sentence(index);
  return found && (preferred.get(keyOf(found)) ?? found.best[0] ?? null);
};
export const isPreferred = (index = state.current) => Boolean(sentence(index) && preferred.has(keyOf(sentence(index))));

/** Another translation of a sentence of the answer, chosen or written by the reader; null takes the model's best again.
 * The sentence, not its index: by the time that a translation is there, another may stand in its place. */
export function prefer(found, chosen) {
  if (chosen && chosen.text !== found.best[0]?.text) preferred.set(keyOf(found), chosen);
  else preferred.delete(keyOf(found));
  emit("target");
}

/** What is shown is no longer the translation of what was given. */
export function setStale() {
  state.stale = true;
  emit("stale");
}

/** Why the translation cannot be used yet, or "". */
export const whyWait = () => (state.stale ? "The translation is not ready yet" : "");

export function setAnswer(text, answer) {
  state.stale = false;
  state.text = text;
  state.answer = answer;
  state.current = Math.max(0, Math.min(state.current, sentences().length - 1));
  emit("answer");
}

export function setCurrent(index) {
  if (index === state.current || !sentence(index)) return;
  state.current = index;
  emit("current");
}

/** The pieces of the whole translation: {text, sentence} with a sentence's index, or null for what stands between. */
export function pieces() {
  if (!state.answer) return [];
  const made = [];
  let at = 0;
  state.answer.target_spans.forEach(([start, end], index) => {
    if (start > at) made.push({ text: state.answer.text.slice(at, start), sentence: null });
    made.push({ text: hypothesis(index)?.text ?? "", sentence: index });
    at = end;
  });
  if (at < state.answer.text.length) made.push({ text: state.answer.text.slice(at), sentence: null });
  return made;
}

export const targetText = () => pieces().map((piece) => piece.text).join("");
