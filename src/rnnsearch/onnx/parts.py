"""Which models can be two ONNX graphs, and why others cannot."""

from __future__ import annotations

from collections.abc import Iterator

from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.attention.features import LocalFertility, Markov, Recurrent
from rnnsearch.models.attention.normalisers import LinearChain
from rnnsearch.models.attention.scores import Convolutional, Location
from rnnsearch.models.cells import Cell
from rnnsearch.models.class_outputs import AdaptiveOutput
from rnnsearch.models.embeddings import Embedding
from rnnsearch.models.encoders import Encoder
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.onnx.cells import OPERATORS

MOST = 2**31
"""Bytes of one ONNX file, whose format cannot count further."""
UNHELD = (Location, Convolutional, LinearChain, Markov, LocalFertility, Recurrent)
"""Parts of attention that read stretches of positions, which a graph for sources of any length has no operator for."""


def lacks(model: object) -> str:
    """Why a model cannot be two graphs; empty where it can."""
    if not isinstance(model, TranslationModel):
        return "it must be a translation model of one source"
    found = list(dict.fromkeys(_unheld(model)))
    return f"a graph cannot hold {' and '.join(found)}" if found else ""


def _unheld(model: TranslationModel) -> Iterator[str]:
    decoder = model.decoder
    if model.encoder.merges:
        yield f"its encoder ({model.encoder.name})"
    yield from _cells(model.encoder)
    for part in decoder.modules():
        if isinstance(part, Attention):
            yield from _attention(part)
    if model.same_words is not None or model.switch is not None:
        yield f"the copying of source words ({'pointer' if model.switch is not None else decoder.name})"
    elif not isinstance(model.output, Output | AdaptiveOutput):
        yield "its output (hierarchical)"
    if type(model.source_embedding) is not Embedding or model.speller is not None:
        yield "words made of characters"
    if model.language_model is not None:
        yield "the language model inside it"
    if sum(parameter.numel() for parameter in model.parameters()) * 4 >= MOST:
        yield "2 GB of weights"


def _cells(encoder: Encoder) -> Iterator[str]:
    for cell in encoder.modules():
        if isinstance(cell, Cell) and type(cell) not in OPERATORS:
            named = ", ".join(kind.name for kind in OPERATORS)
            yield f"its encoder's cell ({cell.name}; ONNX has {named})"


def _attention(attention: Attention) -> Iterator[str]:
    for part in (attention.score, attention.normaliser, *attention.features):
        if isinstance(part, UNHELD):
            yield f"a part of its attention ({part.name})"
