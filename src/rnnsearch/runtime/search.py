"""Batch search with the engine: source ids in, hypotheses out.

The counterpart of `search.decode` without PyTorch, for `runtime.translator`. This module must not import torch.

Results must equal those of `search.decode` on the same model, which the tests compare:
`tests/properties/test_engine.py`, `tests/properties/test_written_models.py`.

Axes: B sentences, K hypotheses per sentence (the beam), P prefix positions, T steps, J source positions, V tokens of
the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rnnsearch.engine.n_best import NBestArrays
from rnnsearch.engine.recurrent import AnyEngine
from rnnsearch.engine.rnnsearch import CGreedyResult, CSearchOptions
from rnnsearch.engine.structs import Array, PackedMatrix
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.search.batching import MAX_BATCH_HYPOTHESES
from rnnsearch.search.candidate_lists import CandidateLists
from rnnsearch.search.native_beam import NativeBeamRequest
from rnnsearch.search.ranking import ENGINE_NORMS, BeamOptions
from rnnsearch.text.prefixes import NO_PREFIX, Prefix
from rnnsearch.text.vocabulary import BOS, EOS, PAD

MAX_ATTENTION_VALUES = 1 << 28  # attention weights of a batch, [B, K, J, T]; 1 GiB
NAN_MESSAGE = "the scores of a sentence must be numbers; got NaN"


class EngineSearchOptions(BeamOptions):
    """Options of a search with the engine."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], path: Path) -> EngineSearchOptions:
        """Return the options that an engine file holds.

        Raises:
            ModelError: One is unknown or not valid.
        """
        try:
            options = cls(**settings)
            numbers = (options.length_penalty, options.coverage_penalty, options.max_ratio, options.max_extra)
            is_valid = (
                # Below a million, so that lengths fit an int64; NaN fails the comparison.
                all(isinstance(number, int | float) and 0 <= number < 1e6 for number in numbers)
                and type(options.max_extra) is int
                and options.length_norm in ENGINE_NORMS
                and options.banned == frozenset()  # engine files do not ban tokens
                and isinstance(options.beam, int)
                and 1 <= options.beam <= MAX_BATCH_HYPOTHESES
            )
        except (TypeError, RnnsearchError):  # a wrong type, or not a valid ranking
            is_valid = False
        if not is_valid:
            raise ModelError(f"{path}: its search settings are damaged: export the model again")
        return options


class _Batch(NamedTuple):
    """A batch of sentences as arrays; lengths count tokens."""

    sources: Array  # [B, J], padded with PAD
    lengths: Array  # [B], with EOS
    max_lengths: Array  # [B], of translations without EOS

    @classmethod
    def pad(
        cls, sentences: Sequence[Sequence[int]], options: EngineSearchOptions, prefixes: Sequence[Prefix]
    ) -> _Batch:
        lengths = np.array([len(ids) + 1 for ids in sentences])
        J = int(lengths.max())
        sources = np.array([[*ids, EOS, *[PAD] * (J - 1 - len(ids))] for ids in sentences], np.int64)
        max_lengths = (np.floor(options.max_ratio * (lengths - 1)) + options.max_extra).astype(np.int64)
        prefix_lengths = [len(prefix.ids) + len(prefix.continuations) for prefix in prefixes]
        # A prefix may be longer than the limit; the translation then has at least one token more.
        return cls(sources, lengths, np.maximum(max_lengths, np.array(prefix_lengths) + 1))


