// Client of the server's HTTP API.

import { ApiError } from "./errors.js";
import { asSentence, offsetMap, withBrowserOffsets } from "./text.js";

export const TYPING_PAUSE = 250;
const PREVIEW_DELAY = 500; // milliseconds to wait for a response before streaming a preview

let apiKey = "";

/** Send this key with all further requests. */
export function setApiKey(key) {
  apiKey = key;
}

async function request(method, path, { json, form, signal } = {}) {
  const headers = {};
  if (apiKey) headers["X-API-Key"] = apiKey;
  if (json) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: json ? JSON.stringify(json) : form });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server is not responding.", 0);
  }
  if (!response.ok) throw await toApiError(response);
  return response;
}

async function toApiError(response) {
  let message = `The server returned ${response.status} ${response.statusText}`.trim() + ".";
  try {
    const body = await response.json();
    if (typeof body.error === "string") message = body.error;
  } catch {
    // The body is not JSON: keep the status as the message.
  }
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  return new ApiError(asSentence(message), response.status, retryAfter);
}

async function requestJson(...args) {
  return (await request(...args)).json();
}

export async function listModels() {
  return (await requestJson("GET", "/v1/models")).models;
}

export async function complete(json, signal) {
  return (await requestJson("POST", "/v1/complete", { json, signal })).completions;
}

export async function alternatives(json, signal) {
  return (await requestJson("POST", "/v1/alternatives", { json, signal })).alternatives;
}

/** Return the sentences of a text that is being typed, with the part of their translations that is final. */
export async function simultaneous(json, signal) {
  const { sentences } = await requestJson("POST", "/v1/simultaneous", { json, signal });
  const offset = offsetMap(json.text);
  return sentences.map((sentence) => ({ ...sentence, start: offset(sentence.start), end: offset(sentence.end) }));
}

/**
 * Translate one text, or a sentence in several languages: `json.text` is then [[text, other text, ...]]. Offsets in the
 * result count UTF-16 units, like JavaScript strings.
 */
export async function translate(json, signal) {
  const body = { attention: true, ...json };
  const response = await requestJson("POST", "/v1/translate", { json: body, signal });
  const [translation] = response.translations;
  if (typeof json.text === "string") return withBrowserOffsets(translation, json.text);
  return withBrowserOffsets(inFirstSource(translation, json.text[0]), json.text[0][0]);
}

/** Return the translation of a sentence in several languages, with offsets in the first one, which may be missing. */
function inFirstSource(translation, texts) {
  const [source] = texts;
  const end = [...source].length;
  const sentences = translation.sentences.map(({ best }) => ({ source, start: 0, end, texts, best }));
  return { ...translation, sentences };
}

/**
 * Translate one text; if that takes long, stream a greedy translation meanwhile.
 * @param {{onPartial: (text: string) => void}} callbacks
 */
export async function translateLive(json, signal, { onPartial }) {
  const finished = new AbortController();
  const previewSignal = AbortSignal.any([signal, finished.signal]);
  const timer = setTimeout(() => preview(json, previewSignal, onPartial), PREVIEW_DELAY);
  try {
    return await translate(json, signal);
  } finally {
    clearTimeout(timer);
    finished.abort();
  }
}

async function preview(json, signal, onPartial) {
  if (typeof json.text !== "string") return; // sentences in several languages cannot be streamed
  const parts = []; // the text so far of each sentence
  try {
    const body = { ...json, stream: true };
    const response = await request("POST", "/v1/translate", { json: body, signal });
    for await (const event of serverSentEvents(response.body)) {
      if (event.type === "error") return;
      if (event.type !== "token") continue;
      parts[event.sentence] = event.text;
      onPartial(parts.filter(Boolean).join(" "));
    }
  } catch {
    // The main request reports errors.
  }
}

/** Yield the JSON objects of a text/event-stream. */
async function* serverSentEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    const lines = buffer.split("\n");
    buffer = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield JSON.parse(line.slice(5));
  }
}

/** Return true if the server responds, even if it rejects the request. */
export async function isHealthy() {
  try {
    await request("GET", "/health");
    return true;
  } catch (error) {
    return error.status > 0 && error.status < 500;
  }
}

/** Upload a file for translation and return its {id, name, segments}. */
export function uploadFile(file, model, signal) {
  const form = new FormData();
  form.append("file", file);
  form.append("source", model.source);
  form.append("target", model.target);
  form.append("model", model.name);
  return requestJson("POST", "/v1/files", { form, signal });
}

const filePath = (id) => `/v1/files/${encodeURIComponent(id)}`;

export const fileStatus = (id) => requestJson("GET", filePath(id));
export const deleteFile = (id) => request("DELETE", filePath(id));
export const fileResult = (id) => request("GET", `${filePath(id)}/result`);
