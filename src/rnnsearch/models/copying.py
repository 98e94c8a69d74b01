"""Outputs that read the source words: CopyNet's mixture, the lexical model, and the pointer softmax.

`CopyOutput` (Gu et al. 2016) has one softmax over the words of the vocabulary and the source positions. `Lexical`
(Nguyen & Chiang 2018) adds the attended source words to the readout. `PointerOutput` (Gulcehre et al. 2016) switches
between the vocabulary and attention.

`TranslationModel` chooses one by `[model]`; `objectives/likelihood.py` and `search/reattend.py` read what was copied,
and `accel/readout_steps.py` writes `Lexical` for native search. Search sees copied words as ids of the source's unknown
words (`data/characters.py`). Tests: tests/properties/test_copying.py, tests/properties/test_pointing.py.

Axes: B sentences, N = B * K hypotheses, M target tokens, I target and J source positions, R readout, W width of the
decoder's readout, X = W + 2 J, C score columns (V, or the selected tokens), V vocabulary, E embedding, D state, H
annotation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rnnsearch.config.model import PointerConfig
from rnnsearch.models.layers import Embedding, Linear
from rnnsearch.models.memory import NO_WORD, Memory
from rnnsearch.models.outputs import LogitsFunction, Losses, Output, OutputLayer, PlainLoss
from rnnsearch.text.vocabulary import EOS, UNK
from rnnsearch.utils.tensors import at_least_fp32, repeat_rows

NEVER = -1e30
"""Score of impossible events; finite, so that a sum of only such events has gradients."""

MIN_POINTER_WEIGHT = 1e-9
"""Lower limit of the attention weight of a word that is pointed at."""


class TargetWordTable:
    """The target word of each source word: the same word, or UNK if it is not in the target vocabulary.

    The table follows from the tokenizers, so it is not part of a model's weights.
    """

    table: Int[Tensor, "V"]
    """Target ids by source id. Until it is set, equal ids are taken for the same word."""

    def __init__(self, source: int, target: int) -> None:
        ids = torch.arange(source, device="cpu")
        self.table = ids.where(ids < target, UNK)

    def lookup(self, source: Int[Tensor, "B J"], mask: Bool[Tensor, "B J"]) -> Int[Tensor, "B J"]:
        """Return the target id of the word at each source position, or `NO_WORD` (see `Memory.target_ids`)."""
        # The table is not a buffer, so it does not move with the model.
        self.table = self.table.to(source.device)
        return self.table[source].where(mask & (source != EOS), NO_WORD)


def copy_positions(y: Int[Tensor, "N *I"], target_ids: Int[Tensor, "B J"]) -> Bool[Tensor, "N *I J"]:
    """Return the mask of source positions that hold the target words y of N = B * K rows.

    UNK is at all positions whose word is not in the target vocabulary.
    """
    target_ids = repeat_rows(target_ids, len(y))
    # [N, J] == [N, 1], or [N, 1, J] == [N, I, 1] for all target positions.
    return (target_ids if y.ndim == 1 else target_ids[:, None]) == y[..., None]


class CopyOutput(PlainLoss):
    """CopyNet's output (Gu et al. 2016): p(y_t) = p(y_t, generate) + p(y_t, copy) in one softmax (eq. 4-6).

    It is over psi_g of each word of the vocabulary and psi_c of each source position, which counts for the word there.
    Each readout of size `width` is followed by psi_c and the target id of the J positions (`append_copy_scores`). In
    search, UNK also gets the probability of all words without a column; `copy_fractions` then tells which word it is.
    """

    def __init__(self, readout: int, vocabulary: int, tied: Embedding | None = None, lexical: int = 0) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = Output(readout, vocabulary, tied, lexical)
        self.width = readout + lexical

    @staticmethod
    def append_copy_scores(
        readout: Float[Tensor, "N *I W"], psi: Float[Tensor, "N *I J"], target_ids: Int[Tensor, "B J"]
    ) -> Float[Tensor, "N *I X"]:
        """Concatenate readout, psi_c and target ids, X = W + 2 J, in fp32 or wider, which holds every id exactly."""
        target_ids = repeat_rows(target_ids, len(psi))
        # Repeated at every target position: the output layer sees only rows of readouts, without their sentences.
        target_ids = (target_ids if psi.ndim == 2 else target_ids[:, None]).expand(psi.shape)
        return torch.cat([at_least_fp32(readout), psi, target_ids.to(psi.dtype)], dim=-1)

    def split(self, readout: Float[Tensor, "*rows X"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the decoder's readout, psi_c and the target ids of the source positions."""
        J = (readout.shape[-1] - self.width) // 2
        decoder_readout, psi, target_ids = readout.split([self.width, J, J], dim=-1)
        return decoder_readout, psi, target_ids.long()

    def logits_function(self, rows: Int[Tensor, "C"] | None) -> LogitsFunction:
        word_logits = self.words.logits_function(rows)
        columns_of = self._column_lookup(rows)

        def logits(readout: Tensor) -> Tensor:
            decoder_readout, psi, target_ids = self.split(readout)
            scores = at_least_fp32(word_logits(decoder_readout))  # psi_g [..., C]
            columns = columns_of(target_ids)  # [..., J]
            psi = psi.masked_fill(columns == NO_WORD, NEVER)
            # One maximum for both parts of the softmax [..., 1]; detached, because it cancels out.
            maximum = torch.maximum(scores.amax(-1, keepdim=True), psi.amax(-1, keepdim=True)).detach()
            # Add exp(psi_c) of each source position to its word's column; positions without a word add 0 to column 0.
            total = (scores - maximum).exp().scatter_add(-1, columns.clamp_min(0), (psi - maximum).exp())
            # exp may underflow to 0, whose logarithm has no finite gradient.
            return total.clamp_min(torch.finfo(total.dtype).tiny).log() + maximum

        return logits

    def copy_fractions(
        self, readout: Float[Tensor, "M X"], y: Int[Tensor, "M"], rows: Int[Tensor, "C"] | None = None
    ) -> Float[Tensor, "M J"]:
        """Return the fraction of each token's probability that is copied from each source position.

        Args:
            y: Token ids, all of them in `rows`.
            rows: Ids of the tokens that have columns, or None for all.
        """
        decoder_readout, psi, target_ids = self.split(readout)
        # [M], the scores psi_g of the tokens themselves; no other rows of W_o are read.
        generated, _ = self.words.sampled_logits(decoder_readout, y, y[:0])
        columns_of = self._column_lookup(rows)
        copied = psi.masked_fill(columns_of(target_ids) != columns_of(y)[:, None], NEVER)  # [M, J]
        # The norm of the softmax cancels out in the fraction.
        return (copied - torch.logaddexp(generated, copied.logsumexp(1))[:, None]).exp()

    def losses(
        self,
        readout: Float[Tensor, "M X"],
        target: Int[Tensor, "M"],
        smoothing: float = 0.0,
        rows: Int[Tensor, "C"] | None = None,
        copied: Bool[Tensor, "M J"] | None = None,
    ) -> Losses:
        """Return losses like `Output.losses`.

        A known word is generated or copied. An unknown word that occurs in the source, at the positions `copied`, is
        copied; any other unknown word is UNK. Smoothing is over the words of the vocabulary.
        """
        decoder_readout, psi, target_ids = self.split(readout)
        scores = at_least_fp32(self.words.logits(decoder_readout, rows))  # psi_g [M, C]
        columns = target if rows is None else torch.searchsorted(rows, target)
        generated = scores.gather(1, columns[:, None])[:, 0]  # [M]
        # Equal ids are equal words, except for UNK: only `copied` can tell unknown words apart.
        holds_target = (target_ids == target[:, None]) & (target != UNK)[:, None]  # [M, J]
        if copied is not None:
            # UNK must not be learned where the word can be copied.
            generated = generated.masked_fill(copied.any(1), NEVER)
            holds_target = holds_target | copied
        log_copied = psi.masked_fill(~holds_target, NEVER).logsumexp(1)  # [M]
        log_norm = torch.logaddexp(scores.logsumexp(1), psi.logsumexp(1))  # [M], of both parts together
        nll = log_norm - torch.logaddexp(generated, log_copied)
        uniform = (log_norm - scores.mean(1)).sum()
        return (1 - smoothing) * nll.sum() + smoothing * uniform, nll.detach()

    def _column_lookup(self, rows: Int[Tensor, "C"] | None) -> Callable[[Tensor], Tensor]:
        """Return a function from target ids to columns of `rows`, with `NO_WORD` unchanged.

        Ids that are not in `rows` get the column of UNK.
        """
        column_of = torch.arange(self.vocabulary, device=self.words.bias.device)
        if rows is not None:
            # [V], NO_WORD for ids without a column; the next line replaces these by the column of UNK.
            column_of = torch.full_like(column_of, NO_WORD).index_copy(0, rows, column_of[: len(rows)])
            column_of = column_of.where(column_of != NO_WORD, column_of[UNK])
        return lambda target_ids: column_of[target_ids.clamp_min(0)].where(target_ids != NO_WORD, NO_WORD)


