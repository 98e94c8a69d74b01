"""What a system's batches hold of unknown words, in training and in search."""

from __future__ import annotations

from collections.abc import Mapping

from rnnsearch.config import RunConfig
from rnnsearch.data.spelling import Characters
from rnnsearch.data.spellings import Copies, Spellings
from rnnsearch.text.tokenizer import Tokenizer


def spellings(config: RunConfig, tokenizers: Mapping[str, Tokenizer]) -> Spellings:
    """The characters of the sides whose words are read or written by them, and copies for a model that points."""
    read, written, target = config.model.source_characters, config.model.target_characters, config.data.target
    characters = {}
    if read is not None:
        name = config.data.one_source
        characters[name] = Characters(tokenizers[name], known=read.words == "all")
    if written is not None:
        characters[target] = Characters(tokenizers[target], known=False)
    copies = None if config.model.pointer is None else Copies(tokenizers[config.data.one_source])
    return Spellings(characters, copies)
