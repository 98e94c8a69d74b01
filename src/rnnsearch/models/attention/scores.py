"""Scores: the energy e_ij of a query and an annotation, one class per formulation.

| name                | e_ij                                   | source                                               |
|---------------------|----------------------------------------|------------------------------------------------------|
| additive            | v_a^T tanh(W_a s + U_a h)              | Bahdanau et al. 2015, A.1.2; Neubig, eq. 80          |
| additive-bias       | v_a^T tanh(W_a s + U_a h + b)          | OpenNMT-py's `mlp`                                   |
| concat              | v_a^T tanh(W_a [s; h])                 | Luong et al. 2015, after eq. 7                       |
| concat-identity     | v_a^T tanh(W s + h)                    | Luong et al., footnote 15 (their reported results)   |
| multi-head-additive | v_m^T tanh(W_m s + U_m h) per head     | Chen et al. 2018; Vaswani et al. 2017                |
| dot                 | s^T h                                  | Luong et al., after eq. 7; Neubig, eq. 76            |
| scaled-dot          | s^T h / sqrt(D)                        | Vaswani et al. 2017, eq. 1; Neubig, eq. 78           |
| general             | s^T W_a h                              | Luong et al., after eq. 7; Neubig, eq. 79 (bilinear) |
| location            | (W_a s)_j                              | Luong et al., eq. 8                                  |
| convolutional       | filters over k_j * W s                 | Allamanis et al. 2016, section 2.1                   |
| even                | 0                                      | Graves 2013, eq. 46 (only the window decides)        |

s is the query (the decoder's state) and h an annotation. `keys` computes once per sentence what depends only on the
annotations. `additive` and `concat` are the same function, because Luong's W_a is [W_a, U_a]. They differ in their
initialisation: Luong's is initialised as one matrix with D + H columns (with a different range under Glorot's rule),
Bahdanau's as two.

`Attention` creates one by name (`SCORES`). Native steps (`accel/decoder_steps.py`, `accel/fast_forwards.py`), the
engine (`accel/program_writer.py`, `accel/rnnsearch_search.py`) and ONNX graphs (`export/onnx.py`) implement some of
these equations again, by exact class. tests/models/test_scores.py compares each with a NumPy loop.

Axes: B sentences, Q queries per sentence, J source positions, M heads, E = Q * M rows of energies, A hidden layer, D
query, H annotation, K key.
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
    ConvolutionalScoreOptions,
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
"""Sum of the features, added inside a hidden layer."""
Energies = Float[Tensor, "B E J"]
Annotations = Float[Tensor, "B J H"]
Real = Bool[Tensor, "B J"]

MIN_NORM = 1e-3
"""Lower limit of the norm that `ConvolutionalScore` divides by: near 0 its inverse would have unbounded gradients."""


class Score(nn.Module, ABC):
    """A score of queries against annotations, created from its options and both sizes."""

    component: ClassVar[type[ScoreOptions]]
    """The declaration of the component, set by `@implements`."""
    is_product: ClassVar[bool] = False
    """True if the energies of all queries are one matrix product with the keys."""
    hidden_size: int = 0
    """A, the size of the hidden layer; 0 without one."""
    heads: int = 1
    """M; energies are [B, Q * M, J], with the heads of a query in consecutive rows; each head has its own weights."""
    neighbours: int = 0
    """Number of positions on each side that the energy of a position depends on."""
    max_positions: int | None = None
    """Number of source positions that it is defined for; later ones get no attention."""
    key: Linear

    def __init__(self, options: Any, query_size: int, annotation_size: int) -> None:
        super().__init__()

    def keys(self, annotations: Annotations, real: Real) -> Keys:
        """Return the part that depends only on the annotations, U h_j; `real` is False on padding."""
        keys: Keys = self.key(annotations)
        return keys

    def values(self, annotations: Annotations) -> Annotations | None:
        """Return the vectors that contexts are sums of, with H / M units per head; None for the annotations."""
        return None

    @abstractmethod
    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        """Return the energies of Q queries per sentence, E = Q * M; `extra` is added inside the hidden layer."""


class TanhScore(Score):
    """e_ij = v^T tanh(W s + k_j), where subclasses define the key k_j."""

    query: Linear  # W
    vector: nn.Parameter  # v

    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        hidden = _hidden_layer(self.query(query), keys, extra)  # [B, Q, J, A]
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
        self.query = Linear(query_size, options.size, bias=False, role="alignment")  # W_a
        self.key = Linear(annotation_size, options.size, bias=False, role="alignment")  # U_a
        self.vector = parameter("alignment_vector", options.size)  # v_a


@implements(AdditiveBiasOptions)
class AdditiveBias(Additive):
    """`additive` with a bias in the hidden layer: e_ij = v_a^T tanh(W_a s + U_a h_j + b) (OpenNMT-py's `mlp`)."""

    def __init__(self, options: AdditiveBiasOptions, query_size: int, annotation_size: int) -> None:
        super().__init__(options, query_size, annotation_size)
        self.query = Linear(query_size, options.size, role="alignment")  # W_a and b


@implements(ConcatOptions)
class Concat(Score):
    """e_ij = v_a^T tanh(W_a [h_t; hbar_s]), with one matrix W_a (Luong et al. 2015, after eq. 7)."""

    def __init__(self, options: ConcatOptions, query_size: int, annotation_size: int) -> None:
        super().__init__(options, query_size, annotation_size)
        self.hidden_size = options.size
        self.query_size = query_size
        self.weight = parameter("alignment", options.size, query_size + annotation_size)  # W_a
        self.vector = parameter("alignment_vector", options.size)  # v_a

    def keys(self, annotations: Annotations, real: Real) -> Keys:
        # W_a [s; h] is a sum of two products: that of h is computed once per sentence, that of s in `forward`.
        return linear(annotations, self.weight[:, self.query_size :])

    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        hidden = _hidden_layer(linear(query, self.weight[:, : self.query_size]), keys, extra)  # [B, Q, J, A]
        return hidden @ self.vector.to(hidden.dtype)


@implements(ConcatIdentityOptions)
class ConcatIdentity(TanhScore):
    """The concat score that Luong et al. 2015 report results with: e_ij = v_a^T tanh(W h_t + hbar_s).

    Footnote 15: "the part that corresponds to hbar_s" of W_a is set to the identity.
    """

    def __init__(self, options: Any, query_size: int, annotation_size: int) -> None:
        super().__init__(options, query_size, annotation_size)
        self.hidden_size = annotation_size
        self.query = Linear(query_size, annotation_size, bias=False, role="alignment")  # W, the learned part of W_a
        self.vector = parameter("alignment_vector", annotation_size)  # v_a

    def keys(self, annotations: Annotations, real: Real) -> Keys:
        return annotations


@implements(MultiHeadAdditiveOptions)
class MultiHeadAdditive(Additive):
    """M additive scores with size / M hidden units each: e^m_ij = v_m^T tanh(W_m s + U_m h_j).

    The M contexts c^m_i = sum_j alpha^m_ij V_m h_j, of size H / M, are concatenated (Chen et al. 2018, section 4.1).
    This is the multi-head attention of Vaswani et al. 2017, section 3.2.2, with additive instead of dot scores. There
    is no matrix after the heads, because every layer that reads a context starts with one. W_m, U_m and v_m of all
    heads are stacked.
    """

    def __init__(self, options: MultiHeadAdditiveOptions, query_size: int, annotation_size: int) -> None:
        super().__init__(options, query_size, annotation_size)
        self.heads: int = options.heads
        self.value = Linear(annotation_size, annotation_size, bias=False)  # V_m

    def values(self, annotations: Annotations) -> Annotations:
        values: Tensor = self.value(annotations)
        return values

    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        hidden = _hidden_layer(self.query(query), keys, extra)  # [B, Q, J, A]
        # One product for all heads: column m of [A, M] is v_m in the rows of head m and zero elsewhere.
        identity = torch.eye(self.heads, dtype=hidden.dtype, device=hidden.device)
        vectors = self.vector.to(hidden.dtype).view(self.heads, -1, 1) * identity.unsqueeze(1)  # [M, A / M, M]
        energy = hidden @ vectors.flatten(0, 1)  # [B, Q, J, M]
        return energy.transpose(2, 3).flatten(1, 2)  # [B, Q * M, J]


class ProductScore(Score):
    """e_ij = s^T k_j, one product for all queries of a sentence, where subclasses define the key k_j."""

    is_product = True

    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        return torch.bmm(query, keys.to(query.dtype).transpose(1, 2))  # [B, Q, D] x [B, D, J]


@implements(DotOptions)
class Dot(ProductScore):
    """e_ij = h_t^T hbar_s (Luong et al. 2015, after eq. 7)."""

    def keys(self, annotations: Annotations, real: Real) -> Keys:
        return annotations


@implements(ScaledDotOptions)
class ScaledDot(Dot):
    """e_ij = s^T h_j / sqrt(D), D the size of the query (Vaswani et al. 2017, eq. 1; Neubig, eq. 78)."""

    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        # Scaling Q queries is cheaper than scaling Q * J energies.
        return super().forward(query * query.shape[2] ** -0.5, keys)


@implements(GeneralOptions)
class General(ProductScore):
    """e_ij = h_t^T W_a hbar_s, for any two sizes; the key is W_a hbar_s (Luong et al. 2015, after eq. 7).

    Neubig's bilinear function (eq. 79).
    """

    def __init__(self, options: Any, query_size: int, annotation_size: int) -> None:
        super().__init__(options, query_size, annotation_size)
        self.key = Linear(annotation_size, query_size, bias=False, role="alignment")  # W_a


@implements(LocationOptions)
class Location(ProductScore):
    """a_t = softmax(W_a h_t), from the target state only (Luong et al. 2015, eq. 8).

    Row j of W_a is the key of source position j, for any word; W_a has `max_source` rows. "For short sentences, we only
    use the top part of a_t and for long sentences, we ignore words near the end" (footnote 6): the softmax is over the
    positions of the sentence that have a row.
    """

    def __init__(self, options: LocationOptions, query_size: int, annotation_size: int) -> None:
        super().__init__(options, query_size, annotation_size)
        self.max_positions: int = options.max_source
        self.weight = parameter("alignment", options.max_source, query_size)  # W_a

    def keys(self, annotations: Annotations, real: Real) -> Keys:
        B, J, _ = annotations.shape
        # [J, D]; zeros for positions without a row of W_a, which `Attention.on` masks.
        keys = F.pad(self.weight[:J], (0, 0, 0, max(0, J - self.max_positions)))
        return keys.expand(B, -1, -1)


@implements(ConvolutionalScoreOptions)
class ConvolutionalScore(Score):
    """Filters over neighbouring positions with a layer gated by the state (Allamanis et al. 2016, section 2.1).

    "A convolutional attention network for extreme summarization of source code", here over annotations instead of
    embeddings:

    l1 = relu(K_1 * h);  k = K_2 * l1;  g_ij = k_j . W s;  f_i = g_i / |g_i|;  e_ij = (K_3 * f_i)_j,

    where * is a convolution over positions, zero outside the sentence, and |g_i| the norm over all positions together.
    """

    def __init__(self, options: ConvolutionalScoreOptions, query_size: int, annotation_size: int) -> None:
        super().__init__(options, query_size, annotation_size)
        self.neighbours = options.around
        span = 2 * self.neighbours + 1
        self.first = Linear(span * annotation_size, options.first, bias=False, role="alignment")  # K_1
        self.key = Linear(span * options.first, options.second, bias=False, role="alignment")  # K_2
        self.query = Linear(query_size, options.second, bias=False, role="alignment")  # W
        self.filter = Linear(span * options.second, 1, bias=False, role="alignment")  # K_3

    def keys(self, annotations: Annotations, real: Real) -> Keys:
        """Return k, zero on padding."""
        real = real.unsqueeze(2)
        # Zeros on padding before each convolution, which must see zeros outside the sentence.
        l1 = torch.relu(self.first(self._concat_neighbours(annotations * real))) * real
        keys: Keys = self.key(self._concat_neighbours(l1)) * real
        return keys

    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        gated = self.query(query).unsqueeze(2) * keys.unsqueeze(1)  # [B, Q, J, K]
        norm = torch.linalg.vector_norm(gated, dim=(2, 3), keepdim=True)  # [B, Q, 1, 1]
        features = gated / norm.clamp_min(MIN_NORM)
        energies: Energies = self.filter(self._concat_neighbours(features)).squeeze(-1)
        return energies

    def _concat_neighbours(self, x: Float[Tensor, "*b J K"]) -> Float[Tensor, "*b J W"]:
        """Concatenate each position's vector with those of its neighbours, from left to right."""
        padded = F.pad(x, (0, 0, self.neighbours, self.neighbours))
        return padded.unfold(-2, 2 * self.neighbours + 1, 1).transpose(-1, -2).flatten(-2)


@implements(EvenOptions)
class Even(Score):
    """Constant score 0: attention is determined only by the window (Graves 2013, eq. 46)."""

    def keys(self, annotations: Annotations, real: Real) -> Keys:
        return annotations[:, :, :0]  # [B, J, 0]: only J is used

    def forward(self, query: Queries, keys: Keys, extra: Extra = None) -> Energies:
        return query.new_zeros(keys.shape[0], query.shape[1], keys.shape[1])


def _hidden_layer(query: Tensor, keys: Tensor, extra: Tensor | None) -> Float[Tensor, "B Q J A"]:
    """Return tanh(W s_i + k_j + features), given W s_i [B, Q, A] and k_j [B, J, A]."""
    hidden = query.unsqueeze(2) + keys.unsqueeze(1)  # [B, Q, 1, A] + [B, 1, J, A]
    return torch.tanh(hidden if extra is None else hidden + extra)


SCORES: Implementations[type[Score]] = Implementations(attention.SCORES)
"""Class by `score` of `[model.attention]`; names are stored in model folders."""
