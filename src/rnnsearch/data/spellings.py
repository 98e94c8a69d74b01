"""What batches hold of words that no vocabulary has: their characters, and of which source words they are copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rnnsearch.data.direction import Direction
from rnnsearch.data.spelling import Characters
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import UNK


class Copies:
    """Finds copies in batches of a word-level source side."""

    def __init__(self, source: Tokenizer) -> None:
        self._ids = {spelling.decode(): id for id, spelling in enumerate(source.spellings()) if spelling}

    def matrix(
        self,
        source: Int[Tensor, "B J"],
        source_words: Sequence[Sequence[str]],
        target: Int[Tensor, "B I"],
        target_words: Sequence[Sequence[str]],
    ) -> Bool[Tensor, "B I J"]:
        """True where target symbol i is unknown and the same word as source symbol j; `..._words`: the unknown words of
        each row, in order."""
        found = torch.zeros(*target.shape, source.shape[1], dtype=torch.bool)
        for n, words in enumerate(target_words):
            if not words:
                continue
            unknown = (source[n] == UNK).nonzero()[:, 0].tolist()
            places: dict[str, list[int]] = {}
            for j, word in zip(unknown, source_words[n], strict=True):
                places.setdefault(word, []).append(j)
            for i, word in zip((target[n] == UNK).nonzero()[:, 0].tolist(), words, strict=True):
                if word in self._ids:
                    found[n, i] = source[n] == self._ids[word]
                found[n, i, places.get(word, [])] = True
        return found


class Spellings(NamedTuple):
    """What batches hold of the words behind the symbols: the spelling of the symbols of some sides, by name, and which
    unknown target words are copies of source words."""

    characters: Mapping[str, Characters] = MappingProxyType({})
    copies: Copies | None = None

    def needed(self, direction: Direction) -> set[str]:
        """The sides whose unknown words must be known."""
        sides = {*direction.sources, direction.target} if self.copies is not None else set()
        return sides | self.characters.keys()


NO_SPELLINGS = Spellings()
