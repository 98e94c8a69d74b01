"""Fast implementations are used only if they equal the definitions: an edited equation takes effect everywhere."""

import logging

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rnnsearch.accel import verification
from rnnsearch.accel.registry import FAST_IMPLEMENTATIONS, FAST_SWITCH, FastImplementation, choose, describe_training
from rnnsearch.accel.verification import INFERENCE, TRAINING, Conditions
from rnnsearch.config import ModelConfig
from rnnsearch.engine.structs import DType
from rnnsearch.errors import RnnsearchError
from rnnsearch.export import engine_file
from rnnsearch.models.attention.normalisers import AttentionWeights, Softmax
from rnnsearch.models.attention.scores import TanhScore
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.cells import GRU
from rnnsearch.models.decoders.readouts import DeepOutput
from rnnsearch.models.encoders import Bidirectional
from rnnsearch.models.layers import Linear
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.ops.linear import PackedWeight
from rnnsearch.ops.native.library import library
from rnnsearch.search.decode import force_decode_all
from rnnsearch.search.model_scorer import ModelScorer, NativeScorer, NativeStepScorer, fastest_scorer
from rnnsearch.search.ranking import LENGTH_NORMS, MEAN_LOG_PROB
from rnnsearch.systems.translation import build
from tests.properties.conftest import PAIRS, SYMBOLS, lively

needs_native_code = pytest.mark.skipif(library() is None, reason="there is no native code")

GLOBAL_WINDOW = "its window sees all positions"
RNNSEARCH = {
    "embedding": 7,
    "encoder": {"type": "bidirectional", "cell": "gru", "size": 18},
    "attention": {"score": "additive", "size": 20},
    "decoder": {"type": "bahdanau", "cell": "gru", "size": 35, "maxout": 9},
}


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch):
    """Clear the cache of results, so that each test compares again."""
    monkeypatch.setattr(verification, "_problems", {})


def rnnsearch():
    return lively(build(ModelConfig.model_validate(RNNSEARCH), SYMBOLS, SYMBOLS, seed=1)).eval()


def training_loss(model, batch):
    return Likelihood(0.1)(model, batch, BatchRng(1)).total.item()


def scores(scorer):
    sources, targets = zip(*PAIRS, strict=True)
    return [hypothesis.log_prob for hypothesis in force_decode_all(scorer, sources, targets, MEAN_LOG_PROB)]


def uniform(_self, energy, *_):
    allowed = (energy > -torch.inf).float()
    return AttentionWeights(allowed / allowed.sum(-1, keepdim=True))


def leaky_next(self, x, h, state):
    new = gru_next(self, x, h, state)
    return new._replace(h=0.9 * new.h)


def negative_score(self, query, keys, extra=None):
    return -score(self, query, keys, extra)


gru_next = GRU.next
score = TanhScore.forward
EDITS = {
    "normaliser": (Softmax, "forward", uniform, ["Bahdanau"]),
    "cell": (GRU, "next", leaky_next, ["GRU", "Bahdanau"]),
    "score": (TanhScore, "forward", negative_score, ["Bahdanau"]),
    "readout": (DeepOutput, "activation", lambda _, hidden: hidden[..., ::2], []),
    "encoder": (Bidirectional, "encode", None, []),
}
"""Class, method, replacement, and the classes whose fast training implementation then differs."""


def edit(monkeypatch, name):
    cls, method, replacement, classes = EDITS[name]
    if name == "encoder":
        definition = Bidirectional.encode

        def replacement(self, *args):
            encoded = definition(self, *args)
            return encoded._replace(annotations=0.5 * encoded.annotations)

    assert hasattr(cls, method)
    monkeypatch.setattr(cls, method, replacement)
    return classes


