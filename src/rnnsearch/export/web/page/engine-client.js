// Client of the worker that runs the engine; it answers like the server's HTTP API.

import { ApiError } from "./errors.js";
import { asSentence } from "./text.js";

export const TYPING_PAUSE = 0; // greedy search is fast enough to run at every keystroke
const REFINE_DELAY = 300; // milliseconds without input before beam search starts
const LONG_TEXT = 3000; // characters; beam search of longer texts starts later
const LONG_TEXT_REFINE_DELAY = 1200;

const BAD_REQUEST = 400;
const toApiError = (message) => new ApiError(asSentence(message), BAD_REQUEST);

const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
const pending = new Map(); // request id -> {resolve, reject}
let lastId = 0;
let models = [];

worker.onmessage = ({ data: { id, result, error } }) => {
  const request = pending.get(id);
  pending.delete(id);
  if (error === undefined) request?.resolve(result);
  else request?.reject(toApiError(error));
};
worker.onerror = () => {
  const error = toApiError("The translator could not be started");
  for (const { reject } of pending.values()) reject(error);
  pending.clear();
};

/** Send a request to the worker. */
function send(type, { model: name, ...request }, signal) {
  const { file, source, target } = models.find((model) => model.name === name);
  lastId += 1;
  const id = lastId;
  return new Promise((resolve, reject) => {
    pending.set(id, { resolve, reject });
    signal?.addEventListener("abort", () => {
      if (!pending.delete(id)) return;
      worker.postMessage({ id, type: "cancel" });
      reject(new DOMException("The request was aborted.", "AbortError"));
    });
    const model = { name, file, source, target };
    worker.postMessage({ id, type, request: { ...request, model } });
  });
}

export async function listModels() {
  try {
    models = await (await fetch("models.json")).json();
  } catch {
    throw toApiError("The list of models could not be loaded");
  }
  return models;
}

export const translate = (request, signal) => send("translate", request, signal);
export const complete = (request, signal) => send("complete", request, signal);
export const alternatives = (request, signal) => send("alternatives", request, signal);

/**
 * Translate with greedy search at once, and with the model's own search when the user stops typing.
 * @param {{onDraft: (answer: object) => void}} callbacks
 */
export async function translateLive(request, signal, { onDraft }) {
  const draft = await translate({ ...request, beam: 1 }, signal);
  signal.throwIfAborted();
  onDraft(draft);
  performance.mark("translated"); // benchmarks/web.py waits for it
  const delay = request.text.length > LONG_TEXT ? LONG_TEXT_REFINE_DELAY : REFINE_DELAY;
  await new Promise((resolve) => setTimeout(resolve, delay));
  signal.throwIfAborted();
  return translate(request, signal);
}

export const isHealthy = async () => true;
export const setApiKey = () => {};
