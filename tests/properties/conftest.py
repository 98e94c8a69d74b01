"""A covering set of combinations of components, so that every property is tested with every class.

There are millions of combinations, but nearly all errors are caused by one choice or by a pair of choices. Therefore
the set contains every choice of every axis and every valid pair of choices of the axes in `TOGETHER`.

The selection is deterministic. While a pair is not covered, a combination starts from the first such pair; each other
axis, in order, gets the valid choice that covers most of the remaining pairs (in a tie, the choice used least). A
pair is valid if the combination with the simplest choices on the other axes is.

A test with the argument `whole` runs for this set. One with `system` runs for the smaller set `FEWER`, which also
contains every class, for slow properties. One with `plain` runs for every decoder with the simplest components.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import nullcontext
from itertools import combinations, product
from typing import Any

import pytest
import torch
from torch import Tensor

from rnnsearch.config import RunConfig, attention, decoders, encoders, resolve
from rnnsearch.config.rules import check_model as check
from rnnsearch.data.batches import Batch, make_batch
from rnnsearch.errors import ConfigError
from rnnsearch.models.attention.features import FEATURES
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.bridges import BRIDGES
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders import DECODERS
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.loss import Objective
from rnnsearch.ops import linear, loss, recurrence
from rnnsearch.search.decode import decode_all, force_decode_all
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.model_scorer import ModelScorer, fastest_scorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import MEAN_LOG_PROB
from rnnsearch.systems.translation import build
from tests.properties.legality import Combination, right

ENCODER_OPTIONS: dict[str, list[Any]] = {
    "layers": [2],
    "direction": ["forward", "bottom", "both"],
    "reduce": [1],
    "residual_from": [2],
    "reverse": [True],
    "widths": [3],
    "filters": [2],
    "stride": [2],
    "highway": [1],
    "chooser": [3],
}
DECODER_OPTIONS = {"maxout": 6, "readout": 6, "layers": 2, "transitions": 1, "slots": 3, "slot_size": 4}
ATTENTION_OPTIONS = {
    "size": 4,
    "heads": 2,
    "max_source": 5,
    "width": 1,
    "wait": 2,
    "fertility": 2.0,
    "coverage_size": 3,
    "neighbours": 1,
    "recurrent_size": 3,
    "components": 2,
    "first": 3,
    "second": 4,
    "around": 1,
}
"""Value of each option that a class may require."""
UNITS, DECODER_UNITS = 6, 8
PAIRS = [([5, 6, 7, 8], [4, 5]), ([9], [6, 7, 8, 9]), ([10, 4], [11]), ([7, 7, 7, 5, 6, 11], [])]
SYMBOLS = 12


def options(kind: type, values: dict[str, Any], optional: bool = False) -> dict[str, Any]:
    """Return the values of the options that a class requires, and with `optional` of all its options."""
    return {
        name: values[name]
        for name, field in kind.option_fields().items()
        if name in values and (field.is_required() or optional)
    }


def encoder_choices() -> dict[str, dict[str, Any]]:
    """Return `[model.encoder]` of every recurrent class, with each value of required options and once with all options.

    tests/models/test_arrays.py has the feed-forward encoder, which has no cell to combine.
    """
    found = {}
    for name, kind in encoders.ENCODERS.items():
        # Encoders of several sentences are not for `model.encoder`.
        if "cell" not in kind.option_fields() or kind.reads_sentences:
            continue
        needs = options(kind, ENCODER_OPTIONS)
        for values in product(*needs.values()):
            chosen = [value for value in values if isinstance(value, str)]
            found[" ".join([name, *chosen])] = {"type": name, **dict(zip(needs, values, strict=True))}
        whole = options(kind, ENCODER_OPTIONS, optional=True)
        if whole.keys() != needs.keys():
            found[f"{name} with all"] = {"type": name} | {option: values[0] for option, values in whole.items()}
    return found


ENCODER_CHOICES = encoder_choices()
AXES: dict[str, list[str | None]] = {
    "decoder": [*DECODERS],
    "cell": [None, *CELLS],
    "encoder": [*ENCODER_CHOICES],
    "encoder cell": [*CELLS],
    "score": [None, *SCORES],
    "window": [None, *WINDOWS],
    "normaliser": [None, *NORMALISERS],
    "feature": [None, *FEATURES],
    "bridge": [None, *BRIDGES],
    "residual": [None, "residual"],
    "lexical": [None, "lexical"],
    "state dropout": [None, "state dropout"],
}
ATTENTION: Combination = {"score": "additive", "window": "global", "normaliser": "softmax"}
"""The simplest attention."""
TOGETHER: list[tuple[str, ...]] = [
    *[("decoder", axis) for axis in AXES if axis != "decoder"],
    *[("score", "window"), ("window", "normaliser"), ("score", "feature"), ("window", "feature")],
    *[("encoder cell", "encoder"), ("encoder cell", "state dropout"), ("cell", "state dropout")],
    *[("encoder", axis) for axis in ("window", "feature", "bridge", "lexical")],
]
FEWER: list[tuple[str, ...]] = [
    *[("decoder", axis) for axis in ("window", "state dropout", "bridge")],
    *[("score", "window"), ("window", "normaliser"), ("encoder", "window"), ("encoder cell",), ("cell",), ("feature",)],
    *[("residual",), ("lexical",)],
]


def plain(chosen: Combination) -> Combination:
    """Return a combination with all axes; those that are not chosen get the simplest valid choice."""
    decoder = DECODERS[str(chosen["decoder"])]
    own = decoders.DECODERS[decoder.component.name()].option_fields()
    cell = chosen.get("encoder cell") or chosen.get("cell") or "gru"
    asked = [chosen[axis] for axis in (*ATTENTION, "feature") if axis in chosen]
    attends = any(asked) or (decoder.component.attends and None not in asked[:3])
    return {
        **dict.fromkeys(AXES),
        "cell": cell if "cell" in own else None,
        "encoder": "stacked forward" if chosen.get("bridge") == "copy" else "unidirectional",
        "encoder cell": cell,
        **(ATTENTION if attends else {}),
        "bridge": "learned" if "bridge" in own else None,
        **chosen,
    }


def tables(whole: Combination) -> dict[str, Any]:
    """Return the tables of a run file for a combination."""
    decoder = DECODERS[str(whole["decoder"])]
    encoder = {**ENCODER_CHOICES[str(whole["encoder"])], "cell": whole["encoder cell"], "size": UNITS}
    attends = attention_of(whole)
    annotation = resolve_encoder(encoder).annotation_size
    score = SCORE_OPTIONS[str(whole["score"])] if attends else None
    in_any_size = score is None or not score.size_problem(DECODER_UNITS, annotation)
    own = {
        **options(decoders.DECODERS[decoder.component.name()], DECODER_OPTIONS),
        **{name: whole[name] for name in ("cell", "bridge") if whole[name]},
        **({"residual_from": 2} if whole["residual"] else {}),
        "size": DECODER_UNITS if in_any_size and whole["bridge"] not in ("copy", "annotation") else annotation,
    }
    layered = "layers" in encoder or "layers" in own
    # With other decoders, some random models overflow: the states of an SSRU under Graves' mixture are unbounded.
    stack = issubclass(decoders.DECODERS[decoder.component.name()], decoders.StackOptions)
    model = {
        "embedding": 5,
        "encoder": encoder,
        "decoder": {"type": decoder.component.name(), **own},
        "dropout": {
            "embedding": 0.3,
            "readout": 0.3,
            "word": 0.2,
            **({"annotations": 0.3} if decoder.component.attends else {}),
            **({"layers": 0.2} if layered else {}),
            **({"layer_outputs": 0.2} if stack else {}),
            **({"feeding": 0.2} if decoder.component.feeds_back else {}),
            **({"state": 0.2} if whole["state dropout"] else {}),
        },
        "lexical": bool(whole["lexical"]),
        **({"attention": attends} if attends else {}),
    }
    hard = whole["normaliser"] is not None and NORMALISERS[whole["normaliser"]].component.samples
    return {
        "data": {"source": "en", "target": "de", "corpus": "x"},
        "model": model,
        "objective": {
            **({"reinforce": {"baseline": "learned"}} if hard else {}),
            **({"rationale": {"sparsity": 0.1}} if encoder["type"] == "rationale" else {}),
        },
        "training": {"max_epochs": 1, "max_length": 15, "optimiser": {"learning_rate": 0.001}},
    }


def attention_of(whole: Combination) -> dict[str, Any]:
    """Return the table `[model.attention]`, empty without attention."""
    families = {"score": attention.SCORES, "window": attention.WINDOWS, "feature": attention.FEATURES}
    kinds = [family[name] for axis, family in families.items() if (name := whole[axis]) is not None]
    named = {axis: name for axis in ATTENTION if (name := whole[axis])}
    features = {"features": [whole["feature"]]} if whole["feature"] else {}
    return named and {
        **named,
        **features,
        **{k: v for kind in kinds for k, v in options(kind, ATTENTION_OPTIONS).items()},
    }


def resolve_encoder(table: dict[str, Any]) -> encoders.EncoderConfig:
    """Return the validated options of a table `[model.encoder]`."""
    return encoders.ENCODERS[table["type"]].model_validate(table)


SCORE_OPTIONS = {name: kind(**options(kind, ATTENTION_OPTIONS)) for name, kind in attention.SCORES.items()}


def name_of(whole: Combination) -> str:
    """Return the choices of all axes in order, without those that are None."""
    return " ".join(choice for axis in AXES if (choice := whole[axis]) is not None)


class Cover:
    """Selection of covering sets, which keeps all combinations that it asks about."""

    def __init__(self) -> None:
        self.asked: dict[str, Combination] = {}
        """All combinations by name."""

    def fits(self, chosen: Combination) -> bool:
        """Return True if the choices are compatible."""
        whole = plain(chosen)
        if len({whole[axis] is None for axis in ATTENTION}) > 1 or (whole["feature"] and not whole["score"]):
            return False  # attention with only some of its components cannot be configured
        self.asked[name_of(whole)] = whole
        return right(whole)

    def problems(self, whole: Combination) -> list[str]:
        """Return why the package rejects a combination; empty if it is valid."""
        try:
            return check(resolve(tables(whole)))
        except ConfigError as error:
            return error.problems

    def wanted(self, together: list[tuple[str, ...]]) -> dict[frozenset[Any], Combination]:
        """Return the choices to cover, each completed by a compatible decoder."""
        found = {}
        for axes in together:
            for values in product(*(AXES[axis] for axis in axes)):
                pair = dict(zip(axes, values, strict=True))
                some = [pair] if "decoder" in pair else [{"decoder": name, **pair} for name in DECODERS]
                fitting = next((chosen for chosen in some if self.fits(chosen)), None)
                if fitting is not None:
                    found[frozenset(pair.items())] = fitting
        return found

    def choose(self, together: list[tuple[str, ...]]) -> dict[str, RunConfig]:
        """Return combinations that together contain all wanted choices."""
        wanted = self.wanted(together)
        sizes = {len(key) for key in wanted}
        used: Counter[tuple[str, str | None]] = Counter()
        rows = {}
        while wanted:
            chosen = dict(next(iter(wanted.values())))
            for axis, values in AXES.items():
                if axis not in chosen:
                    fitting = [value for value in values if self.fits({**chosen, axis: value})]
                    gains = {value: _new(chosen, (axis, value), wanted) for value in fitting}
                    chosen[axis] = max(fitting, key=lambda v, a=axis, g=gains: (g[v], -used[a, v]))
            for size in sizes:
                for items in combinations(chosen.items(), size):
                    wanted.pop(frozenset(items), None)
            used.update(chosen.items())
            rows[name_of(chosen)] = resolve(tables(chosen))
        return rows

    def plainest(self, names: Iterable[str] = ("bahdanau", "bahdanau-tanh")) -> dict[str, RunConfig]:
        """Return decoders with the simplest components; RNNsearch as in the paper has a specialised native search."""
        rows = {}
        for decoder in names:
            cell = "gru" if "cell" in decoders.DECODERS[decoder].option_fields() else None
            chosen: Combination = {"decoder": decoder, "encoder": "bidirectional", "encoder cell": "gru", "cell": cell}
            if self.fits(chosen):
                whole = plain(chosen)
                rows[name_of(whole)] = resolve(tables(whole))
        return rows


def _new(chosen: Combination, item: tuple[str, str | None], wanted: Container[object]) -> int:
    """Return the number of wanted choices that one more choice would cover."""
    return sum(frozenset({item, *others}) in wanted for others in [(), *((other,) for other in chosen.items())])


COVER = Cover()
PLAIN = COVER.plainest(DECODERS)
WHOLE = COVER.choose(TOGETHER) | PLAIN
SYSTEM = COVER.choose(FEWER) | COVER.plainest()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `whole` with the covering set, `system` with the smaller set, `plain` with the simplest models."""
    for argument, chosen in {"whole": WHOLE, "system": SYSTEM, "plain": PLAIN}.items():
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, chosen.values(), ids=chosen.keys())


