"""Checks of fast implementations against the definitions in `models`, on tiny random cases.

A fast implementation is written for one exact class. If someone edits that class, the equations that run would no
longer be those in the file. Therefore `registry.choose` (for training and encoding) and `model_scorer.fastest_scorer`
(for search) ask this module before they use a fast implementation, and run the definition if the two differ. This also
catches native code that was miscompiled on the user's machine.

Each check takes some milliseconds and runs once per process for the same classes, code, options and precision: a class
that is redefined in a notebook is checked again. Checks do not change the state of any random number generator.

Results are stored in `_problems` under `_lock`, since server threads may check at the same time. A wider `TOLERANCE` or
`SEARCH_TOLERANCE` hides errors; property tests have separate tolerances. Tests:
tests/properties/test_verification.py.

Axes: B sentences, I target positions, J source positions, H annotation, E embedding, D query.
"""

from __future__ import annotations

import inspect
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from types import CodeType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from rnnsearch.config.model import ModelConfig
from rnnsearch.config.options import MAX_INTEGER
from rnnsearch.config.outputs import SoftmaxOutputOptions
from rnnsearch.data.batch import Stream
from rnnsearch.engine.structs import DType
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.attention.windows import LocalPredictive
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.cells import SSRU, Cell
from rnnsearch.models.memory import Encoded
from rnnsearch.models.multi_source import MultiSourceModel
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.ops import autotune
from rnnsearch.ops.native.library import library
from rnnsearch.text.vocabulary import BOS, CONTEXT_END, EOS, PAD
from rnnsearch.utils.tensors import lengths_mask

log = logging.getLogger(__name__)

M = TypeVar("M", bound=nn.Module)

TOLERANCE = {torch.float32: 5e-4, torch.bfloat16: 0.02}
"""Allowed distance from the definition in fp32, relative to the norm of a tensor."""
BF16_FACTOR = 16.0  # in bf16, this many times the distance between the definitions in bf16 and fp32 in addition
SEARCH_TOLERANCE = 2e-4  # of log-probabilities and attention weights, absolute and relative
MIN_RELATIVE_NORM = 0.01  # tensors with a smaller norm, relative to the largest, count as that large

SIZE = 20  # of the layers of tiny models: a whole vector of 16 values, and 4 more
VOCABULARY = 23
"""Size of the vocabulary of tiny models."""
STANDARD_DEVIATION = 0.25  # of the parameters: gates are then neither linear nor saturated

FAST_IMPLEMENTATION = "the fast implementation"  # name in messages


class Conditions(NamedTuple):
    """Intended use of a model, which decides what is compared."""

    gradients: bool  # true if the model is trained, so that gradients are compared, too
    dtype: torch.dtype = torch.float32  # of the products in training, in addition to fp32

    @classmethod
    def of_training(cls, precision: str) -> Conditions:
        """Return the conditions of training in a precision, `fp32` or `bf16`."""
        return cls(gradients=True, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)


TRAINING = Conditions(gradients=True)
"""Conditions of training in fp32."""
INFERENCE = Conditions(gradients=False)
"""Conditions of a model that is not trained."""

_problems: dict[tuple[Any, ...], str | None] = {}  # results of all checks of this process
_lock = threading.RLock()


def cell_problem(cell: Cell, run: Callable[..., Any], conditions: Conditions) -> str | None:
    """Return why the fast implementation `run` of a cell's `sequence` must not be used, or None if it may be."""

    def check() -> bool:
        tiny = filled(type(cell)(SIZE, SIZE))
        x = random(2, 4, SIZE)
        start = tiny.start(random(2, SIZE).detach())
        mask = lengths_mask(torch.tensor([4, 2]), 4)
        recurrent_mask = 2.0 * (random(2, SIZE).detach() > 0)

        def forward() -> list[Tensor | None]:
            outputs, last = tiny.sequence(x, mask, start=start)
            return [outputs * mask.unsqueeze(2), *last]  # outputs at padding are undefined

        def backward_with_dropout() -> list[Tensor | None]:
            outputs, last = tiny.sequence(x, mask, backward=True, recurrent_mask=recurrent_mask)
            return [outputs * mask.unsqueeze(2), *last]

        calls = forward, backward_with_dropout
        return all(_equals_definition(tiny, run, call, [x], conditions) for call in calls)

    conditions = _without_rounding(conditions, cell)
    return find_problem(check, FAST_IMPLEMENTATION, cell, run, conditions)


