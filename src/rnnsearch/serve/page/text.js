// Text as the server counts it (Unicode characters) and as the browser does (UTF-16 units).

/** A function from the server's offsets in a text to the browser's. */
function offsets(text) {
  if (!/[\ud800-\udfff]/.test(text)) return (n) => n;
  const starts = [0];
  for (const character of text) starts.push(starts.at(-1) + character.length);
  return (n) => starts[Math.min(n, starts.length - 1)];
}

/** A translation of /v1/translate with every span in the browser's units. */
export function localised(translation, text) {
  const inText = offsets(text);
  const inTarget = offsets(translation.text);
  return {
    ...translation,
    sentences: translation.sentences.map((sentence) => ({
      ...sentence,
      start: inText(sentence.start),
      end: inText(sentence.end),
      best: sentence.best.map((hypothesis) => localHypothesis(hypothesis, sentence.source)),
    })),
    target_spans: translation.target_spans.map((span) => span.map(inTarget)),
  };
}

function localHypothesis(hypothesis, source) {
  const moved = (words, text) => {
    const at = offsets(text);
    return words.map((word) => ({ ...word, start: at(word.start), end: at(word.end) }));
  };
  return {
    ...hypothesis,
    words: moved(hypothesis.words, hypothesis.text),
    source_words: moved(hypothesis.source_words, source),
  };
}

/** A hypothesis that ends after `length` units of its text: what lies behind was not asked for, be it the rest of a word
 * or the full stop on it. */
export function cut(hypothesis, length) {
  const kept = hypothesis.words
    .filter((word) => word.start < length)
    .map((word) => (word.end <= length ? word : { ...word, text: word.text.slice(0, length - word.start), end: length }));
  return {
    ...hypothesis,
    text: hypothesis.text.slice(0, length),
    words: kept,
    alignment: hypothesis.alignment.filter(([, target]) => target < kept.length),
    attention: hypothesis.attention?.slice(0, kept.length) ?? null,
  };
}

/** A message as a sentence: a capital letter first, a full stop last. */
export function asSentence(said) {
  const text = said.charAt(0).toUpperCase() + said.slice(1);
  return /[.!?…]$/.test(text) ? text : `${text}.`;
}

/** The first `next` of a completion's rest: its leading space and one word, whole or what is missing of it. */
export function firstWord(rest) {
  return /^\s*\S+/.exec(rest)?.[0] ?? "";
}
