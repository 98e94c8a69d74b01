"""Fusion with a language model inside: training, search and scoring agree for every decoder that supports it."""

import itertools
import re

import pytest
import torch

from rnnsearch.config import ModelConfig
from rnnsearch.errors import ModelError
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.decoders import DECODERS
from rnnsearch.models.fusion import FUSIONS
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.search.decode import force_decode_all
from rnnsearch.search.model_scorer import ModelScorer, fastest_scorer
from rnnsearch.systems.folder import load_system, save_system
from rnnsearch.systems.translation import build
from rnnsearch.training.optimisers import make_optimiser
from rnnsearch.utils.weights import copy_weights, named_weights
from tests.properties.conftest import PAIRS, SYMBOLS, lively, same_by_columns_and_alone
from tests.untrained import BAHDANAU, untrained

LANGUAGE_MODEL = {
    "kind": "language-model",
    "embedding": 4,
    "network": {"type": "recurrent", "cell": "lstm", "size": 5, "layers": 2},
}
ABLE = [name for name, kind in DECODERS.items() if kind.readout_attribute is not None]
SOURCES = [source for source, _ in PAIRS]


def model_of(config, fusion: str | None, seed: int = 1):
    """Return a model with a language model inside, or without one if `fusion` is None."""
    options = config.model.model_dump()
    if fusion is not None:
        more = {"size": 3} if fusion == "cold" else {}
        options["language_model"] = {"type": fusion, "folder": "x", "model": LANGUAGE_MODEL, **more}
    return lively(build(ModelConfig.model_validate(options), SYMBOLS, SYMBOLS, seed)).eval()


@pytest.fixture(params=itertools.product(ABLE, FUSIONS), ids="-".join)
def fused(request, plainest):
    decoder, fusion = request.param
    return model_of(plainest(decoder, None), fusion)


def test_decoders_that_support_fusion():
    assert {"luong-input-feeding", "sutskever", "neubig", "rnmt-plus", "copynet"} == DECODERS.keys() - set(ABLE)


def test_unroll_equals_repeated_step(fused, batch):
    fused = fused.double()
    memory = fused.encode(batch.sources)
    unrolled, state = fused.unroll(batch.target.previous(), memory), fused.start(memory)
    for i, y in enumerate(batch.target.previous().unbind(1)):
        readout, state, _ = fused.step(y, state, memory)
        torch.testing.assert_close(readout, unrolled.readout[:, i], rtol=1e-6, atol=1e-6)


def test_search_training_and_scoring_give_equal_scores(fused, batch):
    found = same_by_columns_and_alone(fused, SOURCES, 3, torch.arange(SYMBOLS))
    assert any(h.ids for h in found)
    total = 0.0
    for (source, target), one in zip(PAIRS, _forced(fused), strict=True):
        assert len(one) == len(target) + 1, source
        total -= sum(one)
    assert total == pytest.approx(Likelihood()(fused, batch, None).nll.item(), rel=1e-4)


def _forced(model):
    return [h.token_scores for h in force_decode_all(ModelScorer(model), SOURCES, [target for _, target in PAIRS])]


def test_search_falls_back_to_native_products(fused):
    assert (
        fastest_scorer(fused, "fp32").description
        == "native products, fp32 (no native search: a language model is inside)"
    )


def test_closed_gate_equals_translation_model(plainest, batch):
    """b_g -> -inf removes the language model for any values of the readout's additional columns."""
    for decoder in ABLE:
        alone = model_of(plainest(decoder, None), None).double()
        fused = model_of(plainest(decoder, None), "deep", seed=2).double()
        copy_weights(fused, {**named_weights(fused), **named_weights(alone)})
        memory, previous = alone.encode(batch.sources), batch.target.previous()
        readout = alone.unroll(previous, memory).readout
        assert not torch.allclose(fused.unroll(previous, memory).readout, readout)
        fused.language_model.bias.data.fill_(-1e4)
        torch.testing.assert_close(fused.unroll(previous, memory).readout, readout)


@pytest.mark.parametrize("tie", ["none", "target"])
def test_deep_fusion_trains_only_output_and_gate(tie, batch):
    inside = {"type": "deep", "folder": "x", "model": LANGUAGE_MODEL}
    system = untrained({**BAHDANAU, "tie": tie, "embedding": 7, "language_model": inside})
    make_optimiser(system.parameter_groups(), system.config.training.optimiser)
    Likelihood(0.1)(system.model, batch, BatchRng(3)).total.backward()
    learned = {name for name, p in system.model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    readout = {"state.weight", "state.bias", "word.weight", "context.weight", "beside.weight"}
    expected = {f"decoder.deep_output.{name}" for name in readout} | {"language_model.vector", "language_model.bias"}
    assert learned == expected | {"output.bias"} | ({"output.weight"} if tie == "none" else set())
    assert {n for n, p in system.model.named_parameters() if p.requires_grad} == learned


@pytest.mark.parametrize("fusion", FUSIONS)
def test_folder_contains_the_language_model(fusion, tmp_path):
    system = untrained({**BAHDANAU, "language_model": {"type": fusion, "folder": "x", "model": LANGUAGE_MODEL}})
    save_system(tmp_path, system)
    again = load_system(tmp_path)
    assert named_weights(again.model).keys() == named_weights(system.model).keys()
    assert all(
        torch.equal(tensor, named_weights(again.model)[name]) for name, tensor in named_weights(system.model).items()
    )
    assert again.config.model == system.config.model
    assert _forced(again.model) == _forced(system.model.eval())


def test_folder_without_language_model_options_is_rejected(tmp_path):
    save_system(
        tmp_path, untrained({**BAHDANAU, "language_model": {"type": "deep", "folder": "x", "model": LANGUAGE_MODEL}})
    )
    text = (tmp_path / "config.toml").read_text()
    (tmp_path / "config.toml").write_text(re.sub(r"(?s)\[model\.language_model\.model\].*?(?=\[objective)", "", text))
    with pytest.raises(ModelError, match=r"model\.language_model\.model: is missing: training writes it"):
        load_system(tmp_path)


def test_cold_fusion_trains_everything_except_the_language_model(batch):
    inside = {"type": "cold", "folder": "x", "model": LANGUAGE_MODEL, "size": 6}
    system = untrained({**BAHDANAU, "language_model": inside})
    make_optimiser(system.parameter_groups(), system.config.training.optimiser)
    Likelihood(0.1)(system.model, batch, BatchRng(3)).total.backward()
    for name, parameter in system.model.named_parameters():
        assert (parameter.grad is None) == name.startswith("language_model.model."), name
