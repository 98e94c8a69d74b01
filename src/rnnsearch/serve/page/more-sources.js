// Text areas for the further sources of a model that reads a sentence in several languages.

import { TYPING_PAUSE } from "./backend.js";
import { $, debounced, element } from "./dom.js";
import { on, setStale, state } from "./store.js";
import { languageName } from "./text.js";
import { translateNow } from "./translate.js";

const translateSoon = debounced(translateNow, TYPING_PAUSE);

function createField(code) {
  const name = languageName(code);
  const id = `source-${code}`;
  const field = element("textarea", {
    id,
    className: "field",
    dir: "auto",
    lang: code,
    rows: 2,
    autocomplete: "off",
    placeholder: `The same sentence in ${name}, if you have it`,
    dataset: { source: code },
  });
  field.addEventListener("input", (event) => {
    setStale();
    if (event.isComposing) translateSoon.cancel(); // an input method is composing: not text yet
    else translateSoon();
  });
  field.addEventListener("compositionend", translateSoon);
  const label = element("label", { className: "note", htmlFor: id, textContent: name });
  return element("div", { className: "more-source" }, label, field);
}

/** Show a field for each further source of the selected model; fields of sources that stay keep their text. */
function render() {
  const codes = (state.model?.sources ?? []).slice(1);
  const shown = [...$("more-sources").querySelectorAll("textarea")];
  const fields = codes.map((code) => {
    return shown.find(({ dataset }) => dataset.source === code)?.parentElement ?? createField(code);
  });
  $("more-sources").replaceChildren(...fields);
}

export function start() {
  on("model", render);
}
