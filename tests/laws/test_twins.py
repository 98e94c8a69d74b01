"""Every fast twin equals its plain definition: what it gives, and the gradients of everything it reads."""

import pytest
import torch

from rnnsearch.backend.twins import choose
from rnnsearch.config import AttentionConfig
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.bahdanau import Bahdanau
from rnnsearch.models.memory import Encoded
from rnnsearch.tensors import lengths_mask

LENGTHS = torch.tensor([3, 1, 5])


def numbers(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def lively(module):
    for n, parameter in enumerate(module.double().parameters()):
        parameter.data.copy_(numbers(n, *parameter.shape) * 0.6)
    choose(module)
    return module


def bahdanau():
    attention = Attention.make(AttentionConfig(score="additive", size=5), 4, 6)
    return lively(Bahdanau(CELLS["gru"], attention, 3, 6, 2, 4, 5))


def gradients(outputs, inputs):
    """Of a random weighting of all outputs, so that every output's gradient matters."""
    total = sum((out * numbers(50 + n, *out.shape).to(out.dtype)).sum() for n, out in enumerate(outputs))
    return torch.autograd.grad(total, inputs)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_sequence(name, backward):
    cell, x, mask = lively(CELLS[name](3, 4)), numbers(20, 3, 5, 3).requires_grad_(), lengths_mask(LENGTHS, 5)
    results = []
    for fast in (True, False):
        choose(cell, fast)
        outputs, last = cell.sequence(x, mask, backward)
        # What stands on padding is nobody's business: the mask is the contract.
        outputs = outputs[mask]
        results.append((outputs, *last, *gradients((outputs, *last), (x, *cell.parameters()))))
    for fast, plain in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1, 2)], ids=["state", "context", "alpha", "all"])
def test_unroll_of_rnnsearch(wanted):
    """Gradients into each of state, context and alpha, for objectives may read any of a reading's fields."""
    decoder, mask = bahdanau(), lengths_mask(LENGTHS, 5)
    words, annotations = numbers(21, 3, 4, 3).requires_grad_(), numbers(22, 3, 5, 6).requires_grad_()
    summary = numbers(23, 3, 2).requires_grad_()
    results = []
    for fast in (True, False):
        choose(decoder, fast)
        memory = decoder.remember(Encoded(annotations, mask, summary, ()))
        reading = decoder.unroll(decoder.inputs(words), decoder.start(memory), memory)
        read = [p for n, p in decoder.named_parameters() if not n.startswith("deep_output")]
        assert reading.expected is None
        results.append((*reading[:3], *gradients([reading[n] for n in wanted], (words, annotations, summary, *read))))
    for fast, plain in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-11)


def test_twins_by_finite_differences():
    decoder, mask = bahdanau(), lengths_mask(LENGTHS[:2], 3)

    def read(words, annotations, summary):
        memory = decoder.remember(Encoded(annotations, mask, summary, ()))
        return tuple(decoder.unroll(decoder.inputs(words), decoder.start(memory), memory))[:3]

    inputs = [numbers(21, 2, 3, 3), numbers(22, 2, 3, 6), numbers(23, 2, 2)]
    assert torch.autograd.gradcheck(read, [x.requires_grad_() for x in inputs])


def test_twins_in_bf16_are_as_near_as_the_plain_step_is():
    exact, rounded = {}, {}
    for products in (torch.float32, torch.bfloat16):
        for name in ("fast", "plain"):
            decoder = bahdanau().float()
            choose(decoder, name == "fast")
            x = [numbers(seed, *shape).float().requires_grad_() for seed, shape in ((1, (3, 4, 3)), (2, (3, 5, 6)))]
            with torch.autocast("cpu", products, enabled=products == torch.bfloat16):
                memory = decoder.remember(Encoded(x[1], lengths_mask(LENGTHS, 5), numbers(3, 3, 2).float(), ()))
                reading = decoder.unroll(decoder.inputs(x[0]), decoder.start(memory), memory)
            assert reading.alpha.dtype == torch.float32
            found = torch.cat([g.flatten().float() for g in gradients([r.float() for r in reading[:3]], x)])
            (exact if products == torch.float32 else rounded)[name] = found
    off = {name: ((rounded[name] - exact[name]).norm() / exact[name].norm()).item() for name in exact}
    assert 0 < off["fast"] < max(0.03, 2 * off["plain"])


@pytest.mark.parametrize("what", ["attention", "score"])
def test_a_class_derived_from_a_fused_one_is_not_taken_for_it(what):
    """A twin knows its own equations alone: a subclass that changes a step must not be bypassed."""
    decoder = bahdanau()
    part = decoder.attention if what == "attention" else decoder.attention.score
    part.__class__ = type("Derived", (type(part),), {})
    choose(decoder)
    calls = []
    part.register_forward_hook(lambda *_: calls.append(1))
    decoder.attention.score.register_forward_hook(lambda *_: calls.append(1))
    memory = decoder.remember(Encoded(numbers(1, 3, 5, 6), lengths_mask(LENGTHS, 5), numbers(2, 3, 2), ()))
    decoder.unroll(decoder.inputs(numbers(3, 3, 4, 3)), decoder.start(memory), memory)
    assert calls
