"""A decode plan: which sentences of a call wait for the translations of others (the sentence before it in a document,
another language's first, ...), and what they are once these are found."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.hypothesis import Hypothesis


@dataclass(frozen=True)
class Plan:
    """What waits, by number in the call; sentences that `waits` does not name wait for nothing."""

    waits: Mapping[int, Sequence[int]]
    """Sentence -> those that it waits for."""
    source: Callable[[int, Sequence[Hypothesis]], Sequence[int]]
    """(sentence, the best hypothesis of each that it waits for, in that order) -> its ids, without EOS."""

    def waves(self, sentences: int) -> Iterator[list[int]]:
        """The numbers of so many sentences, in rising order, each wave when all before it have been found.

        Errors: RnnsearchError where sentences wait for themselves or for none of the call.
        """
        sorter = TopologicalSorter({number: self.waits.get(number, ()) for number in range(sentences)})
        for number in {*self.waits, *(other for others in self.waits.values() for other in others)}:
            if not 0 <= number < sentences:
                raise RnnsearchError(f"a plan must be of the {sentences} sentences (counting from 0); got {number}")
        try:
            sorter.prepare()
        except CycleError as error:
            ring = error.args[1]
            raise RnnsearchError(f"a plan's sentences must not wait for themselves; got the ring {ring}") from None
        while sorter.is_active():
            ready = sorted(sorter.get_ready())
            yield ready
            sorter.done(*ready)
