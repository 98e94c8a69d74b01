"""The characters of a side's symbols, for embeddings that are made of them and for words that are spelled: unknown
words can then be told apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rnnsearch.config import ModelConfig, RunConfig
from rnnsearch.data.batch import Direction, CharacterTable
from rnnsearch.data.ragged import Integers, Ragged
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import PAD, SPECIALS, UNK

NOTHING, UNKNOWN = PAD, UNK
"""What pads a symbol's characters, and what stands for one that is not in the inventory: as of symbols, so that a word
can be searched for like a sentence."""
LONGEST = 50
"""Characters of a symbol that are read or written; what is longer (an address, a rule of dashes) is cut."""
CODES = np.dtype("<u4")
"""What code points are kept as."""
END = 0x110000
"""What ends each word where words are kept one after the other: the number after that of the last character."""


class Characters:
    """The inventory of a word-level tokenizer's characters: those of its known words, the most frequent words first.

    They have the numbers from `len(SPECIALS)` on. A word's leading space is its first character.
    """

    def __init__(self, tokenizer: Tokenizer, known: bool) -> None:
        """known: known words are to be spelled, too, and not unknown ones alone."""
        words = [spelling.decode() for spelling in tokenizer.spellings()[len(SPECIALS) :]]
        self._shown = list(dict.fromkeys(chain.from_iterable(words)))
        self._numbers = {character: number for number, character in enumerate(self._shown, len(SPECIALS))}
        self._known = self._table(words) if known else None

    def __len__(self) -> int:
        return len(SPECIALS) + len(self._shown)

    @property
    def known(self) -> Tensor | None:
        """The characters [S, L] of the known words, in the order of their ids; None where they are not spelled."""
        return None if self._known is None else torch.from_numpy(self._known.astype(np.int64))

    def text(self, numbers: Sequence[int]) -> str:
        """What numbers spell; specials spell nothing."""
        return "".join(self._shown[number - len(SPECIALS)] for number in numbers if number >= len(SPECIALS))

    def spelling(self, ids: Tensor, unknown: Sequence[Sequence[str]]) -> CharacterTable:
        """That of sentences [B, J], each different symbol once; `unknown`: the unknown words of each row, in order."""
        here = ids == UNK
        words = list(chain.from_iterable(unknown))
        assert len(words) == int(here.sum()), "each unknown word of a sentence must be given"
        rows: dict[str, int] = {}
        which = torch.zeros_like(ids)
        which[here] = torch.tensor([rows.setdefault(word, len(rows) + 1) for word in words], dtype=ids.dtype)
        tables = [self._table([""]), self._table(list(rows))]
        if self._known is not None:
            spelled = ids >= len(SPECIALS)
            symbols, inverse = ids[spelled].unique(return_inverse=True)
            which[spelled] = inverse + len(rows) + 1
            tables.append(self._known[symbols.numpy() - len(SPECIALS)])
        characters = np.full((sum(map(len, tables)), max(table.shape[1] for table in tables)), NOTHING)
        begin = 0
        for table in tables:
            characters[begin : begin + len(table), : table.shape[1]] = table
            begin += len(table)
        used = max(1, int((characters != NOTHING).sum(1).max()))
        return CharacterTable(which, torch.from_numpy(characters[:, :used]))

    def _table(self, words: Sequence[str]) -> npt.NDArray[np.int32]:
        """The numbers [S, L] of words, each cut after `LONGEST` and padded."""
        width = min(LONGEST, max(map(len, words), default=1))
        table = np.full((len(words), width), NOTHING, dtype=np.int32)
        for row, word in zip(table, words, strict=True):
            numbers = [self._numbers.get(character, UNKNOWN) for character in word[:LONGEST]]
            row[: len(numbers)] = numbers
        return table


def codes(rows: Iterable[Sequence[str]]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
    """Rows of words as code points one after the other, each word ended by END, and how many numbers each row has."""
    flat, sizes = [np.zeros(0, dtype=CODES)], []
    for words in rows:
        flat += [np.append(np.frombuffer(word.encode("utf-32-le"), dtype=CODES), CODES.type(END)) for word in words]
        sizes.append(sum(len(word) + 1 for word in words))
    return np.concatenate(flat), np.array(sizes, dtype=np.uint64)


def words_of_codes(kept: Ragged, rows: Integers) -> list[list[str]]:
    """The words of some rows that are kept as `codes` gives them."""
    flat, of, _ = kept.values(rows)
    ends = np.flatnonzero(flat == END)
    found: list[list[str]] = [[] for _ in rows]
    for begin, end, row in zip(np.append(0, ends + 1).tolist(), ends.tolist(), of[ends].tolist(), strict=False):
        found[row].append(flat[begin:end].astype(CODES).tobytes().decode("utf-32-le"))
    return found


# What batches hold of words that no vocabulary has: their characters, and of which source words they are copies.


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


# What a system's batches hold of unknown words, in training and in search.


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
        name = config.data.single_source
        characters[name] = Characters(tokenizers[name], known=read.words == "all")
    if written is not None:
        characters[target] = Characters(tokenizers[target], known=False)
    copies = Copies(tokenizers[config.data.single_source]) if config.copies_words else None
    return Spellings(characters, copies)
