"""Every decoder of the table in a whole model: padding, hypotheses, precision, dropout, gradients and search."""

import math

import pytest
import torch

from rnnsearch.backend.twins import choose
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
from rnnsearch.tensors import select

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


def log_probs(model, pairs):
    """log p(y|x) of each sentence, in one batch."""
    batch = make_batch(pairs, range(len(pairs)))
    unrolled = model.unroll(batch.target.previous(), model.encode(batch.source.ids, batch.source.mask))
    log_p = model.output.log_probs(unrolled.readout).gather(2, batch.target.ids[:, :, None])[:, :, 0]
    return (log_p * batch.target.mask).sum(1)


@pytest.mark.parametrize("name", DECODERS)
def test_company_and_padding_make_no_difference(name):
    model = model_of(name).double()
    expected = torch.cat([log_probs(model, [pair]) for pair in PAIRS])
    torch.testing.assert_close(log_probs(model, PAIRS), expected, rtol=1e-10, atol=1e-10)
    assert expected.unique().numel() == len(PAIRS)


@pytest.mark.parametrize("name", DECODERS)
def test_unroll_is_the_step_repeated_in_dropout_too(name):
    """The decoder's own unroll against the contract's, with every kind of dropout that it takes."""
    layers = {"layers": 0.3} if "layers" in DECODERS[name].options else {}
    batch = make_batch(PAIRS, range(len(PAIRS)))
    results = []
    for plain in (False, True):
        model = model_of(name, embedding=0.2, state=0.3, **layers).double()
        choose(model, fast=not plain)
        memory = model.encode(batch.source.ids, batch.source.mask, Draws(1))
        y_prev = model.target_embedding(batch.target.previous())
        state = model.start(memory, Draws(2), batch.target.previous().shape[1])
        x = model.decoder.inputs(y_prev)
        reading = model.decoder.unroll(x, state, memory)
        readout = model.decoder.readout(y_prev, reading)
        assert readout.shape[-1] == model.decoder.readout_size
        model.output.losses(readout[batch.target.mask], batch.target.ids[batch.target.mask])[0].backward()
        results.append((readout, {n: p.grad for n, p in model.named_parameters()}))
    (readout, gradients), (again, gradients_again) = results
    torch.testing.assert_close(again, readout, rtol=1e-10, atol=1e-10)
    for parameter, gradient in gradients.items():
        assert gradient.any(), parameter
        torch.testing.assert_close(gradients_again[parameter], gradient, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", DECODERS)
def test_several_hypotheses_a_sentence(name):
    """Rows of a state in any order, three a sentence, go on as each would alone."""
    model = model_of(name).double()
    batch = make_batch(PAIRS, range(len(PAIRS)))
    memory = model.encode(batch.source.ids, batch.source.mask)
    _, state, _ = model.step(torch.tensor([2, 2, 2, 2]), model.start(memory), memory)
    words = torch.tensor([5, 8, 11] * 4)
    readout, _, alpha = model.step(words, select(state, torch.arange(4).repeat_interleave(3)), memory)
    for n in range(12):
        one = torch.tensor([n // 3])
        alone, _, alpha_alone = model.step(words[n : n + 1], select(state, one), select(memory, one))
        torch.testing.assert_close(readout[n], alone[0], rtol=1e-10, atol=1e-10)
        if alpha is not None:
            torch.testing.assert_close(alpha[n], alpha_alone[0], rtol=1e-10, atol=1e-10)


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