def lively(model: TranslationModel) -> TranslationModel:
    """Add normal noise to all parameters, biases included, so that no component is near zero."""
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.4)
    return model


def same_by_columns_and_alone(
    model: TranslationModel, sources: Sequence[Sequence[int]], beam: int, columns: Tensor
) -> list[Hypothesis]:
    """Return the best hypotheses of the fastest search.

    Searching over explicit columns or each sentence separately must give the same hypotheses, and the definition must
    give the same scores.
    """
    options = SearchOptions(beam=beam, max_ratio=1.0, max_extra=2, length_penalty=1.0)
    scorer = fastest_scorer(model, "fp32").scorer
    together = [best[0] for best in decode_all(scorer, sources, options)]
    everything = decode_all(scorer, sources, options, candidates=lambda _: columns)
    for n, (one, other) in enumerate(zip(together, everything, strict=True)):
        alone = decode_all(scorer, sources[n : n + 1], options)[0]
        assert one.ids == other[0].ids == alone[0].ids
        forced = force_decode_all(ModelScorer(model), sources[n : n + 1], [one.ids], MEAN_LOG_PROB)[0]
        if one.finished:
            assert one.log_prob == pytest.approx(forced.log_prob, abs=1e-3)
    return together


@pytest.fixture
def make() -> Callable[..., TranslationModel]:
    """Return a function that builds the model of a combination with 12 tokens per language and random weights."""
    return lambda config, seed=1: lively(build(config.model, SYMBOLS, SYMBOLS, seed=seed))


