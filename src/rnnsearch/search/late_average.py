"""Late averaging: the mean of the distributions that each source of a sentence gives by itself.

    p(y) = 1 / S sum_s p(y | x^s)    over the S sources that the sentence has (Firat et al. 2016, "Zero-resource
                                     translation with multi-lingual neural machine translation")

Each source has its own decoder state; the target words are common. The members are scorers of one source each: a
multi-source model without the other sources, or the directions of a system with several. `systems/translation.py`
creates the scorer. Tests: tests/search/test_late_average.py.

Axes: B sentences, S sources, N hypotheses, C score columns, J source positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnsearch.data.batch import Stream
from rnnsearch.errors import RnnsearchError
from rnnsearch.search.scorer import OwnRecordings, Scorer, Sources, Step, combined_weights, map_hidden_states
from rnnsearch.text.vocabulary import EOS
from rnnsearch.utils.tensors import repeat_rows


class _Memory(NamedTuple):
    members: tuple[Any, ...]
    log_weights: Tensor  # [B, S], -inf for the sources that a sentence does not have


class _State(NamedTuple):
    members: tuple[Any, ...]


class LateAverage(OwnRecordings):
    """Scorer of the arithmetic mean of the distributions of single sources; its attention is that of each source."""

    normalised = True

    def __init__(self, members: Mapping[str, Scorer]) -> None:
        """Combine scorers of one source each, by the name of their source.

        Raises:
            RnnsearchError: Their vocabularies differ.
        """
        sizes = sorted({member.vocabulary for member in members.values()})
        if len(sizes) != 1:
            raise RnnsearchError(f"scorers of single sources must share one target vocabulary; got sizes {sizes}")
        self._members = dict(members)
        self.vocabulary = sizes[0]

    @property
    def device(self) -> torch.device:
        """The device of the members."""
        return next(iter(self._members.values())).device

    def recorded_weights(self) -> Sequence[Tensor] | None:
        """Return the weights of all members, or None if one of them cannot be recorded."""
        return combined_weights(self._members.values())

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        memories = []
        states = []
        for name, member in self._members.items():
            memory, state = member.start({name: _with_missing_rows_empty(sources[name])}, columns)
            memories.append(memory)
            states.append(state)
        present = torch.stack([sources[name].present for name in self._members], dim=1)  # [B, S]
        weights = present / present.sum(1, keepdim=True).clamp_min(1)
        return _Memory(tuple(memories), weights.log()), _State(tuple(states))

    def step(self, memory: _Memory, state: _State, y: Tensor) -> Step:
        log_weights = repeat_rows(memory.log_weights, len(y))  # [N, S]
        weighted = []
        states = []
        attention = {}
        members = zip(self._members.items(), memory.members, state.members, log_weights.unbind(1), strict=True)
        for (name, member), member_memory, member_state, log_weight in members:
            step = member.step(member_memory, member_state, y)
            weighted.append(step.log_probs() + log_weight[:, None])
            states.append(step.state)
            if name in step.attention:
                attention[name] = step.attention[name] * log_weight.isfinite()[:, None]
        # [S, N, C]: a sum of probabilities, so that log-probabilities of different sources are comparable.
        return Step(torch.stack(weighted).logsumexp(0), _State(tuple(states)), attention)

    def map_hidden(self, state: _State, function: Callable[[Tensor], Tensor]) -> _State:
        members = zip(self._members.values(), state.members, strict=True)
        return _State(tuple(map_hidden_states(member, member_state, function) for member, member_state in members))


def _with_missing_rows_empty(stream: Stream) -> Stream:
    """Return a stream whose missing rows are empty sentences, which every scorer can read."""
    is_first = torch.arange(stream.ids.shape[1], device=stream.ids.device) == 0
    missing = ~stream.present[:, None] & is_first
    return Stream.without_positions(stream.ids.masked_fill(missing, EOS), stream.mask | missing)
