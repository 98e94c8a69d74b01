"""RNNsearch without gradients in native code: what translation runs on a CPU where there is a compiler.

It serves the system of Bahdanau et al. (2015) as the presets have it: a bidirectional GRU encoder, the `bahdanau` or
`bahdanau-tanh` decoder with a GRU, additive global attention with a softmax. Weights are laid out once, in fp32, bf16
or int8; states and scores are fp32 in each. Sizes are rounded up to the processor's vectors: units that are added
have weights of zero, stay zero and change nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from rnnsearch.accel.registry import is_rnnsearch
from rnnsearch.data.batch import Side
from rnnsearch.engine.n_best import NBest
from rnnsearch.engine.rnnsearch import (
    GRU_PARTS,
    TABLES,
    WAYS,
    Arrays,
    CBeam,
    CChoice,
    CGreedy,
    Memory,
    RNNsearch,
    Sizes,
    Weight,
)
from rnnsearch.engine.structs import Array, Kind, Laid, rounded_up
from rnnsearch.models.attention.scores import Additive
from rnnsearch.models.cells import GRU
from rnnsearch.models.decoders.bahdanau import Bahdanau
from rnnsearch.models.decoders.readouts import DeepOutput, Readout, TanhOutput
from rnnsearch.models.encoders import Bidirectional
from rnnsearch.models.layers import Embedding, Linear
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.ops.linear import Packed
from rnnsearch.ops.native.library import library
from rnnsearch.ops.step import padded
from rnnsearch.text.vocabulary import BOS

# The weights of RNNsearch as the engine has them, and back: which parameters stand where in which array.


class Block(NamedTuple):
    """A parameter inside an array: blocks of so many of its rows, and of so many of its columns, are rounded up with
    zeros (0: none are); and the bias of these rows, if they have one."""

    weight: Tensor
    rows: int = 0
    columns: int = 0
    bias: Tensor | None = None


class _Parts(NamedTuple):
    """Of such a model, by their types."""

    directions: tuple[GRU, GRU]
    decoder: Bahdanau
    cell: GRU
    score: Additive
    readout: Readout
    initial: Linear
    output: Output

    @staticmethod
    def of(model: TranslationModel) -> _Parts:
        """Those of one that `NativeRNNsearch.takes`."""
        encoder, decoder, output = model.encoder, model.decoder, model.output
        assert isinstance(encoder, Bidirectional)
        assert isinstance(decoder, Bahdanau)
        assert isinstance(output, Output)
        forward, backward = encoder.forward_cell, encoder.backward_cell
        cell, score, readout, initial = decoder.cell, decoder.attention.score, decoder.deep_output, decoder.initial
        assert isinstance(forward, GRU)
        assert isinstance(backward, GRU)
        assert isinstance(cell, GRU)
        assert isinstance(score, Additive)
        assert isinstance(readout, Readout)
        assert initial is not None
        return _Parts((forward, backward), decoder, cell, score, readout, initial, output)

    @property
    def sizes(self) -> Sizes:
        """Those that arrays do not show."""
        return Sizes(self.directions[0].size, self.cell.size, 2 if isinstance(self.readout, DeepOutput) else 1)


def _blocks(model: TranslationModel) -> dict[str, list[Block]]:
    """What stands below each other in each array, by the names of MATRICES and TABLES."""
    directions, decoder, cell, score, readout, initial, output = parts = _Parts.of(model)
    H, D, A = parts.sizes.encoder, parts.sizes.state, len(score.vector)
    found: dict[str, list[Block]] = {}
    for way, one in zip(WAYS, directions, strict=True):
        gru = (
            Block(one.input.weight, H, 0, one.input.bias),
            Block(one.recurrent_gates.weight, H, H),
            Block(one.recurrent.weight, H, H),
        )
        found |= {f"encoder.{way}.{name}": [block] for name, block in zip(GRU_PARTS, gru, strict=True)}
    found |= {
        "key": [Block(score.key.weight, A, H)],
        "initial": [Block(initial.weight, D, H, initial.bias)],
        "from_state": [
            Block(score.query.weight, A, D),
            Block(cell.recurrent_gates.weight, D, D),
            Block(readout.state.weight, 0, D, readout.state.bias),
        ],
        "from_context": [Block(decoder.context.weight, D, H), Block(readout.context.weight, 0, H)],
        "candidate": [Block(cell.recurrent.weight, D, D)],
        "from_word": [Block(cell.input.weight, D, 0, cell.input.bias), Block(readout.word.weight)],
        "output": [Block(output.weight, bias=output.bias)],
    }
    for name, table in zip(TABLES, (model.source_embedding, model.target_embedding), strict=True):
        if type(table) is Embedding:
            found[name] = [Block(table.weight)]
    return found


def arrays_of(model: TranslationModel) -> Arrays:
    """A model's weights as the engine has them, in fp32."""
    weights, biases = dict[str, Weight](), dict[str, Array]()
    for name, blocks in _blocks(model).items():
        rounded = [_rounded(block.weight, block.rows, block.columns) for block in blocks]
        weights[name] = Weight(in_fp32(torch.cat(rounded)))
        if any(block.bias is not None for block in blocks):
            both = zip(blocks, rounded, strict=True)
            of_rows = [x.new_zeros(len(x)) if b.bias is None else _rounded(b.bias, b.rows) for b, x in both]
            biases[name] = in_fp32(torch.cat(of_rows))
    for name, table in zip(TABLES, (model.source_embedding, model.target_embedding), strict=True):
        if isinstance(table, Embedding) and table.zero_bos:
            weights[name].values[BOS] = 0
    parts = _Parts.of(model)
    return Arrays(weights, biases, in_fp32(_rounded(parts.score.vector, len(parts.score.vector))), parts.sizes)


