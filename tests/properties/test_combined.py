"""Ensembles equal the NumPy sum over one candidate list, and partial members score only surviving hypotheses."""

import numpy as np
import pytest
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.decode import make_sources
from rnnsearch.search.ensemble import WeightedPartialScorer, WeightedScorer, WeightedSumScorer
from rnnsearch.search.forced import force_decode
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.scorer import PartialStep, Step
from rnnsearch.text.vocabulary import EOS

CPU = torch.device("cpu")
SENTENCES = [[5, 6, 7], [8], [9, 10, 11, 4]]
LIMITS = {"max_ratio": 1.0, "max_extra": 4}


class Toy:
    """Unnormalised language model of a random table [V, V], shifted by a random value per source token."""

    normalised, device, vocabulary = True, CPU, 12

    def __init__(self, seed):
        random = np.random.default_rng(seed)
        self.table, self.lean = random.normal(size=(12, 12)), random.normal(size=12)

    def start(self, sources, columns):
        ids, mask = sources["source"].ids, sources["source"].mask
        memory = (torch.tensor(self.lean)[ids].where(mask, 0.0).sum(1), None if columns is None else columns.tolist())
        return memory, (torch.zeros(len(ids)),)

    def step(self, memory, state, y):
        lean, columns = memory
        logits = torch.tensor(self.table)[y]
        logits[:, EOS] += lean.repeat_interleave(len(y) // len(lean)) + state[0]
        logits = logits if columns is None else logits[:, columns]
        return Step(logits.float(), (state[0] + 0.3,), {}, logits.logsumexp(1).float())


class Some:
    """Partial scorer that wraps a scorer and records how many columns are requested."""

    def __init__(self, scorer):
        self.scorer, self.asked = scorer, set()

    def start(self, sources):
        return self.scorer.start(sources, None)

    def step(self, memory, state, y, symbols):
        step = self.scorer.step(memory, state, y)
        self.asked.add(symbols.shape[1])
        return PartialStep(step.log_probs(symbols), step.state)


def test_ensemble_of_one_equals_its_member(plain, make):
    scorer, sources = ModelScorer(make(plain)), make_sources(SENTENCES, CPU)
    for search, options in (
        (beam_search, SearchOptions(beam=3, n_best=2, **LIMITS)),
        (greedy_search, SearchOptions(**LIMITS)),
    ):
        assert search(WeightedSumScorer([WeightedScorer(scorer)]), sources, options) == search(scorer, sources, options)


def test_ensemble_sums_members_over_one_candidate_list():
    list_, sources = [EOS, 9, 4, 6], make_sources(SENTENCES, CPU)
    members, weights = [Toy(1), Toy(2)], [0.7, 0.4]
    asked = []

    def choose(sources):
        asked.append(sources)
        return torch.tensor(list_)

    combined = WeightedSumScorer([WeightedScorer(m, w) for m, w in zip(members, weights, strict=True)])
    found = beam_search(combined, sources, SearchOptions(beam=3, **LIMITS), choose)
    assert len(asked) == 1, "members must be called together once per batch"
    for sentence, [best] in zip(SENTENCES, found, strict=True):
        assert set(best.ids) <= set(list_)
        for i, (before, y) in enumerate(zip((2, *best.ids), (*best.ids, EOS), strict=True)):
            expected = 0.0
            for member, weight in zip(members, weights, strict=True):
                logits = member.table[before].copy()
                logits[EOS] += member.lean[[*sentence, EOS]].sum() + 0.3 * i
                expected += weight * (logits[y] - np.log(np.exp(logits[list_]).sum()))
            assert best.token_scores[i] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("search", [greedy_search, beam_search])
def test_partial_member_over_all_columns_equals_full_member(search):
    sources, options = make_sources(SENTENCES, CPU), SearchOptions(beam=3, n_best=2, **LIMITS)
    whole = search(WeightedSumScorer([WeightedScorer(Toy(1)), WeightedScorer(Toy(2), 0.5)]), sources, options)
    member = Some(Toy(2))
    some = search(
        WeightedSumScorer([WeightedScorer(Toy(1))], [WeightedPartialScorer(member, 0.5)], survivors=99),
        sources,
        options,
    )
    assert member.asked == {12}
    assert [[h.ids for h in hs] for hs in some] == [[h.ids for h in hs] for hs in whole]
    for one, other in zip((h for hs in some for h in hs), (h for hs in whole for h in hs), strict=True):
        assert one.token_scores == pytest.approx(other.token_scores, rel=1e-4, abs=1e-5)


def test_partial_member_scores_only_surviving_hypotheses():
    member, sources = Some(Toy(2)), make_sources(SENTENCES, CPU)
    combined = WeightedSumScorer([WeightedScorer(Toy(1))], [WeightedPartialScorer(member, 0.5)], survivors=4)
    found = beam_search(combined, sources, SearchOptions(beam=2, **LIMITS))
    assert member.asked == {4}
    again = force_decode(
        WeightedSumScorer([WeightedScorer(Toy(1)), WeightedScorer(Toy(2), 0.5)]),
        sources,
        [best.ids for [best] in found],
    )
    for [best], full in zip(found, again, strict=True):
        assert best.token_scores == pytest.approx(full.token_scores[: len(best.token_scores)], rel=1e-4, abs=1e-5)


def test_members_must_share_a_vocabulary():
    other = Toy(1)
    other.vocabulary = 13
    with pytest.raises(RnnsearchError, match=r"must share one vocabulary; got sizes \[12, 13\]"):
        WeightedSumScorer([WeightedScorer(Toy(1)), WeightedScorer(other)])
    with pytest.raises(RnnsearchError, match=r"got sizes \[\]"):
        WeightedSumScorer([])
