"""The limit: the matrix products that training this model needs, and nothing else.

Counted on real symbols only. What the time axis forces apart in the recurrence is merged over time here, as if all
states were known: no implementation of the same equations can need less of the same products. Each product is timed at
the fastest of the machine's backends, layouts and precisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.harness import Row, seconds_of
from benchmarks.speed.model import Sizes


class Counts(NamedTuple):
    """An update's real symbols, end symbols included: sentences, source, target, and pairs of one target and one
    source symbol of the same sentence."""

    sentences: int
    source: int
    target: int
    pairs: int

    @classmethod
    def of(cls, source: list[int], target: list[int]) -> Counts:
        """From the sentences' lengths."""
        pairs = sum(j * i for j, i in zip(source, target, strict=True))
        return cls(len(source), sum(source), sum(target), pairs)


@dataclass(frozen=True)
class Product:
    """`times` products [rows, inner] x [inner, columns] of the forward pass; the backward pass has two of the same
    size for each: with the weights transposed, and of the inputs transposed with the outputs' gradients."""

    name: str
    rows: int
    inner: int
    columns: int
    times: int = 1
    batched: bool = False
    """One small product a sentence (attention), not one with a weight matrix."""

    def shapes(self) -> list[tuple[int, int, int]]:
        """Rows, inner and columns forward, of the inputs' gradient and of the weights' gradient."""
        M, K, N = self.rows, self.inner, self.columns
        return [(M, K, N), (M, N, K), (N, M, K)]


def products(sizes: Sizes, vocabulary: int, n: Counts) -> list[Product]:
    """Those of RNNsearch (`decoders/bahdanau.py`); matrices that read the same are one."""
    E, H, D, A, R = sizes.embedding, sizes.encoder, sizes.decoder, sizes.attention, sizes.readout
    I, J = _sentence(n)
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


def _sentence(n: Counts) -> tuple[int, int]:
    """Target and source symbols of a mean sentence: their product is the mean of the pairs'."""
    rows = max(1, round(n.target / n.sentences))
    return rows, max(1, round(n.pairs / n.sentences / rows))


def flops(all_products: list[Product]) -> int:
    """Multiplications and additions of forward and backward together."""
    return sum(2 * p.times * M * K * N for p in all_products for M, K, N in p.shapes())


def _ways(x: Tensor, w: Tensor) -> Iterator[tuple[str, Callable[[], object]]]:
    """x w^T [M, N] of x [M, K] and w [N, K] in each layout, by each backend that is there."""
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


def fastest(product: Product, kind: torch.dtype, device: torch.device, rounds: int) -> tuple[float, list[str]]:
    """Seconds of a product forward and backward at its fastest, and by which way each."""
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, kind)

    total, ways = 0.0, []
    for M, K, N in product.shapes():
        if product.batched:
            a, b = drawn(product.times, M, K), drawn(product.times, K, N)
            found = {"batched": _timed(lambda a=a, b=b: torch.bmm(a, b), device, rounds)}  # type: ignore[misc]
        else:
            known = _ways(drawn(M, K), drawn(N, K))
            found = {name: product.times * _timed(work, device, rounds) for name, work in known}
        ways.append(min(found, key=found.__getitem__))
        total += found[ways[-1]]
    return total, ways


def _timed(work: Callable[[], object], device: torch.device, rounds: int) -> float:
    if device.type == "cpu":
        return seconds_of(work, rounds)

    def waited() -> None:
        for _ in range(10):
            work()
        torch.cuda.synchronize(device)

    return seconds_of(waited, rounds) / 10


def measure(sizes: Sizes, vocabulary: int, n: Counts, device: str, precisions: Sequence[str], rounds: int = 5) -> Row:
    """The limit in each precision: seconds an update, FLOP/s, target symbols/s without the end symbols."""
    all_products = products(sizes, vocabulary, n)
    row: Row = {"flops": flops(all_products), "counts": n._asdict()}
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
    for precision in precisions:
        with torch.no_grad():
            parts = {p.name: fastest(p, kinds[precision], torch.device(device), rounds) for p in all_products}
        seconds = sum(spent for spent, _ in parts.values())
        row[precision] = {
            "seconds": seconds,
            "flops_per_second": row["flops"] / seconds,
            "tokens_per_second": (n.target - n.sentences) / seconds,
            "parts": {name: {"seconds": s, "share": s / seconds, "ways": ways} for name, (s, ways) in parts.items()},
        }
    return row
