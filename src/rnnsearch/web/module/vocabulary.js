// The special symbols that every vocabulary begins with (text/vocabulary.py).

export const [PAD, UNK, BOS, EOS] = [0, 1, 2, 3];
export const SPECIALS = ["<pad>", "<unk>", "<s>", "</s>"];
export const MARKER = "▁"; // how a symbol's leading space is shown
export const isUnknown = (name) => name.startsWith("<unk");
export const isMark = (name) => isUnknown(name) || name.startsWith("<at");
