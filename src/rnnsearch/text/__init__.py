"""Raw text to symbols and back: vocabularies, word and subword tokenizers, alignments over words."""
