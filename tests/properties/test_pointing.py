"""Pointer networks in training and search with every decoder that attends, and the words they copy."""

import pytest
import torch

from rnnsearch.config import ModelConfig
from rnnsearch.data.batches import make_batch
from rnnsearch.data.characters import CopyFinder, WordCharacters
from rnnsearch.models.decoders import DECODERS
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.search.decode import force_decode_all
from rnnsearch.search.model_scorer import ModelScorer, fastest_scorer
from rnnsearch.search.ranking import MEAN_LOG_PROB
from rnnsearch.systems.translation import build
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import train_words
from tests.properties.conftest import lively, same_by_columns_and_alone

SOURCE, TARGET = train_words(["we see the cat Bob"], 20, 1), train_words(["wir sehen die Katze"], 20, 1)
SPELLINGS = WordCharacters(copies=CopyFinder(SOURCE))
SOURCES = [s.spelled_ids for s in SOURCE.segment(["we see Zoe the Zoe", "Bob the cat Ann", "the cat"])]
TARGETS = [s.spelled_ids for s in TARGET.segment(["wir sehen Zoe", "Bob die Ann Eva", "die Katze"])]
ATTENDING = [name for name, decoder in DECODERS.items() if decoder.component.attends and name != "copynet"]
"""Decoders with attention except CopyNet, which has its own copy mechanism."""


def batch_of(numbers=(0, 1, 2)):
    return make_batch([(SOURCES[n], TARGETS[n]) for n in numbers], numbers, spellings=SPELLINGS)


@pytest.fixture
def pointing(plainest):
    """Return a function that builds a pointer model of a decoder with random weights."""

    def made(decoder):
        config = plainest(decoder, None)
        options = ModelConfig.model_validate(config.model.model_dump() | {"pointer": {"size": 5, "layers": 2}})
        model = build(options, len(SOURCE), len(TARGET), 1, config.objective).eval()
        return lively(model)

    return made


def test_copies_match_words_of_the_target_vocabulary():
    batch = batch_of()
    found = [(n, TARGETS[n].unknown, batch.copies[n].nonzero().tolist()) for n in range(3) if batch.copies[n].any()]
    assert found == [(0, [" Zoe"], [[2, 2], [2, 4]]), (1, [" Bob", " Ann", " Eva"], [[0, 0], [2, 3]])]
    for made in (batch.to("cpu"), *batch.split()):
        assert torch.equal(made.copies, batch.copies[list(made.indices)])
    assert batch.reversed().copies is None


@pytest.mark.parametrize("decoder", ATTENDING)
def test_loss_covers_generated_and_pointed_words(decoder, pointing):
    model, batch = pointing(decoder), batch_of()
    loss, done = Likelihood().loss_and_pass(model, batch, None)
    unrolled = done.decoder_outputs
    log_p = model.log_probs(unrolled.readout.flatten(0, 1)).view(*batch.target.ids.shape, -1)
    points = torch.sigmoid(-unrolled.readout[..., -1])
    expected = 0.0
    for n, i in batch.target.mask.nonzero().tolist():
        y, copies = batch.target.ids[n, i], batch.copies[n, i]
        if copies.any():
            alpha = done.memory.to_source(unrolled.reading.alpha)[n, i]
            expected -= points[n, i].log() + alpha[copies].sum().log()
        elif y == UNK:
            expected -= (log_p[n, i, UNK].exp() - points[n, i]).log()
        else:
            expected -= log_p[n, i, y]
    torch.testing.assert_close(loss.nll, expected.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loss.nll, done.nll.sum())
    halves = [Likelihood()(model, half, None).total for half in batch.split()]
    torch.testing.assert_close(loss.total, sum(halves), rtol=1e-4, atol=1e-4)
    loss.total.backward()
    assert all(p.grad is not None for p in [*model.switch.parameters(), *model.output.parameters()])


@pytest.mark.parametrize("decoder", ATTENDING)
def test_search_scores_of_generated_words_equal_losses(decoder, pointing):
    model, batch = pointing(decoder), batch_of([2])
    nll = Likelihood()(model, batch, None).nll.item()
    for scorer in (ModelScorer(model), fastest_scorer(model, "fp32").scorer):
        found = force_decode_all(scorer, SOURCES[2:], TARGETS[2:], MEAN_LOG_PROB)
        assert found[0].log_prob == pytest.approx(-nll, abs=1e-3)


@pytest.mark.parametrize("beam", [1, 4])
def test_search_is_independent_of_columns_and_batch(beam, pointing):
    model = pointing("bahdanau")
    same_by_columns_and_alone(model, SOURCES, beam, torch.arange(len(TARGET)))
