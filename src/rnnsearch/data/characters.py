"""Characters of words, and copies of unknown words, for models that read, write or copy words outside the vocabulary.

`word_characters` says what a config's batches need; `Batches` and search add it to their streams.

`code_points.py` stores unknown words. Character ids are rows of embeddings, so the order of `Characters` is part of
what a model depends on. Tests: tests/properties/test_spelled.py, tests/properties/test_copying.py.

Axes: B rows, J source and I target positions, S distinct words, L characters per word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rnnsearch.config import ModelConfig, RunConfig
from rnnsearch.config.language_model import LanguageModelConfig
from rnnsearch.data.batch import CharacterTable, Direction
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import PAD, SPECIALS, UNK

# Characters use the special ids of tokens, so that a word can be searched for like a sentence.
CHARACTER_PAD = PAD
UNKNOWN_CHARACTER = UNK
MAX_WORD_CHARACTERS = 50
"""Characters of a token that are read or written; longer tokens (a URL, a line of dashes) are cut."""


class Characters:
    """The character inventory of a word-level tokenizer: the characters of its words, most frequent words first.

    Character ids start at `len(SPECIALS)`. A word's leading space is its first character.
    """

    def __init__(self, tokenizer: Tokenizer, known: bool) -> None:
        """Collect the inventory; if `known`, character tables include known words, too."""
        words = [spelling.decode() for spelling in tokenizer.token_bytes()[len(SPECIALS) :]]
        self._characters = list(dict.fromkeys(chain.from_iterable(words)))
        self._ids = {character: id for id, character in enumerate(self._characters, len(SPECIALS))}
        self._known = self._table(words) if known else None

    def __len__(self) -> int:
        return len(SPECIALS) + len(self._characters)

    @property
    def known(self) -> Tensor | None:
        """Character ids [S, L] of the known words in the order of their token ids, or None if not included."""
        return None if self._known is None else torch.from_numpy(self._known.astype(np.int64))

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of character ids, without specials."""
        return "".join(self._characters[id - len(SPECIALS)] for id in ids if id >= len(SPECIALS))

    def character_table(self, ids: Tensor, unknown: Sequence[Sequence[str]]) -> CharacterTable:
        """Return the characters of a batch's tokens, each distinct token once.

        Args:
            ids: Token ids [B, J].
            unknown: The unknown words of each row, in order.
        """
        is_unknown = ids == UNK
        words = list(chain.from_iterable(unknown))
        assert len(words) == int(is_unknown.sum()), "each unknown word of a sentence must be given"
        rows: dict[str, int] = {}  # row of each unknown word; row 0 is for tokens without characters
        indices = torch.zeros_like(ids)
        word_rows = [rows.setdefault(word, len(rows) + 1) for word in words]
        indices[is_unknown] = torch.tensor(word_rows, dtype=ids.dtype)
        tables = [self._table([""]), self._table(list(rows))]
        if self._known is not None:
            is_known = ids >= len(SPECIALS)
            tokens, inverse = ids[is_known].unique(return_inverse=True)
            # Rows of the table: 0, then the unknown words, then the known ones.
            indices[is_known] = inverse + len(rows) + 1
            tables.append(self._known[tokens.numpy() - len(SPECIALS)])
        return CharacterTable(indices, torch.from_numpy(_stack_tables(tables)))

    def _table(self, words: Sequence[str]) -> npt.NDArray[np.int32]:
        """Return the character ids [S, L] of words, cut at `MAX_WORD_CHARACTERS` and padded."""
        width = min(MAX_WORD_CHARACTERS, max(map(len, words), default=1))
        table = np.full((len(words), width), CHARACTER_PAD, dtype=np.int32)
        for row, word in zip(table, words, strict=True):
            ids = [self._ids.get(character, UNKNOWN_CHARACTER) for character in word[:MAX_WORD_CHARACTERS]]
            row[: len(ids)] = ids
        return table


