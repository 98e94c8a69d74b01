"""Models that read arrays equal the equations, and options that need text are rejected."""

from typing import Any

import numpy as np
import pytest
import torch

from rnnsearch.config import RunConfig, resolve
from rnnsearch.config.data import ArrayConfig
from rnnsearch.config.rules import check, check_model
from rnnsearch.data.arrays import ArrayIds
from rnnsearch.data.batch import Stream
from rnnsearch.data.batches import Batch, make_batch
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.attention_penalties import DoublyStochastic
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.search.decode import decode_all, force_decode_all
from rnnsearch.search.model_scorer import ModelScorer, fastest_scorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.translation import TranslationSystem, build
from rnnsearch.text.words import train_words

FEATURES = 5
GRID = {"features": FEATURES, "grid": [2, 3]}
ADDITIVE = {"score": "additive", "size": 6}
BAHDANAU = {"type": "bahdanau", "cell": "gru", "size": 7, "maxout": 4}
LUONG = {"type": "luong-input-feeding", "cell": "lstm", "size": 8, "layers": 2, "readout": 6, "bridge": "learned"}
FEEDFORWARD = {"type": "feedforward", "size": 6, "layers": 2}
MODELS: dict[str, dict[str, Any]] = {
    "regions": {"encoder": FEEDFORWARD, "decoder": BAHDANAU},
    "regions, conditional": {
        "encoder": FEEDFORWARD,
        "decoder": {"type": "cgru", "cell": "gru", "size": 7, "readout": 4},
    },
    "regions, luong": {"encoder": FEEDFORWARD, "attention": {"score": "general"}, "decoder": LUONG},
    "regions, lexical": {"encoder": FEEDFORWARD, "decoder": BAHDANAU, "lexical": True},
    "frames": {"encoder": {"type": "bidirectional", "cell": "gru", "size": 4}, "decoder": BAHDANAU},
    "pyramid": {
        "encoder": {"type": "pyramid", "cell": "lstm", "size": 4, "layers": 3, "reduce": 2},
        "decoder": BAHDANAU,
    },
}


def config_of(model: dict[str, Any], array: dict[str, Any], **tables: Any) -> RunConfig:
    return resolve(
        {
            "data": {"arrays": {"image": array}, "source": "image", "target": "en", "train": ["x"]},
            "text": {"type": "words"},
            "model": {"embedding": 6, "attention": ADDITIVE, "init": {"type": "uniform", "scale": 0.7}, **model},
            "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
            **tables,
        }
    )


def model_of(config: RunConfig, seed: int = 3) -> TranslationModel:
    array = config.data.arrays["image"]
    return build(config.translation, array, 12, seed, config.objective).eval()


def arrays_of(*lengths: int) -> list[ArrayIds]:
    rng = np.random.default_rng(7)
    return [ArrayIds(rng.normal(size=(length, FEATURES)).astype(np.float32)) for length in lengths]


def batch_of(arrays: list[ArrayIds]) -> Batch:
    targets = ([4, 5], [6], [7, 8, 9, 10])
    return make_batch(list(zip(arrays, targets, strict=False)), range(len(arrays)))


def make(sentences: list[ArrayIds], device: torch.device) -> dict[str, Stream]:
    """Return a batch of arrays, as a system does."""
    return {"source": batch_of(list(sentences)).source.to(device)}


