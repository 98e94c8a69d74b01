"""Validity of combinations of components, independent of the rules of the package.

The covering sets are selected with it, because the rules take half a millisecond per combination and the selection asks
about thousands of combinations; a test compares both for each of them.
"""

Combination = dict[str, str | None]
"""A choice for each axis, or None."""

BLIND = {"rnnencdec", "cho", "sutskever"}
"""Decoders without attention."""
OWN_CELL = {"cho", "bi-scale"}
STACKS = {"sutskever", "luong", "luong-input-feeding", "neubig", "rnmt-plus"}
"""Decoders with a bridge."""


def right(whole: Combination) -> bool:
    """Return True if a combination is valid.

    Attention and its components need a decoder that attends. A cell and a bridge need a decoder with these options.
    Without attention, the decoder needs one vector of the whole sentence.
    """
    name, encoder, bridge = whole["decoder"], whole["encoder"], whole["bridge"]
    attends = whole["score"] is not None
    return (
        (name, whole["window"]) != ("copynet", "wait-k")
        and (name, encoder) != ("copynet", "rationale")
        and attends == (name not in BLIND)
        and not (whole["state dropout"] and {whole["cell"], whole["encoder cell"]} == {"ssru"})
        and (whole["cell"] is None) == (name in OWN_CELL)
        and (bridge is not None) == (name in STACKS)
        and (not whole["residual"] or name in {*STACKS, "bideep"})
        and (not whole["lexical"] or attends)
        and (not attends or right_attention(whole))
        and (bridge not in ("zero", "annotation") or attends)
        and (bridge != "annotation" or whole["cell"] != "ssru")
        and (bridge != "copy" or right_copy(whole))
        and (attends or name in STACKS or encoder in ONE_VECTOR)
    )


ONE_VECTOR = {"unidirectional", "unidirectional with all", "stacked forward", "stacked bottom", "stacked with all"}


FEATURED = {"additive", "additive-bias", "concat", "concat-identity", "multi-head-additive"}


def right_attention(whole: Combination) -> bool:
    windows = {"hard": {"global", "local-m", "wait-k"}, "monotonic": {"global", "wait-k"}}.get(whole["normaliser"])
    one_position = windows is None or (whole["window"] in windows and whole["score"] != "multi-head-additive")
    return one_position and (not whole["feature"] or whole["score"] in FEATURED)


def right_copy(whole: Combination) -> bool:
    """Return True if the layers have the same number, size and type of state; sizes here match if possible."""
    kinds = dict.fromkeys(("lstm", "layer-norm-lstm", "gate-norm-lstm", "rnmt-lstm"), "memory") | {
        "ssru": "memory alone"
    }
    layers_of_one_size = {"stacked forward", "stacked both", "stacked with all", "pyramid"}
    return whole["encoder"] in layers_of_one_size and kinds.get(whole["cell"]) == kinds.get(whole["encoder cell"])
