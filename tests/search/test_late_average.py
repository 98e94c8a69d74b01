"""Late averaging: the mean of the distributions of single sources, over the sources that a sentence has."""

import pytest
import torch

from rnnsearch.data.batch import Stream
from rnnsearch.errors import RnnsearchError
from rnnsearch.search.beam import beam_search
from rnnsearch.search.ensemble import EnsembleMember, EnsembleScorer
from rnnsearch.search.late_average import LateAverage
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.scorer import Scorer
from rnnsearch.text.vocabulary import BOS, EOS, PAD
from tests.search.conftest import ToyScorer

ENGLISH = [[5, 6, EOS], [7, EOS, PAD], [PAD, PAD, PAD]]
FRENCH = [[8, EOS], [PAD, PAD], [4, EOS]]
SOURCES = {"en": Stream.from_ids(torch.tensor(ENGLISH)), "fr": Stream.from_ids(torch.tensor(FRENCH))}


def toy(name: str, seed: int, symbols: int = 9) -> Scorer:
    """Return a scorer that reads the source `name`."""
    return EnsembleScorer([EnsembleMember(ToyScorer(symbols, seed), 1.0, {name: "source"})])


@pytest.fixture
def members() -> dict[str, Scorer]:
    return {"en": toy("en", 1), "fr": toy("fr", 2)}


def probabilities(scorer: Scorer, name: str, ids: list[list[int]], y: list[int]) -> torch.Tensor:
    memory, state = scorer.start({name: Stream.from_ids(torch.tensor(ids))}, None)
    return scorer.step(memory, state, torch.tensor(y)).log_probs().exp()


def test_mean_is_over_the_sources_of_a_sentence(members: dict[str, Scorer]) -> None:
    scorer = LateAverage(members)
    memory, state = scorer.start(SOURCES, None)
    step = scorer.step(memory, state, torch.tensor([BOS] * 3))
    result = step.log_probs().exp()
    english = probabilities(members["en"], "en", ENGLISH[:2], [BOS] * 2)
    french = probabilities(members["fr"], "fr", [FRENCH[0], FRENCH[2]], [BOS] * 2)
    torch.testing.assert_close(result[0], (english[0] + french[0]) / 2)
    torch.testing.assert_close(result[1], english[1])
    torch.testing.assert_close(result[2], french[1])


def test_each_source_has_its_attention(members: dict[str, Scorer]) -> None:
    scorer = LateAverage(members)
    memory, state = scorer.start(SOURCES, None)
    attention = scorer.step(memory, state, torch.tensor([BOS] * 3)).attention
    assert attention.keys() == SOURCES.keys()
    sums = {name: weights.sum(1).tolist() for name, weights in attention.items()}
    assert sums["en"] == pytest.approx([1, 1, 0])
    assert sums["fr"] == pytest.approx([1, 0, 1])


def test_search_does_not_depend_on_the_batch(members: dict[str, Scorer]) -> None:
    options = SearchOptions(beam=3, max_ratio=0.0, max_extra=5)
    together = beam_search(LateAverage(members), SOURCES, options)
    for row in range(3):
        single = {name: stream.slice_rows(row, row + 1) for name, stream in SOURCES.items()}
        [[alone]] = beam_search(LateAverage(members), single, options)
        assert alone.ids == together[row][0].ids
        assert alone.log_prob == pytest.approx(together[row][0].log_prob, rel=1e-5)


def test_vocabularies_must_be_equal() -> None:
    with pytest.raises(RnnsearchError, match=r"must share one target vocabulary; got sizes \[8, 9\]"):
        LateAverage({"en": toy("en", 1), "fr": toy("fr", 1, 8)})
