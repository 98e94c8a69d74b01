"""Where the words of a translation come from, by a decoder that copies (Gu et al. 2016): once they are chosen, each is
asked for what share of its probability is copied from each source place."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rnnsearch.data.sides import Side
from rnnsearch.models.copying import CopyOutput
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.columns import ColumnChooser
from rnnsearch.search.decode import ATTENDED, Ids, MakeSources, ended, make_sources, pair_batches

Weights = dict[str, NDArray[np.float32]]
SIDE_BY_SIDE = 16
"""Numbers for each weight: behind every readout stand scores and words of all places."""


@torch.inference_mode()
def copied_attention(
    model: TranslationModel,
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    make: MakeSources = make_sources,
    batch_sentences: int = 64,
    columns: ColumnChooser | None = None,
) -> list[Weights]:
    """By source name, as a `Hypothesis`'s attention: [I, J] of each pair, rows of the target's symbols and EOS, over
    the source's symbols and EOS: a symbol's shares that are copied, and attention by the rest.

    Ids are given without EOS. `columns`: what a search was over (`decode_all`), for which <unk> stood for all else.
    """
    found: list[Weights] = [{} for _ in sources]
    for batch in pair_batches(sources, targets, batch_sentences, ATTENDED // SIDE_BY_SIDE):
        own = _of_batch(model, [sources[n] for n in batch], [targets[n] for n in batch], make, columns)
        for number, weights in zip(batch, own, strict=True):
            found[number] = weights
    return found


def _of_batch(
    model: TranslationModel,
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    make: MakeSources,
    columns: ColumnChooser | None,
) -> list[Weights]:
    assert isinstance(model.output, CopyOutput)
    y, read = ended(targets).to(model.device), make(sources, model.device)
    memories = model.encode(read)
    ((name, memory),) = memories.items()
    unrolled = model.unroll(Side.of(y).previous(), memories)
    assert unrolled.reading.alpha is not None
    # A batch of a search may have had more of them, all that it found among them.
    chosen = None if columns is None else columns(read)
    rows = None if chosen is None else torch.cat([chosen, y.flatten()]).unique()
    copied = model.output.shares(unrolled.readout.flatten(0, 1), y.flatten(), rows).view(*y.shape, -1)
    rest = (1 - copied.sum(-1, keepdim=True)).clamp_min(0)
    weights = (copied + rest * memory.on_source(unrolled.reading.alpha)).float().cpu().numpy()
    pairs = zip(weights, sources, targets, strict=True)
    return [{name: own[: len(y) + 1, : len(x) + 1].copy()} for own, x, y in pairs]
