"""Batches of sentences for a search: how many sentences fit, and which ones go together.

Also used by the torch-free runtime, so this module must not import torch.

The limits bound the memory of a search; results do not depend on how sentences are batched
(`tests/search/test_decode.py`).
"""

from collections.abc import Callable, Iterator, Mapping

from rnnsearch.errors import RnnsearchError

MAX_BATCH_HYPOTHESES = 1024
"""Hypotheses per batch; with a wide beam a batch has fewer sentences than requested."""


def max_batch_sentences(batch_sentences: int, beam: int, tokens: int, steps: float, max_weights: int) -> int:
    """Return the number of sentences of a batch, at least 1 and at most `batch_sentences`.

    Args:
        batch_sentences: Requested number of sentences.
        beam: Hypotheses per sentence; there are at most MAX_BATCH_HYPOTHESES in all.
        tokens: Length of the longest source sentence, with EOS.
        steps: Maximum number of decoder steps.
        max_weights: Limit of the attention weights (hypotheses * tokens * steps) of the batch.

    Raises:
        RnnsearchError: `batch_sentences` is less than 1.
    """
    if batch_sentences < 1:
        raise RnnsearchError(f"batch_sentences must be at least 1; got {batch_sentences}")
    return max(1, int(min(batch_sentences, MAX_BATCH_HYPOTHESES // beam, max_weights / (beam * tokens * steps))))


def batches_longest_first(lengths: Mapping[int, int], max_sentences: Callable[[int], int]) -> Iterator[list[int]]:
    """Yield batches of the indices of all non-empty sentences, longest first, so that too large ones fail early.

    Args:
        lengths: Length of each sentence by index.
        max_sentences: Returns the number of sentences of a batch, given the length of its longest.
    """
    order = sorted((i for i, length in lengths.items() if length), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        end = start + max_sentences(lengths[order[start]])
        yield order[start:end]
        start = end
