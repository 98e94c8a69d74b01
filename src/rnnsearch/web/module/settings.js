// What an engine file says of how to search.

import { damaged } from "./file.js";

/** Hypotheses of a batch at the most. */
export const MOST_ROWS = 1024;

/** The greatest exponent of a norm of the length: a power of any length is then a number. */
const MOST_PENALTY = 10;

const isNumber = (value) => typeof value === "number" && value >= 0 && value < 1e6;

/** How to search, where nothing else is asked for. */
export function settings(search) {
  const { beam, length_penalty: length, length_norm: norm, coverage_penalty: coverage } = Object(search);
  const { max_ratio: ratio, max_extra: extra, batch_sentences: batch } = Object(search);
  const ranks = [length, coverage].every(isNumber) && length <= MOST_PENALTY && ["power", "gnmt"].includes(norm);
  const fine = ranks && [ratio, extra].every(isNumber);
  if (!fine || ![beam, extra].every(Number.isInteger) || beam < 1 || beam > MOST_ROWS || !(batch >= 1)) throw damaged();
  return search;
}
