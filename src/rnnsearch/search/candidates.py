"""Candidate lists for PyTorch searches: how their tables are learned and stored, and `Columns`, the score columns.

A candidate list restricts a batch's translations to the most probable translations of its source tokens and the most
frequent target tokens, so that the output layer computes only their rows (Jean et al. 2015, section 3.2.2; Mi, Wang &
Ittycheriah 2016, "Vocabulary manipulation for NMT").

`rnnsearch candidates` learns tables, `translator/loading.py` loads them, and every search maps tokens to score columns
with `Columns`. The tables are the file `candidates.safetensors` of a model folder; changed names or shapes make
existing folders unreadable.

Axes: C score columns.
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

CANDIDATES_FILE = "candidates.safetensors"
"""File name of the tables in a model folder."""
MAX_CANDIDATES = 100
"""Translations stored per source token."""
DEFAULT_FREQUENT_TOKENS = 300
"""Number of the most frequent target tokens, which are in every list (Jean et al. 2015 use 15,000 to 50,000)."""
MAX_TRAINING_PAIRS = 20_000_000
"""Limit of pairs of tokens to learn from; of a larger corpus, sentences at regular intervals are used."""
EM_ITERATIONS = 4
"""Iterations of expectation maximisation by which the tables are learned."""

ColumnChooser = Callable[[Sources], Tensor | None]
"""Returns the distinct tokens [C] that a batch's translations may consist of, EOS among them, or None for all."""


class Candidates:
    """A `ColumnChooser` that uses candidate lists."""

    def __init__(self, lists: CandidateLists) -> None:
        self.lists = lists

    def __call__(self, sources: Sources) -> Int[Tensor, "C"]:
        """Return the tokens for a batch in ascending order, EOS among them."""
        source = next(iter(sources.values()))  # the other sources are the same text in other members' vocabularies
        return torch.from_numpy(self.lists(source.ids.cpu().numpy())).to(source.ids.device)


class Columns:
    """Mapping between tokens and the score columns of a search."""

    def __init__(self, ids: Tensor | None, vocabulary: int) -> None:
        """Index the columns.

        Args:
            ids: [C], tokens of the columns; None for the whole vocabulary in order.
            vocabulary: V.

        Raises:
            RnnsearchError: EOS has no column.
        """
        self.ids = ids
        self.count = vocabulary if ids is None else len(ids)
        self._column_of: Tensor | None = None
        if ids is not None:
            # [largest id + 1], -1 for tokens without a column.
            self._column_of = ids.new_full((max(int(ids.max()), EOS) + 1,), -1)
            self._column_of[ids] = torch.arange(self.count, device=ids.device)
            if int(self._column_of[EOS]) < 0:
                raise RnnsearchError(f"a scorer's candidate tokens must include EOS (id {EOS}); got none")

    def tokens(self, columns: Tensor) -> Tensor:
        """Return the tokens of score columns, in any shape."""
        return columns if self.ids is None else self.ids[columns]

    def find(self, tokens: Tensor) -> Tensor:
        """Return the score columns of tokens, in any shape; -1 for a token without one and for a negative id."""
        table = self._column_of
        size = self.count if table is None else table.shape[0]
        in_range = (tokens >= 0) & (tokens < size)
        columns = tokens if table is None else table[tokens.clamp(0, size - 1)]
        return columns.where(in_range, -1)