@pytest.fixture
def pairs() -> list[tuple[list[int], list[int]]]:
    """Return sentence pairs of several lengths, one with an empty target."""
    return PAIRS


@pytest.fixture
def batch() -> Batch:
    """Return all pairs as one batch."""
    return make_batch(PAIRS, range(len(PAIRS)))


def others(batch: Batch) -> list[Batch]:
    """Return the batch and another of the same shape, with rotated rows and other tokens."""
    rows = [
        tuple([5 + (symbol - 4) % (SYMBOLS - 5) for symbol in side] for side in pair)
        for pair in [PAIRS[-1], *PAIRS[:-1]]
    ]
    return [batch, make_batch(rows, range(len(rows)))]


def pass_with_gradients(
    objective: Objective[TranslationModel], model: TranslationModel, batch: Batch, rng: BatchRng | None
) -> tuple[float, dict[str, Tensor | None]]:
    """Return the loss of a batch and the gradients of all parameters."""
    model.zero_grad()
    loss = objective(model, batch, rng)
    loss.total.backward()
    return loss.total.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use PyTorch instead of native code."""
    monkeypatch.setattr(linear, "product_implementation", lambda *_: linear.TORCH)
    monkeypatch.setattr(recurrence, "can_run", lambda *_: False)
    monkeypatch.setattr(loss, "has_native_loss", lambda *_: False)


@pytest.fixture
def without_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable autocast, which does not support `meta`."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


@pytest.fixture
def plainest() -> Callable[[str, str | None], RunConfig]:
    """Return a function that resolves the simplest model of a decoder, with or without a feature, in even sizes."""

    def resolved(decoder: str, feature: str | None) -> RunConfig:
        chosen: Combination = {"decoder": decoder, "encoder cell": "gru"}
        table = tables(plain(chosen if feature is None else {**chosen, "feature": feature}))
        return resolve({**table, "model": {**table["model"], "embedding": 6}})

    return resolved


@pytest.fixture
def cover() -> Cover:
    """Return the cache of all combinations."""
    return COVER


@pytest.fixture
def choices() -> dict[str, dict[str, RunConfig]]:
    """Return the covering sets by name."""
    return {"whole": WHOLE, "system": SYSTEM, "plain": PLAIN}
