"""The characters of a batch's symbols, for embeddings that are made of them: unknown words can then be told apart."""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from rnnsearch.data.sides import Side
from rnnsearch.symbols import Spelling
from rnnsearch.text.tokenizer import Segmented

NOTHING, UNKNOWN = 0, 1
"""What pads a symbol's characters, and what stands for one that is not in the inventory."""


class Spelled(list[int]):
    """The ids of a sentence, with the text of each; ids alone can take its place wherever spelling does not matter."""

    def __init__(self, ids: Iterable[int], texts: Iterable[str]) -> None:
        super().__init__(ids)
        self.texts = list(texts)

    @classmethod
    def of(cls, segmented: Segmented) -> "Spelled":
        """Of a segmented sentence."""
        return cls(segmented.ids, segmented.texts)


class Characters:
    """An inventory of characters, the first of which has number 2 (see `UNKNOWN`)."""

    def __init__(self, characters: Sequence[str]) -> None:
        self._numbers = {character: number for number, character in enumerate(characters, UNKNOWN + 1)}

    @classmethod
    def most_frequent(cls, words: Counter[str], size: int) -> "Characters":
        """So many numbers in all, for the most frequent characters of words that occur so often."""
        counts: Counter[str] = Counter()
        for word, count in words.items():
            for character in word:
                counts[character] += count
        ranked = sorted(counts, key=lambda character: (-counts[character], character))
        return cls(ranked[: size - UNKNOWN - 1])

    def __len__(self) -> int:
        return UNKNOWN + 1 + len(self._numbers)

    def spelling(self, texts: Sequence[Sequence[str]], width: int) -> Spelling:
        """Of rows of symbols' texts, padded to `width` symbols; what comes after a row's texts (EOS) has none."""
        rows: dict[str, int] = {"": 0}
        which = torch.zeros(len(texts), width, dtype=torch.int64)
        for place, row in enumerate(texts):
            which[place, : len(row)] = torch.tensor([rows.setdefault(text, len(rows)) for text in row])
        characters = torch.full((len(rows), max(map(len, rows))), NOTHING)
        for text, number in rows.items():
            spelled = [self._numbers.get(character, UNKNOWN) for character in text]
            characters[number, : len(text)] = torch.tensor(spelled, dtype=torch.int64)
        return Spelling(which, characters)

    def side(self, rows: Sequence[Sequence[int]], side: Side) -> Side:
        """A side with the spelling of its rows; all must be `Spelled`."""
        texts = [row.texts for row in rows if isinstance(row, Spelled)]
        assert len(texts) == len(rows), "only sentences with their symbols' texts can be spelled"
        return Side(side.ids, side.mask, side.places, self.spelling(texts, side.ids.shape[1]))
