"""Every decoder of the table in a whole model: padding, hypotheses, precision, dropout, gradients and search."""

import math

import pytest
import torch

from rnnsearch.config import ModelConfig, decoders
from rnnsearch.data.batches import make_batch
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


def tables_of(name, over=None, **dropout):
    """`[model]` with one decoder; `over`: other options of it."""
    decoder, needed = DECODERS[name], decoders.DECODERS[name].own()
    options = {option: OPTIONS[option] for option in needed if option in OPTIONS} | (over or {})
    encoder = {"type": "bidirectional" if decoder.attends or "bridge" in needed else "unidirectional"}
    return {
        "embedding": 6,
        "encoder": encoder | {"cell": "gru", "size": 5},
        "decoder": {"type": name, "size": 7, **options},
        "dropout": dropout,
        **({"attention": {"size": 4}} if decoder.attends else {}),
    }


def model_of(name, over=None, **dropout):
    """A model of lively weights over 12 symbols a side."""
    model = build(ModelConfig.model_validate(tables_of(name, over, **dropout)), 12, 12, seed=1)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.4)
    return model


def log_probs(model, pairs):
    """log p(y|x) of each sentence, in one batch."""
    batch = make_batch(pairs, range(len(pairs)))
    unrolled = model.unroll(batch.target.previous(), model.encode(batch.sources))
    log_p = model.output.log_probs(unrolled.readout).gather(2, batch.target.ids[:, :, None])[:, :, 0]
    return (log_p * batch.target.mask).sum(1)


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


@pytest.mark.parametrize("name", [name for name, kind in decoders.DECODERS.items() if "residual_from" in kind.own()])
def test_a_residual_connection_makes_a_difference(name):
    plain, residual = model_of(name), model_of(name, {"residual_from": 2})
    batch = make_batch(PAIRS, range(len(PAIRS)))
    assert likelihood()(plain, batch, None).nll != likelihood()(residual, batch, None).nll


@pytest.mark.parametrize(
    ("name", "over", "tie", "fault"),
    [
        (
            "luong",
            {"residual_from": 3},
            "none",
            "decoder.residual_from: must be at most model.decoder.layers (2)",
        ),
        (
            "sutskever",
            {"bridge": "zero"},
            "none",
            'decoder.bridge: "zero" would leave the sutskever decoder without',
        ),
        ("luong", {"bridge": "zero"}, "none", None),
        ("luong", {"bridge": "copy"}, "none", 'decoder.bridge: "copy" needs as many encoder layers as decoder layers'),
        ("neubig", {"bridge": "learnt"}, "none", "decoder.bridge: must be one of zero, copy, learned"),
        ("cgru", {"slots": 3}, "none", "decoder.slots: has no effect with the cgru decoder; remove it"),
        ("cgru", {"slts": 3}, "none", 'decoder.slts: there is no such option (did you mean "slots"?)'),
        ("cgru", {"readout": None}, "none", "decoder.readout: must be given for the cgru decoder"),
        (
            "cgru",
            {"readout": 5},
            "target",
            'tie: "target" shares the embeddings with the output rows, so model.decoder',
        ),
        (
            "sutskever",
            {"size": 5},
            "target",
            'tie: "target" shares the embeddings with the output rows, so model.decoder',
        ),
        ("neubig", {}, "target", 'tie: "target" shares the embeddings with the output rows, which the neubig decoder'),
        ("cgru", {"readout": 6}, "target", None),
    ],
)
def test_what_does_not_fit_is_refused(name, over, tie, fault, faults):
    found = faults({"model": tables_of(name, over) | {"tie": tie}})
    assert [text[: len(fault or "") + 6] for text in found] == ([f"model.{fault}"] if fault else [])
