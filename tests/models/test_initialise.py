"""Parameters are initialised as in the papers (Bahdanau et al. 2015, appendix B.1)."""

import pytest
import torch

from rnnsearch.config import preset, resolve
from rnnsearch.config.outputs import INITS as OPTIONS
from rnnsearch.config.outputs import GlorotOptions, UniformOptions
from rnnsearch.models.cells import CELLS
from rnnsearch.models.layers import INITS, biases, generator
from rnnsearch.systems.translation import build

DATA = {"source": "en", "target": "fr", "corpus": "x"}


def model_of(name, encoder="bidirectional", cell="gru", decoder="bahdanau"):
    """Return a preset's model with 80 units, initialised from seed 1."""
    settings = {
        "embedding": 60,
        "encoder": {"type": encoder, "cell": cell, "size": 80},
        "decoder": {"type": decoder, "cell": cell, "size": 80, "maxout": 30},
    }
    tables = preset(name)
    model = {**tables["model"], **settings}
    if "attention" in model:
        model["attention"]["size"] = 80
    if decoder == "cho":
        del model["decoder"]["cell"]
    config = resolve({**tables, "data": DATA, "model": model})
    return build(config.model, 200, 210, seed=1)


def assert_orthogonal(block):
    torch.testing.assert_close(block @ block.T, torch.eye(len(block)), atol=1e-5, rtol=0)


def spread(weight):
    """Return the standard deviation around zero."""
    return weight.detach().square().mean().sqrt().item()


def test_rnnsearch_is_initialised_as_in_the_paper():
    model = model_of("rnnsearch-30")
    own = dict(model.named_parameters())
    recurrent = {name for name in own if ".recurrent" in name}
    assert len(recurrent) == 6
    for name in recurrent:
        for block in own[name].split(80):
            assert_orthogonal(block)
    score = model.decoder.attention.score
    assert spread(score.query.weight) == pytest.approx(0.001, rel=0.05)
    assert spread(score.key.weight) == pytest.approx(0.001, rel=0.05)
    assert not score.vector.any()
    rest = own.keys() - recurrent - {f"decoder.attention.score.{k}" for k in ("query.weight", "key.weight", "vector")}
    for name in sorted(rest):
        if name.endswith("bias"):
            assert not own[name].any(), name
        else:
            assert spread(own[name]) == pytest.approx(0.01, rel=0.06), name
            assert own[name].detach().abs().max() > 0.025, name  # a uniform distribution has no tails


@pytest.mark.parametrize(("cell", "decoder"), [*((cell, "rnnencdec") for cell in CELLS), ("cho-gru", "cho")])
def test_each_recurrent_matrix_is_orthogonal(cell, decoder):
    model = model_of("rnnencdec-30", "unidirectional", cell, decoder)
    matrices = [p for n, p in model.named_parameters() if ".recurrent" in n and p.ndim == 2]
    assert sum(len(p) // 80 for p in matrices) == 2 * CELLS[cell].blocks * CELLS[cell].component.has_recurrent_product
    for matrix in matrices:
        for block in matrix.split(80):
            assert_orthogonal(block)
    assert all(not p.any() for n, p in model.named_parameters() if n.endswith("bias"))


@pytest.mark.parametrize("name", INITS)
def test_initial_weights_depend_on_the_seed(name):
    def drawn(seed):
        kind = OPTIONS[name]
        scales = {key: 0.1 for key in kind.option_fields() if key not in ("recurrent", "biases")}
        init = INITS[name](kind(**scales), generator(seed))
        tensors = [torch.empty(4, 3), torch.empty(5, 3), torch.empty(8, 4), torch.empty(4, 4)]
        for draw, tensor in zip((init.weight, init.embedding, init.recurrent, init.alignment), tensors, strict=True):
            draw(tensor)
        return tensors

    first, again, other = drawn(1), drawn(1), drawn(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_luong_and_sutskever_parameters_are_uniform():
    for name, scale in (("luong-base-small", 0.1), ("sutskever-2014-small", 0.08)):
        tables = preset(name) | {"data": DATA}
        paper = preset(name.removesuffix("-small"))["model"]["init"]
        config = resolve({**tables, "model": {**tables["model"], "init": paper}})
        model = build(config.model, 60, 50, seed=1)
        zeros = biases(model) if paper["biases"] == "none" else set()
        for path, parameter in model.named_parameters():
            most = parameter.detach().abs().max().item()
            assert most == 0.0 if parameter in zeros else 0.5 * scale < most < 1.001 * scale, path


def test_uniform_and_glorot_stay_within_their_bounds():
    weight = torch.empty(100, 50)
    uniform = INITS["uniform"](UniformOptions(scale=0.08, recurrent="same"), generator(1))
    for draw in (uniform.weight, uniform.recurrent):
        draw(weight)
        assert 0.079 < weight.abs().max() <= 0.08
    INITS["glorot"](GlorotOptions(), generator(1)).weight(weight)
    assert 0.199 < weight.abs().max() <= 0.2  # sqrt(6 / 150)
    INITS["glorot"](GlorotOptions(), generator(1)).embedding(weight)
    assert weight.norm(dim=1).mean().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("kind", OPTIONS)
def test_noise_scale_does_not_depend_on_the_initialiser(kind):
    scales = {"normal": {"scale": 0.01, "alignment_scale": 0.001}, "uniform": {"scale": 0.3}}
    model = {
        "embedding": 20,
        "encoder": {"type": "bidirectional", "cell": "gru", "size": 40},
        "attention": {"score": "additive", "size": 9},
        "decoder": {"type": "memdec", "cell": "gru", "size": 40, "maxout": 30, "slots": 8, "slot_size": 50},
        "init": {"type": kind, **scales.get(kind, {})},
    }
    made = build(resolve({**preset("rnnsearch-50"), "data": DATA, "model": model}).model, 60, 50, seed=1)
    assert 0.09 < spread(made.decoder.noise) < 0.11
