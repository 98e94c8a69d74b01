"""`[objective.teacher]`: runs resume bit for bit, models load without their teacher, bad teachers are rejected."""

import shutil

import pytest
import torch

from rnnsearch.config import merge
from rnnsearch.data.prepare import prepare
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.systems.folder import load_system
from rnnsearch.training.run import check
from tests.training.toys import MODEL, WITHOUT_DROPOUT


@pytest.fixture
def teacher(learn, tmp_path):
    """Return the folder of a model with another decoder size."""
    learn("teacher", {"model": {**MODEL, "decoder": {**MODEL["decoder"], "size": 7}}}, max_updates=2)
    return tmp_path / "teacher"


def tables(folder, **options):
    return {"objective": {"teacher": {"folder": str(folder), **options}}}


def test_run_with_teacher_trains_resumes_and_loads_without_it(learn, teacher, read_checkpoint, tmp_path):
    before = {name: tensor.clone() for name, tensor in load_system(teacher).model.state_dict().items()}
    recorder = learn("whole", tables(teacher), max_updates=5)
    learn("parts", tables(teacher), max_updates=3)
    learn("parts", tables(teacher), max_updates=5, resume=True)
    whole, parts = read_checkpoint("whole")[0], read_checkpoint("parts")[0]
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())
    without_teacher = learn("without", max_updates=5)
    assert recorder.updates[0]["nll_per_word"] == pytest.approx(without_teacher.updates[0]["nll_per_word"])
    assert recorder.updates[4]["nll_per_word"] != without_teacher.updates[4]["nll_per_word"]
    for name, tensor in load_system(teacher).model.state_dict().items():
        assert torch.equal(tensor, before[name])
    shutil.rmtree(teacher)
    system = load_system(tmp_path / "whole")
    assert {*system.model.state_dict()} == {*load_system(tmp_path / "without").model.state_dict()}
    with pytest.raises(
        ModelError, match=r"teacher: there is no such model folder; training needs the teacher until it ends \(obj"
    ):
        learn("parts", tables(teacher), max_updates=6, resume=True)


def test_copy_of_its_teacher_does_not_change(learn, tmp_path):
    learn("copy", {**WITHOUT_DROPOUT, "training": {"optimiser": {"type": "sgd", "learning_rate": 0.5}}}, max_updates=2)
    training = {"begin_from": str(tmp_path / "copy"), "optimiser": {"type": "sgd", "learning_rate": 0.5}}
    learn("student", {**WITHOUT_DROPOUT, **tables(tmp_path / "copy", weight=1.0), "training": training}, max_updates=2)
    copy = load_system(tmp_path / "copy").model.state_dict()
    student = load_system(tmp_path / "student").model.state_dict()
    for name, tensor in copy.items():
        torch.testing.assert_close(student[name], tensor, atol=1e-5, rtol=0)


def test_unsuitable_teacher_is_rejected(learn, teacher, configure, tmp_path):
    small_vocabulary = {"text": {"vocabulary": 9}}
    data = prepare(configure(small_vocabulary, max_updates=1), tmp_path / "data")
    learn("small", small_vocabulary, data=data, max_updates=1)
    with pytest.raises(ConfigError, match=r"objective.teacher.folder: must have the same tokens in aa"):
        learn(tables=tables(tmp_path / "small"), max_updates=1)
    path = teacher / "config.toml"
    ensemble = '[search.ensemble]\nmembers = ["a"]\nweights = [0.5, 0.5]\nmean = "geometric"\n'
    path.write_text(f"{path.read_text()}\n{ensemble}")
    with pytest.raises(ModelError, match=r"one model that reads and writes only tokens .* got search.ensemble"):
        learn(tables=tables(teacher), max_updates=1)


def test_teacher_of_other_direction_is_rejected(learn, configure, tmp_path):
    joint = {"text": {"type": "bpe", "vocabulary": 260, "joint": True}}
    reverse = {
        **joint,
        "data": {"source": "bb", "target": "aa", "train": ["train.bb|train.aa"], "dev": "dev.bb|dev.aa"},
    }
    reverse_data = prepare(configure(reverse, max_updates=1), tmp_path / "reverse-data")
    data = prepare(configure(joint, max_updates=1), tmp_path / "data")
    learn("reverse", reverse, data=reverse_data, max_updates=1)
    with pytest.raises(ConfigError) as error:
        learn("forward", {**joint, **tables(tmp_path / "reverse")}, data=data, max_updates=1)
    message = f"must translate aa to bb, like this run; got bb to aa in {tmp_path / 'reverse'}"
    assert error.value.problems == [f"objective.teacher.folder: {message}"]


def test_label_smoothing_has_no_effect_with_teacher_only(configure):
    problem = (
        "training.label_smoothing: has no effect with objective.teacher.weight = 1.0, which ignores the references; "
        "remove it"
    )
    for weight, problems in ((1.0, [problem]), (0.9, [])):
        assert check(configure(tables("x", weight=weight), max_updates=1, label_smoothing=0.1)) == problems


@pytest.mark.parametrize(
    ("options", "conflict"),
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
def test_teacher_rejects_incompatible_options(configure, options, conflict):
    config = configure(merge(tables("x"), options), max_updates=1)
    assert f"objective.teacher: cannot be combined with {conflict}; remove one" in check(config)
