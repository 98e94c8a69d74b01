"""Every decoder of the table in a whole model: padding, hypotheses, precision, dropout, gradients and search."""

import math

import pytest
import torch

from rnnsearch.config import resolve
from rnnsearch.data.batches import make_batch
from rnnsearch.models.build import check
from rnnsearch.models.decoders.table import DECODERS
from rnnsearch.models.draws import Draws
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.search.beam import beam
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import make_sources
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.systems.build import build

OPTIONS = {
    "cell": "gru",
    "maxout": 6,
    "readout": 6,
    "layers": 2,
    "bridge": "learned",
    "transitions": 1,
    "slots": 3,
    "slot_size": 4,
}
PAIRS = [([5, 6, 7, 8], [4, 5]), ([9], [6, 7, 8, 9, 10]), ([10, 4], [11]), ([7, 7, 7, 5, 6, 11], [])]


def config_of(name, over=None, **dropout):
    """A run file's config of one decoder; `over`: other options of it."""
    decoder = DECODERS[name]
    options = {option: OPTIONS[option] for option in decoder.options} | (over or {})
    encoder = {"type": "bidirectional" if decoder.attends or "bridge" in decoder.options else "unidirectional"}
    model = {
        "embedding": 6,
        "encoder": encoder | {"cell": "gru", "size": 5},
        "decoder": {"type": name, "size": 7, **options},
        "dropout": dropout,
        **({"attention": {"size": 4}} if decoder.attends else {}),
    }
    data = {"source": "en", "target": "de", "corpus": "x"}
    return resolve({"data": data, "model": model, "training": {"max_epochs": 1}})


def model_of(name, over=None, **dropout):
    """A model of lively weights over 12 symbols a side."""
    config = config_of(name, over, **dropout)
    assert check(config) == []
    model = build(config.model, 12, 12, seed=1)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.4)
    return model


@pytest.mark.parametrize("name", DECODERS)
def test_bf16_differs_by_rounding_alone(name):
    batch = make_batch(PAIRS, range(len(PAIRS)))
    totals = []
    for on in (False, True):
        model = model_of(name, state=0.2)
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            loss = likelihood(0.1)(model, batch, Draws(1))
        loss.total.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        totals.append(loss.total.item())
    assert totals[1] != totals[0]
    assert totals[1] == pytest.approx(totals[0], rel=0.03)


@pytest.mark.parametrize("name", DECODERS)
def test_search(name):
    sources = make_sources([source for source, _ in PAIRS], torch.device("cpu"))
    found = beam(ModelScorer(model_of(name)), sources, SearchOptions(beam=3, n_best=2, max_extra=2, max_ratio=1.0))
    assert len(found) == len(PAIRS)
    for hypotheses in found:
        assert hypotheses
        assert all(math.isfinite(h.score) and bool(h.attention) == DECODERS[name].attends for h in hypotheses)


@pytest.mark.parametrize("name", [name for name, kind in DECODERS.items() if kind.optional])
def test_a_residual_connection_makes_a_difference_and_must_be_at_a_layer(name):
    assert DECODERS[name].optional == {"residual_from"}
    plain, residual = model_of(name), model_of(name, {"residual_from": 2})
    assert not torch.equal(log_probs(plain, PAIRS), log_probs(residual, PAIRS))
    assert check(config_of(name, {"residual_from": 3})) == [
        "model.decoder.residual_from: must be at most model.decoder.layers (2); got 3"
    ]


@pytest.mark.parametrize("name", DECODERS)
def test_options_without_effect_are_refused_and_needed_ones_asked_for(name):
    decoder = DECODERS[name]
    for option, value in OPTIONS.items():
        if option in decoder.options:
            faults = check(config_of(name, {option: None}))
            assert f"model.decoder.{option}: must be given for the {name} decoder" in faults
        else:
            faults = check(config_of(name, {option: value}))
            assert (
                f'model.decoder.{option}: has no effect with the {name} decoder; remove it (or say "unset")' in faults
            )


def test_unfit_bridges():
    fault = 'model.decoder.bridge: "zero" would leave the sutskever decoder without any sight of the source; '
    assert check(config_of("sutskever", {"bridge": "zero"})) == [f'{fault}use "copy" or "learned"']
    assert check(config_of("luong", {"bridge": "zero"})) == []
    (fault,) = check(config_of("luong", {"bridge": "copy"}))
    assert fault.startswith('model.decoder.bridge: "copy" needs as many encoder layers as decoder layers; got 1 and 2')
    (fault,) = check(config_of("neubig", {"bridge": "learnt"}))
    assert fault == 'model.decoder.bridge: must be one of zero, copy, learned; got "learnt" (did you mean "learned"?)'


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("luong", "so model.decoder.readout must equal model.embedding (6); got 5"),
        ("cgru", "so model.decoder.readout must equal model.embedding (6); got 5"),
        ("bahdanau", "so model.decoder.maxout must equal model.embedding (6); got 5"),
        ("sutskever", "so model.decoder.size must equal model.embedding (6); got 5"),
        ("neubig", "which the neubig decoder's two-part readout does not fit; remove it"),
        ("rnmt-plus", "which the rnmt-plus decoder's two-part readout does not fit; remove it"),
    ],
)
def test_tied_embeddings_fit_the_readout(name, fault):
    option = DECODERS[name].readout_option or "size"
    config = config_of(name, {option: 5})
    tied = config.model_copy(update={"model": config.model.model_copy(update={"tie": "target"})})
    assert [f.split(", ", 1)[1] for f in check(tied) if f.startswith("model.tie:")] == [fault]
