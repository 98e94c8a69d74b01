"""Second stage of a hybrid model's search: words that were translated as <unk> are generated character by character.

A beam over characters starts from the decoder's state at each <unk> (Luong & Manning 2016, section 3.4).
`systems/translation.py` calls `spell_unknown_words`.

The spellings are the text of the words; the tokens of the hypothesis stay <unk>. Tests:
tests/properties/test_spelled.py.

Axes: M unknown words of a batch, D decoder state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rnnsearch.data.batch import Stream
from rnnsearch.data.characters import MAX_WORD_CHARACTERS, Characters
from rnnsearch.models.speller import Speller
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.decode import Ids, MakeSources, decode_all, pad_with_eos
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.scorer import SOURCE, Sources, Step
from rnnsearch.text.vocabulary import UNK


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
    """Return the unknown words of each translation by their positions.

    Args:
        model: Model with a character decoder.
        characters: Its character inventory.
        sources: Source token ids without EOS.
        targets: Token ids of the translations without EOS.
        make_batch: Creates a batch from ids.
        beam: Beam width over characters.
        batch_sentences: Number of sentences per batch.
    """
    words: list[dict[int, str]] = [{} for _ in sources]
    for first in range(0, len(sources), batch_sentences):
        batch = slice(first, first + batch_sentences)
        positions, initial_states = _unknown_words(model, sources[batch], targets[batch], make_batch)
        spellings = decode_characters(model, initial_states, beam)
        for (sentence, position), spelling in zip(positions, spellings, strict=True):
            words[first + sentence][position] = characters.text(spelling.ids)
    return words


def decode_characters(model: TranslationModel, initial_states: Tensor, beam: int) -> list[Hypothesis]:
    """Return the best spelling of each word from its initial state [M, D], with 1 to MAX_WORD_CHARACTERS characters."""
    assert model.speller is not None
    options = SearchOptions(
        beam=beam,
        length_penalty=0.0,
        max_ratio=0.0,
        max_extra=MAX_WORD_CHARACTERS,
        min_length=1,
        banned=frozenset({UNK}),
    )
    scorer = CharacterScorer(model.speller, initial_states)
    words = [[index] for index in range(len(initial_states))]
    return [best[0] for best in decode_all(scorer, words, options, make_batch=CharacterScorer.make_sources)]


def _unknown_words(
    model: TranslationModel, sources: Sequence[Ids], targets: Sequence[Ids], make_batch: MakeSources
) -> tuple[list[tuple[int, int]], Tensor]:
    """Return the (sentence, position) of each <unk> of a batch, and the speller's initial states [M, D]."""
    assert model.speller is not None
    y = pad_with_eos(targets).to(model.device)
    memories = model.encode(make_batch(sources, model.device))
    reading = model.unroll(Stream.from_ids(y).previous(), memories).reading
    sentence, position = (y == UNK).nonzero(as_tuple=True)
    unknown = (sentence, position)
    initial_states = model.speller.initial_state(reading.hidden[unknown], reading.context[unknown])
    return list(zip(sentence.tolist(), position.tolist(), strict=True)), initial_states


class CharacterScorer:
    """A character decoder as a Scorer, whose tokens are characters.

    A source sentence is the index of a word in `initial_states`; in a batch it is shifted by 1, because 0 is PAD.
    """

    normalised = True

    def __init__(self, speller: Speller, initial_states: Tensor) -> None:
        self._speller = speller
        self._initial_states = initial_states  # [M, D]
        self.vocabulary = speller.output.vocabulary

    @property
    def device(self) -> torch.device:
        return self._initial_states.device

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        (words,) = sources.values()
        return (), self._speller.start(self._initial_states[words.ids[:, 0] - 1])

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        readout, state = self._speller.step(y, state)
        logits = self._speller.output.logits(readout).float()
        return Step(logits, state, {}, logits.logsumexp(1))

    @staticmethod
    def make_sources(words: Sequence[Ids], device: torch.device) -> Sources:
        """Return the batch of words that are given by their indices."""
        return {SOURCE: Stream.from_ids(torch.tensor([[index + 1] for (index,) in words], device=device))}
