"""Random numbers that hang on nothing but what they are for: a source, the number of its copy, a seed and a place.

Each is a hash of its place in a stream of its own (SplitMix64: Steele, Lea & Flood 2014, "Fast splittable pseudorandom
number generators"), so that those of all rows of a batch are made by the same few operations, in whatever company.
"""

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rnnsearch.search.scorer import Sources

Keys = NDArray[np.uint64]
"""[N], one a stream."""
GAMMA = 0x9E3779B97F4A7C15
"""2^64 by the golden ratio, odd: the steps of a counter."""


def keys(sources: Sources, copies: int, seed: int) -> Keys:
    """The streams of each copy of each source, copy by copy, by the source's symbols."""
    symbols = [[side.ids[row][side.mask[row]].tolist() for row in range(len(side.ids))] for side in sources.values()]
    each = [chain.from_iterable(ids) for ids in zip(*symbols, strict=True)]
    own = [np.random.SeedSequence([seed, *ids]).generate_state(1, np.uint64) for ids in each]
    return bits(np.concatenate(own), copies).reshape(-1)


def bits(keys: Keys, count: int, *at: int) -> NDArray[np.uint64]:
    """[N, count], 64 random bits each, of the streams' substreams `at` (a position, a part of it)."""
    for number in at:
        keys = _mixed(keys + np.uint64(GAMMA * (number + 1) % 2**64))
    return _mixed(keys[:, None] + np.uint64(GAMMA) * np.arange(1, count + 1, dtype=np.uint64))


def uniform(keys: Keys, count: int, *at: int) -> NDArray[np.float64]:
    """[N, count] numbers above 0 and below 1."""
    numbers = (bits(keys, count, *at) >> np.uint64(12)).astype(np.float64)
    numbers += 0.5
    numbers *= 2.0**-52
    return numbers


def gumbel(keys: Keys, count: int, *at: int) -> NDArray[np.float64]:
    """[N, count] numbers of the standard Gumbel distribution: -log(-log u)."""
    numbers = uniform(keys, count, *at)
    for _ in range(2):
        np.negative(np.log(numbers, out=numbers), out=numbers)
    return numbers


def normal(keys: Keys, count: int, *at: int) -> NDArray[np.float32]:
    """[N, count] numbers of the standard normal distribution, two from 64 bits (Box & Muller 1958)."""
    pairs = -(-count // 2)
    halves = bits(keys, pairs, *at).view(np.uint32).reshape(len(keys), pairs, 2).astype(np.float32)
    radius, angle = np.ascontiguousarray(halves[:, :, 0]), np.ascontiguousarray(halves[:, :, 1])
    radius += np.float32(1)  # of 32 bits: no logarithm of 0
    radius *= np.float32(2.0**-32)
    np.sqrt(np.float32(-2) * np.log(radius, out=radius), out=radius)
    angle *= np.float32(2 * np.pi * 2.0**-32)
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)), axis=1)[:, :count]


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Of each its hash, in its place: SplitMix64's finaliser."""
    shifted = np.empty_like(numbers)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None)):
        np.bitwise_xor(numbers, np.right_shift(numbers, np.uint64(shift), out=shifted), out=numbers)
        if factor is not None:
            numbers *= np.uint64(factor)
    return numbers
