// The state of the page, and events for its changes.

export const state = {
  models: [],
  model: null, // the selected one of models
  text: "", // the text that answer translates
  answer: null, // its translation, or null
  stale: false, // true if the text or the model has changed since
  growing: false, // true while the text is typed and its translation grows with it
  current: 0, // index of the sentence that the alternatives, the heat map and the writer show
};

/** Hypotheses chosen or written by the user, by model and source sentence. They survive edits elsewhere in the text. */
const preferred = new Map();
const preferenceKey = (sentence) => `${state.model?.name}\n${sentenceKey(sentence)}`;

/** Return a key of a sentence: its text in each language. */
export const sentenceKey = ({ source, texts }) => (texts ?? [source]).join("\n");

const events = new EventTarget();
export const on = (name, listener) => events.addEventListener(name, (event) => listener(event.detail));
export const emit = (name, detail) => events.dispatchEvent(new CustomEvent(name, { detail }));

export const sentences = () => state.answer?.sentences ?? [];
export const sentence = (index = state.current) => sentences()[index] ?? null;

/** Return the displayed hypothesis of a sentence: the user's choice, or the model's best. */
export function hypothesis(index = state.current) {
  const entry = sentence(index);
  return entry && (chosen(entry) ?? entry.best[0] ?? null);
}

/** Return the translation of a sentence that the user has chosen, or null. */
export const chosen = (entry) => preferred.get(preferenceKey(entry)) ?? null;

export function isPreferred(index = state.current) {
  const entry = sentence(index);
  return Boolean(entry && preferred.has(preferenceKey(entry)));
}

/**
 * Display another translation of a sentence; null restores the model's best.
 * Takes the sentence rather than its index, because the text may change before a translation arrives.
 */
export function prefer(entry, chosen) {
  const key = preferenceKey(entry);
  if (chosen && chosen.text !== entry.best[0]?.text) preferred.set(key, chosen);
  else preferred.delete(key);
  emit("target");
}

/** Mark the displayed translation as outdated. */
export function setStale() {
  state.stale = true;
  emit("stale");
}

/** Return why the translation cannot be used yet, or "". */
export const pendingReason = () => (state.stale ? "Translation in progress" : "");

export function setAnswer(text, answer) {
  state.stale = false;
  state.growing = false;
  state.text = text;
  state.answer = answer;
  state.current = Math.max(0, Math.min(state.current, sentences().length - 1));
  emit("answer");
}

/** Display a translation that only grows, and has no tools yet. */
export function setGrowing(text) {
  if (state.answer) setAnswer(state.text, null);
  state.stale = true;
  state.growing = true;
  emit("partial", text);
}

export function setCurrent(index) {
  if (index === state.current || !sentence(index)) return;
  state.current = index;
  emit("current");
}

/** Return the segments {text, sentence} of the translation; sentence is an index, or null between sentences. */
export function targetSegments() {
  if (!state.answer) return [];
  const segments = [];
  const { text, target_spans: spans } = state.answer;
  let position = 0;
  spans.forEach(([start, end], index) => {
    if (start > position) segments.push({ text: text.slice(position, start), sentence: null });
    segments.push({ text: hypothesis(index)?.text ?? "", sentence: index });
    position = end;
  });
  if (position < text.length) segments.push({ text: text.slice(position), sentence: null });
  return segments;
}

export const targetText = () => targetSegments().map((segment) => segment.text).join("");
