"""The limit: the time of only the matrix products that training this model requires.

Products are counted without padding. Those of the recurrence are merged over time, as if all states were known, so that
no implementation of the same equations can need less time for the same products. Each product is timed with the fastest
backend and layout of the machine, in each precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.harness import Row, best_seconds
from benchmarks.speed.model import Sizes
from benchmarks.speed.tokens import Tokens

GPU_ROUND_SECONDS = 0.005  # of ten calls and more at a time, whose time varies less than on a CPU


class Counts(NamedTuple):
    """Token counts of an update, with end tokens and without padding.

    `pairs` counts the pairs of a source and a target token of the same sentence.
    """

    sentences: int
    source: int
    target: int
    pairs: int

    @classmethod
    def of(cls, source: list[int], target: list[int]) -> Counts:
        """Count from the lengths of the sentences."""
        pairs = sum(j * i for j, i in zip(source, target, strict=True))
        return cls(len(source), sum(source), sum(target), pairs)


def average_counts(tokens: Tokens, sentences: int) -> Counts:
    """Count the tokens of an average update of so many sentences on the training set, without padding."""
    lengths = []
    for language in tokens.languages:
        lengths.append([len(line.split()) + 1 for line in tokens.lines("train", language)])
    total = Counts.of(*lengths)
    fraction = sentences / total.sentences
    return Counts(sentences, *(round(fraction * count) for count in total[1:]))


@dataclass(frozen=True)
class Product:
    """`times` products [rows, inner] x [inner, columns] of the forward pass.

    For each, the backward pass has two products of the same size: the output gradient times the transposed weights, and
    the transposed input times the output gradient.
    """

    name: str
    rows: int
    inner: int
    columns: int
    times: int = 1
    batched: bool = False
    """True for a small product per sentence (attention), False for a product with a weight matrix."""

    def shapes(self) -> list[tuple[int, int, int]]:
        """Return (rows, inner, columns) of the forward product, the input gradient and the weight gradient."""
        M, K, N = self.rows, self.inner, self.columns
        return [(M, K, N), (M, N, K), (N, M, K)]


def products(sizes: Sizes, vocabulary: int, n: Counts) -> list[Product]:
    """Return the products of RNNsearch (`decoders/bahdanau.py`). Matrices with the same input are concatenated."""
    E, H, D, A, R = sizes.embedding, sizes.encoder, sizes.decoder, sizes.attention, sizes.readout
    I, J = _mean_lengths(n)
    return [
        Product("encoder: words", n.source, E, 6 * H),
        Product("encoder: gates, each direction", n.source, H, 2 * H, times=2),
        Product("encoder: candidate, each direction", n.source, H, H, times=2),
        Product("keys: U_a h", n.source, 2 * H, A),
        Product("first state: W_s h", n.sentences, H, D),
        Product("decoder: words", n.target, E, 3 * D),
        Product("decoder: [W_a; U_z; U_r] s", n.target, D, A + 2 * D),
        Product("decoder: candidate U (r s)", n.target, D, D),
        Product("decoder: contexts", n.target, 2 * H, 3 * D),
        Product("attention: v^T tanh", n.pairs, A, 1),
        Product("attention: contexts", I, J, 2 * H, times=n.sentences, batched=True),
        Product("readout: [s; y; c]", n.target, D + E + 2 * H, sizes.pool * R),
        Product("softmax", n.target, R, vocabulary),
    ]


def _mean_lengths(n: Counts) -> tuple[int, int]:
    """Return target and source lengths whose product is the mean number of pairs per sentence."""
    target = max(1, round(n.target / n.sentences))
    return target, max(1, round(n.pairs / n.sentences / target))


def flops(all_products: list[Product]) -> int:
    """Return the multiplications and additions of the forward and backward products."""
    return sum(2 * p.times * M * K * N for p in all_products for M, K, N in p.shapes())


def _implementations(x: Tensor, w: Tensor) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield implementations of x w^T [M, N] for x [M, K] and w [N, K], in each layout and with each backend."""
    for x_name, a in (("rows", x), ("columns", x.t().contiguous().t())):
        for w_name, b in (("rows", w), ("columns", w.t().contiguous().t())):
            yield f"default, {x_name} by {w_name}", lambda a=a, b=b: linear(a, b)  # type: ignore[misc]
    if x.device.type == "cpu" and x.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        pointwise = torch.ops.mkldnn._linear_pointwise
        try:
            pointwise(x, w, None, "none", [], "")
        except (RuntimeError, NotImplementedError):
            return
        yield "oneDNN", lambda: pointwise(x, w, None, "none", [], "")


def time_fastest(product: Product, dtype: torch.dtype, device: torch.device, rounds: int) -> tuple[float, list[str]]:
    """Return the seconds of a product, forward and backward, and the fastest implementation of each."""
    # On the device, because a CPU would take seconds for the largest matrices.
    generator = torch.Generator(device).manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    total = 0.0
    names = []
    for M, K, N in product.shapes():
        seconds: dict[str, float] = {}
        if product.batched:
            a = random(product.times, M, K)
            b = random(product.times, K, N)
            seconds["batched"] = _seconds(lambda a=a, b=b: torch.bmm(a, b), device, rounds)  # type: ignore[misc]
        else:
            for name, function in _implementations(random(M, K), random(N, K)):
                seconds[name] = product.times * _seconds(function, device, rounds)
        names.append(min(seconds, key=seconds.__getitem__))
        total += seconds[names[-1]]
    return total, names


def _seconds(function: Callable[[], object], device: torch.device, rounds: int) -> float:
    if device.type == "cpu":
        return best_seconds(function, rounds)

    def call_and_synchronize() -> None:
        for _ in range(10):
            function()
        torch.cuda.synchronize(device)

    return best_seconds(call_and_synchronize, rounds, GPU_ROUND_SECONDS) / 10


def measure(sizes: Sizes, vocabulary: int, n: Counts, device: str, precisions: Sequence[str], rounds: int = 5) -> Row:
    """Measure the limit in each precision: seconds per update, FLOP/s, and target tokens/s without end tokens."""
    all_products = products(sizes, vocabulary, n)
    row: Row = {"flops": flops(all_products), "counts": n._asdict()}
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    for precision in precisions:
        with torch.no_grad():
            parts = {p.name: time_fastest(p, dtypes[precision], torch.device(device), rounds) for p in all_products}
        seconds = sum(part_seconds for part_seconds, _ in parts.values())
        row[precision] = {
            "seconds": seconds,
            "flops_per_second": row["flops"] / seconds,
            "tokens_per_second": (n.target - n.sentences) / seconds,
            "parts": {name: {"seconds": s, "share": s / seconds, "ways": ways} for name, (s, ways) in parts.items()},
        }
    return row
