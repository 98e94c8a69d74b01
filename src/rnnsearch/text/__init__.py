"""Raw text to tokens and back: vocabularies, tokenizers, word alignments, terminology, markup and documents."""