def search_batch(
    model: AnyEngine,
    sentences: Sequence[Sequence[int]],
    options: EngineSearchOptions,
    prefixes: Sequence[Prefix] | None = None,
    token_bytes: Array | None = None,
    candidates: CandidateLists | None = None,
) -> NBestArrays:
    """Return the n best hypotheses of a batch.

    Args:
        model: The engine.
        sentences: Source ids without EOS; no sentence is empty.
        options: How to search.
        prefixes: For each sentence, what its translations begin with.
        token_bytes: [V] int64, number of bytes of each token; needed for prefixes that end inside a word.
        candidates: Restricts the target vocabulary, except for searches with prefixes.

    Raises:
        RnnsearchError: The scores are not numbers, or the search would take too much memory.
    """
    prefixes = prefixes or [NO_PREFIX] * len(sentences)
    has_prefixes = token_bytes is not None or any(prefix.ids for prefix in prefixes)
    B = len(sentences)
    K = options.beam
    sources, lengths, max_lengths = _Batch.pad(sentences, options, prefixes)
    J = sources.shape[1]
    T = int(max_lengths.max()) + 1  # with EOS
    # Checked before any memory is allocated.
    if B * K * J * T > MAX_ATTENTION_VALUES:
        raise RnnsearchError(
            f"a line of {J - 1:,} tokens with a translation of up to {T - 1:,} is too long for a beam of {K}"
        )
    output = model.output
    candidate_ids = None
    if candidates is not None and not has_prefixes:
        candidate_ids = candidates(sources)
        output = model.rows(candidate_ids)
    columns = output.struct.outputs
    banned_columns = _banned_columns(options, columns, candidate_ids)
    # The structure has only addresses: the arrays are local variables until native code has returned.
    search_options = CSearchOptions(
        None if candidate_ids is None else candidate_ids.ctypes.data,
        banned_columns.ctypes.data,
        len(banned_columns),
        BOS,
        EOS,
        max_lengths.ctypes.data,
    )
    memory: Any = model.encode(model.embed(sources), lengths)
    attention_width = J if model.attends else 0
    if K == 1 and not has_prefixes:
        return _greedy(model, memory, output, search_options, (B, T, attention_width))
    request = NativeBeamRequest(
        width=K,
        n_best=options.n_best,
        ranking=options.ranking,
        covered=np.arange(J) < (lengths - 1)[:, None],
        forced=_forced_ids(prefixes, columns),
        allowed_tokens=[prefix.continuations for prefix in prefixes],
        token_bytes=token_bytes,
    )
    hypotheses = NBestArrays.allocate(B, options.n_best, T, attention_width)
    is_finite = model.beam(memory, output, search_options, request.c_struct, hypotheses.struct)
    if not is_finite or np.isnan(hypotheses.scores).any():
        raise RnnsearchError(NAN_MESSAGE)
    return hypotheses


def _banned_columns(options: EngineSearchOptions, columns: int, candidate_ids: Array | None) -> Array:
    """Return the columns of the output layer that native code must not choose."""
    column_ids = np.arange(columns) if candidate_ids is None else candidate_ids
    return np.flatnonzero(np.isin(column_ids, sorted(options.banned | {PAD, BOS})))


def _greedy(
    model: AnyEngine, memory: Any, output: PackedMatrix, options: CSearchOptions, sizes: tuple[int, int, int]
) -> NBestArrays:
    """Return the greedy hypotheses of a batch, faster than a beam search of size 1.

    Args:
        model: The engine.
        memory: The encoded batch.
        output: Output layer, possibly restricted to candidates.
        options: Options of the search.
        sizes: B, T and J of the result.
    """
    B, T, _ = sizes
    tokens = np.zeros((T, B), np.int64)
    scores = np.zeros((T, B), np.float32)
    attention = np.zeros(sizes, np.float32)
    lengths = np.zeros(B, np.int64)
    pointers = (array.ctypes.data for array in (tokens, scores, attention, lengths))
    model.greedy(memory, output, options, CGreedyResult(T, *pointers))
    if np.isnan(scores).any():
        raise RnnsearchError(NAN_MESSAGE)
    # A length counts EOS or, if the hypothesis was cut off, one token more than allowed.
    finished = tokens[lengths - 1, np.arange(B)] == EOS
    lengths -= ~finished  # of a hypothesis that was cut off, the last token exceeds the maximum length
    lengths[(scores == -np.inf).any(0)] = 0  # blocked: no token was allowed
    # [B, 1, ...]: one hypothesis per sentence.
    rows = (tokens.T, scores.T, attention, lengths, finished.astype(np.int64))
    return NBestArrays(*(row[:, None] for row in rows))


def _forced_ids(prefixes: Sequence[Prefix], columns: int) -> Array:
    """Return the tokens of prefixes, [B, P], padded with -1.

    Raises:
        RnnsearchError: A token has no output column.
    """
    P = max(len(prefix.ids) for prefix in prefixes)
    forced = np.array([[*prefix.ids, *[-1] * (P - len(prefix.ids))] for prefix in prefixes], np.int64)
    if forced.size and forced.max() >= columns:
        raise RnnsearchError("a prefix must consist of tokens that the model scores")
    return forced.reshape(len(prefixes), P)
