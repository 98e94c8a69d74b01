"""A derived class runs its own equations in training and search, never its parent's fast implementation."""

import pytest
import torch

from rnnsearch.accel.registry import FAST_IMPLEMENTATIONS, choose, describe_training
from rnnsearch.accel.rnnsearch_search import NativeRNNsearch
from rnnsearch.accel.search import NativeDecoder, search_unsupported_reason
from rnnsearch.config import registry
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders import DECODERS
from rnnsearch.ops.linear import DType
from rnnsearch.systems.translation import build
from rnnsearch.utils.tensors import stack


def turned_round(kind):
    """Return a decoder class whose readouts read the negated state."""

    class Derived(kind):
        def step(self, x, state, memory):
            state, reading = super().step(x, state, memory)
            return state, reading._replace(state=-reading.state)

    return Derived


def halved(kind):
    """Return a cell class that halves its output at each step."""

    class Derived(kind):
        def step(self, x, state, recurrent_mask=None):
            new = super().step(x, state, recurrent_mask)
            return new._replace(h=0.5 * new.h)

    return Derived


def unbent(kind):
    """Return an output class without activation function: its units are the first pre-activations."""

    class Derived(kind):
        def activation(self, hidden):
            return hidden[..., : super().activation(hidden).shape[-1]]

    return Derived


def readouts(model, batch):
    """Return the readouts of training and those of search steps."""
    memory, previous = model.encode(batch.sources), batch.target.previous()
    state, steps = model.start(memory), []
    for y in previous.unbind(1):
        readout, state, _ = model.step(y, state, memory)
        steps.append(readout)
    return model.unroll(previous, memory).readout, stack(steps, 1)


def configs_with(choices, **wanted):
    """Return the combinations with this decoder (`decoder`) or this cell of the encoder (`cell`)."""
    configs = []
    for config in choices["system"].values():
        model = config.model
        if {"decoder": model.decoder.type, "cell": model.encoder.cell}.items() >= wanted.items():
            configs.append(config)
    assert configs
    return configs


@pytest.mark.parametrize("name", DECODERS)
def test_derived_decoder_runs_its_own_step(name, choices, make, batch, monkeypatch):
    for config in configs_with(choices, decoder=name):
        with monkeypatch.context() as patch:
            patch.setitem(registry._IMPLEMENTATIONS, DECODERS[name].component, turned_round(DECODERS[name]))
            derived = make(config).double()
        trained, searched = readouts(derived, batch)
        torch.testing.assert_close(trained, searched, rtol=1e-10, atol=1e-10)
        assert not torch.allclose(trained, readouts(make(config).double(), batch)[0])
        assert NativeRNNsearch.create(derived, DType.FP32) is None
        assert NativeDecoder.create(derived, DType.FP32) is None


@pytest.mark.parametrize("name", CELLS)
def test_derived_cell_runs_its_own_step(name, choices, make, batch, monkeypatch):
    config = configs_with(choices, cell=name)[0]
    with monkeypatch.context() as patch:
        patch.setitem(registry._IMPLEMENTATIONS, CELLS[name].component, halved(CELLS[name]))
        derived = make(config).double()
    trained, searched = readouts(derived, batch)
    choose(derived, fast=False)
    defined, _ = readouts(derived, batch)
    torch.testing.assert_close(trained, defined, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(trained, searched, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(trained, readouts(make(config).double(), batch)[0])
    assert NativeRNNsearch.create(derived, DType.FP32) is None
    in_decoder = any(type(module).__name__ == "Derived" for module in derived.decoder.modules())
    assert not in_decoder or NativeDecoder.create(derived, DType.FP32) is None


PARTS = {
    "bahdanau": ("cell", "attention", "attention.score", "attention.window", "attention.normaliser"),
    "sutskever": ("stack",),
    "luong": ("stack", "attention"),
    "luong-input-feeding": ("stack", "stack.cells.0", "attention", "attentional"),
    "rnmt-plus": ("stack", "attention"),
    "deep-transition": ("cell", "cell.attention", "cell.transitions"),
    "bideep": ("first", "upper.0", "upper.0.transitions"),
}
"""Components of each decoder that its fast implementation replaces."""


@pytest.mark.parametrize(("name", "part"), [(name, part) for name, parts in PARTS.items() for part in parts])
def test_decoder_with_derived_component_has_no_fast_implementation(name, part, choices, make):
    model = make(next(config for config in choices["plain"].values() if config.model.decoder.type == name))
    assert model.decoder.fast_forward is not None
    own = model.decoder.get_submodule(part)
    own.__class__ = type("Derived", (type(own),), {})
    choose(model)
    assert model.decoder.fast_forward is None


READOUTS = {
    "bahdanau": "deep_output",
    "bahdanau-tanh": "deep_output",
    "cohn": "deep_output",
    "cgru": "output",
    "luong": "attentional",
}


@pytest.mark.parametrize("name", READOUTS)
def test_derived_readout_is_not_searched_natively(name, choices, make):
    model = make(next(config for config in choices["plain"].values() if config.model.decoder.type == name))
    assert search_unsupported_reason(model) is None
    assert NativeDecoder.create(model, DType.FP32) is not None
    own = model.decoder.get_submodule(READOUTS[name])
    own.__class__ = unbent(type(own))
    assert "derived" in search_unsupported_reason(model).lower()
    assert NativeRNNsearch.create(model, DType.FP32) is None
    assert NativeDecoder.create(model, DType.FP32) is None


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_derived_cell_in_one_direction_prevents_native_rnnsearch(direction, choices, make):
    model = make(next(config for config in choices["plain"].values() if config.model.decoder.type == "bahdanau"))
    assert NativeRNNsearch.create(model, DType.FP32) is not None
    own = model.encoder.get_submodule(f"{direction}_cell")
    own.__class__ = halved(type(own))
    assert NativeRNNsearch.create(model, DType.FP32) is None


def test_all_fast_implementations_are_covered_and_choices_have_reasons(choices):
    met = set()
    for config in choices["whole"].values():
        model = build(config.model, 12, 12, seed=None)
        modules = dict(model.named_modules())
        for name, implementation, reason in choose(model):
            assert (implementation is None) == bool(reason) == (modules[name].fast_forward is None)
            met |= {type(modules[name])} if implementation else set()
    assert met == set(FAST_IMPLEMENTATIONS)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("luong", "fast implementations of encoder, decoder, output"),
        (
            "copynet",
            "fast implementations of encoder, output; definitions of decoder (CopyNet has no fast implementation), "
            "decoder.attention (its window sees all positions)",
        ),
    ],
)
def test_describe_training_lists_fast_implementations(name, told, choices, make):
    model = make(next(config for config in choices["plain"].values() if config.model.decoder.type == name))
    assert describe_training(model) == told


def test_describe_training_names_single_components(choices, make):
    model = make(next(config for config in choices["plain"].values() if config.model.decoder.type == "bahdanau"))
    model.encoder.backward_cell.__class__ = halved(type(model.encoder.backward_cell))
    told = (
        "fast implementations of encoder.forward_cell, decoder, output; "
        "definitions of encoder.backward_cell (Derived has no fast implementation)"
    )
    assert describe_training(model) == told
