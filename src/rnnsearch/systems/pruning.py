"""Magnitude pruning (See, Luong & Manning 2016, section 3): the weights nearest to zero become zero.

Three schemes say which, of a share x of all weights (`models.weight_classes` has the classes):

| scheme             | of which weights                                                                    |
|--------------------|-------------------------------------------------------------------------------------|
| class-blind        | the x of all that are smallest in size, whatever their class                        |
| class-uniform      | the x of each class that are smallest in size                                       |
| class-distribution | those below lambda sigma_c, sigma_c the standard deviation of class c's weights and  |
|                    | lambda one number for all classes, such that x of all weights are pruned            |

Of equals at a bound the first ones are taken, so that the share holds to a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rnnsearch.errors import ModelError
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.cells import Cell
from rnnsearch.models.decoders.readouts import ReadoutLayer
from rnnsearch.models.layers import Embedding
from rnnsearch.models.outputs import OutputLayer
from rnnsearch.models.speller import Speller
from rnnsearch.systems.ensemble_folder import copy_model
from rnnsearch.systems.folder import WEIGHTS, load_system
from rnnsearch.utils.files import atomic_folder
from rnnsearch.utils.weights import read_weights, save_weights

# The matrices of a model by class (See, Luong & Manning 2016, section 3): embeddings, recurrent layers, attention,
# output. A class is a part of the model and is called by its path.

PARTS = (Embedding, Cell, Attention, ReadoutLayer, OutputLayer, Speller)
"""Whatever is in one of these is of one class; other matrices are of the class of the model's own part around them."""
ROLES = {"weight", "recurrent", "alignment", "embedding"}
TRAINING_ALONE = "auxiliary"
"""The part that does not translate."""


def weight_classes(model: nn.Module) -> dict[str, dict[str, nn.Parameter]]:
    """Of each class the learned matrices by name, a shared one once, in the class of all parts that share it. Biases
    and other vectors are in none."""
    parts = [path for path, part in model.named_modules() if path and isinstance(part, PARTS)]
    names = dict[nn.Parameter, list[str]]()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    classes = dict[str, dict[str, nn.Parameter]]()
    for parameter, paths in names.items():
        matrix = parameter.ndim > 1 and getattr(parameter, "role", None) in ROLES and parameter.requires_grad
        if matrix and paths[0].partition(".")[0] != TRAINING_ALONE:
            called = ", ".join(dict.fromkeys(_part(path, parts) for path in paths))
            classes.setdefault(called, {})[paths[0]] = parameter
    return classes


def _part(name: str, parts: list[str]) -> str:
    """The path of the outermost part that a parameter is in."""
    around = [path for path in parts if name.startswith(f"{path}.")]
    return min(around, key=len) if around else name.partition(".")[0]


PRUNED = "pruned.safetensors"
"""In the folder of a pruned model: which of its weights were pruned, a bit each, by the parameter's name."""

Weights = Mapping[str, Float[Tensor, "_"]]
"""Of each class all weights, one after the other."""
Masks = dict[str, Tensor]


class Chosen(NamedTuple):
    """The weights that a scheme prunes, by class, and up to which size; None where each class has its own bound."""

    masks: Masks
    bound: float | None


Scheme = Callable[[Weights, Mapping[str, Tensor], float], Chosen]
"""From all classes' weights, those of them that are pruned already (which stay so), and the share to be pruned."""


def class_blind(weights: Weights, pruned: Mapping[str, Tensor], share: float) -> Chosen:
    """One bound on |w| for all."""
    return _by_one_bound({name: w.abs() for name, w in weights.items()}, pruned, share)


def class_uniform(weights: Weights, pruned: Mapping[str, Tensor], share: float) -> Chosen:
    """A bound on |w| for each class."""
    return Chosen({name: _smallest(w.abs(), pruned[name], share)[0] for name, w in weights.items()}, None)


def class_distribution(weights: Weights, pruned: Mapping[str, Tensor], share: float) -> Chosen:
    """One bound, lambda, on |w| / sigma_c for all."""
    return _by_one_bound({name: _deviations(w.double()) for name, w in weights.items()}, pruned, share)


SchemeName = Literal["class-blind", "class-uniform", "class-distribution"]
SCHEMES: dict[SchemeName, Scheme] = {
    "class-blind": class_blind,
    "class-uniform": class_uniform,
    "class-distribution": class_distribution,
}


def _deviations(weights: Tensor) -> Tensor:
    """|w| / sigma; without a spread no weight but zero is below any bound."""
    sigma = weights.std(correction=0)
    return torch.where(weights == 0, 0.0, weights.abs() / sigma)


def _by_one_bound(sizes: Weights, pruned: Mapping[str, Tensor], share: float) -> Chosen:
    mask, bound = _smallest(torch.cat([*sizes.values()]), torch.cat([pruned[name] for name in sizes]), share)
    parts = mask.split([len(own) for own in sizes.values()])
    return Chosen(dict(zip(sizes, parts, strict=True)), bound)


