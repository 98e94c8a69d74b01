// The pieces of a text: words and punctuation, each with the one space before it (text/words.py).

import { RnnsearchError } from "./errors.js";

const INSIDE = "\\p{L}\\p{M}\\p{N}_\u200c\u200d";
const CONTRACTED = `(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])(?![${INSIDE}])`;
/** The pattern that a tokenizer names, in Oniguruma's words. */
export const PIECES = [
  `(?<=[\\p{L}\\p{M}])['’]${CONTRACTED}`,
  ` ?[${INSIDE}]+(?:['’](?=\\p{L})(?!${CONTRACTED}))?`,
  `\\s?([^\\s${INSIDE}])\\1*\\p{M}*`,
  "\\s",
].join("|");
const PATTERN = new RegExp(PIECES.replaceAll("\\s", "\\p{White_Space}"), "gu");

/** The pieces of a text, which one after another are that text. */
export const pieces = (text) => text.match(PATTERN) ?? [];

/** White space, as Python's `str.isspace` has it. */
export const SPACE = "\\t-\\r\\x1c- \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";

/** Errors: RnnsearchError for a text with half a character, which is no text. */
export function wellFormed(text) {
  if (typeof text !== "string") throw new RnnsearchError(`a text must be a string; got ${typeof text}`);
  if (/\p{Surrogate}/u.test(text)) throw new RnnsearchError("text must be valid Unicode; got a lone surrogate");
  return text;
}
