"""RNNsearch with its context fixed to the last forward state equals RNNencdec, with its gradients."""

import pytest
import torch

from rnnsearch.accel.registry import choose
from rnnsearch.config import AttentionConfig, ModelConfig
from rnnsearch.models.attention.attention import Attention, AttentionOutput
from rnnsearch.models.cells import CELLS
from rnnsearch.models.translation_model import TranslationModel, only_memory
from rnnsearch.systems.translation import build

SIZE, DIRECTION = 5, 4


class FixedContext(Attention):
    """Attention with the fixed context c_i = [forward h_Tx; 0], padded to the size of the annotations."""

    def step(self, query, state, memory, word=None):
        last = memory.mask.sum(1) - 1
        forward = memory.annotations[torch.arange(len(last)), last, :DIRECTION]
        context = torch.cat([forward, torch.zeros_like(forward)], 1)
        alpha = torch.nn.functional.one_hot(last, memory.mask.shape[1]).to(context.dtype)
        return AttentionOutput(alpha, context, None), state


def config_of(cell, attends):
    return ModelConfig(
        embedding=3,
        encoder={"type": "bidirectional" if attends else "unidirectional", "cell": cell, "size": DIRECTION},
        attention=AttentionConfig(size=4) if attends else None,
        decoder={
            "type": "bahdanau" if attends else "rnnencdec",
            "cell": cell,
            "size": SIZE,
            "maxout": 4,
            "first": "zero",
        },
    )


def both_models(cell) -> tuple[TranslationModel, TranslationModel]:
    """Return RNNencdec and RNNsearch with the same weights and a fixed context."""
    plain = build(config_of(cell, attends=False), 12, 12, seed=1).double()
    for p in plain.parameters():
        p.data.normal_(std=0.6, generator=torch.Generator().manual_seed(p.numel() + 1))
    search = build(config_of(cell, attends=True), 12, 12, seed=2).double()
    own = dict(plain.named_parameters())
    with torch.no_grad():
        for name, p in search.named_parameters():
            if name in own and own[name].shape == p.shape:
                p.copy_(own[name])
            elif name in own:  # C and C_o: only the columns for the forward half
                p[:, :DIRECTION].copy_(own[name])
    search.decoder.attention = FixedContext(config_of(cell, attends=True).attention, SIZE, 2 * DIRECTION).double()
    choose(search)
    return plain, search


@pytest.mark.parametrize("cell", CELLS)
def test_rnnsearch_with_fixed_context_equals_rnnencdec(cell, batch):
    plain, search = both_models(cell)
    results = []
    for model in (plain, search):
        memory = model.encode(batch.sources)
        if model is search:
            # Both compute s_0 from the forward h_Tx.
            forward = model.decoder.attention.step(None, None, only_memory(memory))[0].context[:, :DIRECTION]
            memory = {"source": only_memory(memory)._replace(summary=forward)}
        readout = model.unroll(batch.target.previous(), memory).readout[batch.target.mask]
        loss, _ = model.output.losses(readout, batch.target.ids[batch.target.mask])
        loss.backward()
        results.append((readout, loss))
    (readout, loss), (again, loss_again) = results
    torch.testing.assert_close(again, readout, rtol=0, atol=1e-12)
    torch.testing.assert_close(loss_again, loss)
    theirs = dict(search.named_parameters())
    for name, p in plain.named_parameters():
        gradient = theirs[name].grad
        if gradient.shape != p.shape:
            assert not gradient[:, DIRECTION:].any()
            gradient = gradient[:, :DIRECTION]
        torch.testing.assert_close(gradient, p.grad, rtol=1e-9, atol=1e-12)
        assert p.grad.any(), name