def output_problem(output: Output, run: Callable[..., Any], conditions: Conditions) -> str | None:
    """Return why the fast implementation `run` of an output layer's `losses` must not be used, or None if it may be."""
    lexical_size = 0 if output.lexical is None else SIZE

    def check() -> bool:
        tiny = filled(Output(SIZE, VOCABULARY, lexical=lexical_size))
        readout = random(5, SIZE + lexical_size)
        target = torch.tensor([3, 4, 22, 4, 7])
        weights = torch.tensor([1.0, -0.5, 0.0, 2.0, 0.5])

        def losses() -> list[Tensor | None]:
            return [*tiny.losses(readout, target, 0.1), *tiny.losses(readout, target, token_weights=weights)]

        return _equals_definition(tiny, run, losses, [readout], conditions)

    return find_problem(check, FAST_IMPLEMENTATION, output, run, conditions, lexical_size)


def component_problem(
    model: TranslationModel, path: str, run: Callable[..., Any], conditions: Conditions
) -> str | None:
    """Return why the fast implementation `run` of a decoder's `unroll` or an attention's `attend` must not be used.

    Args:
        path: Name of the decoder or attention in the model.

    Returns:
        The reason, or None if `run` may be used.
    """

    def check() -> bool:
        tiny = TinyModel(model.config)
        component = tiny.model.get_submodule(path)
        annotations = tiny.encoded.annotations.detach().requires_grad_()
        words = random(2, 3, tiny.config.embedding)
        if not isinstance(component, Attention):
            call = partial(tiny.unroll, annotations, words)
            return _equals_definition(component, run, call, [annotations, words], conditions)
        queries = random(2, 3, tiny.config.decoder.size)
        call = partial(tiny.attend, path, annotations, words, queries)
        return _equals_definition(component, run, call, [annotations, words, queries], conditions)

    conditions = _without_rounding(conditions, model.decoder)
    key = (run, conditions, path, tiny_config(model.config).model_dump_json(), code_of(*map(type, model.modules())))
    return find_problem(check, FAST_IMPLEMENTATION, model.get_submodule(path), *key)


def search_problem(
    model: TranslationModel, create: Callable[[TranslationModel, DType], Any], name: str = "the native search"
) -> str | None:
    """Return why a native search must not be used, or None if its steps equal those of the model.

    Args:
        model: The model; a tiny model of its config is compared.
        create: Returns the native search of a model in a type (see `_steps_are_equal`), or None if there is none, which
            is a problem, too.
        name: Its name in messages.
    """

    def check() -> bool:
        tiny = TinyModel.like(model)
        native = create(tiny.model, DType.FP32)
        return native is not None and _steps_are_equal(tiny, native)

    return find_problem(check, name, model, create, TinyModel.key(model))


@torch.no_grad()
def _steps_are_equal(tiny: TinyModel, native: Any) -> bool:
    """Return True if a native search gives the log-probabilities and attention weights of its model.

    Args:
        tiny: The model and its source sentences.
        native: Native search of this model, like `NativeDecoder`: `encode` returns the memory of sentences, `start` the
            first state, and `step` the logits, the logarithm of the sum of their exponentials, the next state and the
            attention weights; `output` is the output layer over the whole vocabulary.
    """
    memories = tiny.model.encode(tiny.sources)
    state = tiny.model.start(memories)
    native_memory = native.encode(tiny.sources)
    native_state = native.start(native_memory)
    # Three positions: the first state, one that depends on it, and the last token of the vocabulary.
    for y in ([BOS, BOS], [5, 6], [VOCABULARY - 1, 7]):
        tokens = torch.tensor(y)
        readout, state, attention = tiny.model.step(tokens, state, memories)
        logits, norm, native_state, alpha = native.step(native_memory, native_state, tokens, native.output)
        pairs = [(logits - norm[:, None], tiny.model.log_probs(readout))]
        if attention:
            pairs.append((alpha, torch.cat([*attention.values()], dim=-1)))
        for result, want in pairs:
            if not torch.allclose(result, want, rtol=SEARCH_TOLERANCE, atol=SEARCH_TOLERANCE):
                return False
    return True