class Lexical(nn.Module):
    """The lexical model of Nguyen & Chiang 2018 ("Improving lexical choice in NMT", section 4).

    A path from the attended source WORDS to the target word that bypasses encoder and decoder:

    f^l_t = tanh(sum_s a_t(s) f_s) (eq. 4),  h^l_t = tanh(W f^l_t + b) + f^l_t (eq. 5),
    p(y_t) = softmax(W_o t_t + b_o + W_l h^l_t + b_l) (eq. 6; the two biases are one here),

    where f_s is the source word's embedding. h^l_t [E] is appended to the decoder's readout; `Output` has W_l.
    """

    def __init__(self, embedding: int) -> None:
        super().__init__()
        self.hidden = Linear(embedding, embedding)  # W and b

    def forward(self, alpha: Float[Tensor, "*rows J"], memory: Memory) -> Float[Tensor, "*rows E"]:
        """Return h^l of [B, I] target positions or N = B * K hypotheses, given their weights over annotations."""
        assert memory.words is not None
        words = memory.words  # [B, J, E]
        weights = memory.to_source(alpha)
        rows = weights.reshape(words.shape[0], -1, words.shape[1]).to(words.dtype)  # [B, I or K, J]
        attended = torch.tanh(torch.bmm(rows, words))  # [B, I or K, E]
        # A traced graph must not contain the size of a batch as a constant.
        attended = attended.flatten(0, 1) if weights.ndim == 2 else attended.view(weights.shape[0], -1, words.shape[2])
        return torch.tanh(self.hidden(attended)) + attended