@pytest.mark.parametrize("name", EDITS)
def test_edited_definition_takes_effect_in_training_and_search(name, batch, monkeypatch, caplog):
    unedited = rnnsearch()
    loss_before = training_loss(unedited, batch)
    scores_before = scores(fastest_scorer(unedited, "fp32").scorer)
    assert not caplog.records
    classes = edit(monkeypatch, name)
    model = rnnsearch()
    for cls in classes:
        assert f"the fast implementation of {cls} (rnnsearch/models/" in caplog.text
    if classes:
        assert "the fast implementation differs from the definition" in describe_training(model)
    loss = training_loss(model, batch)
    result = scores(fastest_scorer(model, "fp32").scorer)
    assert abs(loss - loss_before) > 1e-3
    assert max(abs(a - b) for a, b in zip(result, scores_before, strict=True)) > 1e-3
    choose(model, fast=False)
    assert loss == pytest.approx(training_loss(model, batch), rel=1e-5)
    assert result == pytest.approx(scores(ModelScorer(model)), rel=1e-4)


@needs_native_code
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_edited_normaliser_is_not_searched_natively(precision, monkeypatch, caplog):
    edit(monkeypatch, "normaliser")
    scorer, description = fastest_scorer(rnnsearch(), precision)
    assert isinstance(scorer, ModelScorer)
    reason = "the native search differs from the definition"
    assert description == f"native products, {precision} (no native search: {reason})"
    assert "Softmax" in caplog.text
    assert "the native search of TranslationModel (rnnsearch/models/translation_model.py, with Additive" in caplog.text


@needs_native_code
def test_edited_encoder_keeps_the_native_decoder(monkeypatch):
    edit(monkeypatch, "encoder")
    assert fastest_scorer(rnnsearch(), "fp32").description == "native search, fp32"


@needs_native_code
@pytest.mark.parametrize("name", EDITS)
def test_edited_definition_is_not_exported(name, monkeypatch, choices):
    config = next(config for config in choices["plain"].values() if config.model.decoder.type == "bahdanau")
    config = config.model_copy(update={"model": ModelConfig.model_validate(RNNSEARCH)})
    assert engine_file.unsupported_reason(config, rnnsearch()) == ""
    edit(monkeypatch, name)
    assert engine_file.unsupported_reason(config, rnnsearch()) == "the engine differs from the definition"


@needs_native_code
def test_edited_length_norm_is_not_searched_in_one_call(monkeypatch, caplog):
    assert isinstance(fastest_scorer(rnnsearch(), "fp32").scorer, NativeScorer)
    monkeypatch.setitem(LENGTH_NORMS, "power", lambda length, exponent: (length + 20.0) ** (0.1 * exponent))
    assert type(fastest_scorer(rnnsearch(), "fp32").scorer) is NativeStepScorer
    assert "the native version of BeamSearch (rnnsearch/search/beam.py)" in caplog.text


@needs_native_code
def test_edited_linear_layer_is_not_packed(monkeypatch, caplog):
    definition = Linear.forward
    monkeypatch.setattr(Linear, "forward", lambda self, x: 1.01 * definition(self, x))
    model = rnnsearch()
    scorer, description = fastest_scorer(model, "fp32")
    assert description.startswith("native products")
    assert "the native fp32 product of Linear (rnnsearch/models/layers.py)" in caplog.text
    choose(model, fast=False)
    assert scores(scorer) == pytest.approx(scores(ModelScorer(model)), rel=1e-4)


@needs_native_code
@pytest.mark.parametrize("dtype", [DType.BF16, DType.INT8])
def test_wrong_native_product_is_not_used(dtype, monkeypatch, caplog):
    product = PackedWeight.__call__
    monkeypatch.setattr(PackedWeight, "__call__", lambda self, x: product(self, x).roll(1, -1))
    fastest_scorer(rnnsearch(), dtype.name.lower())
    assert f"the native {dtype.name.lower()} product of Output" in caplog.text


