"""Native search of all decoders in `decoder_steps.py`, and native matrix products for any model, without gradients.

Weights are packed once, in fp32, bf16 or int8. `NativeDecoder` computes one position, or a whole batch's greedy or
beam search, per call; the encoders, and the combination of the last states of several, run in PyTorch with packed
weights. RNNsearch has its own native search, which shares more between hypotheses (`rnnsearch_search.py`).
`search/model_scorer.py` chooses; `systems/language.py` packs language models, and `program_writer.py` writes the same
steps.

Axes: B sentences, N = B * K hypotheses, J positions of a source, J_all positions of all sources, A key, H annotation,
S all state values of a hypothesis, P values that attention features compute per source position, C columns of the
output layer, E and G inputs and outputs of a linear layer.

Before changing it: addresses of tensors are passed to native code, so the tensors must be contiguous, of the expected
type, and alive during the call; the structs are declared in `engine/structs.py` and `ops/native/decoder.h`. A state is
one tensor [N, S] that the search reorders. Tests: tests/properties/test_native_search.py, tests/search/test_beam.py.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Mapping
from ctypes import byref, c_int64
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rnnsearch.accel import decoder_steps, readout_steps, verification
from rnnsearch.accel.decoder_steps import DECODER_STEPS, ReadoutInputs
from rnnsearch.accel.rnnsearch_search import WORD_TABLE_BYTES, GreedyBuffers, GreedyOutput, SearchConstraints
from rnnsearch.data.batch import CharacterTable, EmbeddingInput, Stream
from rnnsearch.engine.n_best import NBestArrays
from rnnsearch.engine.rnnsearch import CBeamOptions
from rnnsearch.engine.structs import CAttention, CDecoder, CFeatures, CSourceBatch, DType, OpType, PackedMatrix
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.models.layers import ArrayProjection, Embedding, Linear
from rnnsearch.models.memory import Memory, Origin
from rnnsearch.models.multi_source import MultiSourceModel
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.ops.linear import PackedWeight, num_threads, pointer
from rnnsearch.ops.native.library import library
from rnnsearch.ops.recurrence import packed_ops, prepared_features
from rnnsearch.ops.step import AttentionSource, Reads, StepAttention, StepBuilder
from rnnsearch.text.vocabulary import EOS, PAD, UNK

# Models with native products.

Model = TypeVar("Model", TranslationModel, LanguageModel)


def packed_model(model: Model, dtype: DType) -> Model | None:
    """Return a model with the same parameters whose linear and output layers are packed; None without native code.

    Weights are packed now, so that later changes of the parameters have no effect. A layer whose native product differs
    from its definition stays as it is.
    """
    native = library() if model.device.type == "cpu" else None
    if native is None:
        return None
    # The memo makes both models share their parameters; only the modules are copied.
    packed = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    # A list, because the loop replaces modules.
    for module in list(packed.modules()):
        for name, child in module.named_children():
            if type(child) is Linear and _product_problem(native, child, dtype) is None:
                setattr(module, name, PackedLinear(native, child, dtype))
            elif type(child) is Output and _product_problem(native, child, dtype) is None:
                setattr(module, name, PackedOutput(native, child, dtype))
    return packed


def products_problem(model: TranslationModel, dtype: DType) -> str | None:
    """Return why native products in a type must not be used in a model, or None if they may be."""
    native = library()
    assert native is not None
    linear = next((layer for layer in model.modules() if type(layer) is Linear), None)
    output = model.output if type(model.output) is Output else None
    for layer in (output, linear):
        if layer is not None and (problem := _product_problem(native, layer, dtype)) is not None:
            return problem
    return None


PRODUCT_TOLERANCE = {DType.FP32: 1e-5, DType.BF16: 0.01, DType.INT8: 0.03}  # relative to the norm


def _product_problem(native: ctypes.CDLL, layer: Linear | Output, dtype: DType) -> str | None:
    """Return why the native products of a linear or output layer must not be used, or None if they may be."""

    def check() -> bool:
        x = verification.random(5, verification.SIZE).detach()
        if isinstance(layer, Linear):
            linear = verification.filled(Linear(verification.SIZE, verification.VOCABULARY))
            results = [(PackedLinear(native, linear, dtype)(x), linear(x))]
        else:
            output = verification.filled(Output(verification.SIZE - 4, verification.VOCABULARY, lexical=4))
            packed = PackedOutput(native, output, dtype)
            ids = torch.tensor([3, 5, 17])
            results = [(packed.logits_function(rows)(x), output.logits_function(rows)(x)) for rows in (None, ids)]
        return all(bool((y - want).norm() <= PRODUCT_TOLERANCE[dtype] * want.norm()) for y, want in results)

    return verification.find_problem(check, f"the native {dtype.name.lower()} product", layer, dtype)


class PackedLinear(nn.Linear):
    """A linear layer with packed weights, without gradients; it keeps the parameters."""

    def __init__(self, native: ctypes.CDLL, layer: nn.Linear, dtype: DType) -> None:
        # Not the initialiser of Linear, which would allocate new parameters.
        nn.Module.__init__(self)
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        self.weight = layer.weight
        self.bias = layer.bias
        self.packed = PackedWeight(native, layer.weight, layer.bias, dtype)

    def forward(self, input: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.packed(input)


class PackedOutput(Output):
    """An output layer with packed weights, W_o and W_l as one matrix."""

    def __init__(self, native: ctypes.CDLL, layer: Output, dtype: DType) -> None:
        nn.Module.__init__(self)
        self.vocabulary = layer.vocabulary
        self.weight = layer.weight
        self.lexical = layer.lexical
        self.bias = layer.bias
        self._native = native
        self._dtype = dtype
        self._full = self._pack(layer.weight, layer.lexical, layer.bias)

    def logits_function(self, rows: Int[Tensor, "C"] | None) -> PackedWeight:
        if rows is None:
            return self._full
        return self._pack(self.weight[rows], None if self.lexical is None else self.lexical[rows], self.bias[rows])

    def _pack(self, weight: Tensor, lexical: Tensor | None, bias: Tensor) -> PackedWeight:
        if lexical is not None:
            weight = torch.cat([weight, lexical], dim=1)
        return PackedWeight(self._native, weight, bias, self._dtype)


# Native search.


def search_unsupported_reason(model: TranslationModel) -> str | None:
    """Return why a model has no native search, or None if it has."""
    decoder = type(model.decoder)
    output = type(model.output)
    if model.language_model is not None:
        return "a language model is inside"
    if model.actor is not None:
        return "an actor changes the decoder's states"
    if decoder not in DECODER_STEPS:
        return f"the decoder is {decoder.__name__}"
    if output is not Output:
        return f"the output layer is {output.__name__}"
    if (reason := decoder_steps.unsupported_reason(model.decoder)) is not None:
        return reason
    return readout_steps.readout_unsupported_reason(model.decoder) or readout_steps.lexical_unsupported_reason(model)


class NativeSource(NamedTuple):
    """Everything that the attention to one source computes once per sentence."""

    keys: Tensor  # [B, J, A]
    annotations: Tensor  # [B, J, H]
    mask: Tensor  # [B, J]
    centres: Tensor  # [B, C] of a window whose centres are known, otherwise [B, 0]
    prepared: Tensor  # [B, J, P], what features compute once per sentence
    origin: Origin | None  # see `models.memory.Memory`

    @property
    def struct(self) -> CSourceBatch:
        """The structure that native code reads."""
        parts = (self.keys, self.annotations, self.mask, self.centres, self.prepared)
        return CSourceBatch(*(part.data_ptr() for part in parts), self.mask.shape[1], self.centres.shape[1])

    def to_source(self, alpha: Tensor) -> Tensor:
        """Return weights over source positions, given weights over annotations."""
        return alpha if self.origin is None else self.origin.to_source(alpha)


class NativeMemory(NamedTuple):
    """Everything that native search computes once per sentence."""

    sources: tuple[NativeSource, ...]  # those that the decoder attends to
    state: Tensor  # [B, S]: feature states, the decoder's initial states, and the position t = 0

    @property
    def widths(self) -> list[int]:
        """Number of annotations of each source; J_all is their sum."""
        return [source.mask.shape[1] for source in self.sources]

    @property
    def structs(self) -> ctypes.Array[CSourceBatch]:
        """The structures that native code reads; they must not outlive the memory."""
        return (CSourceBatch * len(self.sources))(*(source.struct for source in self.sources))

    def to_source(self, alpha: Tensor) -> Tensor | None:
        """Return weights over the positions of all sources, given weights [..., J_all]; None without attention."""
        if not self.sources:
            return None
        parts = alpha.split(self.widths, dim=-1)
        by_source = [source.to_source(part) for source, part in zip(self.sources, parts, strict=True)]
        return by_source[0] if len(by_source) == 1 else torch.cat(by_source, dim=-1)


class NativeDecoder:
    """Native search of a model: its `encode`, `start` and `step` with readout and output layer.

    Made by `create`. The weights are copied, so that later changes of the model have no effect.
    """

    def __init__(self, native: ctypes.CDLL, model: TranslationModel, dtype: DType) -> None:
        packed = packed_model(model, dtype)
        assert packed is not None and isinstance(packed.output, PackedOutput)
        self._native = native
        self._dtype = dtype
        self._model = model
        self._packed = packed  # runs the encoder
        self._output_layer = packed.output
        self.source_names = model.source_names if isinstance(model, MultiSourceModel) else None
        """Names of the sources in the order of their attention weights; None for the only one, with any name."""
        self.output = packed.output.logits_function(None)
        """Output layer over the whole vocabulary."""
        # Packed matrices by weight, first row and number of rows; their biases are not used here.
        self._matrices: dict[tuple[int, int, int], PackedWeight] = {}
        for layer in packed.modules():
            if isinstance(layer, PackedLinear):
                self._matrices[id(layer.weight), 0, len(layer.weight)] = layer.packed
        self._deep_output = readout_steps.deep_output_of(packed.decoder)
        embeddings = model.target_embedding(EmbeddingInput(torch.arange(model.target_embedding.weight.shape[0])))
        self.vocabulary = len(embeddings)
        first_word = self._project_words(embeddings[:1])
        self._word_table: Tensor | None = None
        # 4 bytes per fp32 value.
        if len(embeddings) * first_word.shape[1] * 4 <= WORD_TABLE_BYTES:
            self._word_table = self._project_words(embeddings).float().contiguous()
        self._write_struct(x_size=first_word.shape[1])

    @staticmethod
    @torch.no_grad()
    def create(model: TranslationModel, dtype: DType) -> NativeDecoder | None:
        """Return the native search of a model, or None if the model is not supported or there is no native code."""
        if search_unsupported_reason(model) is not None:
            return None
        native = library() if model.device.type == "cpu" else None
        return None if native is None else NativeDecoder(native, model, dtype)

    def rows(self, ids: Tensor) -> PackedMatrix:
        """Return the output layer over the tokens `ids` [C]."""
        return self._output_layer.logits_function(ids)

    def encode(self, sources: Mapping[str, Stream]) -> NativeMemory:
        """Return the memory of B sentences, given the streams [B, J] of their sources."""
        step, _, memory = self._write_step(sources)
        B = len(memory.mask)
        memories = (memory,) if memory.sources is None else memory.sources.memories
        native_sources = []
        feature_states = []
        for n, attention in enumerate(step.attentions):
            source = _native_source(attention.source, memories[n].origin)
            native_sources.append(source)
            # One state per annotation; a merging encoder has fewer of them than tokens.
            state_size = source.mask.shape[1] * self._attentions[n].features.state_size
            feature_states.append(torch.zeros(B, state_size))
        initial_states = [initial.float() for _, initial in step.states]
        state = torch.cat([*feature_states, *initial_states, torch.zeros(B, 1)], dim=1)
        return NativeMemory(tuple(native_sources), state)

    def start(self, memory: NativeMemory) -> Tensor:
        """Return the state before the first position [B, S]."""
        return memory.state

    def step(
        self, memory: NativeMemory, state: Tensor, y: Tensor, output: PackedMatrix
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Compute one target position of N hypotheses.

        Returns:
            Logits [N, C], the logarithm of the sum of their exponentials [N], the next state [N, S], and the weights of
            the positions of all sources [N, J_all], None without attention.
        """
        N = y.shape[0]
        B = memory.state.shape[0]
        if int(y.max()) >= self.vocabulary:
            # Copied words have ids beyond the vocabulary, and no embedding.
            y = y.masked_fill(y >= self.vocabulary, UNK)
        state = state.contiguous()
        x: Tensor | None = None  # projected words
        if self._word_table is None:
            x = self._project_words(self._model.target_embedding(EmbeddingInput(y))).float().contiguous()
        logits = state.new_empty(N, output.struct.outputs)
        norm = state.new_empty(N)
        alpha = state.new_empty(N, sum(memory.widths))  # [N, J_all]
        next_state = torch.empty_like(state)
        inputs = (pointer(y), None if x is None else pointer(x), c_int64(N), c_int64(N // B), pointer(state))
        results = (pointer(next_state), pointer(alpha), pointer(logits), pointer(norm))
        arguments = (byref(self._struct), byref(output.struct), memory.structs)
        self._native.decoder_step(*arguments, *inputs, *results, num_threads())
        return logits, norm, next_state, memory.to_source(alpha)

    @property
    def searches_in_one_call(self) -> bool:
        """True if `greedy` and `beam` can be called: all target words are projected."""
        return self._word_table is not None

    def greedy(self, memory: NativeMemory, output: PackedMatrix, constraints: SearchConstraints) -> GreedyOutput:
        """Search a batch greedily; the result has no attention if the decoder has none."""
        # Native code overwrites the state.
        state = memory.state.clone()
        buffers = GreedyBuffers(sum(memory.widths), constraints)
        arguments = (byref(self._struct), byref(output.struct), memory.structs, byref(constraints.struct))
        self._native.decoder_greedy.restype = c_int64
        steps = self._native.decoder_greedy(
            *arguments, c_int64(len(state)), pointer(state), byref(buffers.struct), num_threads()
        )
        return buffers.output(steps, memory.to_source)

    def beam(
        self, memory: NativeMemory, output: PackedMatrix, constraints: SearchConstraints, options: CBeamOptions
    ) -> NBestArrays | None:
        """Search a batch with a beam; return None if a score is NaN. Without attention, J_all of the result is 0."""
        state = memory.state
        result = constraints.allocate(options.n_best, sum(memory.widths))
        arguments = (byref(self._struct), byref(output.struct), memory.structs, byref(constraints.struct))
        self._native.decoder_beam.restype = c_int64
        is_finite = self._native.decoder_beam(
            *(*arguments, byref(options), c_int64(len(state)), pointer(state), byref(result.struct), num_threads())
        )
        if not is_finite or np.isnan(result.scores).any():
            return None
        B, n, T, _ = result.attention.shape
        alphas = memory.to_source(torch.from_numpy(result.attention).view(B, n * T, -1))
        return result if alphas is None else result._replace(attention=alphas.view(B, n, T, -1).numpy())

    def _project_words(self, embedded: Tensor) -> Tensor:
        """Return the words' part of the sums: the recurrence's, then the readout's."""
        inputs = self._packed.decoder.inputs(embedded)
        if self._deep_output is None:
            return inputs
        return torch.cat([inputs, self._deep_output.word(embedded)], dim=1)

    def _write_step(self, sources: Mapping[str, Stream]) -> tuple[StepBuilder, ReadoutInputs, Memory]:
        """Write the step over some sentences, with their memory and initial states, and the model's weights."""
        packed = self._packed
        decoder = self._model.decoder
        memory = with_words(packed, packed.combined(packed.encode(sources)))
        # A window whose centres are known has as many as the longest source has tokens; later ones repeat the last.
        num_centres = max(source.ids.shape[1] for source in sources.values())
        step = StepBuilder(torch.empty(len(memory.mask), num_centres, 0))
        inputs = DECODER_STEPS[type(decoder)](step, decoder, packed.decoder.start(memory), memory)
        return step, inputs, memory

    def _write_struct(self, x_size: int) -> None:
        """Write the step for one token of an empty sentence; memories of real sentences are given at each call."""
        step, inputs, _ = self._write_step(_one_position(self._model))
        deep_output_size = 0 if self._deep_output is None else self._deep_output.word.weight.shape[0]
        output_reads = add_output_inputs(step, self._model, inputs, x_size - deep_output_size)
        # Kept as attributes, like the following arrays, because the structure contains only their addresses.
        self._ops = packed_ops(step, self._matrix_address)
        self._initial_sums = step.initial_sums()
        state_ranges = [(value.offset, value.size) for value, _ in step.states]
        flat_ranges = [number for state_range in state_ranges for number in state_range]
        self._state_ranges = (c_int64 * len(flat_ranges))(*flat_ranges)
        sizes = [size for _, size in state_ranges]
        struct = CDecoder(x_size, step.sums_size, step.values_size, step.reads_size)
        self._referenced: list[object] = []  # objects that the attentions point to
        self._attentions = (CAttention * len(step.attentions))()
        for attention, attention_struct in zip(step.attentions, self._attentions, strict=True):
            self._referenced += _set_attention(attention_struct, attention)
        struct.num_attentions = len(self._attentions)
        struct.attentions = ctypes.addressof(self._attentions)
        struct.num_ops = len(self._ops)
        struct.ops = ctypes.addressof(self._ops)
        struct.bias = self._initial_sums.data_ptr()
        struct.num_states = len(state_ranges)
        struct.states = ctypes.addressof(self._state_ranges)
        struct.state_size = sum(sizes) + 1  # the position t is behind the states
        for n, op in enumerate(step.ops):
            # The first READ of the output layer's inputs; their offset in the reads identifies it.
            if op.type is OpType.READ and op.offsets[0] == output_reads.offset:
                struct.readout = ctypes.addressof(self._ops) + n * ctypes.sizeof(self._ops[0])
                break
        struct.word_table = None if self._word_table is None else self._word_table.data_ptr()
        self._struct = struct
        self._step = step  # owns tensors that the operations point to
        # Counted from the end, because the size of the feature states before them depends on the sentence.
        ends = (np.cumsum([0, *sizes]) - struct.state_size).tolist()
        self.hidden = [slice(ends[n], ends[n + 1]) for n in step.hidden_states]
        """Columns of the hidden vectors of cells in a state."""

    def _matrix_address(self, weight: Tensor, first_row: int, rows: int) -> int:
        """Return the address of some rows of a weight, packed."""
        # Ids stay unique, because `self._step` and the model keep the weights alive.
        key = (id(weight), first_row, rows)
        if key not in self._matrices:
            self._matrices[key] = PackedWeight(self._native, weight[first_row : first_row + rows], None, self._dtype)
        return ctypes.addressof(self._matrices[key].struct)


def _native_source(source: AttentionSource, origin: Origin | None) -> NativeSource:
    """Return a source in the types and the layout that native code reads."""
    centres = source.window_centres
    return NativeSource(
        keys=source.keys.float().contiguous(),
        annotations=source.annotations.float().contiguous(),
        mask=source.mask.contiguous(),
        centres=torch.empty(len(source.mask), 0) if centres is None else centres.float().contiguous(),
        prepared=prepared_features(source).contiguous(),
        origin=origin,
    )


def _set_attention(struct: CAttention, attention: StepAttention) -> list[object]:
    """Set the fields of a structure; return objects that must live as long as it."""
    source = attention.source
    vector = source.score_vector
    score_vector = torch.zeros(0) if vector is None else vector.float().contiguous()
    struct.key_size = source.keys.shape[2]
    struct.annotation_size = source.annotations.shape[2]
    struct.heads = source.heads
    struct.score_vector = score_vector.data_ptr()
    struct.score_scale = source.scale
    struct.window_radius = source.window_radius
    struct.window_sigma = source.window_sigma
    struct.features, items = CFeatures.create(attention.feature_descriptions)
    return [score_vector, items]


EMPTY_SOURCE = Stream.from_ids(
    torch.full((1, 1), EOS), CharacterTable(torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), PAD))
)
"""An empty sentence, also for models that read characters."""


