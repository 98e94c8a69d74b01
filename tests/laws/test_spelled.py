"""A symbol read by its spelling: two unknown words have one id, and yet a model can tell them apart."""

from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn

from rnnsearch.data.batches import make_batch
from rnnsearch.data.spelling import NOTHING, UNKNOWN, Characters, Spelled
from rnnsearch.models.embeddings import Embedding
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.search.decode import forced_all, make_sources
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.search.ranking import MEAN
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import train_words

WORDS = train_words(["the cat saw the bird", "the bird saw"], 20, 1)
CHARACTERS = Characters.most_frequent(Counter(["the", "cat", "saw", "zebras", "gnu"]), 40)


class Composed(Embedding):
    """A symbol's own vector and those of its characters, summed."""

    def __init__(self, plain):
        super().__init__(*plain.weight.shape, plain.zero_bos)
        self.weight = plain.weight
        self.characters = nn.Embedding(len(CHARACTERS), plain.weight.shape[1], padding_idx=NOTHING)

    def forward(self, symbols):
        x = super().forward(symbols)
        if symbols.spelling is None:
            return x
        return x + self.characters(symbols.spelling.characters).sum(1)[symbols.spelling.which]


@pytest.fixture
def model(choices, make):
    config = next(config for config in choices["whole"].values() if config.model.attention is not None)
    made = make(config)
    torch.manual_seed(1)
    made.source_embedding = Composed(made.source_embedding)
    return made


def test_two_unknown_words_are_read_differently_in_training_and_in_search(model):
    segmented = WORDS.segment(["the zebras saw", "the gnu saw", "the cat"])
    sources, targets = [Spelled.of(sentence) for sentence in segmented], [[5, 6], [5, 6], [7]]
    assert sources[0] == sources[1] and UNK in sources[0] and sources[0].texts == ["the", "zebras", "saw"]

    def losses(characters):
        pairs = list(zip(sources, targets, strict=True))
        return [float(likelihood()(model, make_batch([pair], [0], characters=characters), None).nll) for pair in pairs]

    def scores(characters):
        make = partial(make_sources, characters=characters)
        return [-sum(found.token_scores) for found in forced_all(ModelScorer(model), sources, targets, MEAN, make=make)]

    for found in (losses({"source": CHARACTERS}), scores(CHARACTERS)):
        assert abs(found[0] - found[1]) > 1e-3
    assert losses({"source": CHARACTERS}) == pytest.approx(scores(CHARACTERS), rel=1e-4)
    assert losses(None)[0] == pytest.approx(losses(None)[1])


def test_a_batch_spells_each_symbol_once_whatever_becomes_of_the_batch():
    texts = ["the zebras saw the gnu", "the gnu", "the cat saw the the"]
    sources = [Spelled.of(sentence) for sentence in WORDS.segment(texts)]
    batch = make_batch([(source, [5]) for source in sources], [0, 1, 2], characters={"source": CHARACTERS})
    spelling = batch.source.spelling
    assert len(spelling.characters) == 1 + len({word for text in texts for word in text.split()})
    for made in (batch, batch.to("cpu"), batch.turned().turned(), *batch.split()):
        which, characters = made.source.spelling.which, made.source.spelling.characters
        assert which.shape == made.source.ids.shape
        assert torch.equal(which > 0, made.source.mask & (made.source.ids != 3)), "EOS and padding have no spelling"
        for row, index in enumerate(made.indices):
            lengths = [(characters[n] != NOTHING).sum().item() for n in which[row] if n]
            assert lengths == [len(word) for word in texts[index].split()]
    assert CHARACTERS.spelling([["z?"]], 1).characters[1, 1] == UNKNOWN


def test_symbols_of_bytes_are_spelled_by_the_character_they_are_of():
    from rnnsearch.text.subwords import train_bpe

    [segmented] = train_bpe(["the cat saw"], 400, 1).segment(["the čat"])
    assert "".join(dict.fromkeys(segmented.texts)) and segmented.texts.count("č") == 2
