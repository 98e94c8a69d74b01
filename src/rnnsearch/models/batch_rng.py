"""Random numbers of one training batch, drawn once, so that a fast path and its plain twin see the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import repeat

import torch
from torch import Tensor


class BatchRng:
    """A seeded source of dropout masks for one batch; the same seed and order of calls give the same masks.

    Shapes begin with the sentences. A process that works on some rows of a batch alone (`take`) draws for all of them
    and keeps its own, so that a sentence is given the same numbers however many processes there are.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.generator = torch.Generator(device).manual_seed(seed)
        self.rows: Tensor | None = None
        """Of a batch of `out_of` sentences; None: all."""
        self.batch_size = 0

    def select_rows(self, rows: Sequence[int], batch_size: int) -> None:
        """What is drawn from now on is for these rows of a batch of `of` sentences."""
        device, own = self.generator.device, torch.tensor(rows)
        self.rows = own.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else own
        self.batch_size = batch_size

    def fork(self, rows: Tensor | None) -> BatchRng:
        """Draws as this does, from a generator of its own; `rows`: which ones, in the place of this one's."""
        other = BatchRng(0, self.generator.device)
        other.rows, other.batch_size = rows, self.batch_size
        return other

    def mask(self, shape: tuple[int, ...], rate: float, like: Tensor) -> Tensor:
        """1 / (1 - share) where a unit is kept, 0 where it is dropped (`share` to the nearest of 65,536 parts)."""
        # Sixteen bits a unit, four units a number of the generator, which draws one after the other.
        whole = self._full_shape(shape)
        count = math.prod(whole)
        bits = torch.empty((count + 3) // 4, dtype=torch.int64, device=like.device)
        bits = bits.random_(-(2**63), None, generator=self.generator).view(torch.int16)[:count].view(whole)
        kept = self._select(bits) >= round(rate * 2**16) - 2**15
        return kept.to(like.dtype).mul_(1.0 / (1.0 - rate))

    def uniform(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Uniform numbers in (0, 1), in fp32."""
        numbers = torch.rand(self._full_shape(shape), device=like.device, generator=self.generator)
        return self._select(numbers.clamp_min_(torch.finfo(torch.float32).tiny))

    def _full_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        assert self.rows is None or shape[0] == len(self.rows), "random numbers are drawn a sentence"
        return shape if self.rows is None else (self.batch_size, *shape[1:])

    def _select(self, drawn: Tensor) -> Tensor:
        return drawn if self.rows is None else drawn.index_select(0, self.rows)


def dropout(x: Tensor, rate: float, draws: BatchRng | None) -> Tensor:
    """x with a share of its units set to zero and the rest scaled up; x itself without draws or share."""
    mask = dropout_mask(draws, rate, x, *x.shape[1:])
    return x if mask is None else x * mask


def word_dropout(x: Tensor, rate: float, draws: BatchRng | None) -> Tensor:
    """Embedded words x [..., E] with a share of whole words set to zero, not scaled (Sennrich & Zhang 2019)."""
    mask = dropout_mask(draws, rate, x, *x.shape[1:-1], 1)
    return x if mask is None else x * mask * (1.0 - rate)


def dropout_mask(draws: BatchRng | None, rate: float, like: Tensor, *shape: int) -> Tensor | None:
    """A dropout mask [B, *shape], B the rows of `like`; None without draws or share. Of what a cell feeds back it has
    no axis of positions: one a sequence, the same at all of them (Gal & Ghahramani 2016)."""
    return None if draws is None or rate == 0.0 else draws.mask((like.shape[0], *shape), rate, like)


def masks_per_cell(masks: Tensor | None) -> Iterator[Tensor | None]:
    """One cell's mask [N, D] after the other, of several's [N, cells, D]; None for each where there are none."""
    return repeat(None) if masks is None else iter(masks.unbind(1))
