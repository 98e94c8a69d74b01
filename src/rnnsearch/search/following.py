"""What may follow the beginning of a translation: the best next symbols."""

from collections.abc import Sequence

import torch

from rnnsearch.search.columns import ColumnChooser, columns_for
from rnnsearch.search.constraints import NEVER
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.text.vocabulary import BOS


@torch.no_grad()
def following(
    scorer: Scorer,
    sources: Sources,
    prefix: Sequence[int],
    allowed: Sequence[int],
    count: int,
    choose: ColumnChooser | None = None,
) -> list[int]:
    """The `count` symbols of `allowed` that best follow `prefix` in the one sentence's translation, best first."""
    columns = columns_for(scorer, sources, choose)
    memory, state = scorer.start(sources, columns.ids)
    for symbol in (BOS, *prefix):
        step = scorer.step(memory, state, torch.tensor([symbol], device=scorer.device))
        state = step.state
    wanted = torch.tensor([id for id in allowed if id not in NEVER], dtype=torch.int64, device=scorer.device)
    found = columns.find(wanted)
    wanted, found = wanted[found >= 0], found[found >= 0]
    best = step.scores[0, found].float().topk(min(count, len(wanted))).indices
    return [int(id) for id in wanted[best]]
