"""CopyNet's mixture (Gu et al. 2016): one softmax over the words of the vocabulary and the places of the source."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rnnsearch.models.embeddings import Embedding
from rnnsearch.models.memory import NOWHERE
from rnnsearch.models.outputs import Logits, Losses, Output, PlainLoss
from rnnsearch.tensors import at_least_fp32, each
from rnnsearch.text.vocabulary import EOS, UNK

NEVER = -1e30
"""The score of what cannot be; finite, so that a sum of nothing else has gradients."""


class SameWords:
    """Which target word each source word is: the same one, or <unk> where the vocabulary of the target lacks it.

    The tokenizers say it, so it is no part of a model's weights.
    """

    table: Int[Tensor, "V"]
    """By the source's symbols. Until one is given, symbols of one number are one word."""

    def __init__(self, source: int, target: int) -> None:
        ids = torch.arange(source, device="cpu")
        self.table = ids.where(ids < target, UNK)

    def of(self, source: Int[Tensor, "B J"], mask: Bool[Tensor, "B J"]) -> Int[Tensor, "B J"]:
        """The target word at each source place, or `NOWHERE`."""
        self.table = self.table.to(source.device)
        return self.table[source].where(mask & (source != EOS), NOWHERE)


def is_at(y: Int[Tensor, "N *I"], places: Int[Tensor, "B J"]) -> Bool[Tensor, "N *I J"]:
    """At which source places the target words `y` of N = B * K rows stand; <unk> at all that the vocabulary lacks."""
    places = each(places, len(y))
    return (places if y.ndim == 1 else places[:, None]) == y[..., None]


class CopyOutput(PlainLoss):
    """p(y_t) = p(y_t, generate) + p(y_t, copy), of one sum of exponentials (eq. 4 to 6): psi_g of each word of the
    vocabulary, and psi_c of each source place, which counts for the word that stands there.

    Behind each readout of `width` numbers stand psi_c of the J places and the target word at each. In search <unk> has,
    beside its own, all the probability of words that no column is for: which one, `shares` then says.
    """

    def __init__(self, readout: int, vocabulary: int, tied: Embedding | None = None, lexical: int = 0) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = Output(readout, vocabulary, tied, lexical)
        self.width = readout + lexical

    @staticmethod
    def behind(
        readout: Float[Tensor, "N *I W"], psi: Float[Tensor, "N *I J"], places: Int[Tensor, "B J"]
    ) -> Float[Tensor, "N *I X"]:
        """A readout with what stands behind it, X = W + 2 J numbers; in fp32 at least, which holds every word's id."""
        places = each(places, len(psi))
        places = (places if psi.ndim == 2 else places[:, None]).expand(psi.shape)
        return torch.cat([at_least_fp32(readout), psi, places.to(psi.dtype)], dim=-1)

    def split(self, readout: Float[Tensor, "*rows X"]) -> tuple[Tensor, Tensor, Tensor]:
        """The decoder's own readout, psi_c and the words at the places."""
        J = (readout.shape[-1] - self.width) // 2
        own, psi, places = readout.split([self.width, J, J], dim=-1)
        return own, psi, places.long()

    def _columns(self, rows: Int[Tensor, "C"] | None) -> Callable[[Tensor], Tensor]:
        """From the words at source places to the columns of `rows` that they count for, or `NOWHERE`."""
        column_of = torch.arange(self.vocabulary, device=self.words.bias.device)
        if rows is not None:
            column_of = torch.full_like(column_of, NOWHERE).index_copy(0, rows, column_of[: len(rows)])
            column_of = column_of.where(column_of != NOWHERE, column_of[UNK])
        return lambda places: column_of[places.clamp_min(0)].where(places != NOWHERE, NOWHERE)

    def over(self, rows: Int[Tensor, "C"] | None) -> Logits:
        words, columns_of = self.words.over(rows), self._columns(rows)

        def logits(readout: Tensor) -> Tensor:
            own, psi, places = self.split(readout)
            scores, columns = at_least_fp32(words(own)), columns_of(places)
            psi = psi.masked_fill(columns == NOWHERE, NEVER)
            highest = torch.maximum(scores.amax(-1, keepdim=True), psi.amax(-1, keepdim=True)).detach()
            both = (scores - highest).exp().scatter_add(-1, columns.clamp_min(0), (psi - highest).exp())
            return both.clamp_min(torch.finfo(both.dtype).tiny).log() + highest

        return logits

    def shares(
        self, readout: Float[Tensor, "M X"], y: Int[Tensor, "M"], rows: Int[Tensor, "C"] | None = None
    ) -> Float[Tensor, "M J"]:
        """Of each symbol y the share of its probability that is copied from each source place, over all symbols or over
        `rows`, of which y is one."""
        own, psi, places = self.split(readout)
        generated, _ = self.words.beside(own, y, y[:0])
        columns_of = self._columns(rows)
        copied = psi.masked_fill(columns_of(places) != columns_of(y)[:, None], NEVER)
        return (copied - torch.logaddexp(generated, copied.logsumexp(1))[:, None]).exp()

    def losses(
        self,
        readout: Float[Tensor, "M X"],
        target: Int[Tensor, "M"],
        smoothing: float = 0.0,
        rows: Int[Tensor, "C"] | None = None,
        copied: Bool[Tensor, "M J"] | None = None,
    ) -> Losses:
        """As `Output.losses`, where a known word is generated or copied, an unknown one that stands in the source, at
        the places `copied`, is copied, and another is <unk>. Smoothing is over the words of the vocabulary."""
        own, psi, places = self.split(readout)
        scores = at_least_fp32(self.words.logits(own, rows))
        columns = target if rows is None else torch.searchsorted(rows, target)
        generated = scores.gather(1, columns[:, None])[:, 0]
        at = (places == target[:, None]) & (target != UNK)[:, None]
        if copied is not None:
            generated, at = generated.masked_fill(copied.any(1), NEVER), at | copied
        by_copying = psi.masked_fill(~at, NEVER).logsumexp(1)
        norm = torch.logaddexp(scores.logsumexp(1), psi.logsumexp(1))
        nll = norm - torch.logaddexp(generated, by_copying)
        uniform = (norm - scores.mean(1)).sum()
        return (1 - smoothing) * nll.sum() + smoothing * uniform, nll.detach()
