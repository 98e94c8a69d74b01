// Converts a prefix typed by a user to constraints on the first tokens of a translation (text/prefixes.py).
// Whole words become the tokens that they are segmented into. The last word may continue in several ways, so for each
// of its bytes the tokens that agree with it are listed.

import { rawSpan } from "./normalization.js";
import { requireText } from "./pretokenizer.js";
import { SPECIALS, UNK } from "./vocabulary.js";

const MAX_FREE_TOKENS = 8; // of a last word, that may be segmented in other ways
const utf8 = new TextEncoder();

/** Convert bytes to a string with a UTF-16 unit per byte, which can be sorted and compared. */
const toBinary = (bytes) => String.fromCharCode(...bytes);

export class Prefixes {
  #tokenizer;
  #entries; // [bytes, id] of all ordinary tokens, sorted
  #unknownWords; // word level: ids that may follow a prefix that ends with a space
  #maxBytes;

  constructor(tokenizer) {
    this.#tokenizer = tokenizer;
    this.#entries = tokenizer.names
      .map((_, id) => [toBinary(tokenizer.tokenBytes(id)), id])
      .filter(([bytes, id]) => id >= SPECIALS.length && bytes && !tokenizer.unknownIds.has(id))
      .sort(([a, m], [b, n]) => (a < b ? -1 : a > b ? 1 : m - n));
    this.#unknownWords = tokenizer.isWordLevel ? [...tokenizer.unknownIds].sort((a, b) => a - b) : [];
    this.#maxBytes = Math.max(0, ...this.#entries.map(([bytes]) => bytes.length));
  }

  /**
   * Convert a prefix.
   * @param {boolean} isUpper True if the translation will be in capital letters, which its tokens are not.
   * @returns {{text: string, ids: number[], rest: number[][], unknownWords: Map<number, string>, normalized: object}}
   *   The first tokens, the tokens allowed at each byte after them, the text of each UNK by position, and the text as
   *   the tokens spell it.
   */
  read(text, isUpper = false) {
    requireText(text);
    const normalized = this.#tokenizer.normalization.apply(text, true);
    if (isUpper) normalized.text = this.#tokenizer.trueCased(normalized.text, "upper");
    return { ...this.#read(normalized.text), text, normalized };
  }

  #read(text) {
    const encoded = this.#tokenizer.encodeExactly(text);
    if (!text) return { text, ids: [], rest: [], unknownWords: new Map() };
    const count = this.#countFixedTokens(encoded);
    const unknownWords = unknownWordsOf(encoded);
    const fixed = {
      text,
      ids: encoded.ids.slice(0, count),
      unknownWords: new Map([...unknownWords].filter(([position]) => position < count)),
    };
    const lastIds = encoded.ids.slice(count);
    if (!lastIds.includes(UNK)) {
      const bytes = lastIds.flatMap((id) => [...this.#tokenizer.tokenBytes(id)]);
      return { ...fixed, rest: this.#allowedTokens(toBinary(bytes)) };
    }
    const lastText = ` ${text}`.slice(startOf(encoded, count));
    const rest = this.#allowedTokens(toBinary(utf8.encode(lastText)));
    if (rest[0]?.length) return { ...fixed, rest };
    return { text, ids: encoded.ids, rest: [], unknownWords };
  }

  /** Return the number of tokens before the last word, or before its last few tokens. */
  #countFixedTokens(encoded) {
    const lastSpace = ` ${encoded.text}`.lastIndexOf(" ");
    const count = encoded.ids.filter((_, n) => startOf(encoded, n) < lastSpace).length;
    return Math.max(count, encoded.ids.length - MAX_FREE_TOKENS);
  }

  /** Return for each position in the bytes the tokens after which the remaining bytes can still be produced. */
  #allowedTokens(bytes) {
    const allowed = Array.from(bytes, () => []);
    for (let position = bytes.length - 1; position >= 0; position--) {
      const remaining = bytes.slice(position);
      const tokens = [...this.#tokensStartingWith(remaining)];
      if (remaining === " ") tokens.push(...this.#unknownWords);
      const longest = Math.min(this.#maxBytes, remaining.length - 1);
      for (let size = 1; size <= longest; size++) {
        const canContinue = allowed[position + size].length > 0;
        if (canContinue) tokens.push(...this.#tokensEqualTo(remaining.slice(0, size)));
      }
      allowed[position] = tokens;
    }
    return allowed;
  }

  #tokensStartingWith(bytes) {
    return this.#findTokens(bytes, (tokenBytes) => tokenBytes.startsWith(bytes));
  }

  #tokensEqualTo(bytes) {
    return this.#findTokens(bytes, (tokenBytes) => tokenBytes === bytes);
  }

  /** Return the ids of the matching tokens, which are adjacent from the first that is not less than the bytes. */
  #findTokens(bytes, matches) {
    let low = 0;
    let high = this.#entries.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#entries[middle][0] < bytes) low = middle + 1;
      else high = middle;
    }
    const ids = [];
    for (; low < this.#entries.length; low++) {
      const [tokenBytes, id] = this.#entries[low];
      if (!matches(tokenBytes)) break;
      ids.push(id);
    }
    return ids;
  }
}

/** Return a decoded translation that starts with exactly the text of a prefix, which normalisation has changed. */
export function restorePrefix({ text, normalized }, target, normalization) {
  const { length } = normalized.text;
  const start = normalization.apply(target.text.slice(0, length), true).text;
  if (target.text.startsWith(text) || start !== normalized.text) return target;
  const position = (offset) =>
    offset < length
      ? rawSpan(normalized, [offset, offset], text.length)[0]
      : text.length + offset - length;
  const offsets = target.offsets.map((span) => span.map(position));
  return { ...target, text: text + target.text.slice(length), offsets };
}

/** Return where token n starts in the text with the inserted space: where the token before it ends. */
const startOf = (encoded, n) => (n === 0 ? 0 : encoded.offsets[n - 1][1] + 1);

/** Return the text of each UNK by position, with the space before it. */
function unknownWordsOf(encoded) {
  const text = ` ${encoded.text}`;
  const words = new Map();
  encoded.ids.forEach((id, n) => {
    if (id === UNK) words.set(n, text.slice(startOf(encoded, n), encoded.offsets[n][1] + 1));
  });
  return words;
}
