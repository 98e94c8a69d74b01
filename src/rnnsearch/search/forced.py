"""What a Scorer says of given target symbols: of whole sentences (forced decoding), of what may follow a beginning."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rnnsearch.engine.structs import Array
from rnnsearch.errors import RnnsearchError
from rnnsearch.search.backtrace import KeptSteps
from rnnsearch.search.candidates import ColumnChooser, Columns
from rnnsearch.search.constraints import NEVER_PRODUCED, score_columns
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import MEAN_LOG_PROB, Ranking
from rnnsearch.search.results import NOT_A_NUMBER, Scored, gather_attention, make_hypotheses, refuse, source_lengths
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.text.vocabulary import BOS, EOS, PAD


@torch.inference_mode()
def forced(
    scorer: Scorer,
    sources: Sources,
    targets: Sequence[Sequence[int]],
    ranking: Ranking = MEAN_LOG_PROB,
    ended: Sequence[bool] | None = None,
    columns: Tensor | None = None,
) -> list[Hypothesis]:
    """One finished hypothesis a sentence, made of its target's symbols (given without EOS) and EOS; without EOS, and
    not finished, where `ended` says so. `columns`: as of `Scorer.start`.

    A symbol that the Scorer has no column for has the score -inf. No option of a search applies: nothing is
    banned.
    Errors: RnnsearchError where there are not as many targets as sentences; SentenceError for a NaN score.
    """
    lengths = source_lengths(sources)
    for name, known in lengths.items():
        if len(known) != len(targets):
            raise RnnsearchError(f"targets must be one a sentence of {name} ({len(known)}); got {len(targets)}")
    finished = np.ones(len(targets), dtype=bool) if ended is None else np.array(ended, dtype=bool)
    sizes = np.array([len(target) for target in targets], dtype=np.int64)
    ends = sizes + finished
    tokens = np.full((int(sizes.max(initial=-1)) + 1, len(targets)), PAD)
    for b, target in enumerate(targets):
        tokens[: len(target), b] = target
        tokens[len(target), b] = EOS
    scores, attention = _unroll(scorer, sources, torch.from_numpy(tokens).to(scorer.device), columns)
    refuse(np.isnan, scores, ends, NOT_A_NUMBER)
    many = np.arange(len(targets))
    weights = gather_attention(attention, np.where(np.arange(len(tokens))[:, None] < ends, many, -1))
    return make_hypotheses(Scored(many, tokens, scores, ends, finished, weights), sources, ranking)


def _unroll(
    scorer: Scorer, sources: Sources, tokens: Tensor, ids: Tensor | None
) -> tuple[Array, list[dict[str, Tensor]]]:
    """Scores [T, B] of the symbols `tokens` [T, B], and each step's attention."""
    memory, state = scorer.start(sources, ids)
    columns = Columns(ids, scorer.vocabulary).find(tokens)
    previous = torch.full_like(tokens[0], BOS)
    scores, attention, kept = torch.empty(tokens.shape, device=tokens.device), [], KeptSteps()
    for t, (y, column) in enumerate(zip(tokens, columns, strict=True)):
        step = scorer.step(memory, state, previous)
        scores[t] = step.log_probs(column.clamp(min=0)[:, None])[:, 0]
        attention.append(kept.keep(step.attention))
        state, previous = step.state, y
    return scores.masked_fill(columns < 0, -torch.inf).cpu().numpy(), attention


@torch.inference_mode()
def following(
    scorer: Scorer,
    sources: Sources,
    prefix: Sequence[int],
    allowed: Sequence[int],
    count: int,
    choose: ColumnChooser | None = None,
) -> list[int]:
    """The `count` symbols of `allowed` that best follow `prefix` in the one sentence's translation, best first."""
    columns = score_columns(scorer, sources, SearchOptions(), choose)
    memory, state = scorer.start(sources, columns.ids)
    for symbol in (BOS, *prefix):
        step = scorer.step(memory, state, torch.tensor([symbol], device=scorer.device))
        state = step.state
    wanted = torch.tensor([id for id in allowed if id not in NEVER_PRODUCED], dtype=torch.int64, device=scorer.device)
    found = columns.find(wanted)
    wanted, found = wanted[found >= 0], found[found >= 0]
    best = step.scores[0, found].float().topk(min(count, len(wanted))).indices
    return [int(id) for id in wanted[best]]