def _without_rounding(conditions: Conditions, module: nn.Module) -> Conditions:
    """Return conditions in fp32 for modules whose results or gradients jump, so that rounding may change them a lot.

    These are predictive local windows (the positions inside change) and SSRU cells (the gradient of max(0, c)). Other
    modules keep their conditions.
    """
    jumps = any(isinstance(part, LocalPredictive | SSRU) for part in module.modules())
    return Conditions(conditions.gradients) if jumps else conditions


def forget() -> None:
    """Forget all results, so that every fast implementation is checked again."""
    _problems.clear()


def find_problem(check: Callable[[], bool], name: str, definition: nn.Module | type, *key: Any) -> str | None:
    """Return why a fast implementation must not be used, or None if it may be; warn if a new problem is found.

    Args:
        check: Returns True if the fast implementation equals the definition. It is called once for the code of the
            module and a key.
        name: Name of the fast implementation in messages.
        definition: The module or class that has the definition.
        key: Everything else that the result depends on, such as the implementation, options and precision; hashable.
    """
    probe = torch.empty(0)
    if probe.is_meta or type(probe) is not Tensor:
        return None  # tensors have no values here (meta device, FakeTensorMode): the caller wants shapes only
    classes = (definition,) if isinstance(definition, type) else tuple(map(type, definition.modules()))
    # Code objects are part of the key, so that a class that is redefined in a notebook is checked again.
    whole_key = (name, classes[0], code_of(*classes), *key)
    # Reentrant: a check of native search packs layers, whose products are checked themselves.
    with _lock:
        if whole_key not in _problems:
            try:
                with _isolated():
                    result = None if check() else "differs from the definition"
            except Exception as error:  # a component that was added by the user may have any requirements
                result = f"cannot be checked ({type(error).__name__}: {error})"
            if result is not None:
                message = "%s of %s %s, so the definition runs, which is slower; expected after a change of equations"
                log.warning(message, name, _described(classes), result)
                result = f"{name} {result}"
            _problems[whole_key] = result
        return _problems[whole_key]


def _described(classes: Sequence[type]) -> str:
    """Return the name and file of the first class, and the names of the others."""
    cls = classes[0]
    components = {other.__name__ for other in classes if other.__module__.startswith("rnnsearch")}
    components -= {cls.__name__, "Linear"}
    with_components = f", with {', '.join(sorted(components))}" if components else ""
    return f"{cls.__name__} ({cls.__module__.replace('.', '/')}.py{with_components})"


def code_of(*classes: type) -> frozenset[CodeType]:
    """Return the code of the methods of classes, with inherited ones except for PyTorch's."""
    bases = {base for cls in classes for base in cls.__mro__} - set(nn.Module.__mro__)
    members = [inspect.unwrap(member) for base in bases for member in vars(base).values() if callable(member)]
    return frozenset(member.__code__ for member in members if inspect.isfunction(member))


@contextmanager
def _isolated() -> Iterator[None]:
    """Run without the caller's modes, without timing of kernels, and without effect on PyTorch's random numbers."""
    with (
        torch.random.fork_rng(devices=()),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        autotune.forced(autotune.TORCH),
    ):
        yield


# Comparison of results and gradients.