def _one_position(model: TranslationModel) -> dict[str, Stream]:
    """Return sources of one position each: an empty sentence, or an array of one row."""
    if not isinstance(model, MultiSourceModel):
        return {"source": _one_row(model.source_embedding)}
    return dict(zip(model.source_names, map(_one_row, model.source_embedding), strict=True))


def _one_row(embedding: Embedding | ArrayProjection) -> Stream:
    if isinstance(embedding, ArrayProjection):
        return Stream.from_arrays([np.zeros((1, embedding.features), np.float32)])
    return EMPTY_SOURCE


def with_words(model: TranslationModel, memory: Memory) -> Memory:
    """Return a memory whose values also contain the embedded words [B, J, E], if the model has a lexical model."""
    if model.lexical is None:
        return memory
    assert memory.words is not None
    return memory._replace(values=torch.cat([memory.context_values, memory.words], dim=2))


def add_output_inputs(step: StepBuilder, model: TranslationModel, inputs: ReadoutInputs, word_offset: int) -> Reads:
    """Write readout and lexical model and return the inputs of the output layer; `word_offset`: see `add_readout`."""
    values = readout_steps.add_readout(step, model.decoder, word_offset, inputs)
    if model.lexical is not None:
        assert inputs.context is not None
        values += (readout_steps.add_lexical(step, model.lexical, inputs.context),)
    return step.read(*((value, None) for value in values))
