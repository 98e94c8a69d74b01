"""Candidate lists: the target symbols that translations of a batch are made of, so that the output layer is multiplied
with their rows alone (Jean et al. 2015, section 3.2.2; Mi, Wang & Ittycheriah 2016, "Vocabulary manipulation for NMT").

A batch's list: each of its source symbols' likeliest translations, and the most frequent target symbols.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.search.candidate_lists import CandidateLists
from rnnsearch.search.scorer import Sources
from rnnsearch.text.vocabulary import EOS
from rnnsearch.utils.weights import read_weights, save_weights

FILE = "candidates.safetensors"
"""The table's name in a model folder."""
KEPT = 100
"""Translations kept of each source symbol."""
FREQUENT = 300
"""Most frequent target symbols, in every list."""
EVENTS = 20_000_000
"""Pairs of symbols that a table is learned from, at most; of a larger corpus, sentences at even distances."""
ROUNDS = 4

Table = NDArray[np.int64]


class Candidates:
    """A `ColumnChooser` by candidate lists."""

    def __init__(self, lists: CandidateLists) -> None:
        self.lists = lists

    def __call__(self, sources: Sources) -> Int[Tensor, "C"]:
        """The symbols for a batch, in rising order; EOS is among them."""
        source = next(iter(sources.values()))  # others are the same text, as other members of an ensemble read it
        return torch.from_numpy(self.lists(source.ids.cpu().numpy())).to(source.ids.device)


def learn(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], source: int, target: int
) -> dict[str, Tensor]:
    """The tables of `Candidates` from sentence pairs, by IBM model 1 (Brown et al. 1993): p(t | s) after some rounds of
    expectation maximisation. `source` and `target` are the vocabularies' sizes.

    Errors: RnnsearchError without any pair of symbols.
    """
    s, t, position = _events(sources, targets)
    if not len(s):
        raise RnnsearchError("candidate lists must be learned from sentence pairs with text on both sides; got none")
    pairs, pair_of = np.unique(s * target + t, return_inverse=True)
    source_of = pairs // target
    p = np.ones(len(pairs))
    for _ in range(ROUNDS):
        weight = p[pair_of]
        weight /= np.bincount(position, weight)[position]
        counts = np.bincount(pair_of, weight, len(pairs))
        p = counts / np.bincount(source_of, counts, source)[source_of]
    order = np.lexsort((pairs, -p, source_of))
    rank = np.arange(len(order)) - np.searchsorted(source_of[order], source_of[order])
    kept = order[rank < KEPT]
    translations = np.full((source, KEPT), -1, dtype=np.int32)
    translations[source_of[kept], rank[rank < KEPT]] = pairs[kept] % target
    frequency = np.bincount(np.concatenate([np.asarray(ids, np.int64) for ids in targets]), minlength=target)
    frequent = np.argsort(-frequency, kind="stable")[: min(FREQUENT, np.count_nonzero(frequency))].astype(np.int32)
    return {"translations": torch.from_numpy(translations), "frequent": torch.from_numpy(frequent)}


def _events(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> tuple[Table, Table, Table]:
    """Every source symbol beside every target symbol of its pair, and the number of that target position."""
    work = np.array([len(x) * len(y) for x, y in zip(sources, targets, strict=True)], dtype=np.int64)
    step = max(1, -(-int(work.sum()) // EVENTS))
    chosen = [n for n in range(0, len(sources), step) if work[n]]
    s, t, position, first = [], [], [], 0
    for n in chosen:
        x, y = np.asarray(sources[n], np.int64), np.asarray(targets[n], np.int64)
        s.append(np.tile(x, len(y)))
        t.append(np.repeat(y, len(x)))
        position.append(np.repeat(np.arange(first, first + len(y)), len(x)))
        first += len(y)
    if not chosen:
        return (np.zeros(0, np.int64),) * 3
    return np.concatenate(s), np.concatenate(t), np.concatenate(position)


def save(folder: Path, tables: dict[str, Tensor]) -> None:
    """Put what `learn` gave into a model folder."""
    save_weights(folder / FILE, tables)


def read(folder: Path, count: int, source: int, target: int, marks: Sequence[int] = ()) -> Candidates:
    """The lists of a model folder with `count` translations a source symbol. Errors: ModelError where it has none, or
    those of other vocabularies."""
    path = folder / FILE
    if not path.is_file():
        raise ModelError(
            f"{folder}: must hold {FILE} for candidate lists; make it with `rnnsearch candidates {folder} SRC TGT`"
        )
    tables = read_weights(path)
    try:
        translations, frequent = tables["translations"], tables["frequent"]
        fits = translations.shape == (source, KEPT) and translations.dtype == frequent.dtype == torch.int32
        fits = fits and int(max(translations.max(), frequent.max())) < target and int(frequent.min()) >= 0
    except (KeyError, RuntimeError):
        fits = False
    if not fits:
        raise ModelError(f"{path}: must be of this model's vocabularies; make it again with `rnnsearch candidates`")
    return Candidates(CandidateLists(translations.numpy(), frequent.numpy(), count, target, marks))


# Which symbols a batch's score columns stand for: chosen once a batch by the search, the same for every Scorer.

ColumnChooser = Callable[[Sources], Tensor | None]
"""The symbols [C] that a batch's translations are made of, distinct, EOS among them (a candidate list); None: all."""


class Columns:
    """Symbols and score columns, each found by the other. ids: [C], the columns' symbols; None: all of V, in order.

    Errors: RnnsearchError where EOS is not among them.
    """

    def __init__(self, ids: Tensor | None, vocabulary: int) -> None:
        self.ids = ids
        self.count = vocabulary if ids is None else len(ids)
        self._column_of: Tensor | None = None
        if ids is not None:
            self._column_of = ids.new_full((max(int(ids.max()), EOS) + 1,), -1)
            self._column_of[ids] = torch.arange(self.count, device=ids.device)
            if int(self._column_of[EOS]) < 0:
                raise RnnsearchError(f"a scorer's candidate symbols must include EOS (id {EOS}); got none")

    def tokens(self, columns: Tensor) -> Tensor:
        """The symbols of score columns, in any shape."""
        return columns if self.ids is None else self.ids[columns]

    def find(self, tokens: Tensor) -> Tensor:
        """The score columns of symbols, in any shape; -1 for a symbol without one (and for a negative id)."""
        table = self._column_of
        size = self.count if table is None else table.shape[0]
        known = (tokens >= 0) & (tokens < size)
        found = tokens if table is None else table[tokens.clamp(0, size - 1)]
        return found.where(known, -1)
