"""Magnitude pruning: set the weights with the smallest absolute values to zero (See, Luong & Manning 2016, section 3).

Given a fraction x of all weights, three schemes select the weights to prune:

| scheme             | pruned weights                                                                         |
|--------------------|----------------------------------------------------------------------------------------|
| class-blind        | the fraction x of all weights with the smallest absolute values                        |
| class-uniform      | the fraction x of each class with the smallest absolute values                         |
| class-distribution | those below lambda sigma_c, where sigma_c is the standard deviation of class c and     |
|                    | lambda is common to all classes, such that the fraction x of all weights is pruned     |

Among equal values at the bound, the first ones are pruned, so that the fraction is exact.

`training/run_folder.py` copies and `training/tasks.py` reads `pruned.safetensors`, a bit mask per weight matrix by
parameter name, to keep zeros during training. Tests: tests/training/test_sparsity_mask.py.

Axes: N weights of a class.
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

PRUNED_FILE = "pruned.safetensors"
"""File in a pruned model folder with a bit per weight, set if the weight was pruned."""
CLASS_MODULES = (Embedding, Cell, Attention, ReadoutLayer, OutputLayer, Speller)
"""Modules whose matrices form a class each; other matrices are in the class of the top-level module around them."""
PRUNED_ROLES = {"weight", "recurrent", "alignment", "embedding"}
"""Roles of the parameters that are pruned (`models/layers.py`)."""
TRAINING_ONLY = "auxiliary"  # module that is used only in training

Weights = Mapping[str, Float[Tensor, "_"]]  # by class, all weights in one vector
Masks = dict[str, Tensor]  # True for pruned weights


class PrunedWeights(NamedTuple):
    """The weights that a scheme selects."""

    masks: Masks
    """Pruned weights by class."""
    bound: float | None
    """Largest pruned value; None if each class has its own."""


Scheme = Callable[[Weights, Mapping[str, Tensor], float], PrunedWeights]
"""Function from the weights, the masks of weights pruned before (which stay pruned), and the fraction to prune."""


class ClassSparsity(NamedTuple):
    """Number of zeros of a class."""

    name: str
    weights: int
    zeros: int
    """Number of weights that are 0."""


class ModelBytes(NamedTuple):
    """Size of a model's weights in bytes."""

    dense: int
    """Size if all values are stored."""
    sparse: int
    """Size if each matrix is stored as a bit per weight and its nonzero values."""