@torch.no_grad()
def fill_from(model: TranslationModel, weights: Mapping[str, Array], arrays: Arrays) -> None:
    """Put an engine's arrays back into the parameters that they are of; `weights`: those of `arrays` in fp32.

    Errors: ValueError where they are not of such a model.
    """
    filled = set[int]()

    def put(parameter: Tensor, array: Array, rows: int = 0, columns: int = 0) -> None:
        values = _short(torch.tensor(array), rows, len(parameter))
        parameter.copy_(_short(values.t(), columns, parameter.shape[1]).t() if values.dim() > 1 else values)
        filled.add(id(parameter))

    for name, blocks in _blocks(model).items():
        begin = 0
        for block, height in zip(blocks, _heights(blocks), strict=True):
            end = begin + height
            put(block.weight, weights[name][begin:end], block.rows, block.columns)
            if block.bias is not None:
                put(block.bias, arrays.biases[name][begin:end], block.rows)
            begin = end
        if begin != len(weights[name]):
            raise ValueError(name)
    vector = _Parts.of(model).score.vector
    put(vector, arrays.vector, len(vector))
    if left := [name for name, parameter in model.named_parameters() if id(parameter) not in filled]:
        raise ValueError(left[0])


def _heights(blocks: Sequence[Block]) -> list[int]:
    """Rows of each, rounded up."""
    return [len(b.weight) if not b.rows else len(b.weight) // b.rows * rounded_up(b.rows) for b in blocks]


def in_fp32(tensor: Tensor) -> Array:
    """A copy as an array."""
    return tensor.detach().float().contiguous().numpy().copy()


def _rounded(weight: Tensor, rows: int, columns: int = 0) -> Tensor:
    """A weight or bias whose blocks of so many rows, and of so many columns, are rounded up with zeros (0: none)."""
    for axis, size in enumerate((rows, columns)):
        weight = padded(weight, size, axis) if size else weight
    return weight


def _short(rounded: Tensor, size: int, rows: int) -> Tensor:
    """What `_rounded` has rounded up, a block's rows. Errors: ValueError where it is of other sizes."""
    if len(rounded) != (rows // size * rounded_up(size) if size else rows):
        raise ValueError
    return rounded.unflatten(0, (-1, rounded_up(size)))[:, :size].flatten(0, 1) if size else rounded


TABLE_BYTES = 64 << 20
"""Up to this size the words' share of the gates is computed once for the whole vocabulary."""


class NativeMemory(NamedTuple):
    """The engine's `Memory` in tensors, which search selects from."""

    annotations: Tensor
    keys: Tensor
    exponentials: Tensor
    reach: Tensor
    lengths: Tensor
    summary: Tensor

    @property
    def arrays(self) -> Memory:
        """As the engine reads it."""
        return Memory(*(part.numpy() for part in self))


class Greedy(NamedTuple):
    """tokens, scores: [T, B], 0 past the end; attention: [B, T, J], undefined there, None without; length: [B], scored
    symbols."""

    tokens: Tensor
    scores: Tensor
    attention: Tensor | None
    length: Tensor


class Among(NamedTuple):
    """What symbols translations are made of: `ids` of the output's columns (None: all), the columns `banned`, which are
    never taken, and at most `most` [B] symbols a sentence."""

    ids: Tensor | None
    banned: Tensor
    most: Tensor
    bos: int
    eos: int

    @property
    def choice(self) -> CChoice:
        """As native code reads it."""
        columns = None if self.ids is None else self.ids.data_ptr()
        return CChoice(columns, self.banned.data_ptr(), len(self.banned), self.bos, self.eos, self.most.data_ptr())

    def room(self, n: int, J: int) -> NBest:
        """Room for the n best of each sentence over J source positions."""
        return NBest.room(len(self.most), n, int(self.most.max()) + 1, J)


class GreedySearch:
    """What greedy search in native code fills, over J source positions."""

    def __init__(self, J: int, among: Among) -> None:
        B, T = len(among.most), int(among.most.max()) + 1
        self._tokens, self._scores = torch.zeros(T, B, dtype=torch.int64), torch.zeros(T, B)
        self._alphas, self._length = torch.empty(B, T, J), torch.empty(B, dtype=torch.int64)
        made = (self._tokens, self._scores, self._alphas, self._length)
        self.made = CGreedy(T, *(part.data_ptr() for part in made))

    def found(self, steps: int, attention: Callable[[Tensor], Tensor | None] = lambda alphas: alphas) -> Greedy:
        """What stands there after so many steps; `attention`: what becomes of the weights."""
        alphas = attention(self._alphas[:, :steps])
        return Greedy(self._tokens[:steps], self._scores[:steps], alphas, self._length)


class NativeRNNsearch:
    """The twin of a model's `encode`, `start` and `step` (its readout and output product among it).

    Make it with `of`; the model's weights are copied and may change afterwards.
    """

    searches_whole: ClassVar[bool] = True

    def __init__(self, native: ctypes.CDLL, model: TranslationModel, kind: Kind) -> None:
        assert isinstance(model.decoder, Bahdanau)
        assert isinstance(model.output, Output)
        self._native, self._kind = native, kind
        self._engine = RNNsearch(native, arrays_of(model), kind, torch.get_num_threads, TABLE_BYTES)
        self._embed, self._layer = model.source_embedding, model.output
        self.output = self._engine.output
        """The output layer, over the whole vocabulary."""
        self.hidden = [slice(0, model.decoder.cell.size)]
        """Where in a state s_i is, which is all of it but what rounds it up."""

    @staticmethod
    def takes(model: TranslationModel) -> bool:
        """Whether a model is such a system."""
        encoder, decoder = model.encoder, model.decoder
        if type(encoder) is not Bidirectional or not encoder.reads_end:
            return False
        if type(encoder.forward_cell) is not GRU or type(encoder.backward_cell) is not GRU:
            return False
        if not is_rnnsearch(decoder) or type(decoder.readout_layer) not in (DeepOutput, TanhOutput):
            return False
        return type(model.output) is Output and model.lexical is None and model.language_model is None

    @staticmethod
    @torch.no_grad()
    def of(model: TranslationModel, kind: Kind) -> NativeRNNsearch | None:
        """The twin of a model on the CPU; None where it has no twin or nothing can be built here."""
        if not NativeRNNsearch.takes(model):
            return None
        native = library() if model.device.type == "cpu" else None
        return None if native is None else NativeRNNsearch(native, model, kind)

    def rows(self, ids: Tensor) -> Laid:
        """The output layer over the symbols `ids` [C] alone."""
        return Packed(self._native, self._layer.weight[ids], self._layer.bias[ids], self._kind)

    def encode(self, source: Side) -> NativeMemory:
        """The memory of B sentences [B, J], whose real symbols come first."""
        words: Tensor = self._embed(source.symbols)
        found = self._engine.encode(words.detach().float().numpy(), source.mask.sum(1).numpy())
        return NativeMemory(*map(torch.from_numpy, found))

    def start(self, memory: NativeMemory) -> Tensor:
        """s_0 [B, D]."""
        return torch.from_numpy(self._engine.start(memory.arrays))

    def step(
        self, memory: NativeMemory, state: Tensor, y: Tensor, output: Laid
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits [N, C], the logarithm of their exponentials' sum [N], the next state [N, D] and alpha [N, J]."""
        made = self._engine.step(memory.arrays, state.numpy(), y.numpy(), output)
        logits, norm, after, alpha = map(torch.from_numpy, made)
        return logits, norm, after, alpha

    def greedy(self, memory: NativeMemory, output: Laid, among: Among) -> Greedy:
        """Greedy search of B sentences."""
        search = GreedySearch(memory.keys.shape[1], among)
        return search.found(self._engine.greedy(memory.arrays, output, among.choice, search.made))

    def beam(self, memory: NativeMemory, output: Laid, among: Among, asked: CBeam) -> NBest | None:
        """Beam search of B sentences; None where a score was no number."""
        found = among.room(asked.n_best, memory.keys.shape[1])
        fine = self._engine.beam(memory.arrays, output, among.choice, asked, found.made)
        return found if fine else None
