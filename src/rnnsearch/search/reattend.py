"""Posterior attention: where a target word came from, given the word itself (Shankar & Sarawagi 2019, "Posterior
attention models for sequence to sequence learning", section 3).

Attention at position i is a guess before y_i is known. With the position a as a hidden variable,

    p(a = j | y_1..y_i, x)  is proportional to  alpha_ij p(y_i | y_1..y_{i-1}, c_i = h_j):

the readout is asked once more for each source position, as if attention had been there alone. Where a decoder's state
has read c_i before the readout does (cgru, deep-transition, bideep, cohn, memdec, bi-scale, rnmt-plus) it keeps the one
that attention made: there h_j takes c_i's place in the readout alone, and this is an approximation. Hard attention's
alpha is what it is drawn from. Nothing is trained anew.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rnnsearch.data.batch import Stream
from rnnsearch.models.copying import CopyOutput
from rnnsearch.models.memory import Memory
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.candidates import ColumnChooser
from rnnsearch.search.decode import MAX_ATTENTION_WEIGHTS, Ids, MakeSources, make_sources, pad_with_eos, pair_batches
from rnnsearch.search.scorer import Sources
from rnnsearch.text.vocabulary import BOS, EOS

# Where the words of a translation come from, by a decoder that copies (Gu et al. 2016): once they are chosen, each is
# asked for what share of its probability is copied from each source place.

Weights = dict[str, NDArray[np.float32]]
VALUES_PER_WEIGHT = 16
"""Numbers for each weight: behind every readout stand scores and words of all places."""


@torch.inference_mode()
def copied_attention(
    model: TranslationModel,
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    make_batch: MakeSources = make_sources,
    batch_sentences: int = 64,
    candidates: ColumnChooser | None = None,
) -> list[Weights]:
    """By source name, as a `Hypothesis`'s attention: [I, J] of each pair, rows of the target's symbols and EOS, over
    the source's symbols and EOS: a symbol's shares that are copied, and attention by the rest.

    Ids are given without EOS. `columns`: what a search was over (`decode_all`), for which <unk> stood for all else.
    """
    found: list[Weights] = [{} for _ in sources]
    for batch in pair_batches(sources, targets, batch_sentences, MAX_ATTENTION_WEIGHTS // VALUES_PER_WEIGHT):
        own = _of_batch(model, [sources[n] for n in batch], [targets[n] for n in batch], make_batch, candidates)
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
    y, read = pad_with_eos(targets).to(model.device), make(sources, model.device)
    memories = model.encode(read)
    ((name, memory),) = memories.items()
    unrolled = model.unroll(Stream.from_ids(y).previous(), memories)
    assert unrolled.reading.alpha is not None
    # A batch of a search may have had more of them, all that it found among them.
    chosen = None if columns is None else columns(read)
    rows = None if chosen is None else torch.cat([chosen, y.flatten()]).unique()
    copied = model.output.copy_fractions(unrolled.readout.flatten(0, 1), y.flatten(), rows).view(*y.shape, -1)
    rest = (1 - copied.sum(-1, keepdim=True)).clamp_min(0)
    weights = (copied + rest * memory.to_source(unrolled.reading.alpha)).float().cpu().numpy()
    pairs = zip(weights, sources, targets, strict=True)
    return [{name: own[: len(y) + 1, : len(x) + 1].copy()} for own, x, y in pairs]


MIN_WEIGHT = 1e-9
"""Of a weight: what attention gives nothing to may still be where a word came from."""
MAX_CHUNK_PROBABILITIES = 2**24
"""Probabilities, of a vocabulary for each pair of positions: a piece of a sentence pair has no more, or is a word."""


@torch.inference_mode()
def posterior_attention(
    model: TranslationModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    make_batch: MakeSources = make_sources,
) -> list[dict[str, NDArray[np.float32]]]:
    """By source name, as a `Hypothesis`'s attention: [I, J] of each pair, rows of the target's symbols and EOS,
    which sum to 1, over the source's symbols and EOS.

    Ids are given without EOS.
    """
    return [_of_pair(model, make_batch([x], model.device), y) for x, y in zip(sources, targets, strict=True)]


def _of_pair(model: TranslationModel, source: Sources, target: Sequence[int]) -> dict[str, NDArray[np.float32]]:
    device = model.device
    memories = model.encode(source)
    ((name, memory),) = memories.items()
    previous, y = torch.tensor([[BOS, *target]], device=device), torch.tensor([*target, EOS], device=device)
    reading = model.unroll_separate(previous, memories)
    assert reading.soft_alpha is not None
    alpha = reading.soft_alpha[0].float()
    rows = max(1, MAX_CHUNK_PROBABILITIES // (alpha.shape[1] * model.output.vocabulary))
    of_word = torch.cat(
        [
            _of_words(model, before, state, memory, words)
            for before, state, words in zip(
                previous.split(rows, 1), reading.state.split(rows, 1), y.split(rows), strict=True
            )
        ]
    )
    scores = (alpha.clamp_min(MIN_WEIGHT).log() + of_word).masked_fill(~memory.mask, -torch.inf)
    posterior = torch.softmax(scores, dim=-1)
    return {name: memory.to_source(posterior[None])[0].cpu().numpy()}


def _of_words(model: TranslationModel, previous: Tensor, state: Tensor, memory: Memory, y: Tensor) -> Tensor:
    """[I, J]: log p(y_i) had all attention been on j."""
    readout = model.readouts_per_position(previous, state, memory)
    log_p = model.log_probs(readout.flatten(0, 1)).view(*readout.shape[:2], -1)
    return log_p.gather(2, y[:, None, None].expand(*readout.shape[:2], 1))[..., 0]
