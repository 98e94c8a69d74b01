"""Choice of fast implementations for the modules of a model.

The definitions are methods in `models`: a cell's `sequence`, a decoder's `unroll`, attention's `attend` and the
output layer's `losses`. Each of these classes has an attribute `fast_forward`. `choose` sets it by exact class: a
derived class may have changed the equations. An edited class is noticed, too, because each fast implementation is
compared with the definition before it is used. (In addition, `verification.py` sets the attribute of tiny modules for
this comparison, and `export/onnx_cells.py` that of a model's modules during an export.)

`choose` is called when a system is built (`systems`). The functions in `FAST_IMPLEMENTATIONS` are in
`fast_forwards.py` and `windowed_attention.py`; a new one needs an entry there. Fast implementations of whole searches
are chosen in `search/model_scorer.py`. The environment variable RNNSEARCH_FAST=0 runs the definitions only.

Tests: tests/properties/test_verification.py, tests/properties/test_derived.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from rnnsearch.accel import verification
from rnnsearch.accel.decoder_steps import unsupported_reason
from rnnsearch.accel.fast_forwards import (
    cell_sequence,
    lstm_sequence,
    luong_unsupported_reason,
    output_losses,
    recurrence_unsupported_reason,
    stack_unsupported_reason,
    torch_gru_sequence,
    unroll_luong,
    unroll_recurrence,
    unroll_rnnsearch,
    unroll_sutskever,
)
from rnnsearch.accel.verification import TRAINING, Conditions
from rnnsearch.accel.windowed_attention import attend, attend_unsupported_reason
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.cells import GRU, LSTM, RNMTLSTM, SSRU, Cell, ChoGRU, GateNormLSTM, LayerNormGRU, Tanh, TorchGRU
from rnnsearch.models.decoders.bahdanau import Bahdanau, BahdanauTanh, Cohn
from rnnsearch.models.decoders.bi_scale import BiScale
from rnnsearch.models.decoders.conditional import BiDeep, ConditionalGRU, DeepTransition
from rnnsearch.models.decoders.decoder import Decoder
from rnnsearch.models.decoders.stack_decoders import Luong, LuongInputFeeding, Neubig, RNMTPlus, Sutskever
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.ops import autotune
from rnnsearch.ops.autotune_cases import cases

FAST_SWITCH = "RNNSEARCH_FAST"
"""Environment variable; 0 runs the definitions only."""


ACCELERATED = (Cell, Decoder, Attention, Output)
"""Base classes of the modules with an attribute `fast_forward`."""


class FastImplementation(NamedTuple):
    """A fast implementation of a method of one class of modules."""

    description: str  # description in `rnnsearch inspect`
    run: Callable[..., Any]  # takes the module and the arguments of the method
    unsupported_reason: Callable[[Any], str | None] = lambda _: None  # why it cannot replace the method of a module


class Choice(NamedTuple):
    """The decision for one module."""

    module: str  # its name in the model
    implementation: str | None  # description of the fast implementation; None: the definition runs
    reason: str = ""  # why the definition runs


def fast_implementations_are_enabled() -> bool:
    """Return True unless the environment variable RNNSEARCH_FAST is 0."""
    return os.environ.get(FAST_SWITCH) != "0"


def choose(model: nn.Module, fast: bool = True, conditions: Conditions = TRAINING) -> list[Choice]:
    """Set `fast_forward` of each module in a model that has a fast implementation, and return all choices.

    Args:
        fast: If False, all modules run their definitions.
        conditions: The use of the model, for which fast implementations are compared with the definitions.
    """
    choices = choices_for(model, fast, conditions)
    for choice in choices:
        module = model.get_submodule(choice.module)
        assert isinstance(module, ACCELERATED)
        # None, too: an earlier choice may have set it.
        module.fast_forward = None if choice.implementation is None else FAST_IMPLEMENTATIONS[type(module)].run
    return choices


_SEQUENCE = "whole sequence with a manual backward pass"
_NATIVE_SEQUENCE = FastImplementation(_SEQUENCE, cell_sequence, unsupported_reason)
_UNROLL = "whole recurrence with a manual backward pass"
_RNNSEARCH = FastImplementation(_UNROLL, unroll_rnnsearch, recurrence_unsupported_reason)
_RECURRENCE = FastImplementation(_UNROLL, unroll_recurrence, recurrence_unsupported_reason)
FAST_IMPLEMENTATIONS: dict[type[nn.Module], FastImplementation] = {
    GRU: FastImplementation(_SEQUENCE, cell_sequence),
    ChoGRU: _NATIVE_SEQUENCE,
    Tanh: _NATIVE_SEQUENCE,
    LayerNormGRU: _NATIVE_SEQUENCE,
    GateNormLSTM: _NATIVE_SEQUENCE,
    RNMTLSTM: _NATIVE_SEQUENCE,
    SSRU: _NATIVE_SEQUENCE,
    TorchGRU: FastImplementation(_SEQUENCE, torch_gru_sequence),
    LSTM: FastImplementation(_SEQUENCE, lstm_sequence),
    Attention: FastImplementation("only the positions in the window", attend, attend_unsupported_reason),
    Bahdanau: _RNNSEARCH,
    BahdanauTanh: _RNNSEARCH,
    Cohn: _RECURRENCE,
    ConditionalGRU: _RECURRENCE,
    DeepTransition: _RECURRENCE,
    BiDeep: _RECURRENCE,
    BiScale: _RECURRENCE,
    LuongInputFeeding: _RECURRENCE,
    Neubig: _RECURRENCE,
    RNMTPlus: _RECURRENCE,
    Luong: FastImplementation(
        "layer by layer, with attention to all positions at once", unroll_luong, luong_unsupported_reason
    ),
    Sutskever: FastImplementation("layer by layer", unroll_sutskever, stack_unsupported_reason),
    Output: FastImplementation("softmax and gradient in chunks", output_losses),
}
"""Fast implementations by exact class."""


def choices_for(model: nn.Module, fast: bool = True, conditions: Conditions = TRAINING) -> list[Choice]:
    """Return the choices that `choose` would make, without a change of the model."""
    # Native code is timed when it is first used, as in the checks below. `autotune` cannot import its cases itself,
    # because they import the code that asks it.
    autotune.register_cases(cases)
    choices = []
    for name, module in model.named_modules():
        if not isinstance(module, ACCELERATED):
            continue
        implementation = FAST_IMPLEMENTATIONS.get(type(module)) if fast else None
        if implementation is None:
            choices.append(Choice(name, None, f"{type(module).__name__} has no fast implementation"))
            continue
        reason = _definition_reason(model, name, implementation, conditions)
        choices.append(Choice(name, None, reason) if reason else Choice(name, implementation.description))
    return choices


def _definition_reason(
    model: nn.Module, name: str, implementation: FastImplementation, conditions: Conditions
) -> str | None:
    """Return why a module runs its definition, or None if it runs its fast implementation."""
    if not fast_implementations_are_enabled():
        return f"{FAST_SWITCH}=0"
    module = model.get_submodule(name)
    return implementation.unsupported_reason(module) or _problem(model, name, implementation, conditions)


def _translation_model(model: nn.Module, name: str) -> tuple[TranslationModel, str] | None:
    """Return the innermost translation model around a module, and the module's path in it; None if there is none."""
    owner = None
    path = name
    while path:
        if isinstance(model, TranslationModel):
            owner = model, path
        child, _, path = path.partition(".")
        model = model.get_submodule(child)
    return owner


