"""Combinations of several sources against NumPy references of the papers' equations, and their rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rnnsearch.config import resolve
from rnnsearch.config.rules import check
from rnnsearch.data.batch import Direction, Stream
from rnnsearch.data.batches import make_batch
from rnnsearch.errors import ConfigError
from rnnsearch.models.memory import Hidden, HiddenAndCell, Memory, mean_weights
from rnnsearch.models.multi_source import MultiSourceModel
from rnnsearch.models.sources import ChildSum, CombinedAttention, Concatenation, LayerStates, Mean, split_attention
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.systems.translation import build

SIZE = 3
CHILD_SUM_GATES = ("i", "o", "u")
BAHDANAU = {
    "embedding": 5,
    "encoder": {"type": "bidirectional", "cell": "gru", "size": 4},
    "attention": {"score": "additive", "size": 4},
    "decoder": {"type": "bahdanau", "cell": "gru", "size": 6, "maxout": 5},
}
LUONG = {
    "embedding": 5,
    "encoder": {"type": "stacked", "direction": "forward", "cell": "lstm", "size": 6, "layers": 2},
    "attention": {"score": "general"},
    "decoder": {
        "type": "luong-input-feeding",
        "cell": "lstm",
        "size": 6,
        "layers": 2,
        "bridge": "copy",
        "readout": 5,
    },
}
SUTSKEVER = LUONG | {
    "attention": None,
    "decoder": {"type": "sutskever", "cell": "lstm", "size": 6, "layers": 2, "bridge": "copy"},
}
CGRU = BAHDANAU | {"decoder": {"type": "cgru", "cell": "gru", "size": 6, "readout": 5}}
DIRECTION = Direction(("en", "fr"), "de")
ROWS: list[tuple[list[int] | None, list[int] | None, list[int]]] = [
    ([5, 6, 7], [8, 9], [4, 5]),
    (None, [6, 4, 10], [7, 8, 9]),
    ([9, 9], None, [11]),
]
VOCABULARIES = {"en": 12, "fr": 13}


def config(model: dict[str, Any], sources: dict[str, Any] | None, **others: Any) -> Any:
    tables = {
        "data": {"source": ["en", "fr"], "target": "de", "corpus": "x"},
        "model": {name: table for name, table in model.items() if table is not None}
        | ({"sources": sources} if sources else {}),
        "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
    }
    for name, table in others.items():
        tables[name] = tables.get(name, {}) | table
    return resolve(tables)


def make(model: dict[str, Any], sources: dict[str, Any], names: tuple[str, ...] = ("en", "fr")) -> MultiSourceModel:
    vocabularies = {name: VOCABULARIES[name] for name in names}
    built = build(config(model, sources).translation, vocabularies, 12, seed=1).eval()
    assert isinstance(built, MultiSourceModel)
    return built


def states(with_cells: bool) -> tuple[LayerStates, list[np.ndarray], list[np.ndarray]]:
    """Return random states of two sources for three sentences, and the same as arrays."""
    generator = torch.Generator().manual_seed(1)
    h = torch.randn(2, 3, SIZE, generator=generator)
    c = torch.randn(2, 3, SIZE, generator=generator)
    present = torch.tensor([[True, True], [False, True], [True, False]])
    for k in range(2):
        h[k] *= present[:, k, None]
        c[k] *= present[:, k, None]
    layer = LayerStates(tuple(h), tuple(c) if with_cells else (), mean_weights(present))
    return layer, [x.numpy() for x in h], [x.numpy() for x in c]


def filled(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """Fill the parameters of a module with random numbers and return them."""
    generator = torch.Generator().manual_seed(2)
    for parameter in module.parameters():
        parameter.data.normal_(generator=generator)
    return {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_concatenation_equals_equations_1_and_2() -> None:
    layer, h, c = states(with_cells=True)
    combination = Concatenation([SIZE, SIZE], SIZE)
    w = filled(combination)["hidden.weight"]
    combined = combination(layer)
    np.testing.assert_allclose(combined[0].detach(), np.tanh(np.concatenate(h, axis=1) @ w.T), rtol=1e-5)
    np.testing.assert_allclose(combined[1].detach(), c[0] + c[1], rtol=1e-6)


def test_child_sum_equals_equations_3_to_8() -> None:
    layer, h, c = states(with_cells=True)
    combination = ChildSum([SIZE, SIZE], SIZE)
    w = filled(combination)
    # W_1 and W_2 of each gate.
    blocks = dict(zip(CHILD_SUM_GATES, np.split(w["gates.weight"], 3), strict=True))
    sums = {gate: h[0] @ block[:, :SIZE].T + h[1] @ block[:, SIZE:].T for gate, block in blocks.items()}
    forget = [sigmoid(h[k] @ w[f"forget.{k}.weight"].T) for k in range(2)]
    cell = sigmoid(sums["i"]) * np.tanh(sums["u"]) + forget[0] * c[0] + forget[1] * c[1]
    combined = combination(layer)
    np.testing.assert_allclose(combined[1].detach(), cell, rtol=1e-5)
    np.testing.assert_allclose(combined[0].detach(), sigmoid(sums["o"]) * np.tanh(cell), rtol=1e-5)


def test_child_sum_gradients_equal_finite_differences() -> None:
    combination = ChildSum([SIZE, SIZE], SIZE).double()
    filled(combination)
    inputs = [torch.randn(2, SIZE, dtype=torch.double, requires_grad=True) for _ in range(4)]
    weights = torch.ones(2, 2, dtype=torch.double)

    def combine(*vectors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        combined: tuple[torch.Tensor, ...] = combination(LayerStates(vectors[:2], vectors[2:], weights))
        return combined

    assert torch.autograd.gradcheck(combine, inputs)


@pytest.mark.parametrize("with_cells", [False, True])
def test_mean_leaves_missing_sources_out(with_cells: bool) -> None:
    layer, h, c = states(with_cells)
    combined = Mean([SIZE, SIZE], SIZE)(layer)
    for result, parts in zip(combined, (h, c), strict=False):
        np.testing.assert_allclose(result[0], (parts[0][0] + parts[1][0]) / 2, rtol=1e-6)
        np.testing.assert_array_equal(result[1], parts[1][1])
        np.testing.assert_array_equal(result[2], parts[0][2])
    assert len(combined) == 1 + with_cells


@pytest.mark.parametrize("contexts", ["concatenation", "mean"])
def test_contexts_are_concatenated_or_averaged(contexts: str) -> None:
    """c_i = [c^1_i; c^2_i] (Zoph & Knight 2016, section 4) or the mean (Firat et al. 2016), with separate attention."""
    model = make(BAHDANAU, {"type": "concatenation", "contexts": contexts})
    batch = make_batch(ROWS, range(3), DIRECTION)
    with torch.no_grad():
        memories = model.encode(batch.sources)
        attention = model.attention
        assert isinstance(attention, CombinedAttention)
        query = torch.randn(3, 6)
        combined = model.combined(memories)
        output, _ = attention.step(query, attention.start(combined), combined)
        alphas = split_attention(output.alpha, list(memories.values()))
        contexts_of = []
        for k, name in enumerate(DIRECTION.sources):
            h = memories[name].annotations.numpy()
            weights = alphas[k].numpy()
            np.testing.assert_allclose(weights.sum(1), batch.streams[name].present.numpy(), rtol=1e-5)
            assert not weights[~batch.streams[name].mask.numpy()].any()
            contexts_of.append(np.einsum("bj,bjh->bh", weights, h))
    both = np.concatenate(contexts_of, axis=1)
    mean = np.stack([(contexts_of[0][0] + contexts_of[1][0]) / 2, contexts_of[1][1], contexts_of[0][2]])
    np.testing.assert_allclose(output.context, both if contexts == "concatenation" else mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", [BAHDANAU, LUONG, CGRU, SUTSKEVER], ids=["bahdanau", "luong", "cgru", "sutskever"])
def test_one_source_with_mean_equals_the_ordinary_model(model: dict[str, Any]) -> None:
    several = make(model, {"type": "mean"}, names=("en",))
    ordinary = build(config(model, None).translation, VOCABULARIES["en"], 12, seed=2).eval()
    weights = {}
    for name, tensor in several.state_dict().items():
        weights[name.replace("source_embedding.0.", "source_embedding.").replace("sources.0.", "")] = tensor
    ordinary.load_state_dict(weights)
    rows = [([5, 6, 7], [4, 5]), ([9], [7, 8, 9])]
    batch = make_batch(rows, range(2), Direction(("en",), "de"))
    assert torch.equal(*(Likelihood()(one, batch, None).nll for one in (several, ordinary)))
    memories = [one.encode(batch.sources) for one in (several, ordinary)]
    steps = [
        one.step(torch.tensor([4, 5]), one.start(memory), memory)
        for one, memory in zip((several, ordinary), memories, strict=True)
    ]
    # The layout of states in memory differs, and with it the rounding of products on some processors.
    torch.testing.assert_close(steps[0][0], steps[1][0], rtol=1e-6, atol=1e-7)
    assert steps[0][2].keys() == steps[1][2].keys()


@pytest.mark.parametrize("model", [BAHDANAU, LUONG, CGRU, SUTSKEVER], ids=["bahdanau", "luong", "cgru", "sutskever"])
def test_a_missing_source_equals_the_mean_without_it(model: dict[str, Any]) -> None:
    """A row without French has the loss of the model without the French encoder."""
    several = make(model, {"type": "mean"})
    without = make(model, {"type": "mean"}, names=("en",))
    kept = {name: tensor for name, tensor in several.state_dict().items() if name in without.state_dict()}
    without.load_state_dict(kept)
    batch = make_batch([([9, 9, 5], None, [11, 4])], [0], DIRECTION)
    single = make_batch([([9, 9, 5], [11, 4])], [0], Direction(("en",), "de"))
    assert torch.equal(Likelihood()(several, batch, None).nll, Likelihood()(without, single, None).nll)
    assert torch.equal(Likelihood()(several, single, None).nll, Likelihood()(without, single, None).nll)


@pytest.mark.parametrize("sources", [{"type": "mean"}, {"type": "concatenation"}, {"type": "child-sum"}])
def test_rows_do_not_influence_each_other(sources: dict[str, Any]) -> None:
    """The loss of a batch is the sum of the losses of its rows, of which some do not have all sources."""
    model = make(LUONG, sources)
    whole = Likelihood()(model, make_batch(ROWS, range(3), DIRECTION), None).nll
    single = [Likelihood()(model, make_batch([row], [0], DIRECTION), None).nll for row in ROWS]
    assert whole.item() == pytest.approx(sum(map(float, single)), rel=1e-5)


def test_missing_source_gives_its_encoder_no_gradient() -> None:
    model = make(LUONG, {"type": "concatenation"})
    Likelihood()(model, make_batch([([9, 9], None, [11])], [0], DIRECTION), None).total.backward()
    french = [parameter for name, parameter in model.named_parameters() if ".sources.1." in name]
    english = [parameter for name, parameter in model.named_parameters() if ".sources.0." in name]
    assert french
    assert not any(parameter.grad is not None and parameter.grad.any() for parameter in french)
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in english)


def test_each_source_may_have_its_own_encoder() -> None:
    sources = {"type": "concatenation", "encoders": {"fr": {"type": "unidirectional", "cell": "lstm", "size": 7}}}
    assert check(config(BAHDANAU, sources)) == []
    model = make(BAHDANAU, sources)
    assert [encoder.annotation_size for encoder in model.encoder.encoders] == [8, 7]
    assert Likelihood()(model, make_batch(ROWS, range(3), DIRECTION), None).nll.isfinite()


def test_states_of_all_cells_keep_their_type() -> None:
    for cell, state_type in (("gru", Hidden), ("lstm", HiddenAndCell)):
        encoder = LUONG["encoder"] | {"cell": cell}  # type: ignore[operator]
        decoder = LUONG["decoder"] | {"cell": cell}  # type: ignore[operator]
        model = make(LUONG | {"encoder": encoder, "decoder": decoder}, {"type": "concatenation"})
        memories = model.encode({"en": Stream.from_ids(torch.tensor([[5, 2]]))})
        assert isinstance(memories["fr"], Memory)
        assert all(type(state) is state_type for state in model.combined(memories).finals)


def test_luong_attends_to_all_positions_at_once() -> None:
    """The fast implementation of `luong`, with a stack layer by layer, equals the definition."""
    decoder = LUONG["decoder"] | {"type": "luong"}  # type: ignore[operator]
    model = make(LUONG | {"decoder": decoder}, {"type": "mean"})
    assert model.decoder.fast_forward is not None
    batch = make_batch(ROWS, range(3), DIRECTION)
    fast = Likelihood()(model, batch, None).nll
    model.decoder.fast_forward = None
    torch.testing.assert_close(fast, Likelihood()(model, batch, None).nll)


def test_ordinary_model_has_no_new_parameters() -> None:
    model = build(config(BAHDANAU, None).translation, 12, 12, seed=1)
    assert type(model) is TranslationModel
    assert not any("sources" in name for name in model.state_dict())


def problems(model: dict[str, Any], sources: dict[str, Any] | None, **others: Any) -> list[str]:
    return check(config(model, sources, **others))


@pytest.mark.parametrize(
    ("model", "sources", "others", "message"),
    [
        (BAHDANAU, None, {}, "data.source: must be one language for a translation model without [model.sources]"),
        (BAHDANAU, {"type": "child-sum"}, {}, 'model.sources.type: "child-sum" needs encoders with memory cells'),
        (SUTSKEVER, {"type": "concatenation", "contexts": "mean"}, {}, "model.sources.contexts: has no effect"),
        (
            BAHDANAU,
            {"type": "mean", "encoders": {"fr": {"type": "bidirectional", "cell": "gru", "size": 7}}},
            {},
            "model.sources.encoders.fr.size: must give vectors of the size of model.encoder, for a mean; got 7 and 4",
        ),
        (
            BAHDANAU,
            {"type": "mean", "encoders": {"es": {"type": "bidirectional", "cell": "gru", "size": 4}}},
            {},
            'model.sources.encoders: must be those of languages in data.source ("en", "fr"); got es',
        ),
        (
            LUONG,
            {"type": "mean", "encoders": {"fr": {"type": "bidirectional", "cell": "lstm", "size": 6}}},
            {},
            "model.sources.encoders.fr.size: last states must have the layers, sizes and types of model.encoder",
        ),
        (BAHDANAU, {"type": "mean"}, {"search": {"replace_unknown": "copy"}}, "model.sources: cannot be combined with"),
        (BAHDANAU, {"type": "mean"}, {"objective": {"doubly_stochastic": 1.0}}, "model.sources: cannot be combined"),
        (
            BAHDANAU | {"decoder": {"type": "copynet", "cell": "gru", "size": 6}},
            {"type": "mean"},
            {},
            "model.sources: needs a decoder that can read several sources (bahdanau,",
        ),
    ],
)
def test_incompatible_options_are_rejected(
    model: dict[str, Any], sources: dict[str, Any], others: dict[str, Any], message: str
) -> None:
    assert any(problem.startswith(message) for problem in problems(model, sources, **others))


def test_unknown_options_are_named() -> None:
    with pytest.raises(ConfigError, match="contexts: has no effect with the mean source combination"):
        config(BAHDANAU, {"type": "mean", "contexts": "mean"})
