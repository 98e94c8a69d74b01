"""Results do not depend on padding, the order of the batch, its other rows, or the implementation."""

import math
from dataclasses import replace

import pytest
import torch

from rnnsearch.accel.registry import choose
from rnnsearch.data.batch import Stream
from rnnsearch.data.batches import make_batch
from rnnsearch.models.attention.normalisers import NORMALISERS, Exponential, Monotonic, Softmax
from rnnsearch.models.attention.windows import WINDOWS, Global, Mixture
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.encoders import ENCODERS
from rnnsearch.models.translation_model import only_memory
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.text.vocabulary import PAD
from rnnsearch.utils.tensors import leaves, select, stack


def scores(model, batch):
    """Return log p(y|x) of each sentence."""
    with torch.no_grad():
        unrolled = model.unroll(batch.target.previous(), model.encode(batch.sources))
        log_p = model.output.log_probs(unrolled.readout).gather(2, batch.target.ids[:, :, None])[:, :, 0]
    return (log_p * batch.target.mask).sum(1)


def wider(batch, symbol):
    """Return the batch with three more columns of padding on source and target and with any token id as padding."""

    def widen(side):
        more = side.ids.new_full((len(side.ids), 3), symbol)
        ids = torch.cat([torch.where(side.mask, side.ids, symbol), more], 1)
        mask = torch.cat([side.mask, torch.zeros_like(more, dtype=torch.bool)], 1)
        return Stream(ids, mask, mask.flatten().nonzero()[:, 0])

    return replace(batch, streams={name: widen(side) for name, side in batch.streams.items()})


def learns(config, name):
    """Return True if a parameter has a gradient without REINFORCE, which sampled selections require."""
    attention = config.model.attention
    if name.startswith(("encoder.choice.", "encoder.chooser.")):
        return False
    return attention is None or not NORMALISERS[attention.normaliser].component.needs_noise or ".attention." not in name


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_weights_sum_to_one_and_are_zero_on_padding(system, make, batch):
    """The property holds over annotations and over the source positions they cover.

    A window with weights reduces the sum. A bounded window or a normaliser other than softmax also gives zeros
    elsewhere.
    """
    model = make(system).double()
    memories = model.encode(batch.sources)
    memory, alpha = only_memory(memories), model.unroll(batch.target.previous(), memories).reading.alpha
    if system.model.attention is None:
        assert alpha is None
        return
    window, normaliser = WINDOWS[system.model.attention.window.type], NORMALISERS[system.model.attention.normaliser]
    for weights, mask in ((alpha, memory.mask), (memory.to_source(alpha), batch.source.mask)):
        total = weights.sum(2)
        if normaliser in (Exponential, Monotonic):
            assert (total.isfinite() & (total >= 0)).all(), (
                "exponential weights are unbounded, monotonic weights may be zero"
            )
        elif window.component.has_factor:
            assert ((total > 0) & (total < (math.inf if window is Mixture else 1))).all()
        else:
            close(total, torch.ones_like(total))
        outside = ~mask[:, None].expand_as(weights)
        assert outside.any()
        assert not weights[outside].any()
        # Location scores ignore words near the end of long sources.
        known = system.model.attention.score.type != "location"
        if window is Global and normaliser is Softmax and known:
            assert (weights[~outside] > 0).all()
        else:
            assert (weights >= 0).all()


@pytest.mark.parametrize("symbol", [PAD, 7])
def test_padding_does_not_change_results(symbol, system, make, batch, pairs):
    model = make(system).double()
    expected = torch.stack([scores(model, make_batch([pair], [0]))[0] for pair in pairs])
    close(scores(model, batch), expected)
    close(scores(model, wider(batch, symbol)), expected)
    assert expected.unique().numel() == len(pairs)


def test_padding_has_no_gradient(system, make, batch):
    """Loss and gradients do not depend on the number or ids of padding tokens."""
    gradients = []
    for padded in (batch, wider(batch, 7)):
        model = make(system).double()
        Likelihood(0.1)(model, padded, None).total.backward()
        learning = ((name, p.grad) for name, p in model.named_parameters() if p.requires_grad and learns(system, name))
        gradients.append(dict(learning))
    for name, gradient in gradients[0].items():
        close(gradients[1][name], gradient)


def test_results_do_not_depend_on_batch_order(system, make, batch, pairs):
    model = make(system).double()
    order = [2, 0, 3, 1]
    turned = make_batch([pairs[i] for i in order], order)
    close(scores(model, turned), scores(model, batch)[order])


