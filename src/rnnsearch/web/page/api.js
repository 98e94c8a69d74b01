// What the page asks for, answered on this device: the page of `rnnsearch serve` has its server's API here. Every fault is
// an ApiError whose message is one sentence for the reader.

import { asSentence } from "./text.js";

export class ApiError extends Error {
  status = 400;
  retryAfter = 0;
}

const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
const asked = new Map(); // number -> {answer, fault}
let last = 0;
let rows = [];

worker.onmessage = ({ data: { number, answer, fault } }) => {
  const one = asked.get(number);
  asked.delete(number);
  if (fault === undefined) one?.answer(answer);
  else one?.fault(new ApiError(asSentence(fault)));
};
worker.onerror = () => {
  for (const one of asked.values()) one.fault(new ApiError("The translator could not be started."));
  asked.clear();
};

function ask(what, { model: name, ...given }, signal) {
  const { file, source, target } = rows.find((row) => row.name === name);
  const number = ++last;
  return new Promise((answer, fault) => {
    asked.set(number, { answer, fault });
    signal?.addEventListener("abort", () => {
      if (!asked.delete(number)) return;
      worker.postMessage({ number, what: "give up" });
      fault(new DOMException("given up", "AbortError"));
    });
    worker.postMessage({ number, what, asked: { ...given, model: { name, file, source, target } } });
  });
}

export async function models() {
  try {
    rows = await (await fetch("models.json")).json();
  } catch {
    throw new ApiError("The list of models cannot be read.");
  }
  return rows;
}

export const translate = (given, signal) => ask("translate", given, signal);
export const complete = (given, signal) => ask("complete", given, signal);
export const alternatives = (given, signal) => ask("alternatives", given, signal);
export const healthy = async () => true;
export const useKey = () => {};