@dataclass(frozen=True)
class Pruning:
    """Report on a pruned model."""

    classes: tuple[ClassSparsity, ...]
    unpruned: int
    """Number of parameters that are never pruned: biases and other vectors."""
    bound: float | None
    """See `PrunedWeights.bound`."""

    @property
    def all(self) -> ClassSparsity:
        """Return the sums over all classes."""
        weights = sum(sparsity.weights for sparsity in self.classes)
        return ClassSparsity("all", weights, sum(sparsity.zeros for sparsity in self.classes))

    def weighed(self, size: int) -> ModelBytes:
        """Return the size of the model if each value has `size` bytes."""
        _, weights, zeros = self.all
        mask_bytes = -(-weights // 8)  # rounded up
        return ModelBytes(size * (weights + self.unpruned), mask_bytes + size * (weights - zeros + self.unpruned))


def weight_classes(model: nn.Module) -> dict[str, dict[str, nn.Parameter]]:
    """Return the prunable matrices by class and parameter name.

    A class is named by the path of its module. A shared matrix occurs once, in a class named after all modules that
    share it. Biases and other vectors are in no class.
    """
    modules = [path for path, module in model.named_modules() if path and isinstance(module, CLASS_MODULES)]
    paths_of = dict[nn.Parameter, list[str]]()
    # With duplicates, because a shared matrix has several paths.
    for name, parameter in model.named_parameters(remove_duplicate=False):
        paths_of.setdefault(parameter, []).append(name)
    classes = dict[str, dict[str, nn.Parameter]]()
    for parameter, paths in paths_of.items():
        # Matrices without a gradient, such as frozen ones, are not pruned.
        is_pruned = parameter.ndim > 1 and getattr(parameter, "role", None) in PRUNED_ROLES and parameter.requires_grad
        if is_pruned and paths[0].partition(".")[0] != TRAINING_ONLY:
            name = ", ".join(dict.fromkeys(_module_path(path, modules) for path in paths))
            classes.setdefault(name, {})[paths[0]] = parameter
    return classes


def _module_path(parameter_name: str, modules: list[str]) -> str:
    """Return the path of the outermost of some modules that contains a parameter, or else its top-level module."""
    containing = [path for path in modules if parameter_name.startswith(f"{path}.")]
    return min(containing, key=len) if containing else parameter_name.partition(".")[0]


def class_blind(weights: Weights, pruned: Mapping[str, Tensor], fraction: float) -> PrunedWeights:
    """Prune by a common bound on |w|."""
    return _below_common_bound({name: w.abs() for name, w in weights.items()}, pruned, fraction)


def class_uniform(weights: Weights, pruned: Mapping[str, Tensor], fraction: float) -> PrunedWeights:
    """Prune by a bound on |w| per class."""
    masks = {}
    for name, w in weights.items():
        masks[name], _ = _smallest(w.abs(), pruned[name], fraction)
    return PrunedWeights(masks, None)


def class_distribution(weights: Weights, pruned: Mapping[str, Tensor], fraction: float) -> PrunedWeights:
    """Prune by a common bound lambda on |w| / sigma_c."""
    return _below_common_bound({name: _in_deviations(w.double()) for name, w in weights.items()}, pruned, fraction)


SchemeName = Literal["class-blind", "class-uniform", "class-distribution"]
SCHEMES: dict[SchemeName, Scheme] = {
    "class-blind": class_blind,
    "class-uniform": class_uniform,
    "class-distribution": class_distribution,
}
"""Function by name of the scheme in `rnnsearch prune`."""


def _in_deviations(weights: Tensor) -> Tensor:
    """Return |w| / sigma; zeros stay zero if sigma is 0."""
    sigma = weights.std(correction=0)
    # 0 / 0 is NaN, and `kthvalue` would treat it as the largest value.
    return torch.where(weights == 0, 0.0, weights.abs() / sigma)


def _below_common_bound(values: Weights, pruned: Mapping[str, Tensor], fraction: float) -> PrunedWeights:
    """Return the given fraction of the smallest values of all classes."""
    mask, bound = _smallest(torch.cat([*values.values()]), torch.cat([pruned[name] for name in values]), fraction)
    parts = mask.split([len(vector) for vector in values.values()])
    return PrunedWeights(dict(zip(values, parts, strict=True)), bound)


def _smallest(
    values: Float[Tensor, "N"], pruned: Bool[Tensor, "N"], fraction: float
) -> tuple[Bool[Tensor, "N"], float | None]:
    """Return a mask of the given fraction of the smallest values, and the largest of them.

    Values that are pruned already count as the smallest.
    """
    count = round(fraction * len(values))
    if count == 0:
        return pruned, None
    # Below every absolute value, so that weights which were pruned before are counted first.
    ordered = values.masked_fill(pruned, -1.0)
    bound = ordered.kthvalue(count).values
    mask = ordered < bound
    # The first of equal values, so that the number is exact and the result does not depend on the machine.
    ties = (ordered == bound).nonzero()[: count - int(mask.sum()), 0]
    mask[ties] = True
    # The bound is -1 if only weights that were pruned before are selected.
    return mask | pruned, max(0.0, float(bound))


def prune(folder: Path, output: Path, fraction: float, scheme: SchemeName) -> Pruning:
    """Prune the model in a folder, and write it to another folder.

    Args:
        folder: A model folder. Weights that were pruned before stay pruned, and count.
        output: The folder to write; must not exist.
        fraction: Fraction of the matrices' weights to prune.
        scheme: Which weights to prune.

    Raises:
        ModelError: If the model is an ensemble, if more than `fraction` is pruned already, or if `output` exists.
    """
    if output.exists():
        raise ModelError(f"{output}: already exists; name another folder")
    system = load_system(folder)
    if system.config.search.ensemble is not None:
        raise ModelError(f"{folder}: is an ensemble; prune its models one by one, and combine them again")
    classes = weight_classes(system.model)
    tensors = read_weights(folder / WEIGHTS)
    stored_masks = read_pruned(folder, system.model)
    masks_before = Masks()
    for parameters in classes.values():
        for name, parameter in parameters.items():
            masks_before[name] = stored_masks.get(name, torch.zeros(parameter.shape, dtype=torch.bool))
    _require_less_pruned(folder, masks_before, fraction)
    masks, bound = _select(classes, tensors, masks_before, fraction, SCHEMES[scheme])
    tensors |= {name: tensors[name].masked_fill(mask, 0.0) for name, mask in masks.items()}
    with atomic_folder(output) as temporary:
        copy_model(folder, temporary)
        save_weights(temporary / WEIGHTS, tensors)
        if any(mask.any() for mask in masks.values()):
            write_pruned(temporary, masks)
    return _report(classes, tensors, bound)


def _select(
    classes: dict[str, dict[str, nn.Parameter]],
    tensors: dict[str, Tensor],
    masks_before: Masks,
    fraction: float,
    scheme: Scheme,
) -> tuple[Masks, float | None]:
    """Return the masks of the weights to prune by parameter name, and the scheme's bound."""
    weights = {}
    before = {}
    for name, parameters in classes.items():
        weights[name] = torch.cat([tensors[parameter].float().flatten() for parameter in parameters])
        before[name] = torch.cat([masks_before[parameter].flatten() for parameter in parameters])
    selected = scheme(weights, before, fraction)
    masks = Masks()
    for name, parameters in classes.items():
        parts = selected.masks[name].split([parameter.numel() for parameter in parameters.values()])
        for (parameter_name, parameter), part in zip(parameters.items(), parts, strict=True):
            masks[parameter_name] = part.view(parameter.shape)
    return masks, selected.bound


def _report(classes: dict[str, dict[str, nn.Parameter]], tensors: dict[str, Tensor], bound: float | None) -> Pruning:
    sparsities = []
    unpruned = sum(tensor.numel() for tensor in tensors.values())
    for name, parameters in classes.items():
        num_weights = sum(parameter.numel() for parameter in parameters.values())
        num_zeros = sum(int((tensors[parameter] == 0).sum()) for parameter in parameters)
        sparsities.append(ClassSparsity(name, num_weights, num_zeros))
        unpruned -= num_weights
    return Pruning(tuple(sparsities), unpruned, bound)


def _require_less_pruned(folder: Path, masks: Masks, fraction: float) -> None:
    """Raise ModelError if more than a fraction of the weights is pruned already."""
    num_pruned = sum(int(mask.sum()) for mask in masks.values())
    num_weights = sum(mask.numel() for mask in masks.values())
    if num_pruned > round(fraction * num_weights):
        already = f"{num_pruned / num_weights:.1%} of its weights are pruned already"
        raise ModelError(f"{folder}: {already}; got a fraction of {fraction:.1%}")


def write_pruned(folder: Path, masks: Masks) -> None:
    """Write which weights of a folder's model were pruned."""
    bits = {name: torch.from_numpy(np.packbits(mask.flatten().numpy())) for name, mask in masks.items()}
    save_weights(folder / PRUNED_FILE, bits)


def read_pruned(folder: Path, model: nn.Module) -> Masks:
    """Return which weights of a folder's model were pruned, by parameter name; empty for an unpruned model.

    Raises:
        ModelError: If the file is damaged or does not fit the model.
    """
    path = folder / PRUNED_FILE
    masks = Masks()
    if not path.is_file():
        return masks
    parameters = dict(model.named_parameters())
    for name, bits in read_weights(path).items():
        size = parameters[name].numel() if name in parameters else 0
        if bits.dtype != torch.uint8 or tuple(bits.shape) != (-(-size // 8),):
            raise ModelError(f"{path}: does not fit the model of its config: {name}")
        unpacked = np.unpackbits(bits.numpy(), count=size).astype(bool)
        masks[name] = torch.from_numpy(unpacked).view(parameters[name].shape)
    return masks
