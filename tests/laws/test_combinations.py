"""Every legal combination builds, learns and translates; every illegal one is refused with its reason."""

import math

import pytest
import torch

from rnnsearch.models.build import build, check
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.table import DECODERS
from rnnsearch.models.draws import Draws
from rnnsearch.models.encoders import ENCODERS
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.search.beam import beam
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import make_sources
from rnnsearch.search.greedy import greedy
from rnnsearch.search.scorer import ModelScorer

REASONS = (
    "model.attention: must be given for the",
    "model.attention: has no effect with the",
    "model.decoder.cell: must be given for the",
    "model.decoder.cell: has no effect with the",
    "model.encoder.type: must be unidirectional for the",
)


def test_what_is_legal(choices):
    """Written out beside `check`: attention where the decoder attends, a cell where it has none of its own, and one
    vector of the whole sentence where it does not attend."""
    expected = set()
    for name, config in choices["all"].items():
        model, decoder = config.model, DECODERS[config.model.decoder.type]
        right_cell = (model.decoder.cell is not None) == ("cell" in decoder.options)
        right_attention = (model.attention is not None) == decoder.attends
        right_encoder = decoder.attends or ENCODERS[model.encoder.type].one_vector
        if right_cell and right_attention and right_encoder:
            expected.add(name)
    assert choices["legal"].keys() == expected
    cells = len(CELLS)
    assert len(expected) == 2 * cells**2 + cells**2 + cells
    assert len(choices["all"]) == 2 * cells * 3 * (cells + 1) * 2


def test_illegal_combinations_are_refused_with_reasons(choices):
    for name in choices["all"].keys() - choices["legal"].keys():
        config = choices["all"][name]
        faults = check(config)
        assert faults, name
        for fault in faults:
            assert fault.startswith(REASONS), fault
            assert f"the {config.model.decoder.type} decoder" in fault


def test_builds_learns_and_translates(whole, batch, pairs):
    model = build(whole.model, 12, 12, seed=1)
    objective, optimiser = likelihood(0.1), torch.optim.Adam(model.parameters(), lr=0.02)
    before = objective(model, batch, None).nll.item()
    for update in range(2):
        optimiser.zero_grad()
        objective(model, batch, Draws(update)).total.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimiser.step()
    after = objective(model, batch, None).nll.item()
    assert math.isfinite(after)
    assert after < before
    sources = make_sources([source for source, _ in pairs], torch.device("cpu"))
    options = SearchOptions(beam=3, n_best=2, max_extra=2, max_ratio=1.0)
    for found in (greedy(ModelScorer(model), sources, options), beam(ModelScorer(model), sources, options)):
        assert len(found) == len(pairs)
        for hypotheses in found:
            assert hypotheses
            assert all(math.isfinite(h.score) and max(h.ids, default=0) < 12 for h in hypotheses)
            assert all(bool(h.attention) == DECODERS[whole.model.decoder.type].attends for h in hypotheses)


def test_another_seed_is_another_model(system):
    one, same, other = (dict(build(system.model, 12, 12, seed=s).named_parameters()) for s in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert all(torch.equal(one[name], other[name]) == (not one[name].any()) for name in one)


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_says_whether_it_attends(name, choices):
    attending = {
        config.model.attention is not None for config in choices["legal"].values() if name == config.model.decoder.type
    }
    assert attending == {DECODERS[name].attends}
