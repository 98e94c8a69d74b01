"""An update changes the rows of tables alone that it has read, whatever the optimiser and the gradients' form."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rnnsearch.config import training
from rnnsearch.data.batch import Symbols
from rnnsearch.errors import ConfigError, Interrupted
from rnnsearch.models.layers import Embedding
from rnnsearch.models.outputs import Output
from rnnsearch.training import sparse_tables, tasks
from rnnsearch.training import sparse_tables as tables_of
from rnnsearch.training.optimisers import OPTIMISERS, clip
from rnnsearch.training.sparse_tables import SparseTables, mapped_zeros
from rnnsearch.utils.weights import read_weights
from tests.training.test_optimisers import CASES
from tests.training.test_resume import InterruptAt

V, E = 12, 3
READ = [[1, 4, 4, 9], [2, 4], [9, 1, 5], [4, 5, 9], [1]]
"""Symbols of each update; all others are in none."""
NEVER = [v for v in range(V) if not any(v in ids for ids in READ)]
ALL = [list(range(V))] * 4


class Words(nn.Module):
    """Reads words and scores those it has read."""

    def __init__(self, tied: bool, lexical: int) -> None:
        super().__init__()
        self.embedding = Embedding(V, E)
        self.between = nn.Linear(E, E + lexical)
        self.output = Output(E, V, tied=self.embedding if tied else None, lexical=lexical)

    def backward(self, ids: list[int]) -> None:
        symbols = torch.tensor(ids)
        readout = torch.tanh(self.between(self.embedding(Symbols(symbols))))
        self.output.losses(readout, symbols, 0.1, symbols.unique())[0].backward()
        for parameter in self.parameters():
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()


def words(tied: bool = False, lexical: int = 2) -> Words:
    torch.manual_seed(1)
    model = Words(tied, lexical).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def optimiser_of(name, model):
    settings = CASES[name][1]
    return OPTIMISERS[settings["type"]](list(model.parameters()), training.OPTIMISERS[settings["type"]](**settings))


def trained(name, sparse, tied=False, read=READ):
    model = words(tied)
    tables, optimiser = SparseTables(model, sparse), optimiser_of(name, model)
    for ids in read:
        model.zero_grad()
        model.backward(ids)
        assert model.embedding.weight.grad.is_sparse == sparse
        tables.step(optimiser)
    assert [*model.parameters()] == optimiser.param_groups[0]["params"]
    assert {*optimiser.state} <= {*model.parameters()}
    return dict(model.named_parameters()), optimiser


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("sparse", [False, True], ids=["whole", "sparse"])
@pytest.mark.parametrize("name", CASES)
def test_rows_that_were_read_take_the_papers_step_and_others_none(name, sparse, tied):
    """Each row by itself, with what it remembers, in NumPy."""
    plain, model = CASES[name][0], words(tied)
    expected = {key: p.detach().numpy().copy() for key, p in model.named_parameters()}
    memory = {key: [{} for _ in range(len(w))] for key, w in expected.items()}
    for t, ids in enumerate(READ, 1):
        model.zero_grad()
        model.backward(ids)
        gradients = {key: p.grad.numpy() for key, p in model.named_parameters()}
        for key, w in expected.items():
            every = key.startswith("between")
            for row in range(len(w)) if every else np.flatnonzero(gradients[key].reshape(len(w), -1).any(1)):
                w[row] = plain(w[row], gradients[key][row], memory[key][row], t)
        with torch.no_grad():
            for key, p in model.named_parameters():
                p.copy_(torch.tensor(expected[key]))
    found, optimiser = trained(name, sparse, tied)
    for key, w in expected.items():
        np.testing.assert_allclose(found[key].detach().numpy(), w, rtol=1e-9, atol=1e-12)
    before = dict(words(tied).named_parameters())
    assert NEVER
    for key in ("embedding.weight", "output.bias"):
        assert torch.equal(found[key][NEVER], before[key][NEVER])
        for value in optimiser.state[found[key]].values():
            if value is not None and value.dim():
                assert value.shape == found[key].shape and not value[NEVER].any()


@pytest.mark.parametrize("sparse", [False, True], ids=["whole", "sparse"])
@pytest.mark.parametrize("name", CASES)
def test_where_all_rows_are_read_it_is_the_optimiser(name, sparse):
    found, _ = trained(name, sparse, read=ALL)
    model = words()
    optimiser = optimiser_of(name, model)
    for ids in ALL:
        model.zero_grad()
        model.backward(ids)
        optimiser.step()
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(found[key], parameter, rtol=1e-12, atol=1e-12)


def test_clipping_sees_the_rows():
    norms, gradients = [], []
    for sparse in (False, True):
        model = words()
        SparseTables(model, sparse)
        model.backward(READ[0])
        norms.append(clip(model.parameters(), 0.5, 0.3))
        gradients.append([p.grad.to_dense() for p in model.parameters()])
    assert norms[0] > 0.5
    torch.testing.assert_close(norms[1], norms[0])
    torch.testing.assert_close(gradients[1], gradients[0])


PARTS = {"objective": {"partition": 9}}
NOISE = {"objective": {"contrast": {"type": "nce", "samples": 3}}}


@pytest.mark.parametrize("tables", [PARTS, NOISE], ids=["parts", "noise"])
def test_a_run_is_the_same_by_either_form_and_resumed(learn, standing, assert_same, monkeypatch, tables):
    training = {"max_updates": 7, "evaluate_every": 3, "clip_norm": 0.5, "batch": {"accumulate": 2, "sentences": 2}}
    learn("sparse", tables, **training)
    with pytest.raises(Interrupted):
        learn("resumed", tables, after=InterruptAt(4), **training)
    learn("resumed", tables, resume=True, **training)
    assert_same("sparse", "resumed")
    monkeypatch.setattr(tasks, "SparseTables", lambda model, **_: SparseTables(model))
    learn("whole", tables, **training)
    (one, _), (other, _) = standing("sparse"), standing("whole")
    assert one.keys() == other.keys()
    for key, tensor in one.items():
        torch.testing.assert_close(tensor, other[key], rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="without a way to ask a disk for room")
def test_large_tables_and_their_moments_are_in_files_that_go_with_the_run(learn, assert_same, monkeypatch, tmp_path):
    training = {"max_updates": 5, "evaluate_every": 3, "clip_norm": 0.5}
    learn("memory", PARTS, **training)
    made = []

    def noted(like, folder):
        made.append(mapped_zeros(like, folder))
        assert made[-1].shape == like.shape and not made[-1].any()
        return made[-1]

    monkeypatch.setattr(sparse_tables, "MIN_MAPPED_BYTES", 1)
    monkeypatch.setattr(sparse_tables, "mapped_zeros", noted)
    monkeypatch.setattr(tables_of, "mapped_zeros", noted)
    learn("files", PARTS, **training)
    assert_same("memory", "files")
    files = [tensor.untyped_storage().filename for tensor in made]
    assert len(files) > 8 and all(Path(name).parent == tmp_path / "files" for name in files)
    assert not [name for name in files if Path(name).exists()]
    with pytest.raises(Interrupted):
        learn("resumed", PARTS, after=InterruptAt(4), **training)
    learn("resumed", PARTS, resume=True, **training)
    assert_same("memory", "resumed")


def test_on_a_full_disk_they_are_in_memory(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sparse_tables, "MIN_MAPPED_BYTES", 1)
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    made = sparse_tables.to_mapped(torch.arange(6.0).view(2, 3), tmp_path)
    assert made.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert made.untyped_storage().filename is None and not [*tmp_path.iterdir()]


def test_what_goes_into_files_need_not_fit_the_memory(learn, monkeypatch, tmp_path):
    learn("first", PARTS, max_updates=1)
    tensors = read_weights(tmp_path / "first" / "model.safetensors")
    monkeypatch.setattr(tasks, "machine_memory", lambda: 16 * sum(map(torch.numel, tensors.values())) - 1)
    with pytest.raises(ConfigError, match="must have sizes that fit the memory"):
        learn("memory", PARTS, max_updates=1)
    monkeypatch.setattr(sparse_tables, "MIN_MAPPED_BYTES", 1)
    learn("files", PARTS, max_updates=1)


@pytest.mark.parametrize(
    ("tables", "training", "sparse"),
    [
        ({}, {}, None),
        (PARTS, {}, True),
        (NOISE, {}, True),
        (PARTS, {"l2": 0.1}, False),
    ],
)
def test_gradients_are_whole_where_something_sees_all_rows(learn, monkeypatch, tables, training, sparse):
    asked = []

    def noted(model=None, sparse=False, folder=None):
        asked.append(None if model is None else sparse)
        return SparseTables(model, sparse, folder)

    monkeypatch.setattr(tasks, "SparseTables", noted)
    learn("run", tables, max_updates=2, **training)
    assert asked == [sparse]
