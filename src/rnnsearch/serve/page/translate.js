// From the field to an answer: one request at a time, the older one given up.

import * as api from "./api.js";
import { $ } from "./dom.js";
import * as status from "./status.js";
import { emit, setAnswer, setStale, state, targetText } from "./store.js";

export const PAUSE = 250; // milliseconds after the last key, before anything is asked
const PATIENCE = 500; // milliseconds after which a slow answer is preceded by a quick one, word by word
let running = null;

/** Translate what the field holds now. */
export async function translateNow() {
  const text = $("source").value;
  running?.abort();
  running = null;
  if (!text.trim() || !state.model) {
    status.busy(false);
    setAnswer(text, null);
    return;
  }
  const mine = (running = new AbortController());
  status.busy(true);
  setStale();
  const slow = setTimeout(preview, PATIENCE, text, mine.signal);
  try {
    const answer = await api.translate({ text, model: state.model.name }, mine.signal);
    if (mine !== running) return;
    status.fine();
    setAnswer(text, answer);
    status.announce(targetText());
  } catch (error) {
    if (mine !== running) return;
    setAnswer(text, null); // what stands there is the translation of another text
    status.fault(error, translateNow);
  } finally {
    clearTimeout(slow);
    mine.abort(); // the preview too
    if (mine === running) status.busy(false);
  }
}

/** What a search without alternatives finds, while the better answer is awaited. */
function preview(text, signal) {
  const parts = [];
  const show = (sentence, part) => {
    parts[sentence] = part;
    emit("partial", parts.filter(Boolean).join(" "));
  };
  api.preview({ text, model: state.model.name }, signal, show).catch(() => {}); // the answer itself tells of faults
}
