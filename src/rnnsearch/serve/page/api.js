// The server's own API. Every fault is an ApiError whose message is one sentence for the reader.

import { asSentence, localised } from "./text.js";

export class ApiError extends Error {
  /** status 0: the server did not answer. retryAfter: seconds, where the server says them. */
  constructor(message, status, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

let key = "";
export const useKey = (given) => (key = given);

async function request(method, path, { json, form, signal } = {}) {
  const headers = {};
  if (key) headers["X-API-Key"] = key;
  if (json) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: json ? JSON.stringify(json) : form });
  } catch (fault) {
    if (fault.name === "AbortError") throw fault;
    throw new ApiError("The server does not answer.", 0);
  }
  if (!response.ok) throw await faultOf(response);
  return response;
}

async function faultOf(response) {
  let said = `The server answered ${response.status} ${response.statusText}`.trim() + ".";
  try {
    const body = await response.json();
    if (typeof body.error === "string") said = body.error;
  } catch {
    // not JSON: the status has to do
  }
  return new ApiError(asSentence(said), response.status, Number(response.headers.get("Retry-After")) || 0);
}

const read = async (...given) => (await request(...given)).json();

export const models = () => read("GET", "/v1/models").then((answer) => answer.models);
export const complete = (json, signal) =>
  read("POST", "/v1/complete", { json, signal }).then((answer) => answer.completions);
export const alternatives = (json, signal) =>
  read("POST", "/v1/alternatives", { json, signal }).then((answer) => answer.alternatives);

/** One text translated: /v1/translate's first translation, its spans in the browser's units. */
export async function translate(json, signal) {
  const answer = await read("POST", "/v1/translate", { json: { attention: true, ...json }, signal });
  return localised(answer.translations[0], json.text);
}

/** A quick translation while it is found, without a search: `onPart(sentence, textSoFar)` again and again. */
export async function preview(json, signal, onPart) {
  const response = await request("POST", "/v1/translate", { json: { ...json, stream: true }, signal });
  for await (const event of events(response.body)) {
    if (event.type === "token") onPart(event.sentence, event.text);
    else if (event.type === "error") throw new ApiError(asSentence(event.error), 500);
  }
}

/** The objects of a text/event-stream. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const lines = held.split("\n");
    held = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield JSON.parse(line.slice(5));
  }
}

export const healthy = async () => {
  try {
    await request("GET", "/health");
    return true;
  } catch (fault) {
    return fault.status > 0 && fault.status < 500;
  }
};

/** A file sent for translation: {id, name, segments}. */
export function sendFile(file, model, signal) {
  const form = new FormData();
  form.append("file", file);
  form.append("source", model.source);
  form.append("target", model.target);
  form.append("model", model.name);
  return read("POST", "/v1/files", { form, signal });
}

export const fileState = (id) => read("GET", `/v1/files/${encodeURIComponent(id)}`);
export const dropFile = (id) => request("DELETE", `/v1/files/${encodeURIComponent(id)}`);
export const fileResult = (id) => request("GET", `/v1/files/${encodeURIComponent(id)}/result`);
