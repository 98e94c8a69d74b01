"""The weights of RNNsearch as the engine has them, and back: which parameters stand where in which array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rnnsearch.engine.packed import Array, rounded_up
from rnnsearch.engine.rnnsearch import GRU_PARTS, TABLES, WAYS, Arrays, Sizes, Weight
from rnnsearch.kernels.step import padded
from rnnsearch.models.attention.scores import Additive
from rnnsearch.models.cells import GRU
from rnnsearch.models.decoders.bahdanau import Bahdanau
from rnnsearch.models.decoders.readouts import DeepOutput, Readout
from rnnsearch.models.embeddings import Embedding
from rnnsearch.models.encoders import Bidirectional
from rnnsearch.models.linear import Linear
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.text.vocabulary import BOS


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
