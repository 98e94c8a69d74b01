"""The matrices of a model by class (See, Luong & Manning 2016, section 3): embeddings, recurrent layers, attention,
output. A class is a part of the model and is called by its path."""

from __future__ import annotations

from torch import nn

from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.cells import Cell
from rnnsearch.models.decoders.readouts import ReadoutLayer
from rnnsearch.models.embeddings import Embedding
from rnnsearch.models.outputs import OutputLayer
from rnnsearch.models.speller import Speller

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