def _stack_tables(tables: Sequence[npt.NDArray[np.int32]]) -> npt.NDArray[np.int64]:
    """Return tables [S, L] below each other, padded to the width that is in use."""
    width = max(table.shape[1] for table in tables)
    stacked = np.full((sum(map(len, tables)), width), CHARACTER_PAD)
    start = 0
    for table in tables:
        stacked[start : start + len(table), : table.shape[1]] = table
        start += len(table)
    # The table of known words is as wide as its longest word, which may not be in this batch.
    used_width = max(1, int((stacked != CHARACTER_PAD).sum(1).max()))
    return stacked[:, :used_width]


class CopyFinder:
    """Finds unknown target words that are copies of source words, for a word-level source."""

    def __init__(self, source: Tokenizer) -> None:
        self._ids = {word.decode(): id for id, word in enumerate(source.token_bytes()) if word}

    def matrix(
        self,
        source: Int[Tensor, "B J"],
        source_words: Sequence[Sequence[str]],
        target: Int[Tensor, "B I"],
        target_words: Sequence[Sequence[str]],
    ) -> Bool[Tensor, "B I J"]:
        """Return True for each unknown target token i that is the same word as source token j.

        Args:
            source: Source ids.
            source_words: The unknown source words of each row, in order.
            target: Target ids.
            target_words: The unknown target words of each row, in order.
        """
        copies = torch.zeros(*target.shape, source.shape[1], dtype=torch.bool)
        for n, words in enumerate(target_words):
            if not words:
                continue
            positions: dict[str, list[int]] = {}  # source positions of each unknown word
            for j, word in zip((source[n] == UNK).nonzero()[:, 0].tolist(), source_words[n], strict=True):
                positions.setdefault(word, []).append(j)
            for i, word in zip((target[n] == UNK).nonzero()[:, 0].tolist(), words, strict=True):
                # An unknown target word may be known on the source side, or unknown there, too.
                if word in self._ids:
                    copies[n, i] = source[n] == self._ids[word]
                copies[n, i, positions.get(word, [])] = True
        return copies


class WordCharacters(NamedTuple):
    """Character inventories of some streams by name, and the finder of copied words, if a model copies."""

    characters: Mapping[str, Characters] = MappingProxyType({})
    """Characters of each stream that needs them, by its name."""
    copies: CopyFinder | None = None
    """Finder of copied words; None if the model does not copy."""

    def needed(self, direction: Direction) -> set[str]:
        """Return the streams whose unknown words the prepared data must hold."""
        streams = {*direction.sources, direction.target} if self.copies is not None else set()
        return streams | self.characters.keys()


NO_CHARACTERS = WordCharacters()


def same_words(source: Tokenizer, target: Tokenizer) -> list[int]:
    """Return for each source token the id of the target token with the same text, or that of <unk>."""
    ids = {text: id for id, text in enumerate(target.token_bytes()) if text}
    return [ids.get(text, UNK) for text in source.token_bytes()]


def word_characters(config: RunConfig, tokenizers: Mapping[str, Tokenizer]) -> WordCharacters:
    """Return the character inventories and the copy finder that a config's batches need."""
    target = config.data.target
    if isinstance(config.model, LanguageModelConfig) and config.model.characters is not None:
        include_known = config.model.characters.words == "all"
        return WordCharacters({target: Characters(tokenizers[target], known=include_known)})
    if not isinstance(config.model, ModelConfig):
        return NO_CHARACTERS
    characters = {}
    if config.model.source_characters is not None:
        source = config.data.single_source
        include_known = config.model.source_characters.words == "all"
        characters[source] = Characters(tokenizers[source], known=include_known)
    if config.model.target_characters is not None:
        characters[target] = Characters(tokenizers[target], known=False)
    copies = CopyFinder(tokenizers[config.data.single_source]) if config.copies_words else None
    return WordCharacters(characters, copies)
