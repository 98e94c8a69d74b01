"""Forced decoding: what a Scorer says of given target sentences, symbol by symbol."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.columns import Columns
from rnnsearch.search.hypothesis import (
    Hypothesis,
    Numbers,
    Scored,
    gather_attention,
    make_hypotheses,
    not_a_number,
    source_lengths,
)
from rnnsearch.search.ranking import Ranking
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.text.vocabulary import BOS, EOS, PAD


@torch.no_grad()
def forced(
    scorer: Scorer,
    sources: Sources,
    targets: Sequence[Sequence[int]],
    length_penalty: float = 1.0,
    length_norm: str = "power",
    coverage_penalty: float = 0.0,
) -> list[Hypothesis]:
    """One finished hypothesis a sentence, made of its target's symbols (given without EOS) and EOS.

    A symbol that the Scorer has no column for has the score -inf. No option of a search applies: nothing is
    banned.
    Errors: RnnsearchError where there are not as many targets as sentences; SentenceError for a NaN score.
    """
    lengths = source_lengths(sources)
    for name, known in lengths.items():
        if len(known) != len(targets):
            raise RnnsearchError(f"targets must be one a sentence of {name} ({len(known)}); got {len(targets)}")
    ends = np.array([len(target) + 1 for target in targets], dtype=np.int64)
    tokens = np.full((int(ends.max(initial=0)), len(targets)), PAD)
    for b, target in enumerate(targets):
        tokens[: len(target), b] = target
        tokens[len(target), b] = EOS
    scores, attention = _unroll(scorer, sources, torch.from_numpy(tokens).to(scorer.device))
    step = np.arange(len(tokens))[:, None]
    for sentence, t in np.argwhere((np.isnan(scores) & (step < ends)).T)[:1].tolist():
        raise not_a_number(sentence, t + 1)
    many = np.arange(len(targets))
    weights = gather_attention(attention, np.where(step < ends, many, -1))
    scored = Scored(many, tokens, scores, ends, ends > 0, weights)
    return make_hypotheses(scored, sources, Ranking(length_penalty, length_norm, coverage_penalty))


def _unroll(scorer: Scorer, sources: Sources, tokens: Tensor) -> tuple[Numbers, list[dict[str, Tensor]]]:
    """Scores [T, B] of the symbols `tokens` [T, B], and each step's attention."""
    memory, state = scorer.start(sources, None)
    columns = Columns(None, scorer.vocabulary).find(tokens)
    previous = torch.full_like(tokens[0], BOS)
    scores, attention = [], []
    for y, column in zip(tokens, columns, strict=True):
        step = scorer.step(memory, state, previous)
        scores.append(step.log_probs(column.clamp(min=0)[:, None])[:, 0])
        attention.append(step.attention)
        state, previous = step.state, y
    return torch.stack(scores).masked_fill(columns < 0, -torch.inf).cpu().numpy(), attention
