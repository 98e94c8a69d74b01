"""The hidden Markov model of word alignment (Vogel, Ney & Tillmann 1996), for many sentence pairs at once.

Source symbol a_i is the state in which target symbol t_i is emitted. Of J source symbols

    p(a_i = j | a_{i-1} = j') = (1 - p_0) c(j - j') / sum_l c(l - j'),   p(t_i | a_i = j) = p(t_i | s_j),

with one weight c a distance. With probability p_0 the symbol comes of no source symbol, by p(t_i | none), and the next
jump is from where the last was (Och & Ney 2003, section 2.3). Before the first symbol the place is -1; where that one
comes of none, its place is drawn all the same, so that the next has one to jump from.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

NULL = 0.2
"""p_0, the probability that a symbol is aligned to none."""
FARTHEST = 60
"""Jumps that are farther have the weight of this one."""
JUMPS = 2 * FARTHEST + 1
"""The number of weights c, of jumps by -`FARTHEST` to `FARTHEST`."""
_TINY = np.float32(1e-30)


class Posterior(NamedTuple):
    """What is known of the states of B pairs: p(a_i = j), p(a_i is none), and how often each jump is expected."""

    real: Float[np.ndarray, "B I J"]
    none: Float[np.ndarray, "B I"]
    jumps: Float[np.ndarray, "jumps"]


def model1(
    emission: Float[np.ndarray, "B I J"], none: Float[np.ndarray, "B I"], _sizes: object, _weights: object
) -> Posterior:
    """As `posterior`, of IBM model 1 (Brown et al. 1993): all source symbols and none are as likely beforehand."""
    total = emission.sum(axis=2) + none + _TINY
    return Posterior(emission / total[:, :, None], none / total, np.zeros(JUMPS))


def posterior(
    emission: Float[np.ndarray, "B I J"],
    none: Float[np.ndarray, "B I"],
    sizes: tuple[Int[np.ndarray, "B"], Int[np.ndarray, "B"]],
    weights: Float[np.ndarray, "jumps"],
) -> Posterior:
    """By the forward-backward algorithm, scaled at each position.

    emission: p(t_i | s_j), zero beyond either sentence; none: p(t_i | none); sizes: I and J of each pair; weights: c.
    All sentences share one matrix c(j - j'), whose rows each divides by its own sum.
    """
    (_, I, J), (heights, widths) = emission.shape, sizes
    c = weights.astype(np.float32)
    jump = c[_places(np.arange(J)[None, :] - np.arange(J)[:, None])]
    share = 1 / np.maximum(jump.cumsum(axis=1)[:, widths - 1].T, _TINY)  # [B, J]: 1 / sum_l c(l - j')
    first = c[_places(np.arange(J) + 1)] * (np.arange(J) < widths[:, None])
    first /= np.maximum(first.sum(axis=1, keepdims=True), _TINY)
    emission = np.float32(1 - NULL) * emission
    none = np.where(np.arange(I) < heights[:, None], np.float32(NULL) * none, 1)  # beyond its end nothing moves
    moved, stayed = np.empty_like(emission), np.empty_like(emission)
    before = after = first
    for i in range(I):
        np.multiply(before, emission[:, i], out=moved[:, i])
        np.multiply(after, none[:, i, None], out=stayed[:, i])
        scale = moved[:, i].sum(axis=1) + stayed[:, i].sum(axis=1) + _TINY
        emission[:, i] /= scale[:, None]
        none[:, i] /= scale
        moved[:, i] /= scale[:, None]
        stayed[:, i] /= scale[:, None]
        after = moved[:, i] + stayed[:, i]
        before = _product(after * share, jump)
    left = (moved + stayed) * share[:, None, :]
    later = np.ones_like(first)
    for i in range(I - 1, -1, -1):
        moved[:, i] *= later
        stayed[:, i] *= later
        emission[:, i] *= later
        later = _product(emission[:, i], jump.T) * share + none[:, i, None] * later
    pairs = _product(left[:, :-1].reshape(-1, J).T, emission[:, 1:].reshape(-1, J))
    return Posterior(moved, stayed.sum(axis=2), _expected(pairs * jump, moved[:, 0].sum(axis=0)))


def _product(a: Float[np.ndarray, "n k"], b: Float[np.ndarray, "k m"]) -> Float[np.ndarray, "n m"]:
    """a @ b by torch, which keeps to the threads that its caller has."""
    found: Float[np.ndarray, "n m"] = torch.from_numpy(a).matmul(torch.from_numpy(b)).numpy()
    return found


def _expected(pairs: Float[np.ndarray, "J J"], first: Float[np.ndarray, "J"]) -> Float[np.ndarray, "jumps"]:
    """How often each jump is expected, from how often each two places follow one another."""
    J = len(first)
    places = np.arange(-1, J)
    table = np.vstack([first[None], pairs]).ravel().astype(np.float64)
    distances = _places(np.arange(J)[None, :] - places[:, None]).ravel()
    return np.bincount(distances, table, JUMPS)


def _places(distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where in c the weight of a jump is."""
    return np.clip(distances, -FARTHEST, FARTHEST) + FARTHEST
