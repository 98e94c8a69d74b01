// Offsets and messages. The server counts Unicode characters, JavaScript strings count UTF-16 units.

/** Return a function from the server's offsets in a text to JavaScript's. */
export function offsetMap(text) {
  if (!/[\ud800-\udfff]/.test(text)) return (offset) => offset;
  const starts = [0];
  for (const character of text) starts.push(starts.at(-1) + character.length);
  return (offset) => starts[Math.min(offset, starts.length - 1)];
}

/** Convert all offsets in a translation of /v1/translate to UTF-16 units. */
export function withBrowserOffsets(translation, text) {
  const sourceOffset = offsetMap(text);
  const targetOffset = offsetMap(translation.text);
  const sentences = translation.sentences.map((sentence) => ({
    ...sentence,
    start: sourceOffset(sentence.start),
    end: sourceOffset(sentence.end),
    best: sentence.best.map((hypothesis) => convertHypothesis(hypothesis, sentence.source)),
  }));
  return {
    ...translation,
    sentences,
    target_spans: translation.target_spans.map((span) => span.map(targetOffset)),
  };
}

function convertHypothesis(hypothesis, source) {
  return {
    ...hypothesis,
    words: convertWords(hypothesis.words, hypothesis.text),
    source_words: convertWords(hypothesis.source_words, source),
  };
}

function convertWords(words, text) {
  const offset = offsetMap(text);
  return words.map((word) => ({ ...word, start: offset(word.start), end: offset(word.end) }));
}

/** Cut a hypothesis after `length` characters of its text. */
export function truncated(hypothesis, length) {
  const cutWord = (word) => ({ ...word, text: word.text.slice(0, length - word.start), end: length });
  const words = hypothesis.words
    .filter((word) => word.start < length)
    .map((word) => (word.end <= length ? word : cutWord(word)));
  return {
    ...hypothesis,
    text: hypothesis.text.slice(0, length),
    words,
    alignment: hypothesis.alignment.filter(([, target]) => target < words.length),
    attention: hypothesis.attention?.slice(0, words.length) ?? null,
  };
}

/** Return the English name of a language, or its code. */
export function languageName(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code; // not a code of a language
  }
}

/** Capitalise a message and end it with a full stop. */
export function asSentence(message) {
  const text = message.charAt(0).toUpperCase() + message.slice(1);
  return /[.!?…]$/.test(text) ? text : `${text}.`;
}

/** Return the first word of a completion (or the rest of a word), with the space before it. */
export function firstWord(completion) {
  return /^\s*\S+/.exec(completion)?.[0] ?? "";
}