def _equals_definition(
    module: Any,
    run: Callable[..., Any],
    call: Callable[[], Sequence[Tensor | None]],
    inputs: Sequence[Tensor],
    conditions: Conditions,
) -> bool:
    """Return True if a tiny module's fast implementation, native and in PyTorch, equals its definition.

    Args:
        run: The fast implementation.
        call: Calls the method that it replaces.
        inputs: Tensors that have gradients, in addition to the module's parameters.
    """

    def results(fast: bool, implementation: str, dtype: torch.dtype) -> list[Tensor | None]:
        module.fast_forward = run if fast else None
        with autotune.forced(implementation), torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            outputs = call()
        detached = [None if output is None else output.detach() for output in outputs]
        if not conditions.gradients:
            return detached
        # The gradient of a random linear function of all outputs.
        generator = torch.Generator().manual_seed(1)
        differentiable = [output.float() for output in outputs if output is not None and output.requires_grad]
        total = sum((output * torch.randn(output.shape, generator=generator)).sum() for output in differentiable)
        assert isinstance(total, Tensor)
        return [*detached, *torch.autograd.grad(total, [*inputs, *module.parameters()], allow_unused=True)]

    implementations = [autotune.TORCH] if library() is None else [autotune.TORCH, autotune.NATIVE]
    exact = results(False, autotune.TORCH, torch.float32)
    for dtype in {torch.float32, conditions.dtype}:
        # The rounding of the definition itself shows how much a fast implementation may differ.
        rounded = exact if dtype is torch.float32 else results(False, autotune.TORCH, dtype)
        for implementation in implementations:
            if not _are_near(results(True, implementation, dtype), exact, rounded, TOLERANCE[dtype]):
                return False
    return True


def _are_near(
    results: Sequence[Tensor | None], exact: Sequence[Tensor | None], rounded: Sequence[Tensor | None], tolerance: float
) -> bool:
    """Return True if results differ from the definition's only by rounding.

    Args:
        exact: Results of the definition in fp32.
        rounded: Results of the definition in the precision of `results`.
    """
    norms = [0.0 if tensor is None else float(tensor.norm()) for tensor in exact]
    min_norm = MIN_RELATIVE_NORM * max(norms)
    tensors = list(zip(results, exact, rounded, norms, strict=True))
    # The rounding of one tensor may be small by chance, so the mean over all tensors counts as well.
    errors = [float((other - want).norm()) for _, want, other, _ in tensors if want is not None and other is not None]
    mean_error = sum(errors) / max(sum(norms), min_norm)
    for result, want, other, norm in tensors:
        if result is None or want is None or other is None:
            # Only if both are None: a missing gradient is a difference.
            if result is not want:
                return False
            continue
        error = max(float((other - want).norm()), mean_error * norm)
        allowed = tolerance * max(norm, min_norm) + BF16_FACTOR * error
        if not float((result - want).norm()) <= allowed:  # also if it is NaN
            return False
    return True


# Tiny modules and their inputs.


class TinyModel:
    """A translation model with the components of a config and random parameters, and two sentences."""

    def __init__(self, config: ModelConfig, source_names: Sequence[str] = ()) -> None:
        """Create the model.

        Args:
            config: Config of a model of any size.
            source_names: Names of several sources; empty for a single one.
        """
        self.config = tiny_config(config, source_names)
        ids = [[5, 6, 7, 8, 9, 10, 11, EOS], [12, 13, 5, EOS, PAD, PAD, PAD, PAD]]
        self.source = Stream.from_ids(torch.tensor(ids))
        self.sources = {"source": self.source}
        """The source sentences by source; the second sentence misses the second source."""
        model: TranslationModel
        if source_names:
            self.sources = {name: self._source(index) for index, name in enumerate(source_names)}
            model = MultiSourceModel(self.config, dict.fromkeys(source_names, VOCABULARY), VOCABULARY)
        else:
            model = TranslationModel(self.config, VOCABULARY, VOCABULARY)
        self.model = filled(model).eval()

    def _source(self, index: int) -> Stream:
        """Return the sentences in one of several sources."""
        if index == 0:
            return self.source
        # A source of previous sentences, with a separator; the lengths of sources differ.
        ids = torch.tensor([[14, 15, CONTEXT_END, *range(6, 6 + index), EOS], [16, EOS, *[PAD] * (2 + index)]])
        if index == 1:
            ids[1] = PAD
        return Stream.from_ids(ids % VOCABULARY)

    @classmethod
    def like(cls, model: TranslationModel) -> TinyModel:
        """Return a tiny model with the components and the sources of another one."""
        return cls(model.config, _source_names(model))

    @staticmethod
    def key(model: TranslationModel) -> tuple[object, ...]:
        """Return a hashable value that is equal for models with equal tiny models."""
        names = _source_names(model)
        return names, tiny_config(model.config, names).model_dump_json()

    @cached_property
    @torch.no_grad()
    def encoded(self) -> Encoded:
        """The encoder's outputs for `source`."""
        words = self.model.source_embedding(self.source.embedding_input)
        encoded: Encoded = self.model.encoder(words, self.source.mask, None)
        return encoded._replace(words=words) if self.model.reads_source_words else encoded

    def unroll(self, annotations: Tensor, words: Tensor) -> list[Tensor | None]:
        """Return what the decoder computes from annotations [B, J, H] and embedded target words [B, I, E]."""
        decoder = self.model.decoder
        memory = decoder.remember(self.encoded._replace(annotations=annotations))
        state = decoder.start(memory, BatchRng(1), words.shape[1])
        reading = decoder.unroll(decoder.inputs(words), state, memory)
        return [reading.state, reading.context, reading.alpha]

    def attend(self, path: str, annotations: Tensor, words: Tensor, queries: Tensor) -> list[Tensor | None]:
        """Return what the attention at `path` computes from queries [B, I, D]; other arguments: see `unroll`."""
        decoder = self.model.decoder
        attention = self.model.get_submodule(path)
        assert isinstance(attention, Attention)
        memory = decoder.remember(self.encoded._replace(annotations=annotations))
        state = attention.start(memory, BatchRng(1), queries.shape[1])
        results: list[Tensor | None] = []
        for query, word in zip(queries.unbind(1), decoder.inputs(words).unbind(1), strict=True):
            output, state = attention.step(query, state, memory, word)
            results += [output.alpha, output.context]
        return results


