"""Programs for the engine equal the models that they were written from, in steps, search and arrays."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from rnnsearch.accel.program_writer import load_arrays, unsupported_reason, write_program
from rnnsearch.accel.search import packed_model
from rnnsearch.config import ModelConfig
from rnnsearch.engine.program import parse_program
from rnnsearch.engine.recurrent import RecurrentEngine
from rnnsearch.engine.structs import DType
from rnnsearch.ops.native.library import library
from rnnsearch.runtime.search import EngineSearchOptions, search_batch
from rnnsearch.search.decode import decode_all, make_sources
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.translation import build
from rnnsearch.text.vocabulary import BOS

pytestmark = pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")

SOURCES = [[5, 6, 7, 8, 9, 10], [9], [10, 4, 11], [7, 7, 7, 5, 6, 11, 10, 9, 11], [4, 6, 8]]
WORDS = ([2, 2, 2, 2, 2], [5, 6, 7, 8, 9], [11, 10, 9, 4, 5], [3, 4, 5, 6, 7])
LIMITS = {"max_ratio": 1.0, "max_extra": 4}
ROUNDED = {DType.FP32: 2e-4, DType.BF16: 0.06, DType.INT8: 0.05}
"""Tolerance of log-probabilities and attention; another order of summation may change the rounding of some values."""
BOTH = {"type": "bidirectional", "cell": "gru", "size": 9}
STACK = {"type": "stacked", "direction": "forward", "cell": "lstm", "size": 10, "layers": 2}
CELLS = {"cell": "lstm", "size": 10, "layers": 2, "bridge": "copy"}
FED = CELLS | {"type": "luong-input-feeding", "readout": 11}
LEARNED = FED | {"bridge": "learned"}
GENERAL, ADDITIVE = {"score": "general"}, {"score": "additive", "size": 12}
HEADS = {"score": "multi-head-additive", "size": 12, "heads": 2}
RNMT = {"cell": "rnmt-lstm", "size": 8, "layers": 3, "residual_from": 3}
ONE = {"type": "bahdanau", "size": 8, "maxout": 7}
NORMED = {"cell": "layer-norm-gru", "size": 8}


def luong(attention=GENERAL, encoder=STACK, decoder=FED):
    return {"encoder": encoder, "attention": attention, "decoder": decoder}


def over_both(decoder, cell="gru"):
    return {"encoder": BOTH | {"cell": cell}, "attention": ADDITIVE, "decoder": {"cell": cell, **decoder}}


MODELS = {
    "sutskever": {"encoder": STACK | {"reverse": True}, "decoder": CELLS | {"type": "sutskever"}},
    **{score: luong({"score": score}) for score in ("general", "dot", "scaled-dot", "concat-identity")},
    "concat": luong({"score": "concat", "size": 12}),
    "location": luong({"score": "location", "max_source": 7}),
    "local-m": luong(GENERAL | {"window": "local-m", "width": 2}),
    "local-p": luong(GENERAL | {"window": "local-p", "width": 2}),
    "without feeding": luong(decoder=FED | {"type": "luong"}),
    "reversed": luong(encoder=STACK | {"reverse": True}),
    "reversed without end": luong(encoder=STACK | {"reverse": True, "reads_end": False}),
    "lexical": luong() | {"lexical": True},
    "zero": luong(decoder=FED | {"bridge": "zero"}),
    "learned": luong(encoder=BOTH, decoder=LEARNED),
    "learned-top": luong(encoder=STACK | {"direction": "both"}, decoder=FED | {"bridge": "learned-top"}),
    "biased": luong(decoder=FED | {"attentional": "tanh-bias"}),
    "biased, without feeding": luong(decoder=FED | {"type": "luong", "attentional": "tanh-bias"}),
    "rectified": luong(encoder=BOTH | {"reads_end": False}, decoder=FED | {"bridge": "rectified"}),
    "neubig": luong({"score": "additive-bias", "size": 12}, decoder=CELLS | {"type": "neubig"}),
    "neubig, literal": luong(encoder=BOTH, decoder=CELLS | {"type": "neubig", "bridge": "annotation", "size": 18}),
    "gnmt": luong(encoder=STACK | {"direction": "bottom", "residual_from": 3, "layers": 3}, decoder=LEARNED),
    "rnmt-plus": {
        "encoder": RNMT | {"type": "stacked", "direction": "both"},
        "attention": HEADS,
        "decoder": RNMT | {"type": "rnmt-plus", "bridge": "learned"},
    },
    "bideep": over_both({"type": "bideep", "size": 8, "layers": 2, "transitions": 1, "readout": 7}, "layer-norm-gru"),
    "cgru": over_both({"type": "cgru", "size": 8, "readout": 7}),
    "deep transition": over_both({"type": "deep-transition", "size": 8, "readout": 7, "transitions": 1}),
    "bideep of simple units": over_both(
        {"type": "bideep", "size": 8, "layers": 2, "transitions": 1, "readout": 7}, "ssru"
    ),
    **{cell: over_both(ONE, cell) for cell in ("tanh", "cho-gru", "torch-gru", "lstm", "gate-norm-lstm", "ssru")},
    "one way": luong(
        ADDITIVE, BOTH | {"type": "unidirectional", "reverse": True}, ONE | {"cell": "gru", "first": "zero"}
    ),
    "coverage": over_both(ONE) | {"attention": ADDITIVE | {"features": ["coverage-neural"], "coverage_size": 5}},
    "fertility": over_both(ONE) | {"attention": ADDITIVE | {"features": ["coverage-linguistic"], "fertility": 3.0}},
    "cohn": over_both({"type": "cohn", "size": 8})
    | {"attention": ADDITIVE | {"features": ["position", "markov", "fertility-local"], "neighbours": 1}},
    "bi-scale": luong(ADDITIVE, BOTH, {"type": "bi-scale", "size": 8, "readout": 7}),
}


@pytest.fixture(params=MODELS)
def model(request):
    """Return one of MODELS with random weights."""
    found = build(ModelConfig.model_validate({"embedding": 6} | MODELS[request.param]), 12, 12, seed=1).eval()
    generator = torch.Generator().manual_seed(5)
    for parameter in found.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return found


def test_program_equals_the_model(model):
    assert unsupported_reason(model) is None
    agree(model)


def test_every_valid_model_is_written_or_rejected(whole, make):
    model = make(whole).eval()
    if unsupported_reason(model) is not None:
        pytest.skip("it cannot be written")
    agree(model)


def agree(model):
    """Assert that steps and search of the engine equal those of the definition."""
    computation = write_program(model)
    computation = replace(computation, program=parse_program(json.loads(json.dumps(computation.program))))
    assert computation.program == write_program(model).program
    computation.check()
    sources = make_sources(SOURCES, torch.device("cpu"))
    lengths = np.array([len(ids) + 1 for ids in SOURCES])
    with torch.inference_mode():
        for kind in DType:
            scorer, engine = ModelScorer(packed_model(model, kind)), RecurrentEngine(library(), computation, kind)
            memory, state = scorer.start(sources, None)
            own = engine.encode(engine.embed(sources["source"].ids.numpy()), lengths)
            after = own.state
            for y in WORDS:
                step = scorer.step(memory, state, torch.tensor(y))
                logits, norm, after, alpha = engine.step(own, after, np.array(y), engine.output)
                want, got = step.scores - step.norm[:, None], torch.from_numpy(logits - norm[:, None])
                torch.testing.assert_close(got, want, rtol=2e-4, atol=ROUNDED[kind], msg=lambda m, k=kind: f"{k}: {m}")
                assert engine.attends == bool(step.attention)
                if engine.attends:
                    weights = step.attention["source"]
                    torch.testing.assert_close(torch.from_numpy(alpha), weights, rtol=2e-4, atol=ROUNDED[kind])
                state = step.state
    found = search_batch(
        RecurrentEngine(library(), computation, DType.FP32), SOURCES, EngineSearchOptions(beam=3, **LIMITS)
    )
    expected = decode_all(ModelScorer(model), SOURCES, SearchOptions(beam=3, **LIMITS))
    tokens = [
        tuple(found.tokens[b, 0, : found.length[b, 0] - found.finished[b, 0]].tolist()) for b in range(len(SOURCES))
    ]
    assert tokens == [best.ids for best, *_ in expected]


def test_arrays_are_loaded_into_their_parameters(model):
    other, computation = copy.deepcopy(model), write_program(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.fill_(7.0)
    load_arrays(other, {name: one.values for name, one in computation.weights.items()}, computation)
    if model.target_embedding.zero_bos:  # its vector is never read
        model.target_embedding.weight.data[BOS] = 0.0
    for one, parameter in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter, rtol=0, atol=0)
