// What becomes of one piece: a word's id, merged pairs (byte-pair encoding), or the most probable symbols (unigram).
// They are those of the library `tokenizers`, with its options as rnnsearch sets them.

import { UNK } from "./vocabulary.js";

const UNKNOWN_PENALTY = 10;
const REMEMBERED = 20000; // pieces
const utf8 = new TextEncoder();
const hexadecimal = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;

/** The byte symbols of a text, or UNK where one is missing. */
function inBytes(text, ids) {
  const found = [...utf8.encode(text)].map((byte) => ids.get(hexadecimal(byte)));
  return found.includes(undefined) ? [UNK] : found;
}

function remembering(encode) {
  const known = new Map();
  return (piece) => {
    let found = known.get(piece);
    if (found === undefined) {
      if (known.size >= REMEMBERED) known.clear();
      known.set(piece, (found = encode(piece)));
    }
    return found;
  };
}

export const words = (ids) => (piece) => [ids.get(piece) ?? UNK];

/** merges: [[left, right], ...], in the order in which they are made. */
export function bytePairs(ids, merges) {
  const ranks = new Map();
  merges.forEach(([left, right], rank) => {
    ranks.set(ids.get(left) * ids.size + ids.get(right), [rank, ids.get(left + right)]);
  });
  return remembering((piece) => {
    const symbols = [...piece].flatMap((character) => ids.get(character) ?? inBytes(character, ids));
    for (;;) {
      let best = null;
      let at = 0;
      for (let n = 0; n + 1 < symbols.length; n++) {
        const pair = ranks.get(symbols[n] * ids.size + symbols[n + 1]);
        if (pair && (!best || pair[0] < best[0])) [best, at] = [pair, n];
      }
      if (!best) return symbols;
      symbols.splice(at, 2, best[1]);
    }
  });
}

/** scores: [[name, log-probability], ...] in the order of the ids. */
export function unigram(ids, scores) {
  const root = new Map();
  for (const [name] of scores) {
    let node = root;
    for (const unit of name) {
      if (!node.has(unit)) node.set(unit, new Map());
      node = node.get(unit);
    }
    node.id = ids.get(name);
  }
  const unknown = scores.reduce((least, [, score]) => Math.min(least, score), Infinity) - UNKNOWN_PENALTY;
  return remembering((piece) => {
    const characters = [...piece];
    const best = characters.map(() => null);
    best.push(null); // of the text up to each place: {score, from, id}
    const offer = (end, score, from, id) => {
      if (!best[end] || score > best[end].score) best[end] = { score, from, id };
    };
    for (let from = 0; from < characters.length; from++) {
      const before = best[from]?.score ?? 0;
      let node = root;
      let alone = false;
      for (let end = from; end < characters.length && (node = node.get(characters[end])); end++) {
        if (node.id === undefined) continue;
        offer(end + 1, scores[node.id][1] + before, from, node.id);
        alone ||= end === from;
      }
      if (!alone) offer(from + 1, unknown + before, from, UNK);
    }
    const found = [];
    for (let end = characters.length; end > 0; ) {
      let { from, id } = best[end];
      while (id === UNK && from > 0 && best[from].id === UNK) from = best[from].from; // unknown ones run together
      const text = characters.slice(from, end).join("");
      found.push(ids.has(text) ? [ids.get(text)] : inBytes(text, ids));
      end = from;
    }
    return found.reverse().flat();
  });
}
