"""The second stage of a hybrid model's search: the words that the first left as <unk> are spelled, by a beam over
characters (Luong & Manning 2016, section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rnnsearch.data.batch import Stream
from rnnsearch.data.characters import LONGEST, Characters
from rnnsearch.models.speller import Speller
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.decode import Ids, MakeSources, decode_all, pad_with_eos
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.scorer import SOURCE, Sources, Step
from rnnsearch.text.vocabulary import UNK


class CharacterScorer:
    """A character decoder as a Scorer, whose symbols are characters: sentence n is the word that begins at first[n]."""

    normalised = True

    def __init__(self, speller: Speller, first: Tensor) -> None:
        self._speller, self._first = speller, first
        self.vocabulary = speller.output.vocabulary

    @property
    def device(self) -> torch.device:
        return self._first.device

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        (numbers,) = sources.values()
        return (), self._speller.start(self._first[numbers.ids[:, 0] - 1])

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        readout, state = self._speller.step(y, state)
        logits = self._speller.output.logits(readout).float()
        return Step(logits, state, {}, logits.logsumexp(1))

    @staticmethod
    def sources(words: Sequence[Ids], device: torch.device) -> Sources:
        """The batch of words that are given by their numbers."""
        return {SOURCE: Stream.from_ids(torch.tensor([[number + 1] for (number,) in words], device=device))}


@torch.inference_mode()
def spell_unknown_words(
    model: TranslationModel,
    characters: Characters,
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    make_batch: MakeSources,
    beam: int,
    batch_sentences: int = 64,
) -> list[dict[int, str]]:
    """What the unknown words of each sentence's translation (ids without EOS) are, by their places."""
    found: list[dict[int, str]] = [{} for _ in sources]
    for begin in range(0, len(sources), batch_sentences):
        numbers = slice(begin, begin + batch_sentences)
        places, first = _unknown(model, sources[numbers], targets[numbers], make_batch)
        for (row, place), best in zip(places, decode_characters(model, first, beam), strict=True):
            found[begin + row][place] = characters.text(best.ids)
    return found


def decode_characters(model: TranslationModel, first: Tensor, beam: int) -> list[Hypothesis]:
    """The best spelling of each word that begins at first [M, D]: at least one character, at most `LONGEST`."""
    assert model.speller is not None
    options = SearchOptions(
        beam=beam, length_penalty=0.0, max_ratio=0.0, max_extra=LONGEST, min_length=1, banned=frozenset({UNK})
    )
    scorer = CharacterScorer(model.speller, first)
    words = [[number] for number in range(len(first))]
    return [best[0] for best in decode_all(scorer, words, options, make_batch=CharacterScorer.sources)]


def _unknown(
    model: TranslationModel, sources: Sequence[Ids], targets: Sequence[Ids], make: MakeSources
) -> tuple[list[tuple[int, int]], Tensor]:
    """Where the unknown words of a batch are, as (sentence, place), and what each begins at."""
    assert model.speller is not None
    y = pad_with_eos(targets).to(model.device)
    reading = model.unroll(Stream.from_ids(y).previous(), model.encode(make(sources, model.device))).reading
    places = (y == UNK).nonzero(as_tuple=True)
    first = model.speller.initial_state(reading.state[places], reading.context[places])
    return list(zip(*(part.tolist() for part in places), strict=True)), first
