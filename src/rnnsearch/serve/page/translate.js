// Translation of the source text: one request at a time, which replaces the one before.

import * as backend from "./backend.js";
import { $ } from "./dom.js";
import { translateComplete } from "./simultaneous.js";
import * as status from "./status.js";
import { emit, setAnswer, setStale, state, targetText } from "./store.js";

let current = null; // the AbortController of the running request

/** Return the source text, and the texts of the further sources. */
function sourceTexts() {
  const fields = [$("source"), ...$("more-sources").querySelectorAll("textarea")];
  return fields.map(({ value }) => value);
}

/** Return true if there is text in any language. */
export const hasText = () => sourceTexts().some((text) => text.trim());

/** Stop the running request. */
export function cancelTranslation() {
  current?.abort();
  current = null;
  status.setBusy(false);
}

/** Translate the source text now; if it has been typed and its translation has grown, the text counts as complete. */
export async function translateNow() {
  const texts = sourceTexts();
  const [text] = texts;
  cancelTranslation();
  if (!hasText() || !state.model) {
    setAnswer(text, null);
    return;
  }
  const controller = new AbortController();
  current = controller;
  status.setBusy(true);
  setStale();
  let draft = null;
  const onPartial = (partial) => controller === current && emit("partial", partial);
  const onDraft = (answer) => {
    if (controller !== current) return;
    draft = answer;
    status.clearError();
    setAnswer(text, answer);
  };
  try {
    // A text by itself may have several sentences; one in several languages is a single sentence.
    const isSeveral = texts.slice(1).some((one) => one.trim());
    const request = { text: isSeveral ? [texts] : text, model: state.model.name };
    const answer = state.growing
      ? await translateComplete(text, controller.signal)
      : await backend.translateLive(request, controller.signal, { onPartial, onDraft });
    if (controller !== current) return;
    status.clearError();
    if (answer.text === draft?.text) state.answer = answer; // already rendered; only scores differ
    else setAnswer(text, answer);
    status.announce(targetText());
  } catch (error) {
    if (controller !== current) return;
    setAnswer(text, null); // do not keep the translation of another text
    status.showError(error, translateNow);
  } finally {
    if (controller === current) status.setBusy(false);
  }
}
