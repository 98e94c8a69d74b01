"""CopyNet's mixture (Gu et al. 2016): one softmax over the words of the vocabulary and the places of the source."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rnnsearch.models.layers import Embedding, Linear
from rnnsearch.models.memory import NO_WORD, Memory
from rnnsearch.models.outputs import LogitsFunction, Losses, Output, OutputLayer, PlainLoss
from rnnsearch.text.vocabulary import EOS, UNK
from rnnsearch.utils.tensors import at_least_fp32, each

NEVER = -1e30
"""The score of what cannot be; finite, so that a sum of nothing else has gradients."""


class TargetWordTable:
    """Which target word each source word is: the same one, or <unk> where the vocabulary of the target lacks it.

    The tokenizers say it, so it is no part of a model's weights.
    """

    table: Int[Tensor, "V"]
    """By the source's symbols. Until one is given, symbols of one number are one word."""

    def __init__(self, source: int, target: int) -> None:
        ids = torch.arange(source, device="cpu")
        self.table = ids.where(ids < target, UNK)

    def lookup(self, source: Int[Tensor, "B J"], mask: Bool[Tensor, "B J"]) -> Int[Tensor, "B J"]:
        """The target word at each source place, or `NOWHERE`."""
        self.table = self.table.to(source.device)
        return self.table[source].where(mask & (source != EOS), NO_WORD)


