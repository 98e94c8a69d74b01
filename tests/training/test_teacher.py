"""`[objective.teacher]`: such a run goes on bit for bit, is read back without its teacher, says what does not fit."""

import shutil

import pytest
import torch

from rnnsearch.config import merge
from rnnsearch.data.prepare import prepare
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.systems.folder import load_system
from rnnsearch.training.run import check
from tests.training.toys import MODEL, PLAIN


@pytest.fixture
def teacher(learn, tmp_path):
    """The folder of one of another size."""
    learn("teacher", {"model": {**MODEL, "decoder": {**MODEL["decoder"], "size": 7}}}, max_updates=2)
    return tmp_path / "teacher"


def tables(folder, **others):
    return {"objective": {"teacher": {"folder": str(folder), **others}}}


def test_it_trains_goes_on_and_is_read_back(learn, teacher, standing, tmp_path):
    before = {name: tensor.clone() for name, tensor in load_system(teacher).model.state_dict().items()}
    told = learn("whole", tables(teacher), max_updates=5)
    learn("parts", tables(teacher), max_updates=3)
    learn("parts", tables(teacher), max_updates=5, resume=True)
    whole, parts = standing("whole")[0], standing("parts")[0]
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())
    alone = learn("alone", max_updates=5)
    assert told.updates[0]["nll_per_word"] == pytest.approx(alone.updates[0]["nll_per_word"]), "of the reference"
    assert told.updates[4]["nll_per_word"] != alone.updates[4]["nll_per_word"]
    for name, tensor in load_system(teacher).model.state_dict().items():
        assert torch.equal(tensor, before[name])
    shutil.rmtree(teacher)
    system = load_system(tmp_path / "whole")
    assert {*system.model.state_dict()} == {*load_system(tmp_path / "alone").model.state_dict()}
    with pytest.raises(
        ModelError, match=r"teacher: there is no such model folder; training needs the teacher until it ends \(obj"
    ):
        learn("parts", tables(teacher), max_updates=6, resume=True)


def test_a_copy_of_its_teacher_stays_as_it_is(learn, tmp_path):
    learn("copy", {**PLAIN, "training": {"optimiser": {"type": "sgd", "learning_rate": 0.5}}}, max_updates=2)
    begun = {"begin_from": str(tmp_path / "copy"), "optimiser": {"type": "sgd", "learning_rate": 0.5}}
    learn("student", {**PLAIN, **tables(tmp_path / "copy", weight=1.0), "training": begun}, max_updates=2)
    one, two = (load_system(tmp_path / name).model.state_dict() for name in ("copy", "student"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=1e-5, rtol=0)


def test_what_is_no_teacher_is_refused(learn, teacher, configure, tmp_path):
    few = {"text": {"vocabulary": 9}}
    learn("few", few, data=prepare(configure(few, max_updates=1), tmp_path / "data"), max_updates=1)
    with pytest.raises(ConfigError, match=r"objective.teacher.folder: must have the same tokens in aa"):
        learn(tables=tables(tmp_path / "few"), max_updates=1)
    path = teacher / "config.toml"
    ensemble = '[search.ensemble]\nmembers = ["a"]\nweights = [0.5, 0.5]\nmean = "geometric"\n'
    path.write_text(f"{path.read_text()}\n{ensemble}")
    with pytest.raises(ModelError, match=r"one model that reads and writes only tokens .* got search.ensemble"):
        learn(tables=tables(teacher), max_updates=1)


def test_a_teacher_of_the_other_direction_is_refused(learn, configure, tmp_path):
    joint = {"text": {"type": "bpe", "vocabulary": 260, "joint": True}}
    turned = {**joint, "data": {"source": "bb", "target": "aa", "train": ["train.bb|train.aa"], "dev": "dev.bb|dev.aa"}}
    data = {name: prepare(configure(some, max_updates=1), tmp_path / f"data-{name}")
            for name, some in (("back", turned), ("there", joint))}  # fmt: skip
    learn("back", turned, data=data["back"], max_updates=1)
    with pytest.raises(ConfigError) as error:
        learn("there", {**joint, **tables(tmp_path / "back")}, data=data["there"], max_updates=1)
    told = f"must translate aa to bb, like this run; got bb to aa in {tmp_path / 'back'}"
    assert error.value.faults == [f"objective.teacher.folder: {told}"]


def test_a_teacher_alone_leaves_no_references_to_smooth(configure):
    fault = (
        "training.label_smoothing: has no effect with objective.teacher.weight = 1.0, which ignores the references; "
        "remove it"
    )
    for weight, faults in ((1.0, [fault]), (0.9, [])):
        assert check(configure(tables("x", weight=weight), max_updates=1, label_smoothing=0.1)) == faults


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"objective": {"symmetry": 1.0}}, "objective.symmetry"),
        ({"objective": {"partition": 9}}, "objective.partition"),
        ({"objective": {"contrast": {"type": "nce"}}}, "objective.contrast"),
        ({"model": {"pointer": {"size": 3}}}, "model.pointer"),
        (
            {"data": {"target_only": "null", "train": ["a|b", "|c"]}},
            "data.target_only, because the teacher needs a source",
        ),
    ],
)
def test_what_a_teacher_does_not_go_with(configure, given, what):
    config = configure(merge(tables("x"), given), max_updates=1)
    assert f"objective.teacher: cannot be combined with {what}; remove one" in check(config)
