"""What a beam's live hypotheses have not covered, as `ranking` scores it. Of each source, in the sources' order: the
words to cover, one row a sentence, and the sums of attention, one row a hypothesis."""

from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.ranking import LEAST, Ranking, require_attention
from rnnsearch.search.scorer import Sources
from rnnsearch.text.vocabulary import EOS


def to_cover(sources: Sources) -> tuple[Tensor, ...]:
    """[A, J] of each source, True on the symbols to cover (not EOS)."""
    return tuple(source.mask & (source.ids != EOS) for source in sources.values())


def attended(sums: Sequence[Tensor], attention: Mapping[str, Tensor], sources: Sources) -> tuple[Tensor, ...]:
    """The sums [N, J] of each source after a step's weights [N, J]. Errors: RnnsearchError without attention."""
    require_attention(attention)
    if blind := sources.keys() - attention.keys():
        raise RnnsearchError(
            f"coverage_penalty must be 0 where nothing attends to a source ({', '.join(sorted(blind))})"
        )
    return tuple(s + attention[name].float() for s, name in zip(sums, sources, strict=True))


def penalty(words: Sequence[Tensor], sums: Sequence[Tensor], ranking: Ranking) -> Tensor:
    """beta * sum_j log(min(sum, 1)) over the words [A, J] of each source, of each hypothesis, [A, K]."""
    each = zip(words, (received.clamp(LEAST, 1.0).log() for received in sums), strict=True)
    parts = [(logs.unflatten(0, (len(own), -1)) * own[:, None, :]).sum(-1) for own, logs in each]
    total: Tensor = reduce(torch.add, parts)
    return ranking.coverage_penalty * total
