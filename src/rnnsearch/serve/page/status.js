// Messages: a banner for errors, toasts, and a live region for screen readers.

import { isHealthy, setApiKey } from "./backend.js";
import { $ } from "./dom.js";

const FIRST_HEALTH_CHECK = 1500; // milliseconds
const HEALTH_CHECK_INTERVAL = 3000;
const TOAST_DURATION = 2500;
const KEY_REQUIRED = "This server requires a key.";
const WRONG_KEY = "The server does not accept this key. Check that it is complete, or ask for another one.";

const pendingRetries = new Set(); // called when the server is back or has its key
let hasEnteredKey = false;
let retryTimer = 0;
let toastTimer = 0;

/**
 * Show an error in the banner.
 * @param {Error} error
 * @param {(() => void) | null} retry Called when another attempt may succeed.
 */
export function showError(error, retry = null) {
  if (error.name === "AbortError") return;
  if (retry) pendingRetries.add(retry);
  const isDown = error.status === 0;
  const delay = Math.max(1, Math.ceil(error.retryAfter)); // seconds
  let message = error.message;
  let hint = "";
  if (isDown) hint = " Retrying…";
  else if (error.retryAfter > 0) hint = ` Retrying in ${delay} s.`;
  if (needsKey(error)) message = hasEnteredKey ? WRONG_KEY : KEY_REQUIRED;
  showBanner(message + hint);
  $("key-form").hidden = !needsKey(error);
  clearTimeout(retryTimer);
  if (isDown) retryTimer = setTimeout(checkHealth, FIRST_HEALTH_CHECK);
  else if (error.retryAfter > 0) retryTimer = setTimeout(retryNow, 1000 * delay);
}

/** Return true if a request was rejected because of its API key. */
export const needsKey = ({ status }) => status === 401 || status === 403;

export function showBanner(message) {
  $("banner").textContent = message;
  $("banner").hidden = false;
}

/** Hide the banner and forget the pending retries. */
export function clearError() {
  clearTimeout(retryTimer);
  pendingRetries.clear();
  $("banner").hidden = true;
  $("key-form").hidden = true;
}

async function checkHealth() {
  if (await isHealthy()) retryNow();
  else retryTimer = setTimeout(checkHealth, HEALTH_CHECK_INTERVAL);
}

function retryNow() {
  const retries = [...pendingRetries];
  clearError();
  for (const retry of retries) retry();
}

/** Show or hide the progress bar of the translation. */
export function setBusy(busy) {
  $("busy").hidden = !busy;
  $("target-pane").setAttribute("aria-busy", String(busy));
}

/** Show a short message for a moment. */
export function toast(message) {
  clearTimeout(toastTimer);
  // Inside an open dialog, because everything outside it is hidden from screen readers and covered.
  (document.querySelector("dialog[open]") ?? document.body).append($("toast"));
  $("toast").textContent = message;
  $("toast").hidden = false;
  toastTimer = setTimeout(() => ($("toast").hidden = true), TOAST_DURATION);
}

/** Announce a message to screen readers. */
export function announce(message) {
  $("live").textContent = message;
}

/** Show why a button is unavailable instead of running its action (see setUnavailable in dom.js). */
function explainUnavailable(event) {
  const button = event.target.closest?.("[aria-disabled=true]");
  if (!button) return;
  event.stopPropagation();
  event.preventDefault();
  toast(button.title);
}

export function start() {
  document.addEventListener("click", explainUnavailable, true);
  window.addEventListener("online", () => pendingRetries.size && retryNow());
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setApiKey($("key").value.trim());
    hasEnteredKey = true;
    retryNow();
  });
}
