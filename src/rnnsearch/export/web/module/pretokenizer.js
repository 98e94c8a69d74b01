// Splits text into words and punctuation, each with the space before it (text/words.py).

import { RnnsearchError } from "./errors.js";

const WORD_CHARACTERS = "\\p{L}\\p{M}\\p{N}_\u200c\u200d";
const CONTRACTION = `(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])(?![${WORD_CHARACTERS}])`;

/** The pattern as tokenizer files contain it, in Oniguruma's syntax. */
export const PRETOKEN_PATTERN = [
  `(?<=[\\p{L}\\p{M}])['’]${CONTRACTION}`,
  ` ?[${WORD_CHARACTERS}]+(?:['’](?=\\p{L})(?!${CONTRACTION}))?`,
  `\\s?([^\\s${WORD_CHARACTERS}])\\1*\\p{M}*`,
  "\\s",
].join("|");
const PRETOKEN = new RegExp(PRETOKEN_PATTERN.replaceAll("\\s", "\\p{White_Space}"), "gu");

/** Split a text; the pre-tokens joined are the text. */
export const pretokenize = (text) => text.match(PRETOKEN) ?? [];

/** The characters for which Python's str.isspace is true, for use in a character class. */
export const WHITE_SPACE =
  "\\t-\\r\\x1c- \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";

/** Throw an RnnsearchError unless the text is a string of valid Unicode. */
export function requireText(text) {
  if (typeof text !== "string") throw new RnnsearchError(`a text must be a string; got ${typeof text}`);
  if (/\p{Surrogate}/u.test(text)) {
    throw new RnnsearchError("a text must be valid Unicode; got a lone surrogate");
  }
}
