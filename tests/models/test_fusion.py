"""Gates and readouts of a language model inside a translation model equal NumPy loops."""

import numpy as np
import pytest
import torch

from rnnsearch.config.language_model import ColdFusionOptions, DeepFusionOptions, LanguageModelConfig
from rnnsearch.config.outputs import GlorotOptions
from rnnsearch.models.decoders.readouts import Attentional, DeepOutput, TanhOutput
from rnnsearch.models.fusion import FUSIONS, ColdFusion, DeepFusion
from rnnsearch.models.layers import INITS, generator, initialise
from rnnsearch.text.vocabulary import BOS
from tests.models import reference as paper
from tests.models.reference import close

SYMBOLS, D, L = 9, 4, 3
NETWORKS = {
    "gru": {"type": "recurrent", "cell": "gru", "size": 5},
    "bengio": {"type": "feed-forward", "order": 3, "size": 5, "direct": True},
}


def language_model(network="gru", **more):
    return LanguageModelConfig.model_validate({"embedding": 2, "network": NETWORKS[network], **more})


def test_each_fusion_has_a_reference_equation():
    assert FUSIONS.keys() == {"deep", "cold"}


@pytest.mark.parametrize("network", NETWORKS)
def test_deep_fusion_scales_the_state_by_a_scalar_gate(network, drawn, numbers):
    """The readout reads g_t s^LM_t, where g_t = sigma(v_g^T s^LM_t + b_g) (Gulcehre et al. 2015, section 4.2.1)."""
    fusion, p = drawn(DeepFusion(DeepFusionOptions(folder="x"), language_model(network), SYMBOLS, D))
    s = fusion.model.unroll(torch.tensor([[BOS, 5, 7, 6]]))[0]
    for found, own in zip(fusion(s, numbers(4, D)), s.detach().numpy(), strict=True):
        gate = paper.sigma(sum(v * x for v, x in zip(p["vector"], own, strict=True)) + p["bias"][0])
        close(found, [gate * x for x in own])


def test_deep_fusion_gate_starts_at_a_quarter():
    """b_g = -1, so that g_t starts near 0.27 (Gulcehre et al. 2015, section 4.2.1)."""
    fusion = DeepFusion(DeepFusionOptions(folder="x"), language_model(), SYMBOLS, D)
    initialise(fusion, INITS["glorot"](GlorotOptions(), generator(1)))
    assert torch.sigmoid(fusion.bias).item() == pytest.approx(0.27, abs=0.01)


@pytest.mark.parametrize("output", [{}, {"output": {"type": "hierarchical", "classes": 3}}])
def test_cold_fusion_gates_each_unit_of_a_layer_over_scores(output, drawn, numbers):
    """g * h, h = DNN(l - max l), g = sigma(W [s; h] + b) (Sriram et al. 2017, eq. 4a to 4c)."""
    options = ColdFusionOptions(folder="x", size=3)
    fusion, p = drawn(ColdFusion(options, language_model(**output), SYMBOLS, D))
    readout, states = fusion.model.unroll(torch.tensor([[BOS, 5, 7, 6]]))[0], numbers(4, D)
    logits = fusion.model.output.logits(readout).detach().numpy()
    if not output:
        rows = readout.detach().numpy()
        np.testing.assert_allclose(
            logits, [paper.product(p["model.output.weight"], r) + p["model.output.bias"] for r in rows], rtol=1e-7
        )
    for found, own, s in zip(fusion(readout, states), logits, states.numpy(), strict=True):
        h = np.maximum(paper.product(p["scores.weight"], own - max(own)) + p["scores.bias"], 0.0)
        gates = paper.sigma(paper.product(p["gate.weight"], np.concatenate([s, h])) + p["gate.bias"])
        close(found, [g * x for g, x in zip(gates, h, strict=True)])


@pytest.mark.parametrize("kind", [DeepOutput, TanhOutput])
def test_readout_reads_the_language_model_state(kind, drawn, numbers):
    layer = kind(D, 2, 5, 6)
    layer.add_fusion(L)
    layer, p = drawn(layer)
    parts = [numbers(3, size) for size in (D, 2, 5, L)]
    for found, s, y, c, x in zip(layer(*parts), *(part.numpy() for part in parts), strict=True):
        sums = paper.product(p["state.weight"], s) + p["state.bias"] + paper.product(p["word.weight"], y)
        sums += paper.product(p["context.weight"], c) + paper.product(p["beside.weight"], x)
        close(found, np.tanh(sums) if kind is TanhOutput else [max(sums[k], sums[k + 1]) for k in range(0, 12, 2)])


def test_luong_attentional_state_reads_the_language_model_state(drawn, numbers):
    layer = Attentional(5, D, 6)
    layer.add_fusion(L)
    layer, p = drawn(layer)
    parts = [numbers(3, size) for size in (5, D, L)]
    for found, c, h, x in zip(layer(*parts), *(part.numpy() for part in parts), strict=True):
        sums = paper.product(p["combine.weight"], np.concatenate([c, h])) + paper.product(p["beside.weight"], x)
        close(found, np.tanh(sums))
