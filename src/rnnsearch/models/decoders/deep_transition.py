"""The conditional GRU with a deep transition (Miceli Barone et al. 2017, "Deep architectures for NMT")."""

from __future__ import annotations

from rnnsearch.models.decoders.cgru import ConditionalGRU


class DeepTransition(ConditionalGRU):
    """As `cgru`, and then `transitions` more that read nothing but the state (section 3.1 of the paper):

    s_{i,1} = GRU_1(E y_{i-1}, s_{i-1,L});  s_{i,2} = GRU_2(ATT(s_{i,1}), s_{i,1});  s_{i,k} = GRU_k(0, s_{i,k-1}),
    k = 3..L, L = 2 + transitions; the output reads s_{i,L}.
    """

    name = "deep-transition"
