"""Which sides of a system have their words spelled, for its batches in training and in search."""

from __future__ import annotations

from collections.abc import Mapping

from rnnsearch.config import RunConfig
from rnnsearch.data.spelling import Characters
from rnnsearch.text.tokenizer import Tokenizer


def characters(config: RunConfig, tokenizers: Mapping[str, Tokenizer]) -> dict[str, Characters]:
    """The inventories of the sides whose words are read or written by their characters, by name."""
    read, written = config.model.source_characters, config.model.target_characters
    found = {}
    if read is not None:
        name = config.data.one_source
        found[name] = Characters(tokenizers[name], known=read.words == "all")
    if written is not None:
        found[config.data.target] = Characters(tokenizers[config.data.target], known=False)
    return found
