"""Scores: how well a query and an annotation match, e [B, Q, J]. `keys` is made once a sentence.

| name                | e_ij                                   | source                                               |
|---------------------|----------------------------------------|------------------------------------------------------|
| additive            | v_a^T tanh(W_a s + U_a h)              | Bahdanau et al. 2015, A.1.2; Neubig, eq. 80          |
| additive-bias       | v_a^T tanh(W_a s + U_a h + b)          | OpenNMT-py's `mlp`                                   |
| concat              | v_a^T tanh(W_a [s; h])                 | Luong et al. 2015, after eq. 7                       |
| multi-head-additive | v_m^T tanh(W_m s + U_m h) of each head | Chen et al. 2018; Vaswani et al. 2017                |
| dot                 | s^T h                                  | Luong et al., after eq. 7; Neubig, eq. 76            |
| scaled-dot          | s^T h / sqrt(D)                        | Vaswani et al. 2017, eq. 1; Neubig, eq. 78           |
| general             | s^T W_a h                              | Luong et al., after eq. 7; Neubig, eq. 79 (bilinear) |
| location            | (W_a s)_j                              | Luong et al., eq. 8                                  |
| convolutional       | filters over k_j * W s                 | Allamanis et al. 2016, section 2.1                   |
| even                | 0                                      | Graves 2013, eq. 46 (the window says all)            |

s is the query (the decoder's state), h an annotation. `additive` and `concat` are one function: [W_a; U_a] side by
side is Luong's W_a. They differ in how they begin: Luong's is drawn as one matrix of D + H columns (which is another
range under Glorot's rule), Bahdanau's as two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from rnnsearch.config import attention
from rnnsearch.config.attention import (
    AdditiveBiasOptions,
    AdditiveOptions,
    ConcatIdentityOptions,
    ConcatOptions,
    ConvolutionalOptions,
    DotOptions,
    EvenOptions,
    GeneralOptions,
    LocationOptions,
    MultiHeadAdditiveOptions,
    ScaledDotOptions,
    ScoreOptions,
)
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.models.layers import Linear, parameter
from rnnsearch.ops.linear import linear

Queries = Float[Tensor, "B Q D"]
Keys = Float[Tensor, "B J K"]
Extra = Float[Tensor, "B Q J A"] | None
"""What features add inside a hidden layer."""
Energies = Float[Tensor, "B E J"]
Annotations = Float[Tensor, "B J H"]
Real = Bool[Tensor, "B J"]


class Score(nn.Module, ABC):
    """A score of its own options, of queries of `query_size` against annotations of `annotation_size` numbers."""

    component: ClassVar[type[ScoreOptions]]
    """The declaration of the component, set by `@implements`."""
    is_product: ClassVar[bool] = False
    """Whether the energies of all queries are one matrix product with the keys."""
    hidden_size: int = 0
    """A, the size of the hidden layer; 0 without one."""
    heads: int = 1
    """M: its energies are [B, Q * M, J], the heads of a query side by side, and each head has its own weights."""
    neighbours: int = 0
    """Positions on either side that the energy of one depends on."""
    max_positions: int | None = None
    """Source positions that it knows; those after them are attended to by nobody."""
    key: Linear

    def __init__(self, options: Any, query_size: int, annotation_size: int) -> None:
        super().__init__()

    def keys(self, annotations: Annotations, real: Real) -> Keys:
        """The part that depends on the annotations alone: U h_j ("V h_j is precomputed" in the slides). `real`: no
        padding."""
        keys: Keys = self.key(annotations)
        return keys

    def values(self, annotations: Annotations) -> Annotations | None:
        """What contexts are sums of, each head's H / M numbers side by side; None: the annotations themselves."""
        return None

    @abstractmethod
    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        """Energies of Q queries a sentence, E = Q * M. `extra`: what features add inside the hidden layer."""


class TanhScore(Score):
    """e_ij = v^T tanh(W s + k_j), what a position's key is, each subclass says."""

    query: Linear
    """W."""
    vector: nn.Parameter
    """v."""

    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        hidden = _hidden(self.query(query), keys, extra)
        return hidden @ self.vector.to(hidden.dtype)


@implements(AdditiveOptions)
class Additive(TanhScore):
    """The alignment model of Bahdanau et al. (appendix A.1.2): e_ij = v_a^T tanh(W_a s_{i-1} + U_a h_j)."""

    def __init__(
        self,
        options: AdditiveOptions | AdditiveBiasOptions | MultiHeadAdditiveOptions,
        query_size: int,
        annotation_size: int,
    ) -> None:
        super().__init__(options, query_size, annotation_size)
        self.hidden_size = options.size
        self.query = Linear(query_size, options.size, bias=False, role="alignment")
        """W_a."""
        self.key = Linear(annotation_size, options.size, bias=False, role="alignment")
        """U_a."""
        self.vector = parameter("alignment_vector", options.size)
        """v_a."""


