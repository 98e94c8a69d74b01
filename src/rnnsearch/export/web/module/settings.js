// Search settings of an engine file.

import { damagedHeader } from "./engine-file.js";

/** Maximum number of hypotheses in a batch. */
export const MAX_ROWS = 1024;

const MAX_LENGTH_PENALTY = 10; // powers of any length stay finite

const isNonNegative = (value) => typeof value === "number" && value >= 0 && value < 1e6;

/** Return the default search settings. Throw an RnnsearchError if they are invalid. */
export function checkedSettings(settings) {
  const {
    beam,
    length_penalty: lengthPenalty,
    length_norm: lengthNorm,
    coverage_penalty: coveragePenalty,
    max_ratio: maxRatio,
    max_extra: maxExtra,
    batch_sentences: batchSentences,
  } = Object(settings);
  const valid =
    [lengthPenalty, coveragePenalty, maxRatio, maxExtra].every(isNonNegative) &&
    lengthPenalty <= MAX_LENGTH_PENALTY &&
    ["power", "gnmt"].includes(lengthNorm) &&
    [beam, maxExtra].every(Number.isInteger) &&
    beam >= 1 &&
    beam <= MAX_ROWS &&
    batchSentences >= 1;
  if (!valid) throw damagedHeader();
  return settings;
}