@pytest.mark.parametrize("conditions", [INFERENCE, TRAINING])
def test_wrong_results_are_noticed(conditions, monkeypatch, caplog):
    right = FAST_IMPLEMENTATIONS[GRU].run

    def wrong(*args):
        outputs, last = right(*args)
        return 1.01 * outputs, last

    monkeypatch.setitem(FAST_IMPLEMENTATIONS, GRU, FastImplementation("wrong results", wrong))
    reasons = {choice.reason for choice in choose(rnnsearch(), conditions=conditions)}
    assert reasons == {"", GLOBAL_WINDOW, "the fast implementation differs from the definition"}
    assert caplog.text.count("GRU (rnnsearch/models/cells.py)") == 1 + (conditions == INFERENCE)


def test_wrong_gradients_are_noticed_in_training_only(monkeypatch):
    right = FAST_IMPLEMENTATIONS[GRU].run

    def wrong(cell, x, *args):
        return right(cell, x.detach() + 1.1 * (x - x.detach()), *args)

    model = rnnsearch()
    monkeypatch.setitem(FAST_IMPLEMENTATIONS, GRU, FastImplementation("wrong gradients", wrong))
    assert {choice.reason for choice in choose(model, conditions=INFERENCE)} == {"", GLOBAL_WINDOW}
    assert {choice.reason for choice in choose(model, conditions=TRAINING)} - {"", GLOBAL_WINDOW}


def test_failing_implementation_is_not_used(monkeypatch):
    def fail(*_):
        raise RnnsearchError("no such kernel")

    monkeypatch.setitem(FAST_IMPLEMENTATIONS, GRU, FastImplementation("none", fail))
    reason = "the fast implementation cannot be checked (RnnsearchError: no such kernel)"
    assert reason in {choice.reason for choice in choose(rnnsearch())}


def test_all_fast_implementations_pass(whole):
    model = build(whole.model, SYMBOLS, SYMBOLS, seed=None).eval()
    for conditions in (INFERENCE, TRAINING, Conditions.of_training("bf16")):
        for choice in choose(model, conditions=conditions):
            assert "the fast implementation" not in choice.reason.replace("has no fast implementation", "")
    assert "definition" not in fastest_scorer(model, "fp32").description
    assert "definition" not in engine_file.unsupported_reason(whole, model)


def test_checks_change_no_random_numbers():
    model = rnnsearch()
    verification.forget()
    before = torch.get_rng_state()
    choose(model)
    fastest_scorer(model, "fp32")
    assert torch.equal(torch.get_rng_state(), before)


def test_checks_are_independent_of_the_callers_modes():
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        choices = choose(build(ModelConfig.model_validate(RNNSEARCH), SYMBOLS, SYMBOLS, seed=None))
    assert {choice.reason for choice in choices} == {"", GLOBAL_WINDOW}


def test_nothing_is_checked_or_remembered_without_values(caplog):
    with FakeTensorMode():
        rnnsearch()
    with torch.device("meta"):
        build(ModelConfig.model_validate(RNNSEARCH), SYMBOLS, SYMBOLS, seed=None)
    assert not verification._problems
    assert not caplog.records
    assert describe_training(rnnsearch()) == "fast implementations of encoder, decoder, output"


def test_checks_run_once(monkeypatch, caplog):
    edit(monkeypatch, "cell")
    rnnsearch()
    count = len(caplog.records)
    monkeypatch.setattr(verification, "_isolated", lambda: pytest.fail("it was checked again"))
    rnnsearch()
    assert len(caplog.records) == count > 0


def test_switch_runs_definitions_only(monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    monkeypatch.setenv(FAST_SWITCH, "0")
    model = rnnsearch()
    assert {choice.reason for choice in choose(model)} == {"RNNSEARCH_FAST=0"}
    assert describe_training(model) == "definitions of encoder, decoder, output (RNNSEARCH_FAST=0)"
    scorer, description = fastest_scorer(model)
    assert type(scorer) is ModelScorer and description == "PyTorch, fp32"
    if library() is not None:
        assert "(no native search: RNNSEARCH_FAST=0)" in fastest_scorer(model, "int8").description
    assert not caplog.records
