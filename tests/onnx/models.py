"""Configurations of models that together have nearly all components that can be exported to ONNX."""

from typing import Any

from tests.untrained import BAHDANAU, RNNENCDEC

SPREAD = {"init": {"type": "uniform", "scale": 0.6}}
LSTMS = {
    "embedding": 12,
    "encoder": {"type": "stacked", "layers": 2, "direction": "forward", "cell": "lstm", "size": 10},
}
LAYERS = {"cell": "lstm", "size": 10, "layers": 2}
ADDITIVE = {"score": "additive", "size": 9}
MODELS: dict[str, dict[str, Any]] = {
    "bahdanau": BAHDANAU,
    "bahdanau-tanh, cho-gru, coverage, lexical": {
        **BAHDANAU,
        "encoder": {**LSTMS["encoder"], "cell": "cho-gru", "residual_from": 2},
        "decoder": {"type": "bahdanau-tanh", "cell": "gru", "size": 11, "readout": 7},
        "attention": {**ADDITIVE, "features": ["coverage-neural", "position"], "coverage_size": 3},
        "lexical": True,
    },
    "cohn, tanh, monotonic": {
        **BAHDANAU,
        "encoder": {"type": "bidirectional", "cell": "tanh", "size": 10},
        "decoder": {"type": "cohn", "cell": "gru", "size": 11},
        "attention": {**ADDITIVE, "normaliser": "monotonic"},
        "output": {"type": "adaptive", "cutoffs": [8]},
    },
    "rnnencdec, torch-gru": {
        **RNNENCDEC,
        **SPREAD,
        "encoder": {"type": "unidirectional", "cell": "torch-gru", "size": 10, "reverse": True},
    },
    "luong-input-feeding, local-p": {
        **LSTMS,
        **SPREAD,
        "encoder": {**LSTMS["encoder"], "reverse": True},
        "decoder": {"type": "luong-input-feeding", **LAYERS, "readout": 8, "bridge": "copy"},
        "attention": {"score": "general", "window": "local-p", "width": 2},
    },
    "rnmt-plus, several heads": {
        **LSTMS,
        **SPREAD,
        "encoder": {**LSTMS["encoder"], "direction": "both"},
        "decoder": {"type": "rnmt-plus", **LAYERS, "residual_from": 2, "bridge": "zero"},
        "attention": {"score": "multi-head-additive", "size": 8, "heads": 2},
    },
    "cgru, local-m, coverage": {
        **BAHDANAU,
        "decoder": {"type": "cgru", "cell": "torch-gru", "size": 11, "readout": 7},
        "attention": {
            **ADDITIVE,
            "window": "local-m",
            "width": 1,
            "features": ["coverage-linguistic"],
            "fertility": 2.0,
        },
    },
    "sutskever": {
        **LSTMS,
        **SPREAD,
        "encoder": {**LSTMS["encoder"], "direction": "bottom"},
        "decoder": {"type": "sutskever", **LAYERS, "bridge": "learned"},
    },
}