@implements(AdditiveBiasOptions)
class AdditiveBias(Additive):
    """As `additive`, with a bias in the hidden layer: e_ij = v_a^T tanh(W_a s + U_a h_j + b) (OpenNMT-py's `mlp`)."""

    def __init__(self, options: AdditiveBiasOptions, query_size: int, annotation_size: int) -> None:
        super().__init__(options, query_size, annotation_size)
        self.query = Linear(query_size, options.size, role="alignment")
        """W_a and b."""


@implements(ConcatOptions)
class Concat(Score):
    """Luong et al. 2015, after eq. 7: e_ij = v_a^T tanh(W_a [h_t; hbar_s]), one W_a over both side by side."""

    def __init__(self, options: ConcatOptions, query_size: int, annotation_size: int) -> None:
        super().__init__(options, query_size, annotation_size)
        self.hidden_size = options.size
        self.query_size = query_size
        self.weight = parameter("alignment", options.size, query_size + annotation_size)
        """W_a."""
        self.vector = parameter("alignment_vector", options.size)
        """v_a."""

    def keys(self, annotations: Annotations, real: Real) -> Keys:
        return linear(annotations, self.weight[:, self.query_size :])

    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        hidden = _hidden(linear(query, self.weight[:, : self.query_size]), keys, extra)
        return hidden @ self.vector.to(hidden.dtype)


@implements(ConcatIdentityOptions)
class ConcatIdentity(TanhScore):
    """Luong et al. 2015, footnote 15: the concat score as their figures were reported, "the part that corresponds to
    hbar_s" of W_a set to the identity: e_ij = v_a^T tanh(W h_t + hbar_s)."""

    def __init__(self, options: Any, query_size: int, annotation_size: int) -> None:
        super().__init__(options, query_size, annotation_size)
        self.hidden_size = annotation_size
        self.query = Linear(query_size, annotation_size, bias=False, role="alignment")
        """W, the part of W_a that is learned."""
        self.vector = parameter("alignment_vector", annotation_size)
        """v_a."""

    def keys(self, annotations: Annotations, real: Real) -> Keys:
        return annotations


@implements(MultiHeadAdditiveOptions)
class MultiHeadAdditive(Additive):
    """M additive scores of size / M hidden units each: e^m_ij = v_m^T tanh(W_m s + U_m h_j), and M contexts
    c^m_i = sum_j alpha^m_ij V_m h_j of H / M numbers each, side by side (Chen et al. 2018, section 4.1: the multi-head
    attention of Vaswani et al. 2017, section 3.2.2, with additive instead of dot scores; no matrix after the heads, for
    every reader of a context begins with one). W_m, U_m and v_m of all heads stand one below the other."""

    def __init__(self, options: MultiHeadAdditiveOptions, query_size: int, annotation_size: int) -> None:
        super().__init__(options, query_size, annotation_size)
        self.heads: int = options.heads
        self.value = Linear(annotation_size, annotation_size, bias=False)
        """V_m."""

    def values(self, annotations: Annotations) -> Annotations:
        values: Tensor = self.value(annotations)
        return values

    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        hidden = _hidden(self.query(query), keys, extra)
        own = torch.eye(self.heads, dtype=hidden.dtype, device=hidden.device)
        vectors = self.vector.to(hidden.dtype).view(self.heads, -1, 1) * own.unsqueeze(1)
        energy = hidden @ vectors.flatten(0, 1)  # [B, Q, J, A] @ [A, M], column m zero outside head m
        return energy.transpose(2, 3).flatten(1, 2)


class ProductScore(Score):
    """e_ij = s^T k_j: all queries of a sentence in one product with its keys. What a position's key is, each subclass
    says."""

    multiplies = True

    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        return torch.bmm(query, keys.to(query.dtype).transpose(1, 2))


@implements(DotOptions)
class Dot(ProductScore):
    """Luong et al. 2015, after eq. 7: e_ij = h_t^T hbar_s."""

    def keys(self, annotations: Annotations, real: Real) -> Keys:
        return annotations


@implements(ScaledDotOptions)
class ScaledDot(Dot):
    """Vaswani et al. 2017, eq. 1 (Neubig, eq. 78): e_ij = s^T h_j / sqrt(D), D the size of the query."""

    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        return super().forward(query * query.shape[2] ** -0.5, keys)


