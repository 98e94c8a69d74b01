"""A small scorer whose scores depend on the whole history and the source, with optional errors."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from rnnsearch.search import topk
from rnnsearch.search.scorer import Sources, Step
from rnnsearch.text.vocabulary import BOS, EOS

SIZE = 6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, because the tensors are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class ToyMemory(NamedTuple):
    annotations: Tensor
    mask: Tensor
    columns: Any
    """A slice or a list, because `select` would select rows of a tensor."""


class ToyState(NamedTuple):
    h: Tensor
    step: Tensor


class ToyScorer:
    """A random recurrent scorer with attention over V tokens; `starts` and `rows` count its calls.

    Args:
        end: Bias of the logit of EOS, which rises by 1 per step.
        nan: First source token and step for which scores are NaN.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        symbols: int = 9,
        seed: int = 0,
        end: float = 0.0,
        nan: tuple[int, int] | None = None,
        normalised: bool = True,
    ) -> None:
        random = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random) * 0.9

        self.normalised = normalised
        self.vocabulary, self.end, self.nan = symbols, end, nan
        self.source, self.target = draw(40, SIZE), draw(symbols, SIZE)
        self.recur, self.read, self.out = draw(SIZE, SIZE), draw(SIZE, SIZE), draw(SIZE, symbols) * 2
        self.starts = 0
        self.rows: list[int] = []

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        self.starts += 1
        ids, mask = sources["source"].ids, sources["source"].mask
        memory = ToyMemory(self.source[ids], mask, slice(None) if columns is None else columns.tolist())
        average = (memory.annotations * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        first = ids[:, 0].float()
        return memory, ToyState(torch.tanh(average @ self.recur), torch.stack((first, first * 0), 1))

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        self.rows.append(len(y))
        width = len(y) // len(memory.mask)
        assert width * len(memory.mask) == len(y) == len(state.h)
        energy = torch.einsum("bkd,bjd->bkj", state.h.unflatten(0, (-1, width)), memory.annotations)
        alpha = energy.masked_fill(~memory.mask[:, None], -torch.inf).softmax(2)
        context = torch.einsum("bkj,bjd->bkd", alpha, memory.annotations).flatten(0, 1)
        h = torch.tanh(state.h @ self.recur + self.target[y] + context @ self.read)
        logits = h @ self.out
        logits[:, EOS] += self.end + state.step[:, 1]
        scores = logits.log_softmax(1)[:, memory.columns]
        count = state.step + torch.tensor([0.0, 1.0])
        if self.nan is not None:
            scores[(count == torch.tensor(self.nan)).all(1)] = torch.nan
        return Step(scores, ToyState(h, count), {"source": alpha.flatten(0, 1)})


@pytest.fixture
def toy() -> Callable[..., ToyScorer]:
    """Return the class ToyScorer."""
    return ToyScorer


class TableScorer:
    """Scorer whose step t gives row t of a table [T, V] to every hypothesis; the last row repeats."""

    device = torch.device("cpu")

    def __init__(self, table: list[list[float]], normalised: bool = True) -> None:
        self.table = torch.tensor(table)
        self.vocabulary = self.table.shape[1]
        self.normalised = normalised

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        count = len(sources["source"].ids)
        return (torch.zeros(count, 1),), (torch.zeros(count, dtype=torch.int64),)

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        assert (state[0] > 0).all() or (y == BOS).all()
        rows = state[0].clamp(max=len(self.table) - 1)
        return Step(self.table[rows], (state[0] + 1,), {})


@pytest.fixture
def table() -> Callable[..., TableScorer]:
    """Return the class TableScorer."""
    return TableScorer


@pytest.fixture(params=[2, 4, 64])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set the columns per sampling block: several blocks per vocabulary, or one."""
    monkeypatch.setattr(topk, "BLOCK_COLUMNS", request.param)
    return int(request.param)


@pytest.fixture
def sentences() -> list[list[int]]:
    """Source sentences of several lengths."""
    return [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14], [15, 16], [17, 4, 4, 18], [20, 21, 22, 23, 24]]