def _problem(model: nn.Module, name: str, implementation: FastImplementation, conditions: Conditions) -> str | None:
    """Return why a module's fast implementation must not be used, or None if it equals the definition."""
    module = model.get_submodule(name)
    if any(parameter.is_meta for parameter in module.parameters()):
        return None  # the model is built for its shapes only
    if isinstance(module, Cell):
        return verification.cell_problem(module, implementation.run, conditions)
    if isinstance(module, Output):
        return verification.output_problem(module, implementation.run, conditions)
    # A decoder or an attention is built from the config of the translation model that it belongs to.
    owner = _translation_model(model, name)
    if owner is None:
        return None  # built without a translation model, as in tests
    model, path = owner
    # Each of several sources has an attention like that of a model with one source, which is compared.
    return verification.component_problem(model, path.partition(".sources.")[0], implementation.run, conditions)


def describe_training(model: nn.Module) -> str:
    """Return which components of a model train with fast implementations, and why the others run their definitions.

    Components inside a decoder do not run separately and are left out, except for the attention of a decoder without a
    fast implementation. The model is not changed.
    """
    choices = choices_for(model)
    without = {name for name, implementation, _ in choices if implementation is None}
    decoders = [name for name, module in model.named_modules() if isinstance(module, Decoder)]

    def runs_separately(name: str) -> bool:
        owner = next((decoder for decoder in decoders if name.startswith(f"{decoder}.")), None)
        return owner is None or (owner in without and isinstance(model.get_submodule(name), Attention))

    reasons = {name: reason for name, _, reason in choices if runs_separately(name)}
    reasons_by_part: dict[str, set[str]] = {}  # such as "encoder" or "decoder"
    for name, reason in reasons.items():
        reasons_by_part.setdefault(name.partition(".")[0], set()).add(reason)
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        part = name.partition(".")[0]
        # Name the encoder, for example, instead of its cells if the same is true of all of them.
        is_uniform = len(reasons_by_part[part]) == 1
        names_by_reason.setdefault(reason, []).append(part if is_uniform else name)
    lists = {reason: ", ".join(dict.fromkeys(names)) for reason, names in names_by_reason.items()}
    sentences = []
    if fast := lists.pop("", None):
        sentences.append(f"fast implementations of {fast}")
    if lists:
        definitions = ", ".join(f"{names} ({reason})" for reason, names in lists.items())
        sentences.append(f"definitions of {definitions}")
    return "; ".join(sentences)
