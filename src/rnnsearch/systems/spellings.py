"""What a system's batches hold of unknown words, in training and in search."""

from __future__ import annotations

from collections.abc import Mapping

from rnnsearch.config import ModelConfig, RunConfig
from rnnsearch.data.spelling import Characters
from rnnsearch.data.spellings import Copies, Spellings
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import UNK


def same_words(source: Tokenizer, target: Tokenizer) -> list[int]:
    """Of each symbol of the source the target's that is written alike, or <unk>."""
    ids = {spelling: id for id, spelling in enumerate(target.spellings()) if spelling}
    return [ids.get(spelling, UNK) for spelling in source.spellings()]


def spellings(config: RunConfig, tokenizers: Mapping[str, Tokenizer]) -> Spellings:
    """The characters of the sides whose words are read or written by them, and copies for a model that copies."""
    if not isinstance(config.model, ModelConfig):
        return Spellings({}, None)
    read, written, target = config.model.source_characters, config.model.target_characters, config.data.target
    characters = {}
    if read is not None:
        name = config.data.one_source
        characters[name] = Characters(tokenizers[name], known=read.words == "all")
    if written is not None:
        characters[target] = Characters(tokenizers[target], known=False)
    copies = Copies(tokenizers[config.data.one_source]) if config.copies_words else None
    return Spellings(characters, copies)
