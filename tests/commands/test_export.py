"""`rnnsearch export` of trained models: what goes with a model wherever it goes."""

import json
import shutil
from importlib.util import find_spec

import pytest

from rnnsearch.engine.file import header_of
from rnnsearch.ops.native.library import library
from rnnsearch.systems.card import write_origin, load_origin
from tests.engines import require_web_engine
from tests.runtime.test_runtime import rewritten

KNOWN = {"licence": "CC BY 9.9", "attribution": "The Toy Makers"}
OWING = {"begun from": 'training.begin_from="{}"', "taught by": 'objective.teacher={{folder="{}"}}'}


@pytest.fixture(scope="module")
def licensed(model, tmp_path_factory):
    """A trained model whose corpus has a licence, as those of `rnnsearch data` have."""
    folder = tmp_path_factory.mktemp("licensed") / "run"
    shutil.copytree(model, folder)
    facts = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    facts["data"] |= {"corpus": "en-de-toys", **KNOWN}
    (folder / "training.json").write_text(json.dumps(facts), encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=["trained", "pruned", "pruned twice", "of an ensemble", *OWING])
def made(request, cli, corpus, licensed, tmp_path_factory):
    """The model, models that were made of it, and those that begin or learn from it, on text of one's own."""
    if request.param == "trained":
        return licensed
    root = tmp_path_factory.mktemp("made")
    if request.param in OWING:
        own = [f'folder="{root / "own"}"', f'data.prepared="{root / "data"}"', "training.max_updates=2"]
        assert cli("train", corpus / "run.toml", "--set", *own, OWING[request.param].format(licensed)).code == 0
        return root / "own"
    if request.param == "of an ensemble":
        assert cli("ensemble", licensed, licensed, "-o", root / "both").code == 0
        return root / "both/ensemble/2"
    assert cli("prune", licensed, "-o", root / "once").code == 0
    assert cli("prune", root / "once", "-o", root / "twice", "--share", 0.9).code == 0
    return root / ("once" if request.param == "pruned" else "twice")


@pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")
def test_licence_and_attribution_go_into_an_engine_file(cli, made, tmp_path):
    assert cli("export", made, tmp_path / "m.rnn").code == 0
    assert header_of(tmp_path / "m.rnn")["about"] == KNOWN
    for shown in (cli("inspect", made).out, cli("inspect", tmp_path / "m.rnn").out):
        assert all(text in shown for text in KNOWN.values())


@pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")
@pytest.mark.parametrize("said", [{"about": [1]}, {"about": 3}, {"scores": 3}, {"scores": [{"set": "x"}]}], ids=str)
def test_what_a_file_says_of_itself_may_be_anything(cli, fault, licensed, tmp_path, said):
    assert cli("export", licensed, tmp_path / "m.rnn").code == 0
    whole = (tmp_path / "m.rnn").read_bytes()
    (tmp_path / "m.rnn").write_bytes(rewritten(whole, lambda header: header.update(said)))
    assert "damaged" in fault("inspect", tmp_path / "m.rnn")


def test_and_onto_the_page(cli, made, tmp_path):
    require_web_engine()
    assert cli("export", made, tmp_path / "site", "--format", "web").code == 0
    (row,) = json.loads((tmp_path / "site/models.json").read_text(encoding="utf-8"))
    assert row["about"] == KNOWN


@pytest.mark.skipif(find_spec("onnx") is None, reason="needs onnx: pip install onnx")
def test_and_beside_graphs(cli, made, tmp_path):
    assert cli("export", made, tmp_path / "graphs", "--format", "onnx").code == 0
    assert json.loads((tmp_path / "graphs/model.json").read_text(encoding="utf-8"))["about"] == KNOWN


def test_who_owes_to_several_says_all_each_once(licensed, tmp_path):
    for number, corpus in enumerate(("toys", "games", "toys")):
        (tmp_path / f"{number}").mkdir()
        data = {"corpus": corpus, "licence": "CC BY 9.9", "attribution": f"The makers of {corpus}"}
        (tmp_path / f"{number}/training.json").write_text(json.dumps({"data": data}))
    (tmp_path / "made").mkdir()
    shutil.copyfile(licensed / "training.json", tmp_path / "made/training.json")
    write_origin([tmp_path / f"{number}" for number in range(3)], tmp_path / "made")
    assert load_origin(tmp_path / "made") == {
        "corpus": "en-de-toys; toys; games",
        "licence": "CC BY 9.9",
        "attribution": "The Toy Makers; The makers of toys; The makers of games",
    }


def test_a_foreign_file_in_its_place(fault, made, tmp_path):
    shutil.copytree(made, tmp_path / "m")
    (tmp_path / "m/training.json").unlink(missing_ok=True)
    (tmp_path / "m/origin.json").write_text("[3]")
    wanted = "must be a file written by rnnsearch; got another file (remove it)"
    assert fault("export", tmp_path / "m", tmp_path / "m.rnn") == f"{tmp_path / 'm/origin.json'}: {wanted}"


@pytest.mark.parametrize("form", ["web", "onnx"])
def test_lists_that_are_left_out_are_told_of(cli, model, tmp_path, form):
    if form == "onnx" and find_spec("onnx") is None:
        pytest.skip("needs onnx: pip install onnx")
    if form == "web":
        require_web_engine()
    shutil.copytree(model, tmp_path / "run")
    config = tmp_path / "run/config.toml"
    said = [cli("export", tmp_path / "run", tmp_path / "out", "--format", form).err]
    assert "candidates = 0" in config.read_text()
    config.write_text(config.read_text().replace("candidates = 0", "candidates = 10"))
    said.append(cli("export", tmp_path / "run", tmp_path / "out", "--format", form).err)
    assert ["candidate lists are left out" in one for one in said] == [False, True]