def _source_names(model: TranslationModel) -> tuple[str, ...]:
    """Return the names of several sources; empty for a single one."""
    return model.source_names if isinstance(model, MultiSourceModel) else ()


def tiny_config(config: ModelConfig, source_names: Sequence[str] = ()) -> ModelConfig:
    """Return a config with the same encoder, attention and decoder in tiny sizes.

    Components around them (characters, other outputs, pointers, language models, further sources without
    `source_names`) are left out.
    """
    attention = config.attention
    heads = 1 if attention is None else getattr(attention.score, "heads", 1)
    size = math.lcm(SIZE, heads)
    encoder = _resized(config.encoder, size)
    decoder = _resized(config.decoder, size).model_copy(update={"size": encoder.annotation_size})
    if attention is not None:
        attention = attention.model_copy(
            update={
                "score": _resized(attention.score, size),
                "window": _resized(attention.window, 1),  # narrow enough for the fast implementation to pay
                "features": tuple(_resized(feature, size) for feature in attention.features),
            }
        )
    absent = dict.fromkeys(("source_characters", "target_characters", "pointer", "language_model", "sources"))
    components = {"encoder": encoder, "attention": attention, "decoder": decoder}
    if source_names and config.sources is not None:
        own = {name: _resized_encoder(other, config.encoder, size) for name, other in config.sources.encoders.items()}
        components["sources"] = config.sources.model_copy(update={"encoders": own})
    return config.model_copy(
        update={"embedding": size, "tie": "none", "output": SoftmaxOutputOptions(), **absent, **components}
    )


def _resized_encoder(encoder: Any, default: Any, size: int) -> Any:
    """Return the options of the encoder of one source in a tiny size.

    Its annotations have the size of those of the default encoder if they have in the whole model.
    """
    equal = encoder.annotation_size == default.annotation_size
    sizes = (size, 2 * size, size // 2)
    annotation_size = _resized(default, size).annotation_size
    candidates = [_resized(encoder, other) for other in sizes]
    fitting = [options for options in candidates if (options.annotation_size == annotation_size) == equal]
    return [*fitting, candidates[0]][0]


def _resized(options: Any, size: int) -> Any:
    """Return options with another value of all layer sizes."""
    sizes = {}
    for name, field in type(options).model_fields.items():
        # Sizes of layers are the options with this maximum.
        if any(getattr(constraint, "le", None) == MAX_INTEGER for constraint in field.metadata):
            sizes[name] = size
    return options.model_copy(update=sizes)


def filled(module: M) -> M:
    """Fill all parameters of a module with random numbers, always the same, and return it."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        # Through `data`: the parameters may require gradients.
        parameter.data.normal_(std=STANDARD_DEVIATION, generator=generator)
    return module


def random(*shape: int) -> Tensor:
    """Return normal random numbers, always the same for a shape, that have gradients."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).requires_grad_()
