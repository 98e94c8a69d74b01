"""Forced decoding: scores of given target sentences, and the best tokens after a given prefix.

`decode.force_decode_all` calls `force_decode` batch by batch, for scoring and for alignments by attention.

`Translator.score`, `Translator.align` (`translator/translator.py`) and `translator/language_model.py` get their
log-probabilities from it; `next_tokens` serves `Translator.likeliest_tokens` (word alternatives in `serve/v1.py`). It
is the reference that searches are compared with (`tests/properties/test_search_agrees.py`).

Axes: B sentences, T target positions with EOS.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rnnsearch.engine.structs import Array
from rnnsearch.errors import RnnsearchError
from rnnsearch.search.backtrace import StepStorage
from rnnsearch.search.candidates import ColumnChooser, Columns
from rnnsearch.search.constraints import NEVER_PRODUCED, score_columns
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import MEAN_LOG_PROB, Ranking
from rnnsearch.search.results import (
    HypothesisArrays,
    gather_attention,
    make_hypotheses,
    require_no_nan,
    source_lengths,
)
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.text.vocabulary import BOS, EOS, PAD


@torch.inference_mode()
def force_decode(
    scorer: Scorer,
    sources: Sources,
    targets: Sequence[Sequence[int]],
    ranking: Ranking = MEAN_LOG_PROB,
    finished: Sequence[bool] | None = None,
    columns: Tensor | None = None,
) -> list[Hypothesis]:
    """Return the given targets as hypotheses, one per sentence. No search options apply.

    Args:
        scorer: Scorer to use.
        sources: The batch.
        targets: Token ids without EOS. A token without a score column has the score -inf.
        ranking: Score of the hypotheses.
        finished: False for targets to which no EOS is appended; by default all are finished.
        columns: Score columns, see `Scorer.start`.

    Raises:
        RnnsearchError: The number of targets is not the number of sentences.
        SentenceError: A score is NaN.
    """
    for name, lengths in source_lengths(sources).items():
        if len(lengths) != len(targets):
            raise RnnsearchError(f"targets must be one per sentence of {name} ({len(lengths)}); got {len(targets)}")
    has_eos = np.ones(len(targets), dtype=bool) if finished is None else np.array(finished, dtype=bool)
    sizes = np.array([len(target) for target in targets], dtype=np.int64)
    length = sizes + has_eos
    tokens = np.full((int(sizes.max(initial=-1)) + 1, len(targets)), PAD)  # [T, B]
    for b, target in enumerate(targets):
        tokens[: len(target), b] = target
        # Also written after a target that is not finished; `length` excludes it there.
        tokens[len(target), b] = EOS
    scores, attention = _teacher_force(scorer, sources, torch.from_numpy(tokens).to(scorer.device), columns)
    require_no_nan(scores, length)
    sentences = np.arange(len(targets))
    rows = np.where(np.arange(len(tokens))[:, None] < length, sentences, -1)  # [T, B]
    weights = gather_attention(attention, rows)
    arrays = HypothesisArrays(sentences, tokens, scores, length, has_eos, weights)
    return make_hypotheses(arrays, sources, ranking)


def _teacher_force(
    scorer: Scorer, sources: Sources, tokens: Tensor, ids: Tensor | None
) -> tuple[Array, list[dict[str, Tensor]]]:
    """Return the scores [T, B] of `tokens` [T, B] and the attention of each step; `ids` are the score columns."""
    memory, state = scorer.start(sources, ids)
    columns = Columns(ids, scorer.vocabulary).find(tokens)  # [T, B]
    previous = torch.full_like(tokens[0], BOS)
    scores = torch.empty(tokens.shape, device=tokens.device)
    attention = []
    storage = StepStorage()
    for t, (y, column) in enumerate(zip(tokens, columns, strict=True)):
        step = scorer.step(memory, state, previous)
        # Tokens without a column read that of column 0 here and get -inf at the end.
        scores[t] = step.log_probs(column.clamp(min=0)[:, None])[:, 0]
        attention.append(storage.store(step.attention))
        state = step.state
        previous = y
    return scores.masked_fill(columns < 0, -torch.inf).cpu().numpy(), attention


@torch.inference_mode()
def next_tokens(
    scorer: Scorer,
    sources: Sources,
    prefix: Sequence[int],
    allowed: Sequence[int],
    count: int,
    candidates: ColumnChooser | None = None,
) -> list[int]:
    """Return the `count` tokens of `allowed` with the highest scores after `prefix`, best first, for one sentence."""
    columns = score_columns(scorer, sources, SearchOptions(), candidates)
    memory, state = scorer.start(sources, columns.ids)
    for token in (BOS, *prefix):
        step = scorer.step(memory, state, torch.tensor([token], device=scorer.device))
        state = step.state
    tokens = torch.tensor([id for id in allowed if id not in NEVER_PRODUCED], dtype=torch.int64, device=scorer.device)
    column = columns.find(tokens)
    tokens = tokens[column >= 0]
    column = column[column >= 0]
    best = step.scores[0, column].float().topk(min(count, len(tokens))).indices
    return [int(id) for id in tokens[best]]
