"""The native recurrence of every combination equals its definition: results and gradients of all parameters."""

import pytest
import torch

from rnnsearch.accel.decoder_steps import DECODER_STEPS
from rnnsearch.accel.decoder_steps import SUPPORTED_FEATURES as NATIVE
from rnnsearch.accel.registry import choose
from rnnsearch.models.attention.features import FEATURES
from rnnsearch.models.attention.normalisers import Exponential
from rnnsearch.models.attention.windows import LocalPredictive
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.cells import RNMTLSTM
from rnnsearch.models.decoders.readouts import DeepOutput
from rnnsearch.models.decoders.stack_decoders import Luong
from rnnsearch.models.encoders import ConvolutionalEncoder
from rnnsearch.ops import recurrence
from rnnsearch.ops.native import library
from tests.properties.rounding import SEEDS, has_kinks, same_sides, sides

ROUNDING = {torch.float32: 5e-4, torch.bfloat16: 0.02}
"""Tolerance relative to a tensor's norm, in addition to eight times the error of the definition.

The error of the definition may be small by chance for one parameter, because a layer norm over six units amplifies
each bit. Therefore at least the mean relative error over all parameters is assumed.
"""


@pytest.fixture(params=list(library.DTYPE_NAMES), ids=str)
def kind(request):
    if library.unavailable_reason():
        pytest.skip(library.unavailable_reason())
    return request.param


def outcome(model, batch, kind, fast):
    """Return what the readout reads in training with dropout, and the gradients of a random weighting of it."""
    choose(model, fast)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
        rng = BatchRng(3)
        memory = model.encode(batch.sources, rng)
        unrolled = model.unroll(batch.target.previous(), memory, rng)
    read = [part.float() for part in (unrolled.readout, *unrolled.reading[:3]) if part is not None]
    generator = torch.Generator().manual_seed(7)
    total = sum((part * torch.randn(part.shape, generator=generator)).sum() for part in read)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    given = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    return [part.detach() for part in read], dict(zip(parameters, given, strict=True))


@pytest.fixture
def ran(monkeypatch):
    """Return a list of the steps that run natively."""
    steps, run = [], recurrence.run
    monkeypatch.setattr(recurrence, "run", lambda step, *given: steps.append(step) or run(step, *given))
    return steps


def test_native_recurrence_equals_repeated_step(whole, make, batch, kind, ran):
    """bf16 uses the first model without values that cross a discontinuity by rounding."""
    for seed in SEEDS:
        model = make(whole, seed)
        ran.clear()  # steps of the comparison made at build time
        read, gradients = outcome(model, batch, kind, fast=True)
        if not ran:
            pytest.skip("no part of it has a native recurrence")
        if kind is torch.float32 or not has_kinks(model) or steady(model, batch, kind, read):
            compare(model, batch, kind, read, gradients)
            return
    pytest.fail("rounding steps over a kink with every seed")


def steady(model, batch, kind, read):
    """Return True if rounding moves no value across a discontinuity, in the definition and in native maxout.

    Zero weights show the positions outside a window.
    """

    def taken(kind, fast, *kinds):
        with sides(model, *kinds) as found:
            outcome(model, batch, kind, fast)
        return found

    if any(isinstance(part, LocalPredictive) for part in model.modules()):
        *_, alpha = outcome(model, batch, torch.float32, fast=False)[0]
        if not torch.equal(alpha > 0, read[-1] > 0):
            return False
    exact, maxout = (taken(torch.float32, False, *kinds) for kinds in ((), (DeepOutput,)))
    return same_sides(exact, taken(kind, False)) and same_sides(maxout, taken(kind, True, DeepOutput))


@pytest.mark.parametrize("feature", [None, *(name for name, kind in FEATURES.items() if kind in NATIVE)])
@pytest.mark.parametrize(
    "decoder",
    [decoder.component.name() for decoder in DECODER_STEPS if decoder.component.attends and decoder is not Luong],
)
def test_native_recurrence_in_even_sizes_equals_repeated_step(decoder, feature, plainest, make, batch, kind, ran):
    """Combinations in the covering set may have odd sizes, which bf16 leaves to PyTorch."""
    model = make(plainest(decoder, feature))
    ran.clear()
    read, gradients = outcome(model, batch, kind, fast=True)
    remembers = feature is not None and FEATURES[feature].is_sequential
    assert [len(step.source.features) for step in ran if step.source] == [int(remembers)]
    compare(model, batch, kind, read, gradients)


def test_attentional_bias_has_a_gradient_of_every_position(plainest, make, batch, kind, ran):
    """h~ is fed back, so the bias affects all later positions."""
    plain = plainest("luong-input-feeding", None)
    decoder = plain.model.decoder.model_copy(update={"attentional": "tanh-bias"})
    model = make(plain.model_copy(update={"model": plain.model.model_copy(update={"decoder": decoder})}))
    model.decoder.attentional.combine.bias.data.normal_(generator=torch.Generator().manual_seed(2))
    ran.clear()
    read, gradients = outcome(model, batch, kind, fast=True)
    assert len([step for step in ran if step.source]) == 1
    assert gradients["decoder.attentional.combine.bias"] is not None
    compare(model, batch, kind, read, gradients)


UNSTEADY = {RNMTLSTM: 16.0, Exponential: 16.0, ConvolutionalEncoder: 32.0}
"""Maximum error of modules that amplify rounding, as a multiple of the error of the definition.

Their outputs are unbounded, or a maximum changes its argument. With the exponential normaliser, the median ratio over
40 models is 1, and the ratios are between 1/17 and 17.
"""


def compare(model, batch, kind, read, gradients):
    exact, exact_gradients = outcome(model, batch, torch.float32, fast=False)
    other, other_gradients = outcome(model, batch, kind, fast=False)
    scale = 1e-2 * max(float(d.norm()) for d in exact_gradients.values() if d is not None)
    times = 8.0
    for part in model.modules():
        times = max(times, UNSTEADY.get(type(part), 0.0))
    for got, want, rounded in zip(read, exact, other, strict=True):
        assert_near(got, want, rounded, kind, "read", times=times)
    off = [
        float((other_gradients[name] - d).norm() / d.norm().clamp(min=scale))
        for name, d in exact_gradients.items()
        if d is not None
    ]
    typical = sum(off) / len(off)
    for name, want in exact_gradients.items():
        assert (gradients[name] is None) == (want is None), name
        if want is not None:
            assert_near(gradients[name], want, other_gradients[name], kind, name, scale, times, typical)


def assert_near(got, want, rounded, kind, name, scale=1e-2, times=8.0, typical=0.0):
    norm = float(want.norm())
    allowed = ROUNDING[kind] * max(norm, scale) + times * max(float((rounded - want).norm()), typical * norm)
    assert float((got - want).norm()) <= allowed, name
