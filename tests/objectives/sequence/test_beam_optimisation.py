"""Beam-search optimisation equals a loop over prefixes, and a loss of 0 means that search finds the reference."""

from __future__ import annotations

import pytest
import torch

from rnnsearch.config.sequence import BeamSearchOptimisationOptions
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.sequence import beam_optimisation
from rnnsearch.objectives.sequence.beam_optimisation import BeamSearchOptimisation, find_violations
from rnnsearch.objectives.sequence.rewards import SentenceBleu
from rnnsearch.search.beam import beam_search
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.text.vocabulary import BOS, EOS, PAD
from tests.objectives.sequence.test_policy_gradient import gradients
from tests.objectives.sequence.toys import GENERATION, assert_splitting_changes_nothing


def objective(beam: int = 3, **options) -> BeamSearchOptimisation:
    options = BeamSearchOptimisationOptions(beam=beam, first_beam=beam, **options)
    return BeamSearchOptimisation(options, Likelihood(), GENERATION)


class SlowSearch:
    """The loss of one sentence by the definition: every score is that of a pass over the whole prefix."""

    def __init__(self, model, batch, row, beam, cost):
        self.model = model
        # A batch of one sentence.
        self.source = {
            name: stream.ids[row : row + 1, : stream.num_words[row] + 1] for name, stream in batch.sources.items()
        }
        self.memories = model.encode({name: type(batch.target).from_ids(ids) for name, ids in self.source.items()})
        self.reference = tuple(batch.target.ids[row, batch.target.mask[row]].tolist())
        self.beam = beam
        self.cost = cost
        self.violations = []
        """End of the reference's prefix and the hypothesis, in order."""

    def score(self, prefix):
        """Return f(prefix), differentiable."""
        previous = torch.tensor([[BOS, *prefix[:-1]]])
        logits = self.model.output.logits(self.model.unroll(previous, self.memories).readout)[0]
        return sum(logits[position, token] for position, token in enumerate(prefix))

    def loss(self):
        total = torch.zeros((), dtype=torch.float64)
        live, finished, start = [()], [], 0
        tokens = [token for token in range(self.model.output.vocabulary) if token not in (PAD, BOS)]
        for end in range(1, len(self.reference) + 1):
            gold = self.reference[:end]
            with torch.no_grad():
                continued = [(*prefix, token) for prefix in live for token in tokens]
                best = sorted(continued, key=self.score, reverse=True)[: self.beam]
                if end == len(self.reference):
                    competitor = max((p for p in [*best, *finished] if p != gold), key=self.score)
                elif best[0][-1] == EOS:
                    competitor = best[0]
                else:
                    competitor = best[-2] if best[-1] == gold else best[-1]
                violates = self.score(gold) < self.score(competitor) + 1
            if violates:
                cost = 1.0
                if self.cost == "bleu":
                    segments = [" ".join(map(str, prefix[start:])) for prefix in (competitor, gold)]
                    cost = 1.0 - SentenceBleu(None, str).score(segments[:1], segments[1:])[0]
                total = total + cost * (1 - self.score(gold) + self.score(competitor))
                self.violations.append((end, competitor))
                live, finished, start = [gold], [], end
            else:
                live = [prefix for prefix in best if prefix[-1] != EOS]
                finished += [prefix for prefix in best if prefix[-1] == EOS]
        return total


@pytest.mark.parametrize("cost", ["constant", "bleu"])
@pytest.mark.parametrize("beam", [2, 3, 5])
@pytest.mark.parametrize("seed", [1, 2])
def test_loss_and_gradient_equal_those_of_a_loop_over_prefixes(make, batches, monkeypatch, seed, beam, cost):
    monkeypatch.setattr(beam_optimisation, "MIN_PASS_ROWS", 1)  # several passes
    model = make(seed=seed)
    batch = batches([0, 1, 2])
    loss = objective(beam, cost=cost)(model, batch, BatchRng(1))
    searches = [SlowSearch(model, batch, row, beam, cost) for row in range(3)]
    expected = sum(search.loss() for search in searches)
    violations = find_violations(model, model.encode(batch.sources), batch.target, beam)
    found = [
        (sentence, end, tuple(token for token in tokens if token != PAD))
        for sentence, end, tokens in zip(
            violations.sentence.tolist(), violations.end.tolist(), violations.tokens.tolist(), strict=True
        )
    ]
    assert found == [(row, *violation) for row, search in enumerate(searches) for violation in search.violations]
    assert loss.statistics["margin.violations"] == len(found) > 0
    torch.testing.assert_close(loss.total, expected)
    for result, gradient in zip(gradients(model, loss.total), gradients(model, expected), strict=True):
        torch.testing.assert_close(result, gradient)
    assert torch.equal(loss.nll, Likelihood()(model, batch, None).nll)


def train(model, batch, bso, updates=400):
    """Minimise the loss until it is 0."""
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(updates):
        optimiser.zero_grad()
        total = bso(model, batch, None).total
        if total == 0:
            return
        total.backward()
        optimiser.step()
    raise AssertionError(f"the loss is still {float(total)}")


@pytest.mark.parametrize("beam", [2, 4])
def test_loss_is_0_if_and_only_if_search_keeps_the_reference_by_a_margin(make, batches, beam):
    model = make()
    batch = batches([0, 1, 2])
    bso = objective(beam)
    options = SearchOptions(beam=beam, length_penalty=0.0, stop="top")
    references = [tuple(ids[mask].tolist()[:-1]) for ids, mask in zip(batch.target.ids, batch.target.mask, strict=True)]

    def translations():
        scorer = ModelScorer(model, normalised=False)
        return [group[0].ids for group in beam_search(scorer, batch.sources, options)]

    assert bso(model, batch, None).total > 0
    assert translations() != references
    train(model, batch, bso)
    assert bso(model, batch, None).statistics["margin.violations"] == 0
    assert all(not gradient.any() for gradient in gradients(model, bso(model, batch, None).total))
    assert translations() == references


@pytest.mark.parametrize("cost", ["constant", "bleu"])
def test_splitting_a_batch_changes_nothing(make, batches, cost):
    bso = objective(3, cost=cost, likelihood=0.2)
    whole, _ = assert_splitting_changes_nothing(bso, make(seed=3), batches([0, 1, 2]))
    sentences = float(whole.statistics["margin.sentences"])
    assert float(bso.report(whole.statistics)["violations"]) == whole.statistics["margin.violations"] / sentences


def test_beam_grows_with_epochs():
    options = BeamSearchOptimisationOptions(beam=5, first_beam=2, epochs_per_beam=2.0)
    bso = BeamSearchOptimisation(options, Likelihood(), GENERATION)
    beams = []
    for epoch in (0.0, 1.9, 2.0, 4.5, 6.0, 20.0):
        bso.before_update(1, epoch)
        beams.append(bso.beam)
    assert beams == [2, 2, 3, 4, 5, 5]