def copy_positions(y: Int[Tensor, "N *I"], places: Int[Tensor, "B J"]) -> Bool[Tensor, "N *I J"]:
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
    def append_copy_scores(
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
            column_of = torch.full_like(column_of, NO_WORD).index_copy(0, rows, column_of[: len(rows)])
            column_of = column_of.where(column_of != NO_WORD, column_of[UNK])
        return lambda places: column_of[places.clamp_min(0)].where(places != NO_WORD, NO_WORD)

    def logits_function(self, rows: Int[Tensor, "C"] | None) -> LogitsFunction:
        words, columns_of = self.words.logits_function(rows), self._columns(rows)

        def logits(readout: Tensor) -> Tensor:
            own, psi, places = self.split(readout)
            scores, columns = at_least_fp32(words(own)), columns_of(places)
            psi = psi.masked_fill(columns == NO_WORD, NEVER)
            highest = torch.maximum(scores.amax(-1, keepdim=True), psi.amax(-1, keepdim=True)).detach()
            both = (scores - highest).exp().scatter_add(-1, columns.clamp_min(0), (psi - highest).exp())
            return both.clamp_min(torch.finfo(both.dtype).tiny).log() + highest

        return logits

    def copy_fractions(
        self, readout: Float[Tensor, "M X"], y: Int[Tensor, "M"], rows: Int[Tensor, "C"] | None = None
    ) -> Float[Tensor, "M J"]:
        """Of each symbol y the share of its probability that is copied from each source place, over all symbols or over
        `rows`, of which y is one."""
        own, psi, places = self.split(readout)
        generated, _ = self.words.sampled_logits(own, y, y[:0])
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


# The lexical model beside the decoder (Nguyen & Chiang 2018, "Improving lexical choice in NMT", section 4).


class Lexical(nn.Module):
    """A way from the attended source WORDS to the target word that passes by neither encoder nor decoder:

    f^l_t = tanh(sum_s a_t(s) f_s) (eq. 4),  h^l_t = tanh(W f^l_t + b) + f^l_t (eq. 5),
    p(y_t) = softmax(W_o t_t + b_o + W_l h^l_t + b_l) (eq. 6; the two biases are one here),

    with f_s the source word's embedding. h^l_t [E] stands behind the decoder's readout, W_l behind W_o.
    """

    def __init__(self, embedding: int) -> None:
        super().__init__()
        self.hidden = Linear(embedding, embedding)
        """W and b."""

    def forward(self, alpha: Float[Tensor, "*rows J"], memory: Memory) -> Float[Tensor, "*rows E"]:
        """h^l of [B, I] target positions or N = B * K hypotheses, from their weights over the memory's annotations."""
        assert memory.words is not None
        words = memory.words
        weights = memory.to_source(alpha)
        rows = weights.reshape(words.shape[0], -1, words.shape[1]).to(words.dtype)
        attended = torch.tanh(torch.bmm(rows, words))
        # No size of a batch is a constant here, which a traced graph would keep.
        attended = attended.flatten(0, 1) if weights.ndim == 2 else attended.view(weights.shape[0], -1, words.shape[2])
        return torch.tanh(self.hidden(attended)) + attended


# The pointer softmax: a switch between saying a word of the vocabulary and pointing at a source word (Gulcehre et al.
# 2016, "Pointing the unknown words").

MIN_POINTER_WEIGHT = 1e-9
"""Of the weight of what is pointed at."""


class Switch(nn.Module):
    """p(z_t = 1) = sigmoid(v^T tanh(W [s; c; E y_{t-1}] + b) + b_z): that the next word is said, and not pointed at
    (eq. 4; one hidden layer, where the paper has two)."""

    def __init__(self, state: int, context: int, embedding: int, size: int) -> None:
        super().__init__()
        self.hidden = Linear(state + context + embedding, size)
        self.choice = Linear(size, 1)

    def forward(
        self, state: Float[Tensor, "*rows D"], context: Float[Tensor, "*rows H"], y_prev: Float[Tensor, "*rows E"]
    ) -> Float[Tensor, "*rows 1"]:
        """The sigmoid's argument."""
        read = torch.cat([part.to(state.dtype) for part in (state, context, y_prev)], dim=-1)
        chosen: Tensor = self.choice(torch.tanh(self.hidden(read)))
        return chosen


class PointerOutput(OutputLayer):
    """The output layer under a switch, whose number stands behind each readout:

    p(y_t = w) = p(z_t = 1) p_vocabulary(w) of a word of the vocabulary; p(z_t = 0) alpha_t(j) of source word j (eq. 5).

    In search <unk> has, beside its own, all the probability of pointing: where it points is what attention then says.
    """

    def __init__(self, readout: int, vocabulary: int, tied: Embedding | None = None, lexical: int = 0) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = Output(readout, vocabulary, tied, lexical)

    def logits_function(self, rows: Int[Tensor, "C"] | None) -> LogitsFunction:
        words = self.words.logits_function(rows)

        def logits(readout: Tensor) -> Tensor:
            said = at_least_fp32(readout[..., -1:])
            scores = torch.log_softmax(at_least_fp32(words(readout[..., :-1])), dim=-1) + functional.logsigmoid(said)
            unknown = torch.arange(scores.shape[-1], device=scores.device) == UNK if rows is None else rows == UNK
            return torch.where(unknown, torch.logaddexp(scores, functional.logsigmoid(-said)), scores)

        return logits

    def losses(
        self,
        readout: Float[Tensor, "M R"],
        target: Int[Tensor, "M"],
        smoothing: float,
        copied: Float[Tensor, "M"],
        rows: Int[Tensor, "C"] | None = None,
    ) -> Losses:
        """As `Output.losses`, where a target symbol that `copied` gives attention (the sum of the weights of the source
        words that it is a copy of) is pointed at, and every other said: z_t is known in training (eq. 6)."""
        points = copied > 0
        said, pointed = (~points).nonzero()[:, 0], points.nonzero()[:, 0]
        total, of_words = self.words.losses(readout[said, :-1], target[said], smoothing, rows)
        z = at_least_fp32(readout[:, -1])
        of_switch = -functional.logsigmoid(torch.where(points, -z, z))
        of_place = -at_least_fp32(copied[pointed]).clamp_min(MIN_POINTER_WEIGHT).log()
        nll = of_switch.detach().index_add(0, said, of_words.to(of_switch.dtype))
        nll = nll.index_add(0, pointed, of_place.detach())
        return total + of_switch.sum() + of_place.sum(), nll
