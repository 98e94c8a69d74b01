"""Both graphs, under onnxruntime, are the model: batches of other sizes than those traced, sentences of any lengths."""

from typing import Any

import numpy as np
import pytest
import torch

from rnnsearch.data.batch import Side
from rnnsearch.errors import ModelError
from rnnsearch.export.onnx import graphs
from rnnsearch.text.vocabulary import BOS, EOS, PAD
from rnnsearch.utils.tensors import select
from tests.onnx.models import ADDITIVE, MODELS
from tests.untrained import BAHDANAU, untrained

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")

SYMBOLS = 12
BATCHES = [([6, 1, 9, 4], 3), ([2], 1), ([3, 8], 2)]
"""Sentences' lengths without EOS, and hypotheses of each."""


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return untrained(MODELS[request.param]).model.eval()


@pytest.fixture(scope="module")
def made(model):
    return graphs(model)


class Graph:
    """A graph under onnxruntime; what it gives, by name."""

    def __init__(self, proto: Any) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
        self._names = [output.name for output in self._session.get_outputs()]

    def __call__(self, **feeds: Any) -> dict[str, Any]:
        return dict(zip(self._names, self._session.run(None, feeds), strict=True))


def begins(prefix: str, found: dict[str, Any]) -> dict[str, Any]:
    return {name: rows for name, rows in found.items() if name.startswith(prefix)}


def sentences(lengths: list[int], draw: np.random.Generator) -> Any:
    ids = np.full((len(lengths), max(lengths) + 1), PAD)
    for row, length in zip(ids, lengths, strict=True):
        row[:length], row[length] = draw.integers(EOS + 1, SYMBOLS, length), EOS
    return ids


@torch.no_grad()
def test_both_graphs_are_the_model(model, made):
    encoder, step, draw = Graph(made.encoder), Graph(made.step), np.random.default_rng(1)
    for lengths, rows in BATCHES:
        source, sentence = sentences(lengths, draw), np.repeat(np.arange(len(lengths)), rows)
        memories = model.encode({"source": Side.of(torch.from_numpy(source))})
        state = select(model.start(memories), torch.from_numpy(sentence))
        begun = encoder(source=source)
        memory, fed = begins("memory.", begun), {n: r[sentence] for n, r in begins("state.", begun).items()}
        y = np.full(len(sentence), BOS)
        for _ in range(5):
            readout, state, attention = model.step(torch.from_numpy(y), state, memories)
            found = step(y=y, sentence=sentence, **memory, **fed)
            np.testing.assert_allclose(found["log_probs"], model.log_probs(readout), rtol=1e-5, atol=1e-5)
            assert ("attention" in found) == bool(attention)
            for alpha in attention.values():
                np.testing.assert_allclose(found["attention"], alpha, atol=1e-5)
            # A search repeats and drops hypotheses of a sentence.
            order = (draw.integers(rows, size=(len(lengths), rows)) + rows * np.arange(len(lengths))[:, None]).ravel()
            state = select(state, torch.from_numpy(order))
            fed = {name.replace("next", "state", 1): r[order] for name, r in begins("next.", found).items()}
            y = draw.integers(EOS + 1, SYMBOLS, len(sentence))


def test_the_graphs_are_sound_and_have_no_loop(made):
    for proto in made:
        onnx.checker.check_model(proto, full_check=True)
        operators = {node.op_type for node in proto.graph.node}
        assert not operators & {"Loop", "Scan", "If"}
        assert {domain.domain for domain in proto.opset_import} == {""}
        every = [*proto.graph.input, *proto.graph.output]
        first = {value.type.tensor_type.shape.dim[0].dim_param for value in every}
        assert first <= {"B", "N"}
    assert {node.op_type for node in made.encoder.graph.node} & {"GRU", "LSTM", "RNN"}
    inputs, outputs = ([value.name for value in side] for side in (made.step.graph.input, made.step.graph.output))
    assert {"y", "sentence"} < {*inputs}
    assert {*begins("memory.", dict.fromkeys(inputs)), *begins("state.", dict.fromkeys(inputs))} == {
        value.name for value in made.encoder.graph.output
    }
    assert [name.replace("next", "state", 1) for name in outputs if "next" in name] == [
        name for name in inputs if "state" in name
    ]


def test_what_was_traced_for_one_size_alone_is_no_graph():
    pyramid = {"type": "pyramid", "cell": "gru", "size": 10, "layers": 2, "reduce": 1}
    with pytest.raises(ModelError, match="hold for batches of one size alone"):
        graphs(untrained({**BAHDANAU, "encoder": pyramid}).model)
    with pytest.raises(ModelError, match="there is no operator for a part of it"):
        graphs(untrained({**BAHDANAU, "attention": {**ADDITIVE, "normaliser": "linear-chain"}}).model)
