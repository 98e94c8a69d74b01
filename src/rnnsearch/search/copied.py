"""Where the words of a translation come from, by a decoder that copies (Gu et al. 2016): once they are chosen, each is
asked for what share of its probability is copied from each source place."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rnnsearch.data.sides import Side
from rnnsearch.models.copying import CopyOutput
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.decode import MakeSources, make_sources
from rnnsearch.text.vocabulary import EOS, PAD


@torch.inference_mode()
def copied_attention(
    model: TranslationModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    make: MakeSources = make_sources,
    batch_sentences: int = 64,
) -> list[dict[str, NDArray[np.float32]]]:
    """By source name, as a `Hypothesis`'s attention: [I, J] of each pair, rows of the target's symbols and EOS, over
    the source's symbols and EOS: a symbol's shares that are copied, and attention by the rest.

    Ids are given without EOS.
    """
    found = list[dict[str, NDArray[np.float32]]]()
    for begin in range(0, len(sources), batch_sentences):
        numbers = slice(begin, begin + batch_sentences)
        found += _of_batch(model, sources[numbers], targets[numbers], make)
    return found


def _of_batch(
    model: TranslationModel, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], make: MakeSources
) -> list[dict[str, NDArray[np.float32]]]:
    assert isinstance(model.output, CopyOutput)
    device, width = model.device, max(map(len, targets))
    y = torch.tensor([[*ids, EOS, *[PAD] * (width - len(ids))] for ids in targets], device=device)
    memories = model.encode(make(sources, device))
    ((name, memory),) = memories.items()
    unrolled = model.unroll(Side.of(y).previous(), memories)
    assert unrolled.reading.alpha is not None
    copied = model.output.shares(unrolled.readout.flatten(0, 1), y.flatten()).view(*y.shape, -1)
    rest = (1 - copied.sum(-1, keepdim=True)).clamp_min(0)
    weights = (copied + rest * memory.on_source(unrolled.reading.alpha)).float().cpu().numpy()
    pairs = zip(weights, sources, targets, strict=True)
    return [{name: own[: len(y) + 1, : len(x) + 1].copy()} for own, x, y in pairs]
