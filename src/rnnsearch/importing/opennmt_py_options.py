"""Options of OpenNMT-py 3: what is the same here under another name, and what is refused by its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rnnsearch.config.table import MOST
from rnnsearch.errors import ModelError
from rnnsearch.importing.options import no_counterpart, optimiser

CELLS = {"LSTM": "lstm", "GRU": "torch-gru"}
SCORES = {"general": "general", "dot": "dot", "mlp": "additive-bias"}
NO_ATTENTION = (None, "none")
ONLY: dict[str, tuple[Any, ...]] = {
    "model_task": ("seq2seq",),
    "model_type": ("text",),
    "encoder_type": ("rnn", "brnn"),
    "decoder_type": ("rnn",),
    "rnn_type": tuple(CELLS),
    "global_attention": (*SCORES, *NO_ATTENTION),
    "global_attention_function": ("softmax", "sparsemax"),
    "generator_function": ("softmax",),
    "copy_attn": (False, None),
    "coverage_attn": (False, None),
    "context_gate": (None,),
    "position_encoding": (False, None),
    "n_src_feats": (0, None),
    "lora_layers": ([], None),
    "lora_embedding": (False, None),
    "quant_layers": ([], None),
}
"""Of the options that change the equations those values that have a counterpart here; the first is that of a checkpoint
which does not say."""
BRNN = "brnn"


class Parts(NamedTuple):
    """What a checkpoint's model is made of."""

    both_ways: bool
    cell: str
    score: str | None
    sparse: bool
    feeds: bool
    bridge: bool
    tied: bool
    """The output layer's rows are the target's embeddings."""
    dropout: float


def parts(where: str, options: Mapping[str, Any], start: Any) -> Parts:
    """Errors: ModelError for the first option that has no counterpart, by its name."""
    given = {name: options.get(name, known[0]) for name, known in ONLY.items()}
    for name, known in ONLY.items():
        if given[name] not in known:
            raise no_counterpart(where, name, given[name], known)
    if start != "<s>":
        raise no_counterpart(where, "decoder_start_token", start, ["<s>"])
    feeds = bool(options.get("input_feed", 1))
    score = SCORES.get(given["global_attention"])
    if score is None and feeds:
        raise ModelError(f"{where}: input_feed without global_attention has no counterpart here")
    dropout = options.get("dropout", 0.0)
    dropout = dropout[0] if isinstance(dropout, list) and dropout else dropout
    return Parts(
        given["encoder_type"] == BRNN,
        CELLS[given["rnn_type"]],
        score,
        given["global_attention_function"] == "sparsemax",
        feeds,
        bool(options.get("bridge", False)),
        bool(options.get("share_decoder_embeddings", False)),
        float(dropout) if isinstance(dropout, int | float) else 0.0,
    )


def files(options: Mapping[str, Any]) -> list[str]:
    """The training text that the options name, as `[data] train` does."""
    corpora = options.get("data")
    found = []
    for corpus in corpora.values() if isinstance(corpora, Mapping) else ():
        named = [corpus.get(f"path_{side}") for side in ("src", "tgt")] if isinstance(corpus, Mapping) else []
        sides = [side for side in named if isinstance(side, str) and "|" not in side]
        if len(sides) == 2:
            found.append("|".join(sides))
    return found


def training(options: Mapping[str, Any], updates: int | None) -> dict[str, Any]:
    """`[training]`: as many updates as there were, and the optimiser where it is one of ours in the same words."""
    own = optimiser(options.get("optim"), options.get("learning_rate"))
    return {"max_updates": min(max(1, updates or 1), MOST), "optimiser": own}


def search() -> dict[str, Any]:
    """`[search]`: what `onmt_translate` does where nothing is said (beam_size 5, length_penalty avg with alpha 1,
    max_length_ratio 1.25), in the precision that it has."""
    return {
        "beam": 5,
        "length_penalty": 1.0,
        "length_norm": "power-with-bos",
        "stop": "top",
        "max_ratio": 1.25,
        "max_extra": 5,
        "precision": "fp32",
    }
