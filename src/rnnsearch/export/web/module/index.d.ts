/** A problem with a file or a request, described in one sentence. */
export class RnnsearchError extends Error {}

/** One translation of one sentence, with the values of rnnsearch.runtime in Python. */
export interface Translation {
  source: string;
  text: string;
  /** Length-normalised log-probability, by which translations are ranked. */
  score: number;
  logProb: number;
  /** False if the translation was truncated at its maximum length. */
  finished: boolean;
  /** Target tokens; the last one is the end symbol if the translation is finished. */
  tokens: string[];
  /** Log-probability of each token. */
  tokenScores: number[];
  sourceTokens: string[];
  /** [tokens][source tokens]; null for an empty sentence and for a model without attention. */
  attention: Float32Array[] | null;
  sourceWords: string[];
  words: string[];
  /** [words][source words]; null if attention is. */
  wordAttention: number[][] | null;
  /** [source word, target word], counting from 0. */
  alignment: [number, number][];
  /** Index of each token's word, or -1. */
  tokenWords: number[];
}

export interface Options {
  /** Beam size; 1 is greedy search, the fastest. Defaults to the model's. */
  beam?: number;
  /** What the translations must start with, one prefix per text. A prefix may end inside a word. */
  prefixes?: string[];
}

/** Without nBest, each text has one translation. */
export type Best = Options & { nBest?: undefined };

/** With nBest, each text has a list of at most that many translations, best first. */
export type Several = Options & { nBest: number };

export class Translator {
  /** Language codes of source and target. */
  readonly languages: [string, string];
  /** What the file contains about the model: licence, attribution, scores, precision. */
  readonly about: Record<string, unknown>;
  translate(text: string, options: Several): Promise<Translation[]>;
  translate(text: string[], options: Several): Promise<Translation[][]>;
  translate(text: string, options?: Best): Promise<Translation>;
  translate(text: string[], options?: Best): Promise<Translation[]>;
  /** Return the n best translations of each text. Synchronous: it blocks the page or worker that calls it. */
  nBest(texts: string[], nBest: number, beam?: number, prefixes?: string[] | null): Translation[][];
}

/**
 * Load a model from the URL or the contents of an engine file, as `rnnsearch export` writes it.
 * Throws an RnnsearchError if the file cannot be used.
 */
export function load(
  model: string | URL | Uint8Array | ArrayBuffer,
  options?: { wasm?: string | URL | Uint8Array | ArrayBuffer | WebAssembly.Module },
): Promise<Translator>;