@implements(GeneralOptions)
class General(ProductScore):
    """Luong et al. 2015, after eq. 7: e_ij = h_t^T W_a hbar_s (Neubig's bilinear function, eq. 79), of any two sizes.

    W_a hbar_s is the key, computed once a sentence.
    """

    def __init__(self, options: Any, query_size: int, annotation_size: int) -> None:
        super().__init__(options, query_size, annotation_size)
        self.key = Linear(annotation_size, query_size, bias=False, role="alignment")
        """W_a."""


@implements(LocationOptions)
class Location(ProductScore):
    """Luong et al. 2015, eq. 8: a_t = softmax(W_a h_t), from the target state alone.

    Row j of W_a is the key of source position j, whatever stands there; W_a has `max_source` rows. "For short
    sentences, we only use the top part of a_t and for long sentences, we ignore words near the end" (footnote 6): the
    softmax is taken over those of a sentence's own positions that have a row.
    """

    def __init__(self, options: LocationOptions, query_size: int, annotation_size: int) -> None:
        super().__init__(options, query_size, annotation_size)
        self.most: int = options.max_source
        self.weight = parameter("alignment", options.max_source, query_size)
        """W_a."""

    def keys(self, annotations: Annotations, real: Real) -> Keys:
        beyond = max(0, annotations.shape[1] - self.most)
        keys = F.pad(self.weight[: annotations.shape[1]], (0, 0, 0, beyond))
        return keys.expand(annotations.shape[0], -1, -1)


@implements(ConvolutionalOptions)
class ConvolutionalScore(Score):
    """Filters over neighbouring positions, a layer of which the state gates (Allamanis et al. 2016, "A convolutional
    attention network for extreme summarization of source code", section 2.1), here over annotations, not embeddings:

    l1 = relu(K_1 * h);  k = K_2 * l1;  g_ij = k_j . W s;  f_i = g_i / |g_i|;  e_ij = (K_3 * f_i)_j,

    * a convolution over positions, zero outside the sentence; |g_i| the length of all positions' numbers together.
    """

    def __init__(self, options: ConvolutionalOptions, query_size: int, annotation_size: int) -> None:
        super().__init__(options, query_size, annotation_size)
        self.neighbours = options.around
        span = 2 * self.neighbours + 1
        self.first = Linear(span * annotation_size, options.first, bias=False, role="alignment")
        """K_1."""
        self.key = Linear(span * options.first, options.second, bias=False, role="alignment")
        """K_2."""
        self.query = Linear(query_size, options.second, bias=False, role="alignment")
        """W."""
        self.filter = Linear(span * options.second, 1, bias=False, role="alignment")
        """K_3."""

    def keys(self, annotations: Annotations, real: Real) -> Keys:
        """k, zero on padding."""
        real = real.unsqueeze(2)
        below = torch.relu(self.first(self._around(annotations * real))) * real
        keys: Keys = self.key(self._around(below)) * real
        return keys

    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        gated = self.query(query).unsqueeze(2) * keys.unsqueeze(1)
        length = torch.linalg.vector_norm(gated, dim=(2, 3), keepdim=True)
        features = gated / length.clamp_min(MIN_NORM)
        energies: Energies = self.filter(self._around(features)).squeeze(-1)
        return energies

    def _around(self, rows: Float[Tensor, "*b J K"]) -> Float[Tensor, "*b J W"]:
        """Each position's numbers with those of its neighbours, from left to right."""
        beside = F.pad(rows, (0, 0, self.neighbours, self.neighbours))
        return beside.unfold(-2, 2 * self.neighbours + 1, 1).transpose(-1, -2).flatten(-2)


MIN_NORM = 1e-3
"""What a length is taken for where it is less: near 0 its inverse has no use, and gradients without bound."""


@implements(EvenOptions)
class Even(Score):
    """e_ij = 0: what is attended to, the window alone says (Graves 2013, eq. 46, has no content in its weights)."""

    def keys(self, annotations: Annotations, real: Real) -> Keys:
        return annotations[:, :, :0]

    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        return query.new_zeros(keys.shape[0], query.shape[1], keys.shape[1])


def _hidden(query: Tensor, keys: Tensor, extra: Tensor | None) -> Tensor:
    """The hidden layer [B, Q, J, A] of an additive score."""
    hidden = query.unsqueeze(2) + keys.unsqueeze(1)
    return torch.tanh(hidden if extra is None else hidden + extra)


SCORES: Implementations[type[Score]] = Implementations(attention.SCORES)
