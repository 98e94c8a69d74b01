// Segments one pre-token: as a word, by byte-pair encoding, or by a unigram language model. The results are those of
// the library `tokenizers` with the options that rnnsearch sets.

import { UNK } from "./vocabulary.js";

const UNKNOWN_PENALTY = 10; // log-probability, relative to the least probable token
const MAX_CACHED_PRETOKENS = 20000;
const utf8 = new TextEncoder();

/** Return the byte tokens of a text, or UNK if one is not in the vocabulary. */
function byteTokens(text, ids) {
  const names = [...utf8.encode(text)].map((byte) => {
    const hexadecimal = byte.toString(16).toUpperCase().padStart(2, "0");
    return `<0x${hexadecimal}>`;
  });
  const tokens = names.map((name) => ids.get(name));
  return tokens.includes(undefined) ? [UNK] : tokens;
}

function cached(encode) {
  const cache = new Map();
  return (pretoken) => {
    let tokens = cache.get(pretoken);
    if (tokens === undefined) {
      tokens = encode(pretoken);
      if (cache.size >= MAX_CACHED_PRETOKENS) cache.clear();
      cache.set(pretoken, tokens);
    }
    return tokens;
  };
}

/** Return an encoder of whole words. */
export const wordEncoder = (ids) => (pretoken) => [ids.get(pretoken) ?? UNK];

/**
 * Return a byte-pair encoder.
 * @param {Map<string, number>} ids
 * @param {[string, string][]} merges In the order in which they are applied.
 */
export function bpeEncoder(ids, merges) {
  const pairKey = (left, right) => left * ids.size + right;
  const ranks = new Map(); // pair -> [rank, merged id]
  merges.forEach(([left, right], rank) => {
    ranks.set(pairKey(ids.get(left), ids.get(right)), [rank, ids.get(left + right)]);
  });
  return cached((pretoken) => {
    const tokens = [...pretoken].flatMap((character) => ids.get(character) ?? byteTokens(character, ids));
    for (;;) {
      let best = null;
      let position = 0;
      for (let n = 0; n + 1 < tokens.length; n++) {
        const pair = ranks.get(pairKey(tokens[n], tokens[n + 1]));
        if (pair && (!best || pair[0] < best[0])) {
          best = pair;
          position = n;
        }
      }
      if (!best) return tokens;
      tokens.splice(position, 2, best[1]);
    }
  });
}

/**
 * Return an encoder that finds the most probable segmentation.
 * @param {Map<string, number>} ids
 * @param {[string, number][]} scores Name and log-probability of each id.
 */
export function unigramEncoder(ids, scores) {
  const trie = buildTrie(ids, scores);
  const lowest = scores.reduce((minimum, [, score]) => Math.min(minimum, score), Infinity);
  const unknownScore = lowest - UNKNOWN_PENALTY;
  return cached((pretoken) => {
    const characters = [...pretoken];
    const best = viterbi(characters, trie, scores, unknownScore);
    const tokens = [];
    for (let end = characters.length; end > 0; ) {
      let { start, id } = best[end];
      // Adjacent unknown characters are one unknown token.
      while (id === UNK && start > 0 && best[start].id === UNK) start = best[start].start;
      const text = characters.slice(start, end).join("");
      tokens.push(ids.has(text) ? [ids.get(text)] : byteTokens(text, ids));
      end = start;
    }
    return tokens.reverse().flat();
  });
}

function buildTrie(ids, scores) {
  const root = new Map();
  for (const [name] of scores) {
    let node = root;
    for (const character of name) {
      if (!node.has(character)) node.set(character, new Map());
      node = node.get(character);
    }
    node.id = ids.get(name);
  }
  return root;
}

/** Return the last token {score, start, id} of the best segmentation up to each position. */
function viterbi(characters, trie, scores, unknownScore) {
  const best = new Array(characters.length + 1).fill(null);
  const update = (end, score, start, id) => {
    if (!best[end] || score > best[end].score) best[end] = { score, start, id };
  };
  for (let start = 0; start < characters.length; start++) {
    const prefixScore = best[start]?.score ?? 0;
    let hasSingleCharacter = false;
    let node = trie;
    for (let end = start; end < characters.length; end++) {
      node = node.get(characters[end]);
      if (!node) break;
      if (node.id === undefined) continue;
      update(end + 1, scores[node.id][1] + prefixScore, start, node.id);
      if (end === start) hasSingleCharacter = true;
    }
    if (!hasSingleCharacter) update(start + 1, unknownScore + prefixScore, start, UNK);
  }
  return best;
}
