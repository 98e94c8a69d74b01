"""What may follow the beginning of a translation: the best next symbols."""

from collections.abc import Sequence

import torch

from rnnsearch.search.constraints import NEVER
from rnnsearch.search.scorer import Scorer, Sources, columns_of
from rnnsearch.text.vocabulary import BOS


@torch.inference_mode()
def following(scorer: Scorer, sources: Sources, prefix: Sequence[int], allowed: Sequence[int], count: int) -> list[int]:
    """The `count` symbols of `allowed` that best follow `prefix` in the one sentence's translation, best first."""
    memory, state = scorer.start(sources)
    for symbol in (BOS, *prefix):
        step = scorer.step(memory, state, torch.tensor([symbol], device=scorer.device))
        state = step.state
    wanted = torch.tensor([id for id in allowed if id not in NEVER], dtype=torch.int64, device=scorer.device)
    columns = columns_of(step, None).find(wanted)
    wanted, columns = wanted[columns >= 0], columns[columns >= 0]
    best = step.scores[0, columns].float().topk(min(count, len(wanted))).indices
    return [int(id) for id in wanted[best]]