def learn_candidate_tables(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    source_size: int,
    target_size: int,
    num_frequent: int = DEFAULT_FREQUENT_TOKENS,
) -> dict[str, Tensor]:
    """Return the tables of candidate lists, learned from sentence pairs by IBM model 1 (Brown et al. 1993).

    The model estimates p(t | s) by expectation maximisation.

    Args:
        sources: Token ids of the source sentences.
        targets: Token ids of the target sentences.
        source_size: Size of the source vocabulary.
        target_size: Size of the target vocabulary.
        num_frequent: Number of the most frequent target tokens, which are in every list.

    Raises:
        RnnsearchError: There is no pair of tokens.
    """
    s, t, position = _token_pairs(sources, targets)
    if not len(s):
        raise RnnsearchError("candidate lists must be learned from sentence pairs with text on both sides; got none")
    # One integer per pair of tokens, so that sorting orders pairs by their source token.
    pairs, pair_index = np.unique(s * target_size + t, return_inverse=True)
    source_of_pair = pairs // target_size
    p = np.ones(len(pairs))  # a uniform start; E steps normalise it
    for _ in range(EM_ITERATIONS):
        weight = p[pair_index]
        weight /= np.bincount(position, weight)[position]  # posterior of the source token of each target position
        counts = np.bincount(pair_index, weight, len(pairs))  # expected count of each distinct pair
        p = counts / np.bincount(source_of_pair, counts, source_size)[source_of_pair]
    # By source token, then from the most probable translation; equal ones by id, so that the result is deterministic.
    order = np.lexsort((pairs, -p, source_of_pair))
    # Rank of each translation of its source token.
    rank = np.arange(len(order)) - np.searchsorted(source_of_pair[order], source_of_pair[order])
    selected = order[rank < MAX_CANDIDATES]
    translations = np.full((source_size, MAX_CANDIDATES), -1, dtype=np.int32)
    translations[source_of_pair[selected], rank[rank < MAX_CANDIDATES]] = pairs[selected] % target_size
    target_tokens = np.concatenate([np.asarray(ids, np.int64) for ids in targets])
    frequency = np.bincount(target_tokens, minlength=target_size)
    count = min(num_frequent, np.count_nonzero(frequency))
    frequent = np.argsort(-frequency, kind="stable")[:count].astype(np.int32)
    return {"translations": torch.from_numpy(translations), "frequent": torch.from_numpy(frequent)}


def _token_pairs(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return all pairs (source token, target token) of all sentence pairs, with the index of the target position."""
    pair_counts = np.array([len(x) * len(y) for x, y in zip(sources, targets, strict=True)], dtype=np.int64)
    interval = max(1, -(-int(pair_counts.sum()) // MAX_TRAINING_PAIRS))  # rounded up
    source_tokens = [np.zeros(0, np.int64)]
    target_tokens = [np.zeros(0, np.int64)]
    positions = [np.zeros(0, np.int64)]
    first = 0
    for n in range(0, len(sources), interval):
        if not pair_counts[n]:
            continue
        x = np.asarray(sources[n], np.int64)
        y = np.asarray(targets[n], np.int64)
        source_tokens.append(np.tile(x, len(y)))
        target_tokens.append(np.repeat(y, len(x)))
        positions.append(np.repeat(np.arange(first, first + len(y)), len(x)))
        first += len(y)
    return np.concatenate(source_tokens), np.concatenate(target_tokens), np.concatenate(positions)


def save_candidate_tables(folder: Path, tables: dict[str, Tensor]) -> None:
    """Store the tables in a model folder."""
    save_weights(folder / CANDIDATES_FILE, tables)


def load_candidates(
    folder: Path, count: int, source_size: int, target_size: int, always_included: Sequence[int] = ()
) -> Candidates:
    """Load the candidate lists of a model folder.

    Args:
        folder: Model folder.
        count: Number of translations per source token.
        source_size: Size of the source vocabulary.
        target_size: Size of the target vocabulary.
        always_included: Tokens of every list that occur in no text.

    Raises:
        ModelError: The folder has no tables, or those of other vocabularies.
    """
    path = folder / CANDIDATES_FILE
    if not path.is_file():
        raise ModelError(
            f"{folder}: must contain {CANDIDATES_FILE} for candidate lists; "
            f"create it with `rnnsearch candidates {folder} SRC TGT`"
        )
    tables = read_weights(path)
    try:
        translations = tables["translations"]
        frequent = tables["frequent"]
        fits = (
            translations.shape == (source_size, MAX_CANDIDATES)
            and translations.dtype == frequent.dtype == torch.int32
            and int(max(translations.max(), frequent.max())) < target_size
            and int(frequent.min()) >= 0
        )
    except (KeyError, RuntimeError):  # a missing or empty table
        fits = False
    if not fits:
        raise ModelError(f"{path}: must fit this model's vocabularies; create it again with `rnnsearch candidates`")
    return Candidates(CandidateLists(translations.numpy(), frequent.numpy(), count, target_size, always_included))