class Switch(nn.Module):
    """The switch of the pointer softmax (Gulcehre et al. 2016, "Pointing the unknown words", eq. 4).

    p(z_t = 1) = sigmoid(v^T h_L + b_z) is the probability that the next word is generated and not pointed at, with
    h_1 = tanh(W_1 [s; c; E y_{t-1}] + b_1) and h_l = tanh(W_l h_{l-1} + b_l). The paper has L = 2 layers.
    """

    def __init__(self, options: PointerConfig, state: int, context: int, embedding: int) -> None:
        """Create the layers; `state`, `context` and `embedding` are the sizes of the inputs."""
        super().__init__()
        self.hidden = Linear(state + context + embedding, options.size)  # W_1
        self.upper = nn.ModuleList(Linear(options.size, options.size) for _ in range(options.layers - 1))
        self.choice = Linear(options.size, 1)

    def forward(
        self, state: Float[Tensor, "*rows D"], context: Float[Tensor, "*rows H"], y_prev: Float[Tensor, "*rows E"]
    ) -> Float[Tensor, "*rows 1"]:
        """Return the argument of the sigmoid."""
        inputs = torch.cat([vector.to(state.dtype) for vector in (state, context, y_prev)], dim=-1)
        hidden = torch.tanh(self.hidden(inputs))
        for layer in self.upper:
            hidden = torch.tanh(layer(hidden))
        logit: Tensor = self.choice(hidden)
        return logit


class PointerOutput(OutputLayer):
    """The pointer softmax (Gulcehre et al. 2016), an output layer with a `Switch`.

    p(y_t = w) = p(z_t = 1) p_vocabulary(w) for a word of the vocabulary;
    p(z_t = 0) alpha_t(j) for source word j (eq. 5).

    The switch's logit is the last unit of each readout. In search, UNK also gets all the probability of pointing;
    attention then tells which source word it is.
    """

    def __init__(self, readout: int, vocabulary: int, tied: Embedding | None = None, lexical: int = 0) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = Output(readout, vocabulary, tied, lexical)

    def logits_function(self, rows: Int[Tensor, "C"] | None) -> LogitsFunction:
        word_logits = self.words.logits_function(rows)

        def logits(readout: Tensor) -> Tensor:
            z = at_least_fp32(readout[..., -1:])  # [..., 1]
            log_p_words = torch.log_softmax(at_least_fp32(word_logits(readout[..., :-1])), dim=-1)
            scores = log_p_words + functional.logsigmoid(z)
            is_unknown = torch.arange(scores.shape[-1], device=scores.device) == UNK if rows is None else rows == UNK
            # p(UNK) = p(generate UNK) + p(point).
            return torch.where(is_unknown, torch.logaddexp(scores, functional.logsigmoid(-z)), scores)

        return logits

    def losses(
        self,
        readout: Float[Tensor, "M R"],
        target: Int[Tensor, "M"],
        smoothing: float,
        copied: Float[Tensor, "M"],
        rows: Int[Tensor, "C"] | None = None,
    ) -> Losses:
        """Return losses like `Output.losses`, with z_t known in training (eq. 6).

        Args:
            copied: The total attention weight of the source words that each target token is a copy of. A token is
                pointed at if the weight is above 0, and generated otherwise.
        """
        is_pointed = copied > 0
        generated = (~is_pointed).nonzero()[:, 0]
        pointed = is_pointed.nonzero()[:, 0]
        # Words that are pointed at have no loss over the vocabulary.
        total, word_nll = self.words.losses(readout[generated, :-1], target[generated], smoothing, rows)
        z = at_least_fp32(readout[:, -1])
        switch_nll = -functional.logsigmoid(torch.where(is_pointed, -z, z))  # [M]
        position_nll = -at_least_fp32(copied[pointed]).clamp_min(MIN_POINTER_WEIGHT).log()
        # [M], the NLL of the switch plus that of the word or the position.
        nll = switch_nll.detach().index_add(0, generated, word_nll.to(switch_nll.dtype))
        nll = nll.index_add(0, pointed, position_nll.detach())
        return total + switch_nll.sum() + position_nll.sum(), nll
