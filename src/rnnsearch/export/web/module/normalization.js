// Normalisation of raw text before it is segmented (text/normalization.py). Offsets count UTF-16 units.

const LEVELS = ["none", "standard", "punctuation"];
const PUNCTUATION = "punctuation";
const HIDDEN = /[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]+/gu;
const SPACE = "\\t-\\r\\x1c- \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const SPACES = new RegExp(`[${SPACE}]+`, "gu");
/** White space as a character class. */
export const SPACE_CLASS = SPACE;
const JOINED =
  "\\u0590-\\u10ff\\u1200-\\u1cff\\u2190-\\u2328\\u232b-\\u2bff\\ua800-\\ua95f\\ua980-\\uabff" +
  "\\ufb1d-\\ufdff\\ufe70-\\ufefc\\u{10a00}-\\u{11fff}\\u{1e800}-\\u{1e95f}\\u{1f000}-\\u{1faff}" +
  "\\u{e0020}-\\u{e007f}";
const IDLE_JOINER = new RegExp(`(?<!(?!\\p{M})[${JOINED}]\\p{M}*)[\\u200c\\u200d]`, "gu");
const COMPOSED = "\\p{M}\\u1161-\\u1175\\u11a8-\\u11c2\\u{16d63}\\u{16d67}";
const CLUSTER = new RegExp(`[^][${COMPOSED}]*`, "gu");
const MAX_CLUSTER = 32; // in characters, because composing many marks takes quadratic time
const TYPOGRAPHIC = /« ?| ?»|[“”„‟〝〞]|[‘’‚‛‹›]|[‐‑‒–−]|[—―]/gu;
const ASCII = new Map([
  ...[..."«»“”„‟〝〞"].map((mark) => [mark, '"']),
  ...[..."‘’‚‛‹›"].map((mark) => [mark, "'"]),
  ...[..."‐‑‒–−"].map((mark) => [mark, "-"]),
  ...[..."—―"].map((mark) => [mark, " - "]),
]);
const FRENCH_SPACE = /(?<=«) | (?=([:;!?»%]))/gu;

/** Return the language of a code without its region. */
export const mainLanguage = (code) => code.split("-")[0].toLowerCase();

/** Replace what a pattern matches in {text, spans}, where spans are the raw offsets of the text's units. */
function replaced(before, pattern, replacement) {
  const parts = [];
  const spans = [];
  let position = 0;
  const rawSpan = (index) => before.spans?.[index] ?? [index, index + 1];
  const keep = (end) => {
    parts.push(before.text.slice(position, end));
    for (; position < end; position++) spans.push(rawSpan(position));
  };
  for (const match of before.text.matchAll(pattern)) {
    const end = match.index + match[0].length;
    const text = replacement(match[0], match.index, end);
    if (text === match[0]) continue;
    keep(match.index);
    parts.push(text);
    const span = [rawSpan(match.index)[0], rawSpan(end - 1)[1]];
    for (let unit = 0; unit < text.length; unit++) spans.push(span);
    position = end;
  }
  if (!parts.length) return before;
  keep(before.text.length);
  return { text: parts.join(""), spans };
}

function compose(cluster) {
  const isLong = cluster.length > MAX_CLUSTER && [...cluster].length > MAX_CLUSTER;
  return isLong ? cluster : cluster.normalize("NFC");
}

/** Return the units [start, end) of the raw text that normalised units come from. */
export function rawSpan({ spans }, [start, end], rawLength) {
  if (!spans) return [start, end];
  const rawStart = start < spans.length ? spans[start][0] : rawLength;
  return [rawStart, end > start ? Math.max(rawStart, spans[end - 1][1]) : rawStart];
}

export class Normalization {
  #level;
  /** Code of the language, on which letter case and the spaces of translations depend. */
  language;

  /** @param {{level: string, language: string}} settings Of a tokenizer file; by default, nothing is changed. */
  constructor({ level, language } = { level: "none", language: "" }) {
    this.#level = level;
    this.language = language;
  }

  /** Return true if settings of a tokenizer file are valid. */
  static isValid({ level, language }) {
    return LEVELS.includes(level) && typeof language === "string";
  }

  get isActive() {
    return this.#level !== "none";
  }

  /**
   * Normalise a text.
   * @returns {{text: string, spans: [number, number][] | null}} The text, and the raw offsets of each unit.
   */
  apply(text, keepsLastSpace = false) {
    if (!this.isActive) return { text, spans: null };
    let result = replaced({ text, spans: null }, HIDDEN, () => "");
    result = replaced(result, IDLE_JOINER, () => "");
    // Most texts consist of characters that compose with nothing.
    if (/[^\0-\x7f]/u.test(result.text)) result = replaced(result, CLUSTER, compose);
    const collapse = () => {
      const { length } = result.text;
      const space = (_, start, end) => (start === 0 || (end === length && !keepsLastSpace) ? "" : " ");
      result = replaced(result, SPACES, space);
    };
    collapse();
    if (this.#level === PUNCTUATION) {
      result = replaced(result, TYPOGRAPHIC, (mark) => ASCII.get(mark.trim()));
      collapse();
    }
    return result;
  }

  /** Return a translation with the no-break spaces of its language. Its length stays. */
  restore(text) {
    if (!this.isActive || mainLanguage(this.language) !== "fr") return text;
    return text.replace(FRENCH_SPACE, (_, mark) => (";!?".includes(mark || "-") ? "\u202f" : "\u00a0"));
  }
}
