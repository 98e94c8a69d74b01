// From the field to an answer: a quick one at every key, and once the keys rest the better one of the model's own search.

import * as api from "./api.js";
import { $ } from "./dom.js";
import * as status from "./status.js";
import { setAnswer, setStale, state, targetText } from "./store.js";

export const PAUSE = 0; // milliseconds from a key to its translation
const REST = 300; // milliseconds after which nobody is typing
const LONG = 3000; // characters: of more, the quick answer is all that is waited for while one types
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
  try {
    const quick = await api.translate({ text, model: state.model.name, beam: 1 }, mine.signal);
    if (mine !== running) return;
    status.fine();
    setAnswer(text, quick);
    performance.mark("translated"); // what benchmarks/web.py waits for
    await new Promise((go) => setTimeout(go, text.length > LONG ? 4 * REST : REST));
    if (mine !== running) return;
    const better = await api.translate({ text, model: state.model.name }, mine.signal);
    if (mine !== running) return;
    if (better.text !== quick.text) setAnswer(text, better);
    else state.answer = better; // with its scores
    status.announce(targetText());
  } catch (error) {
    if (mine !== running) return;
    setAnswer(text, null); // what stands there is the translation of another text
    status.fault(error);
  } finally {
    if (mine === running) status.busy(false);
  }
}
