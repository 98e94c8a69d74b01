"""Weights and symbols of another toolkit, taken by their names there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from rnnsearch.errors import ModelError

DIRECTIONS = {"forward": "", "backward": "_reverse"}


class Taken:
    """Tensors, each taken by its name; what nobody has taken is told."""

    def __init__(self, where: str, tensors: Mapping[str, Tensor]) -> None:
        self.where = where
        self._left = dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, *names: str) -> Tensor:
        """The tensor of the first of these names that is there, in fp32. Errors: ModelError where none is."""
        for name in names:
            if name in self._left:
                found, axes = self._left.pop(name).float(), 1 if "bias" in name else 2
                if found.dim() == axes:
                    return found
                raise ModelError(f"{self.where}: {name} must have {axes} axes; got {found.dim()}")
        raise ModelError(f"{self.where}: must have the weights of its options; it lacks {names[0]}")

    def require_empty(self) -> None:
        """Errors: ModelError where something is left."""
        for name in sorted(self._left):
            raise ModelError(f"{self.where}: {name} has no counterpart here")


def distinct(where: str, side: str, symbols: list[str]) -> list[str]:
    """A side's symbols. Errors: ModelError where one stands there twice, or has a space in it."""
    seen: set[str] = set()
    for symbol in symbols:
        if symbol in seen or " " in symbol:
            fault = "has a space in it" if " " in symbol else "stands there twice"
            raise ModelError(f"{where}: its vocabulary {side!r} must have different symbols; {symbol!r} {fault}")
        seen.add(symbol)
    return symbols


def order(where: str, symbols: Sequence[str], specials: Sequence[str]) -> list[int]:
    """The ids of a vocabulary in the order that they have here: the special ones first, which are named in our order.
    Errors: ModelError for one without these."""
    places = {symbol: id for id, symbol in enumerate(symbols)}
    for special in specials:
        if special not in places:
            raise ModelError(f"{where}: its vocabularies must have {', '.join(specials)}; one lacks {special}")
    return [*(places[name] for name in specials), *(id for name, id in places.items() if name not in specials)]


def tables(taken: Taken, names: Mapping[str, str], orders: Sequence[list[int]], options: str) -> dict[str, Tensor]:
    """The two tables of embeddings, by side. options: that say their sizes. Errors: ModelError where they have other
    rows than the vocabularies or are not of one size."""
    found = {}
    for (side, name), rows in zip(names.items(), orders, strict=True):
        found[f"{side}_embedding.weight"] = in_order(taken, taken.take(name), rows, f"embeddings of {side} symbols")
    sizes = [table.shape[1] for table in found.values()]
    if sizes[0] != sizes[1]:
        fault = f"{options.format(*sizes)} have no counterpart here"
        raise ModelError(f"{taken.where}: {fault}; both must be one")
    return found


def in_order(taken: Taken, weights: Tensor, rows: list[int], what: str) -> Tensor:
    """A row for each symbol, in our order. Errors: ModelError where there are others."""
    if len(weights) != len(rows):
        raise ModelError(f"{taken.where}: must have {len(rows)} {what}; got {len(weights)}")
    return weights[rows]


def encoder(taken: Taken, kind: str, both_ways: bool) -> Iterator[tuple[str, Tensor]]:
    """The layers of a PyTorch module by the name of `encoder.rnn`, as many as there are."""
    for name, ending in list(DIRECTIONS.items())[: 1 + both_ways]:
        yield from stack(taken, "encoder.rnn.{0}_l{1}" + ending, kind, f"encoder.layers.{{}}.{name}_cell")


def decoder(taken: Taken, form: str, kind: str, embedding: int, feeds: bool) -> Iterator[tuple[str, Tensor]]:
    """The decoder's stack. form: as in `stack`; feeds: whether its bottom reads h~ beside the word's embedding."""
    for name, weight in stack(taken, form, kind, "decoder.stack.cells.{}"):
        if feeds and name == "decoder.stack.cells.0.input.weight":
            yield "decoder.feeding.weight", weight[:, embedding:]
            yield name, weight[:, :embedding]
        else:
            yield name, weight


def stack(taken: Taken, form: str, kind: str, ours: str) -> Iterator[tuple[str, Tensor]]:
    """Layers, as many as there are. form: of their names, {0} the weight, {1} the layer; ours: of a cell's, {} the
    layer."""
    layer = 0
    while layer == 0 or form.format("weight_ih", layer) in taken:
        weights = [taken.take(form.format(w, layer)) for w in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        yield from cell(ours.format(layer), kind, *weights)
        layer += 1


def cell(name: str, kind: str, W: Tensor, U: Tensor, b: Tensor, b_U: Tensor) -> Iterator[tuple[str, Tensor]]:
    """One of PyTorch's cells."""
    yield f"{name}.input.weight", gates(kind, W)
    yield f"{name}.recurrent.weight", gates(kind, U)
    if kind == "lstm":
        yield f"{name}.input.bias", gates(kind, b + b_U)
    else:
        yield f"{name}.input.bias", b
        yield f"{name}.recurrent.bias", b_U


def gates(kind: str, w: Tensor) -> Tensor:
    """Rows of a cell's weight or bias in our order of the gates."""
    if kind != "lstm":
        return w
    i, f, candidate, o = w.tensor_split(4)
    return torch.cat([i, f, o, candidate])


def depth(found: Mapping[str, Tensor], prefix: str) -> int:
    """How many layers' names begin so."""
    return len({name.removeprefix(prefix).partition(".")[0] for name in found if name.startswith(prefix)})
