// What the page says: one banner for what is wrong, a short toast, and a live region for screen readers.

import { healthy, useKey } from "./api.js";
import { $ } from "./dom.js";

let again = null; // what to do once the server is back or has its key
let waiting = 0;
let toastTimer = 0;

/** Show a fault as one sentence. `retry` is called when it may work again. */
export function fault(error, retry = null) {
  if (error.name === "AbortError") return;
  again = retry ?? again;
  const later = error.retryAfter > 0;
  const down = error.status === 0;
  const ending = down ? " It is asked again until it does." : later ? ` Trying again in ${pause(error)} s.` : "";
  show(error.message + ending);
  $("key-form").hidden = !(error.status === 401 || error.status === 403);
  clearTimeout(waiting);
  if (down) waiting = setTimeout(ask, 1500);
  else if (later) waiting = setTimeout(retryNow, 1000 * pause(error));
}

const pause = (error) => Math.max(1, Math.ceil(error.retryAfter));

export function show(sentence) {
  $("banner").textContent = sentence;
  $("banner").hidden = false;
}

/** All is well again. */
export function fine() {
  clearTimeout(waiting);
  again = null;
  $("banner").hidden = true;
  $("key-form").hidden = true;
}

async function ask() {
  if (await healthy()) retryNow();
  else waiting = setTimeout(ask, 3000);
}

function retryNow() {
  const action = again;
  fine();
  action?.();
}

/** Whether a translation is being made. */
export function busy(is) {
  $("busy").hidden = !is;
  $("target-pane").setAttribute("aria-busy", String(is));
}

/** A few words that pass; before an open dialog too, behind which nobody would see or hear them. */
export function toast(words) {
  clearTimeout(toastTimer);
  (document.querySelector("dialog[open]") ?? document.body).append($("toast"));
  $("toast").textContent = words;
  $("toast").hidden = false;
  toastTimer = setTimeout(() => ($("toast").hidden = true), 2500);
}

/** Said by screen readers when they have finished what they say now. */
export const announce = (words) => ($("live").textContent = words);

/** A greyed button keeps its place in the tab order and, pressed, does nothing but say why. */
function explain(event) {
  const greyed = event.target.closest?.("[aria-disabled=true]");
  if (!greyed) return;
  event.stopPropagation();
  event.preventDefault();
  toast(greyed.title);
}

export function start() {
  document.addEventListener("click", explain, true);
  window.addEventListener("online", () => again && retryNow());
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey($("key").value.trim());
    retryNow();
  });
}
