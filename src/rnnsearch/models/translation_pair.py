"""Two translation models, one a direction, as one module: what is trained for bilingual symmetry."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from rnnsearch.models.translation_model import TranslationModel


class TranslationPair(nn.Module):
    """`onward` translates source into target, `back` target into source; they share no parameter."""

    def __init__(self, onward: TranslationModel, back: TranslationModel) -> None:
        super().__init__()
        self.onward = onward
        self.back = back


def direction(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors of one direction (`onward` or `back`) out of a pair's, by their names there."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
