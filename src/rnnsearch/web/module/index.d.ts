/** A file or a request that cannot be used, told in one sentence. */
export class RnnsearchError extends Error {}

/** One translation of one sentence; what is said of each is what rnnsearch.runtime says in Python. */
export interface Translation {
  source: string;
  text: string;
  /** Log-probability, normalised by length: what translations are ranked by. */
  score: number;
  logProb: number;
  /** Whether it ended by itself; false where it was cut. */
  finished: boolean;
  /** Target symbols, the end symbol last if the search ended there. */
  tokens: string[];
  /** The log-probability of each. */
  tokenScores: number[];
  sourceTokens: string[];
  /** [tokens][source tokens]; null of an empty sentence, and of a model that does not attend. */
  attention: Float32Array[] | null;
  sourceWords: string[];
  words: string[];
  /** [words][source words] */
  wordAttention: number[][] | null;
  /** [source word, target word], from 0. */
  alignment: [number, number][];
  /** The word that each token lies in, -1 for none. */
  tokenWords: number[];
}

export interface Options {
  /** 1 is greedy, the fastest; without it the model's own. */
  beam?: number;
  /** What translations begin with, letter for letter, one for each text; it may end inside a word. */
  prefixes?: string[];
}

/** With nBest: how many of each are given, as a list, best first; without it one, which is in none. */
export type Best = Options & { nBest?: undefined };
export type Several = Options & { nBest: number };

export class Translator {
  /** The codes of source and target. */
  readonly languages: [string, string];
  /** What the file says of the model: licence, attribution, scores. */
  readonly about: Record<string, unknown>;
  translate(text: string, options: Several): Promise<Translation[]>;
  translate(text: string[], options: Several): Promise<Translation[][]>;
  translate(text: string, options?: Best): Promise<Translation>;
  translate(text: string[], options?: Best): Promise<Translation[]>;
  /** The n best of each text, at once: nothing else happens on the page meanwhile. */
  nBest(texts: string[], nBest: number, beam?: number, prefixes?: string[] | null): Translation[][];
}

/** Read an engine file, as `rnnsearch export` writes it, from its address or its bytes. */
export function load(
  model: string | URL | Uint8Array | ArrayBuffer,
  options?: { wasm?: string | URL | Uint8Array | ArrayBuffer | WebAssembly.Module },
): Promise<Translator>;
