"""ONNX graphs run by onnxruntime equal the model, for batches of other sizes than those that were traced."""

from typing import Any

import numpy as np
import pytest
import torch

from rnnsearch.data.batch import Stream
from rnnsearch.errors import ModelError
from rnnsearch.export.onnx import trace_graphs
from rnnsearch.text.vocabulary import BOS, EOS, PAD
from rnnsearch.utils.tensors import select
from tests.onnx.models import ADDITIVE, MODELS
from tests.untrained import BAHDANAU, untrained

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")

NUM_TOKENS = 12
# Lengths of the sentences without EOS, and number of hypotheses per sentence.
BATCHES = [([6, 1, 9, 4], 3), ([2], 1), ([3, 8], 2)]


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return untrained(MODELS[request.param]).model.eval()


@pytest.fixture(scope="module")
def graphs(model):
    return trace_graphs(model)


class Graph:
    """ONNX graph run by onnxruntime; a call returns its outputs by name."""

    def __init__(self, proto: Any) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
        self._names = [output.name for output in self._session.get_outputs()]

    def __call__(self, **feeds: Any) -> dict[str, Any]:
        return dict(zip(self._names, self._session.run(None, feeds), strict=True))


def with_prefix(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def random_sources(lengths: list[int], rng: np.random.Generator) -> Any:
    ids = np.full((len(lengths), max(lengths) + 1), PAD)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = rng.integers(EOS + 1, NUM_TOKENS, length)
        row[length] = EOS
    return ids


@torch.no_grad()
def test_graphs_equal_the_model(model, graphs):
    encoder = Graph(graphs.encoder)
    step = Graph(graphs.step)
    rng = np.random.default_rng(1)
    for lengths, beam in BATCHES:
        source = random_sources(lengths, rng)
        sentence = np.repeat(np.arange(len(lengths)), beam)
        memories = model.encode({"source": Stream.from_ids(torch.from_numpy(source))})
        state = select(model.start(memories), torch.from_numpy(sentence))
        encoded = encoder(source=source)
        memory = with_prefix("memory.", encoded)
        state_inputs = {name: rows[sentence] for name, rows in with_prefix("state.", encoded).items()}
        y = np.full(len(sentence), BOS)
        for _ in range(5):
            readout, state, attention = model.step(torch.from_numpy(y), state, memories)
            outputs = step(y=y, sentence=sentence, **memory, **state_inputs)
            np.testing.assert_allclose(outputs["log_probs"], model.log_probs(readout), rtol=1e-5, atol=1e-5)
            assert ("attention" in outputs) == bool(attention)
            for alpha in attention.values():
                np.testing.assert_allclose(outputs["attention"], alpha, atol=1e-5)
            # Repeat and drop hypotheses of each sentence, as a search does.
            first_rows = beam * np.arange(len(lengths))[:, None]
            order = (rng.integers(beam, size=(len(lengths), beam)) + first_rows).ravel()
            state = select(state, torch.from_numpy(order))
            next_states = with_prefix("next.", outputs)
            state_inputs = {name.replace("next", "state", 1): rows[order] for name, rows in next_states.items()}
            y = rng.integers(EOS + 1, NUM_TOKENS, len(sentence))


def test_graphs_are_valid_and_have_no_loops(graphs):
    for proto in graphs:
        onnx.checker.check_model(proto, full_check=True)
        operators = {node.op_type for node in proto.graph.node}
        assert not operators & {"Loop", "Scan", "If"}
        assert {domain.domain for domain in proto.opset_import} == {""}
        values = [*proto.graph.input, *proto.graph.output]
        first_axes = {value.type.tensor_type.shape.dim[0].dim_param for value in values}
        assert first_axes <= {"B", "N"}
    assert {node.op_type for node in graphs.encoder.graph.node} & {"GRU", "LSTM", "RNN"}
    inputs = [value.name for value in graphs.step.graph.input]
    outputs = [value.name for value in graphs.step.graph.output]
    assert {"y", "sentence"} < {*inputs}
    encoder_outputs = {value.name for value in graphs.encoder.graph.output}
    assert {name for name in inputs if name.startswith(("memory.", "state."))} == encoder_outputs
    states = [name for name in inputs if "state" in name]
    assert [name.replace("next", "state", 1) for name in outputs if "next" in name] == states


def test_graphs_for_one_size_only_are_rejected():
    pyramid = {"type": "pyramid", "cell": "gru", "size": 10, "layers": 2, "reduce": 1}
    with pytest.raises(ModelError, match="valid only for batches of one size"):
        trace_graphs(untrained({**BAHDANAU, "encoder": pyramid}).model)
    with pytest.raises(ModelError, match="there is no operator for a part of it"):
        trace_graphs(untrained({**BAHDANAU, "attention": {**ADDITIVE, "normaliser": "linear-chain"}}).model)
