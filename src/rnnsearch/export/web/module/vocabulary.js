// The special tokens, with which every vocabulary starts (text/vocabulary.py).

export const [PAD, UNK, BOS, EOS] = [0, 1, 2, 3];
export const SPECIALS = ["<pad>", "<unk>", "<s>", "</s>"];
export const SPACE_MARKER = "▁"; // displays the leading space of a token

/** Return true for the unknown word and its positional variants. */
export const isUnknown = (name) => name.startsWith("<unk");

/** Return true for tokens that are not text: unknown words and alignment annotations. */
export const isMark = (name) => isUnknown(name) || name.startsWith("<at");
