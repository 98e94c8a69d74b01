"""Which sentences, and how many, a batch of a search has. Imports no torch."""

from collections.abc import Callable, Iterator, Mapping

from rnnsearch.errors import RnnsearchError

MOST_ROWS = 1024
"""Hypotheses of a batch: one whose beam is wide has fewer sentences than asked for."""


def sentences_at_once(most: int, beam: int, symbols: int, steps: float, attended: int) -> int:
    """Sentences of a batch whose longest has so many symbols, EOS among them, and may take so many steps: one at least,
    and no more than `most`, MOST_ROWS hypotheses and `attended` weights of attention.

    Errors: RnnsearchError where `most` is less than one.
    """
    if most < 1:
        raise RnnsearchError(f"batch_sentences must be at least 1; got {most}")
    return max(1, int(min(most, MOST_ROWS // beam, attended / (beam * symbols * steps))))


def longest_first(lengths: Mapping[int, int], most: Callable[[int], int]) -> Iterator[list[int]]:
    """Batches of the numbers of the sentences that are not empty: what does not fit fails at once. most: the sentences
    of a batch whose longest has so many symbols."""
    order = sorted((i for i, length in lengths.items() if length), key=lambda i: -lengths[i])
    begin = 0
    while begin < len(order):
        end = begin + most(lengths[order[begin]])
        yield order[begin:end]
        begin = end
