"""An update changes only the rows of tables that it reads, for all optimisers and both forms of gradients."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rnnsearch.config import training
from rnnsearch.data.batch import EmbeddingInput
from rnnsearch.errors import ConfigError, Interrupted
from rnnsearch.models.layers import Embedding
from rnnsearch.models.outputs import Output
from rnnsearch.training import sparse_tables, tasks
from rnnsearch.training.optimisers import OPTIMISERS, clip
from rnnsearch.training.sparse_tables import SparseTables, mapped_zeros
from rnnsearch.utils.weights import read_weights
from tests.training.test_optimisers import CASES
from tests.training.test_resume import InterruptAt

V, E = 12, 3
READ_IDS = [[1, 4, 4, 9], [2, 4], [9, 1, 5], [4, 5, 9], [1]]
"""Tokens of each update."""
NEVER_READ = [v for v in range(V) if not any(v in ids for ids in READ_IDS)]
ALL_IDS = [list(range(V))] * 4


class WordModel(nn.Module):
    """A model that reads tokens and scores the same ones."""

    def __init__(self, tied: bool, lexical: int) -> None:
        super().__init__()
        self.embedding = Embedding(V, E)
        self.between = nn.Linear(E, E + lexical)
        self.output = Output(E, V, tied=self.embedding if tied else None, lexical=lexical)

    def backward(self, ids: list[int]) -> None:
        tokens = torch.tensor(ids)
        readout = torch.tanh(self.between(self.embedding(EmbeddingInput(tokens))))
        # Token 0 is PAD, which has no loss as a target.
        self.output.losses(readout, tokens.clamp_min(1), 0.1, tokens.unique())[0].backward()
        for parameter in self.parameters():
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()


def make_model(tied: bool = False, lexical: int = 2) -> WordModel:
    torch.manual_seed(1)
    model = WordModel(tied, lexical).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def make_optimiser(name, model):
    settings = CASES[name][1]
    return OPTIMISERS[settings["type"]](list(model.parameters()), training.OPTIMISERS[settings["type"]](**settings))


def train_tables(name, sparse, tied=False, read=READ_IDS):
    model = make_model(tied)
    tables = SparseTables(model, sparse)
    optimiser = make_optimiser(name, model)
    for ids in read:
        model.zero_grad()
        model.backward(ids)
        assert model.embedding.weight.grad.is_sparse == sparse
        tables.step(optimiser)
    assert [*model.parameters()] == optimiser.param_groups[0]["params"]
    assert {*optimiser.state} <= {*model.parameters()}
    return dict(model.named_parameters()), optimiser


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", CASES)
def test_read_rows_take_a_step_and_other_rows_do_not_change(name, sparse, tied):
    """Compare with NumPy optimisers that have a state per row."""
    reference = CASES[name][0]
    model = make_model(tied)
    expected = {key: p.detach().numpy().copy() for key, p in model.named_parameters()}
    memory = {key: [{} for _ in range(len(w))] for key, w in expected.items()}
    for t, ids in enumerate(READ_IDS, 1):
        model.zero_grad()
        model.backward(ids)
        gradients = {key: p.grad.numpy() for key, p in model.named_parameters()}
        for key, w in expected.items():
            rows = range(len(w))
            if not key.startswith("between"):
                rows = np.flatnonzero(gradients[key].reshape(len(w), -1).any(1))
            for row in rows:
                w[row] = reference(w[row], gradients[key][row], memory[key][row], t)
        with torch.no_grad():
            for key, p in model.named_parameters():
                p.copy_(torch.tensor(expected[key]))
    parameters, optimiser = train_tables(name, sparse, tied)
    for key, w in expected.items():
        np.testing.assert_allclose(parameters[key].detach().numpy(), w, rtol=1e-9, atol=1e-12)
    before = dict(make_model(tied).named_parameters())
    assert NEVER_READ
    for key in ("embedding.weight", "output.bias"):
        assert torch.equal(parameters[key][NEVER_READ], before[key][NEVER_READ])
        for value in optimiser.state[parameters[key]].values():
            if value is not None and value.dim():
                assert value.shape == parameters[key].shape and not value[NEVER_READ].any()


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", CASES)
def test_step_equals_optimiser_if_all_rows_are_read(name, sparse):
    parameters, _ = train_tables(name, sparse, read=ALL_IDS)
    model = make_model()
    optimiser = make_optimiser(name, model)
    for ids in ALL_IDS:
        model.zero_grad()
        model.backward(ids)
        optimiser.step()
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameters[key], parameter, rtol=1e-12, atol=1e-12)


def test_clipping_is_equal_for_sparse_and_dense_gradients():
    norms, gradients = [], []
    for sparse in (False, True):
        model = make_model()
        SparseTables(model, sparse)
        model.backward(READ_IDS[0])
        norms.append(clip(model.parameters(), 0.5, 0.3))
        gradients.append([p.grad.to_dense() for p in model.parameters()])
    assert norms[0] > 0.5
    torch.testing.assert_close(norms[1], norms[0])
    torch.testing.assert_close(gradients[1], gradients[0])


PARTITION = {"objective": {"partition": 9}}
SHORTLIST = {"objective": {"shortlist": {"samples": 3}}}
NOISE = {"objective": {"contrast": {"type": "nce", "samples": 3}}}


@pytest.mark.parametrize("tables", [SHORTLIST, NOISE], ids=["shortlist", "noise"])
def test_sparse_and_dense_gradients_give_the_same_run(learn, read_checkpoint, assert_same, monkeypatch, tables):
    training = {"max_updates": 7, "evaluate_every": 3, "clip_norm": 0.5, "batch": {"accumulate": 2, "sentences": 2}}
    learn("sparse", tables, **training)
    with pytest.raises(Interrupted):
        learn("resumed", tables, after=InterruptAt(4), **training)
    learn("resumed", tables, resume=True, **training)
    assert_same("sparse", "resumed")
    monkeypatch.setattr(tasks, "SparseTables", lambda model, **_: SparseTables(model))
    learn("dense", tables, **training)
    sparse_tensors, _ = read_checkpoint("sparse")
    dense_tensors, _ = read_checkpoint("dense")
    assert sparse_tensors.keys() == dense_tensors.keys()
    for key, tensor in sparse_tensors.items():
        torch.testing.assert_close(tensor, dense_tensors[key], rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system cannot reserve disk space")
def test_large_tables_and_moments_are_memory_mapped(learn, assert_same, monkeypatch, tmp_path):
    training = {"max_updates": 5, "evaluate_every": 3, "clip_norm": 0.5}
    learn("memory", PARTITION, **training)
    tensors = []

    def recorded(like, folder):
        tensors.append(mapped_zeros(like, folder))
        assert tensors[-1].shape == like.shape and not tensors[-1].any()
        return tensors[-1]

    monkeypatch.setattr(sparse_tables, "MIN_MAPPED_BYTES", 1)
    monkeypatch.setattr(sparse_tables, "mapped_zeros", recorded)
    learn("files", PARTITION, **training)
    assert_same("memory", "files")
    files = [tensor.untyped_storage().filename for tensor in tensors]
    assert len(files) > 8 and all(Path(name).parent == tmp_path / "files" for name in files)
    assert not [name for name in files if Path(name).exists()]
    with pytest.raises(Interrupted):
        learn("resumed", PARTITION, after=InterruptAt(4), **training)
    learn("resumed", PARTITION, resume=True, **training)
    assert_same("memory", "resumed")


def test_tables_stay_in_memory_on_a_full_disk(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sparse_tables, "MIN_MAPPED_BYTES", 1)
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    copy = sparse_tables.to_mapped(torch.arange(6.0).view(2, 3), tmp_path)
    assert copy.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert copy.untyped_storage().filename is None and not [*tmp_path.iterdir()]


def test_memory_mapped_tables_need_not_fit_into_memory(learn, monkeypatch, tmp_path):
    learn("first", PARTITION, max_updates=1)
    tensors = read_weights(tmp_path / "first" / "model.safetensors")
    monkeypatch.setattr(tasks, "total_memory", lambda: 16 * sum(map(torch.numel, tensors.values())) - 1)
    with pytest.raises(ConfigError, match="must have sizes that fit into memory"):
        learn("memory", PARTITION, max_updates=1)
    monkeypatch.setattr(sparse_tables, "MIN_MAPPED_BYTES", 1)
    learn("files", PARTITION, max_updates=1)


@pytest.mark.parametrize(
    ("tables", "training", "sparse"),
    [
        ({}, {}, None),
        (PARTITION, {}, True),
        (NOISE, {}, True),
        (PARTITION, {"l2": 0.1}, False),
    ],
)
def test_gradients_are_dense_if_an_option_reads_all_rows(learn, monkeypatch, tables, training, sparse):
    requests = []

    def recorded(model=None, sparse=False, folder=None):
        requests.append(None if model is None else sparse)
        return SparseTables(model, sparse, folder)

    monkeypatch.setattr(tasks, "SparseTables", recorded)
    learn("run", tables, max_updates=2, **training)
    assert requests == [sparse]