def test_projection_encoder_first_state_and_attention_equal_the_equations():
    model = model_of(config_of(MODELS["regions"], GRID))
    arrays = arrays_of(6, 6)
    p = {name: parameter.detach().double().numpy() for name, parameter in model.named_parameters()}
    batch = batch_of(arrays)
    memory = model.encode(batch.sources)["source"]
    readout, _, attention = model.step(torch.tensor([1, 1]), model.start({"source": memory}), {"source": memory})
    assert readout.shape == (2, 4)
    for n, ids in enumerate(arrays):
        values = ids.values.astype(np.float64)
        # x_j = W v_j + b + p_j; h_j = tanh(W_2 tanh(W_1 x_j + b_1) + b_2)
        x = values @ p["source_embedding.projection.weight"].T + p["source_embedding.projection.bias"]
        x = x + p["source_embedding.positions"]
        h = np.tanh(x @ p["encoder.layers.0.weight"].T + p["encoder.layers.0.bias"])
        h = np.tanh(h @ p["encoder.layers.1.weight"].T + p["encoder.layers.1.bias"])
        np.testing.assert_allclose(memory.annotations[n].detach(), h, atol=1e-5)
        # The decoder starts from the mean of the annotations (Xu et al. 2015, section 3.1.2).
        mean = h.mean(0)
        np.testing.assert_allclose(memory.summary[n].detach(), mean, atol=1e-5)
        s = np.tanh(p["decoder.initial.weight"] @ mean + p["decoder.initial.bias"])
        query = p["decoder.attention.score.query.weight"] @ s + p.get("decoder.attention.score.query.bias", 0)
        keys = h @ p["decoder.attention.score.key.weight"].T + p.get("decoder.attention.score.key.bias", 0)
        energy = np.tanh(query + keys) @ p["decoder.attention.score.vector"].squeeze()
        alpha = np.exp(energy) / np.exp(energy).sum()
        np.testing.assert_allclose(attention["source"][n].detach(), alpha, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_padding_has_no_effect_and_native_search_equals_the_definition(name):
    array = {"features": FEATURES} if name in ("frames", "pyramid") else GRID
    lengths = (9, 2, 5) if name in ("frames", "pyramid") else (6, 6, 6)
    model = model_of(config_of(MODELS[name], array))
    arrays = arrays_of(*lengths)
    targets = [[4, 5], [6], [7, 8, 9, 10]]
    together = force_decode_all(ModelScorer(model), arrays, targets, make_batch=make)
    fast = force_decode_all(fastest_scorer(model, "fp32").scorer, arrays, targets, make_batch=make)
    for n, (hypothesis, native) in enumerate(zip(together, fast, strict=True)):
        (alone,) = force_decode_all(ModelScorer(model), arrays[n : n + 1], targets[n : n + 1], make_batch=make)
        assert alone.token_scores == pytest.approx(hypothesis.token_scores, abs=1e-5)
        assert native.token_scores == pytest.approx(hypothesis.token_scores, abs=1e-4)
        (weights,) = hypothesis.attention.values()
        assert weights.shape == (len(targets[n]) + 1, lengths[n])  # a column for each row of the array, none for EOS
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
    options = SearchOptions(beam=3, max_ratio=0.0, max_extra=5)
    slow = decode_all(ModelScorer(model), arrays, options, make_batch=make)
    found = decode_all(fastest_scorer(model, "fp32").scorer, arrays, options, make_batch=make)
    assert [h[0].ids for h in slow] == [h[0].ids for h in found]


def test_an_array_without_rows_has_an_empty_translation():
    model = model_of(config_of(MODELS["frames"], {"features": FEATURES}))
    results = decode_all(ModelScorer(model), arrays_of(0, 3), SearchOptions(beam=1), make_batch=make)
    assert results[0][0].ids == ()


def test_doubly_stochastic_penalty_includes_every_row():
    model = model_of(config_of(MODELS["frames"], {"features": FEATURES}))
    batch = batch_of(arrays_of(4, 2))
    _, forward = Likelihood().loss_and_pass(model, batch, None)
    total = forward.attention().sum(1).detach()  # [B, J]
    wanted = sum(float((1 - total[n, :length]).square().sum()) for n, length in enumerate((4, 2)))
    assert DoublyStochastic()(forward).item() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"text": {"type": "words", "annotation": {"type": "posunk"}}}, "text.annotation"),
        ({"text": {"type": "bpe", "joint": True}}, "text.joint: has no effect with one language of text"),
        ({"model": {"pointer": {}}}, "data.arrays: cannot be combined with model.pointer"),
        ({"model": {"source_characters": {"type": "lstm"}}}, "cannot be combined with model.source_characters"),
        ({"model": {"encoder": {"type": "rationale", "cell": "gru", "size": 4, "chooser": 3}}}, "rationale"),
        (
            {"model": {"encoder": {"type": "unidirectional", "cell": "gru", "size": 4, "reverse": True}}},
            "model.encoder.reverse: cannot be combined with data.arrays",
        ),
        (
            {"model": {"encoder": {"type": "unidirectional", "cell": "gru", "size": 4, "reads_end": False}}},
            "model.encoder.reads_end = false: cannot be combined with data.arrays",
        ),
        ({"search": {"replace_unknown": "copy"}}, "search.replace_unknown: has no effect with data.arrays"),
        ({"search": {"candidates": 10}}, "data.arrays: cannot be combined with search.candidates"),
        ({"objective": {"supervision": {"type": "product"}}}, "cannot be combined with objective.supervision"),
        ({"objective": {"symmetry": 1.0}}, "cannot be combined with objective.symmetry"),
    ],
)
def test_options_that_need_text_are_rejected(problems, tables, message):
    base: dict[str, Any] = {
        "data": {"arrays": {"image": GRID}, "source": "image", "target": "en", "train": ["x"]},
        "text": {"type": "words"},
        "model": {"embedding": 6, "encoder": FEEDFORWARD, "attention": ADDITIVE, "decoder": BAHDANAU},
    }
    base |= {name: {**base.get(name, {}), **table} for name, table in tables.items()}
    assert any(message in problem for problem in problems(base))


def test_valid_config_has_no_problems_and_no_cell():
    config = config_of(MODELS["regions"], GRID)
    assert check(config) == check_model(config) == []
    assert "cell" not in config.translation.encoder.model_dump()
    assert ArrayConfig(features=2, grid=[4, 5]).rows == 20


def test_system_needs_no_source_tokenizer():
    config = config_of(MODELS["regions"], GRID)
    system = TranslationSystem.make(config, {"en": train_words(["a red dog"], 20, 1)}, seed=1)
    assert system.annotation is None
    with pytest.raises(Exception, match=r"this needs a model that reads text; this one reads arrays \(image\)"):
        _ = system.source