def test_unroll_equals_repeated_step(system, make, batch):
    """Readouts, weights and all gradients equal those of the calls that search makes.

    Hard attention learns only by REINFORCE; without it, the parameters of its energies have no gradient.
    """
    results = []
    for step_by_step in (False, True):
        model = make(system).double()
        memory = model.encode(batch.sources)
        if step_by_step:
            state, readouts, alphas = model.start(memory), [], []
            for y in batch.target.previous().unbind(1):
                readout, state, alpha = model.step(y, state, memory)
                readouts.append(readout)
                alphas.append(alpha)
            readout = torch.stack(readouts, 1)
            alpha = None if not alphas[0] else stack(alphas, 1)["source"]
        else:
            unrolled = model.unroll(batch.target.previous(), memory)
            readout, alpha = unrolled.readout, unrolled.reading.alpha
            # A merging encoder has few annotations, so each window may contain only one.
            one_alone = alpha is not None and bool(((alpha > 0).sum(-1) <= 1).all())
            alpha = None if alpha is None else only_memory(memory).to_source(alpha)
        model.output.losses(readout[batch.target.mask], batch.target.ids[batch.target.mask])[0].backward()
        learning = {name: p.grad for name, p in model.named_parameters() if p.requires_grad and learns(system, name)}
        assert all(p.grad is None for name, p in model.named_parameters() if name not in learning)
        results.append((readout, alpha, learning))
    (readout, alpha, gradients), (again, alpha_again, gradients_again) = results
    close(again, readout)
    assert (alpha is None) == (alpha_again is None) == (system.model.attention is None)
    if alpha is not None:
        close(alpha_again, alpha)
    attention = system.model.attention
    cornered = attention is not None and attention.normaliser == "sparsemax"
    # The gradient may be 0: monotonic attention may select no position, and with equal energies the first one is
    # best.
    blind = attention is not None and (attention.normaliser == "monotonic" or attention.score.type == "even")
    blind = blind or (one_alone and ENCODERS[system.model.encoder.type].merges_positions)
    # Coverage affects weights from the second position on, and its recurrent state from the third. If the window
    # contains only one annotation there, the gradient is 0; with a merging encoder this may hold at all positions but
    # the first.
    narrow = attention is not None and attention.window.type in ("local-m", "local-p")
    few = narrow and ENCODERS[system.model.encoder.type].merges_positions
    options = (getattr(system.model.decoder, name, None) for name in ("cell", "bridge"))
    # An SSRU carries only its memory cell, so a bridge's layer for h has no effect.
    unread = ("decoder.bridge.layers.0.",) if [*options] == ["ssru", "rectified"] else ()
    for name, gradient in gradients.items():
        close(gradients_again[name], gradient)
        if name.startswith(unread):
            assert gradient is None
            continue
        # Sparsemax weights of exactly 0 and 1 have no gradient.
        told = (cornered and ".attention.score." in name) or (narrow and ".features.0.cell.recurrent" in name)
        told = told or (few and (".features.0.cell." in name or ".feature_weights.0." in name))
        assert gradient.any() or blind or told, name


def test_fast_implementations_equal_definitions_with_the_same_rng(system, make, batch):
    def loss_and_gradients(seed, fast=True):
        model = make(system).double()
        choose(model, fast)
        loss = Likelihood(0.1)(model, batch, BatchRng(seed))
        loss.total.backward()
        learning = ((name, p.grad) for name, p in model.named_parameters() if p.requires_grad and learns(system, name))
        return loss.total.detach(), dict(learning)

    total, gradients = loss_and_gradients(1)
    assert loss_and_gradients(2)[0] != total
    plain_total, plain_gradients = loss_and_gradients(1, fast=False)
    close(plain_total, total)
    for name, gradient in gradients.items():
        close(plain_gradients[name], gradient)


def test_fast_implementations_have_gradients_of_each_output(system, make, batch):
    """Objectives may read any single field of a reading."""
    results = []
    for fast in (True, False):
        model = make(system).double()
        choose(model, fast)
        reading = model.unroll(batch.target.previous(), model.encode(batch.sources)).reading
        parts = [part for part in reading[:4] if part is not None and part.requires_grad]
        parameters, found = [p for p in model.parameters() if p.requires_grad], [*parts]
        for part in parts:
            total = (part * torch.linspace(-1, 1, part.numel(), dtype=part.dtype).view_as(part)).sum()
            found += torch.autograd.grad(
                total, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        results.append(found)
    for fast, plain in zip(*results, strict=True):
        close(fast, plain)


def test_hypotheses_of_a_sentence_are_independent(system, make, batch):
    """N = B * K rows over B memory rows equal rows with one copy of the memory each."""
    model = make(system).double()
    memory = model.encode(batch.sources)
    rows = torch.arange(len(batch.source.ids)).repeat_interleave(3)
    y = torch.randint(4, 12, (len(rows),), generator=torch.Generator().manual_seed(2))
    one_each = select(memory, rows)
    together, alone = select(model.start(memory), rows), model.start(one_each)
    for _ in range(2):
        readout, together, alpha = model.step(y, together, memory)
        expected, alone, expected_alpha = model.step(y, alone, one_each)
        close(readout, expected)
        assert alpha.keys() == expected_alpha.keys()
        for name, weights in alpha.items():
            close(weights, expected_alpha[name])
        y = y.roll(1)


def test_several_rows_per_sentence_unroll_with_gradients(system, make, batch):
    """N = 3 B sampled rows over B memory rows equal each sentence repeated three times, gradients included."""
    B, K = len(batch.source.ids), 3
    sampled = torch.randint(4, 12, (B * K, 5), generator=torch.Generator().manual_seed(4))
    results = []
    for times in (1, K):
        model = make(system).double()
        repeated = batch.source.ids.repeat_interleave(times, dim=0)
        unrolled = model.unroll(sampled, model.encode({"source": Stream.from_ids(repeated)}))
        weight = torch.linspace(-1, 1, unrolled.readout.numel(), dtype=torch.float64).view_as(unrolled.readout)
        (unrolled.readout * weight).sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append((gradients, [*leaves(unrolled)]))
    (gradients, found), (expected_gradients, expected) = results
    assert gradients.keys() == expected_gradients.keys()
    for own, other in zip([*found, *gradients.values()], [*expected, *expected_gradients.values()], strict=True):
        close(own, other)


def test_states_and_memories_have_the_batch_axis_first(system, make, batch):
    model = make(system)
    memory = model.encode(batch.sources)
    found = leaves((memory, model.start(memory)))
    assert len(found) >= 4
    assert {len(leaf) for leaf in found} == {len(batch.source.ids)}
    assert not list(model.buffers())