def _smallest(
    sizes: Float[Tensor, "N"], pruned: Bool[Tensor, "N"], share: float
) -> tuple[Bool[Tensor, "N"], float | None]:
    """The share of the smallest, those pruned already first; and the largest of them."""
    count = round(share * len(sizes))
    if count == 0:
        return pruned, None
    ordered = sizes.masked_fill(pruned, -1.0)
    last = ordered.kthvalue(count).values
    found = ordered < last
    equals = (ordered == last).nonzero()[: count - int(found.sum()), 0]
    found[equals] = True
    return found | pruned, max(0.0, float(last))


class ClassZeros(NamedTuple):
    """How many weights of a class are zero."""

    name: str
    weights: int
    zeros: int


class Weighed(NamedTuple):
    """Bytes of all weights of a model: each as a number; and of each matrix a bit a weight and the numbers that are not
    zero, vectors as they are."""

    dense: int
    sparse: int


@dataclass(frozen=True)
class Pruning:
    """What was pruned of a model. others: numbers that never are, biases and other vectors."""

    classes: tuple[ClassZeros, ...]
    others: int
    bound: float | None

    @property
    def all(self) -> ClassZeros:
        """The classes together."""
        return ClassZeros("all", sum(one.weights for one in self.classes), sum(one.zeros for one in self.classes))

    def weighed(self, size: int) -> Weighed:
        """By numbers of so many bytes."""
        count, zeros = self.all.weights, self.all.zeros
        return Weighed(size * (count + self.others), -(-count // 8) + size * (count - zeros + self.others))


def prune(folder: Path, output: Path, share: float, scheme: SchemeName) -> Pruning:
    """Write the model of `folder` with this share of its matrices' weights pruned, as a model folder of its own.

    What was pruned before stays so and counts. Errors: ModelError for an ensemble, for less than is pruned already,
    and where something stands at `output`.
    """
    if output.exists():
        raise ModelError(f"{output}: there is something already; name another folder")
    system = load_system(folder)
    if system.config.search.ensemble is not None:
        raise ModelError(f"{folder}: is an ensemble; prune its models one by one, and put them together again")
    classes, before = weight_classes(system.model), read_pruned(folder, system.model)
    tensors = read_weights(folder / WEIGHTS)
    already = {name: before.get(name, torch.zeros(p.shape, dtype=torch.bool)) for name, p in _all(classes).items()}
    _require_more(folder, already, share)
    flat = {name: torch.cat([tensors[one].float().flatten() for one in own]) for name, own in classes.items()}
    old = {name: torch.cat([already[one].flatten() for one in own]) for name, own in classes.items()}
    chosen = SCHEMES[scheme](flat, old, share)
    masks = Masks()
    for name, own in classes.items():
        parts = chosen.masks[name].split([p.numel() for p in own.values()])
        masks |= {one: part.view(p.shape) for (one, p), part in zip(own.items(), parts, strict=True)}
    tensors |= {name: tensors[name].masked_fill(mask, 0.0) for name, mask in masks.items()}
    with atomic_folder(output) as temporary:
        copy_model(folder, temporary)
        save_weights(temporary / WEIGHTS, tensors)
        if any(mask.any() for mask in masks.values()):
            write_pruned(temporary, masks)
    others = sum(tensor.numel() for name, tensor in tensors.items() if name not in masks)
    zeros = {name: sum(int((tensors[one] == 0).sum()) for one in own) for name, own in classes.items()}
    return Pruning(tuple(ClassZeros(name, len(flat[name]), zeros[name]) for name in classes), others, chosen.bound)


def _all(classes: dict[str, dict[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
    return {name: parameter for own in classes.values() for name, parameter in own.items()}


def _require_more(folder: Path, already: Masks, share: float) -> None:
    """Errors: ModelError where more is pruned already."""
    pruned, all_ = (sum(map(count, already.values())) for count in (lambda mask: int(mask.sum()), Tensor.numel))
    if pruned > round(share * all_):
        raise ModelError(f"{folder}: {pruned / all_:.1%} of its weights are pruned already; got a share of {share:.1%}")


def write_pruned(folder: Path, masks: Masks) -> None:
    """Keep which weights of a folder's model were pruned."""
    bits = {name: torch.from_numpy(np.packbits(mask.flatten().numpy())) for name, mask in masks.items()}
    save_weights(folder / PRUNED, bits)


def read_pruned(folder: Path, model: nn.Module) -> Masks:
    """Which weights of a folder's model were pruned, by the parameter's name; of a model that never was, none.

    Errors: ModelError for a damaged or foreign file.
    """
    path, own, masks = folder / PRUNED, dict(model.named_parameters()), Masks()
    if not path.is_file():
        return masks
    for name, bits in read_weights(path).items():
        size = own[name].numel() if name in own else 0
        if bits.dtype != torch.uint8 or tuple(bits.shape) != (-(-size // 8),):
            raise ModelError(f"{path}: does not fit the model of its config: {name}")
        unpacked = np.unpackbits(bits.numpy(), count=size).astype(bool)
        masks[name] = torch.from_numpy(unpacked).view(own[name].shape)
    return masks
