"""Random numbers for one training batch: a seeded generator and the dropout functions that use it.

All random numbers of a batch come from one `BatchRng`, in a fixed order. A fast implementation and the definition, or
one process and several, therefore see the same dropout masks. Models that get no `BatchRng` are deterministic.

`training/gradients.py` creates one per batch, and `objectives` pass it to `encode` and `unroll`. `accel/cuda_graphs.py`
restores its state, `accel/decoder_steps.py` and `accel/verification.py` create the same masks. Another order or number
of calls changes the masks of resumed runs, and must be the same in all implementations:
tests/properties/test_invariance.py.

Axes: B sentences, N = B * K hypotheses, D state, E embedding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import repeat

import torch
from torch import Tensor

from rnnsearch.utils.tensors import to_device


class BatchRng:
    """A seeded random number generator for one batch.

    The same seed and order of calls give the same numbers. The first axis of every requested shape is the batch of
    sentences. A process that works on some rows of a batch (`select_rows`) generates the numbers of the whole batch and
    keeps those of its rows, so that a sentence gets the same numbers for any number of processes.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.generator = torch.Generator(device).manual_seed(seed)
        self.rows: Tensor | None = None
        """Indices of the selected rows, or None for the whole batch."""
        self.batch_size = 0
        """Number of sentences in the whole batch; only set with `rows`."""

    @property
    def seed(self) -> int:
        """The seed that the rng was created with, which parts of a batch share."""
        return self.generator.initial_seed()

    def select_rows(self, rows: Sequence[int], batch_size: int) -> None:
        """Restrict all further numbers to these rows of a batch of `batch_size` sentences."""
        device = self.generator.device
        self.rows = to_device(torch.tensor(rows), device)
        self.batch_size = batch_size

    def fork(self, rows: Tensor | None) -> BatchRng:
        """Return an rng with its own generator, for other rows of a batch of the same size."""
        other = BatchRng(0, self.generator.device)
        other.rows, other.batch_size = rows, self.batch_size
        return other

    def mask(self, shape: tuple[int, ...], rate: float, like: Tensor) -> Tensor:
        """Return a dropout mask: 0 with probability `rate`, otherwise 1 / (1 - rate).

        The rate is rounded to a multiple of 1 / 65,536.
        """
        # The generator is sequential, so each 64-bit number it returns is split into four 16-bit ones.
        full_shape = self._full_shape(shape)
        count = math.prod(full_shape)
        bits = torch.empty((count + 3) // 4, dtype=torch.int64, device=like.device)
        bits = bits.random_(-(2**63), None, generator=self.generator).view(torch.int16)[:count].view(full_shape)
        # int16 values are uniform in [-2^15, 2^15), so the threshold is shifted by 2^15.
        is_kept = self._select(bits) >= round(rate * 2**16) - 2**15
        return is_kept.to(like.dtype).mul_(1.0 / (1.0 - rate))

    def uniform(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return uniform random numbers in (0, 1) on the device of `like`, in fp32."""
        # torch.rand may return 0, whose logarithm (in Gumbel noise) is -inf; hence the clamp.
        values = torch.rand(self._full_shape(shape), device=like.device, generator=self.generator)
        return self._select(values.clamp_min_(torch.finfo(torch.float32).tiny))

    def _full_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        assert self.rows is None or shape[0] == len(self.rows), "the first axis must be the sentences"
        return shape if self.rows is None else (self.batch_size, *shape[1:])

    def _select(self, values: Tensor) -> Tensor:
        return values if self.rows is None else values.index_select(0, self.rows)


def dropout(x: Tensor, rate: float, rng: BatchRng | None) -> Tensor:
    """Return x with dropout; x itself without an rng or if the rate is 0."""
    mask = dropout_mask(rng, rate, x, *x.shape[1:])
    return x if mask is None else x * mask


def word_dropout(x: Tensor, rate: float, rng: BatchRng | None) -> Tensor:
    """Return embedded words x [..., E] with whole words set to zero at this rate and no scaling.

    See Sennrich & Zhang 2019.
    """
    mask = dropout_mask(rng, rate, x, *x.shape[1:-1], 1)
    # `mask` scales the remaining words by 1 / (1 - rate); the last factor undoes that.
    return x if mask is None else x * mask * (1.0 - rate)


def dropout_mask(rng: BatchRng | None, rate: float, like: Tensor, *shape: int) -> Tensor | None:
    """Return a dropout mask [B, *shape] with the B rows of `like`, or None without an rng or if the rate is 0.

    The mask of a recurrent state has no axis of positions: it is the same at all positions of a sequence
    (Gal & Ghahramani 2016).
    """
    return None if rng is None or rate == 0.0 else rng.mask((like.shape[0], *shape), rate, like)


def masks_per_cell(masks: Tensor | None) -> Iterator[Tensor | None]:
    """Iterate over the masks [N, D] of several cells, stacked as [N, cells, D]; yield None forever without masks."""
    return repeat(None) if masks is None else iter(masks.unbind(1))
