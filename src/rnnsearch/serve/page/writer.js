// Interactive completion: the reader writes the translation's beginning, the model says how it goes on.

import * as api from "./api.js";
import { $, allow, debounced, element } from "./dom.js";
import { forced } from "./forced.js";
import * as status from "./status.js";
import { firstWord } from "./text.js";
import { hypothesis, isPreferred, on, prefer, sentence, state } from "./store.js";

const field = $("writer");
const mirror = $("ghost-mirror");
const later = debounced(ask, 120);
let asking = null;
let rest = ""; // what the model would write after the field's text
let about = -1; // index of the sentence that is being written

const isOpen = () => !$("writing").hidden;

function toggle() {
  if (isOpen()) close();
  else open();
}

function open() {
  const at = sentence();
  if (!at) return;
  about = state.current;
  $("writing").hidden = false;
  $("reading").hidden = true;
  $("show-writer").setAttribute("aria-pressed", "true");
  $("writing-source").textContent = at.source;
  field.value = isPreferred() ? hypothesis().text : "";
  offer(field.value ? "" : at.best[0].text);
  $("completions").replaceChildren();
  field.focus();
  ask();
}

function close() {
  if (!isOpen()) return;
  later.cancel();
  asking?.abort();
  about = -1;
  $("writing").hidden = true;
  $("reading").hidden = false;
  $("show-writer").setAttribute("aria-pressed", "false");
}

/** Show how the text may go on: the next word underlined, the rest after it. */
function offer(text) {
  rest = text;
  const next = firstWord(rest);
  const lead = /^\s*/.exec(next)[0];
  mirror.replaceChildren(
    field.value + lead,
    element("span", { className: "ghost ghost-next", textContent: next.slice(lead.length) }),
    element("span", { className: "ghost", textContent: rest.slice(next.length) }),
    "\u200b",
  );
  for (const id of ["writer-next", "writer-all"]) allow($(id), next ? "" : "The model offers no more words here");
  allow($("writer-use"), field.value.trim() ? "" : "Write or take a word first");
  field.dir = getComputedStyle(mirror).direction; // an empty field begins on the ghost's side
}

async function ask() {
  asking?.abort();
  const mine = (asking = new AbortController());
  const prefix = field.value;
  try {
    const request = { text: sentence(about).source, prefix, n_best: 5, model: state.model.name };
    const found = await api.complete(request, mine.signal);
    if (mine !== asking || field.value !== prefix) return;
    offer(found[0]?.rest ?? "");
    others(found.slice(1), prefix);
    $("ghost-said").textContent = rest ? `Next: ${firstWord(rest).trim()}` : "";
    status.fine();
  } catch (error) {
    if (mine === asking) status.fault(error, isOpen() ? ask : null);
  }
}

function others(found, prefix) {
  const said = new Set([rest, ""]);
  const fresh = found.filter((one) => !said.has(one.rest) && said.add(one.rest));
  $("completions").replaceChildren(
    ...fresh.map((one) => {
      const text = element("span", { dir: "auto", lang: state.model.target, textContent: different(one.rest) });
      const button = element("button", { type: "button", className: "choice" }, text);
      button.addEventListener("click", () => write(prefix + one.rest));
      return element("li", {}, button);
    }),
  );
}

/** A completion from the first word in which it differs from the one that is shown already. */
function different(other) {
  const [shown, words] = [rest, other].map((text) => text.trim().split(/\s+/));
  const at = words.findIndex((word, n) => word !== shown[n]);
  return `… ${words.slice(Math.max(0, at)).join(" ")}`;
}

/** Put a text into the field, as if typed. */
function write(text) {
  field.value = text;
  field.focus();
  field.setSelectionRange(text.length, text.length);
  offer("");
  later();
}

function take(text) {
  if (!text) return;
  const left = rest.slice(text.length);
  field.value += text;
  offer(left);
  status.announce(text.trim());
  later();
}

/** The rest that is still right after what was typed: the ghost must not flicker while one types along it. */
function typed(event) {
  const letter = event.inputType === "insertText" ? event.data : null;
  offer(letter && rest.startsWith(letter) ? rest.slice(letter.length) : "");
  if (event.isComposing) later.cancel(); // an input method is at work: what is there is not text yet
  else later();
}

function pressed(event) {
  if (event.isComposing) return; // Tab, Enter and Esc are the input method's
  const plain = !event.shiftKey && !event.altKey && !event.metaKey;
  const atEnd = field.selectionStart === field.value.length && field.selectionEnd === field.value.length;
  if (event.key === "Tab" && plain && !event.ctrlKey && rest && atEnd) {
    event.preventDefault();
    take(firstWord(rest));
  } else if (event.key === "Enter" && plain) {
    event.preventDefault(); // a sentence is one line
    if (event.ctrlKey && rest) take(rest);
    else $("writer-use").click(); // which says why, where there is nothing to use yet
  } else if (event.key === "Escape") {
    event.preventDefault();
    $("writer-use").focus(); // out of the field, where Tab takes words; nothing is lost
  }
}

async function use() {
  const of = sentence(about);
  const text = field.value.trimEnd();
  later.cancel();
  asking?.abort();
  try {
    prefer(of, await forced(of.source, text));
  } catch (error) {
    status.fault(error, use);
    return;
  }
  close();
  status.announce(text);
  $("show-writer").focus();
}

/** Another sentence has become the current one: what was written of the one before is kept, and the writer follows. */
async function follow() {
  if (!isOpen()) return;
  const [of, text, before] = [sentence(about), field.value.trimEnd(), document.activeElement];
  close();
  open();
  if (before === $("source")) before.focus();
  try {
    if (text) prefer(of, await forced(of.source, text));
  } catch (error) {
    status.fault(error);
  }
}

export function start() {
  $("show-writer").addEventListener("click", toggle);
  $("writer-use").addEventListener("click", use);
  $("writer-cancel").addEventListener("click", () => {
    close();
    $("show-writer").focus();
  });
  // for those without a Tab key, and for a finger
  $("writer-next").addEventListener("click", () => take(firstWord(rest)));
  $("writer-all").addEventListener("click", () => take(rest));
  field.addEventListener("input", typed);
  field.addEventListener("compositionend", later);
  field.addEventListener("keydown", pressed);
  on("answer", () => {
    if (isOpen() && sentence(about)?.source !== $("writing-source").textContent) close();
  });
  on("current", follow);
}
