"""`rnnsearch export`: licence and attribution are part of every export."""

import json
import shutil
from importlib.util import find_spec

import pytest

from rnnsearch.engine.file import read_header
from rnnsearch.ops.native.library import library
from rnnsearch.systems.card import load_origin, write_origin
from tests.engines import require_web_engine
from tests.runtime.test_runtime import with_changed_header

ORIGIN = {"licence": "CC BY 9.9", "attribution": "The Toy Makers"}
DERIVING_SETTINGS = {"begun from": 'training.begin_from="{}"', "taught by": 'objective.teacher={{folder="{}"}}'}


@pytest.fixture(scope="module")
def licensed(model, tmp_path_factory):
    """Return a trained model whose corpus has a licence, like those of `rnnsearch data`."""
    folder = tmp_path_factory.mktemp("licensed") / "run"
    shutil.copytree(model, folder)
    facts = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    facts["data"] |= {"corpus": "en-de-toys", **ORIGIN}
    (folder / "training.json").write_text(json.dumps(facts), encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=["trained", "pruned", "pruned twice", "of an ensemble", *DERIVING_SETTINGS])
def exported_model(request, cli, corpus, licensed, tmp_path_factory):
    """Return the licensed model, or a model derived from it."""
    if request.param == "trained":
        return licensed
    root = tmp_path_factory.mktemp("exported_model")
    if request.param in DERIVING_SETTINGS:
        settings = [f'folder="{root / "derived"}"', f'data.prepared="{root / "data"}"', "training.max_updates=2"]
        assert (
            cli(
                "train", corpus / "run.toml", "--set", *settings, DERIVING_SETTINGS[request.param].format(licensed)
            ).code
            == 0
        )
        return root / "derived"
    if request.param == "of an ensemble":
        assert cli("ensemble", licensed, licensed, "-o", root / "both").code == 0
        return root / "both/ensemble/2"
    assert cli("prune", licensed, "-o", root / "once").code == 0
    assert cli("prune", root / "once", "-o", root / "twice", "--share", 0.9).code == 0
    return root / ("once" if request.param == "pruned" else "twice")


@pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")
def test_engine_file_contains_licence_and_attribution(cli, exported_model, tmp_path):
    assert cli("export", exported_model, tmp_path / "m.rnn").code == 0
    assert read_header(tmp_path / "m.rnn")["about"] == ORIGIN
    for shown in (cli("inspect", exported_model).out, cli("inspect", tmp_path / "m.rnn").out):
        assert all(text in shown for text in ORIGIN.values())


@pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")
@pytest.mark.parametrize("header", [{"about": [1]}, {"about": 3}, {"scores": 3}, {"scores": [{"set": "x"}]}], ids=str)
def test_wrong_types_in_the_header_are_an_error(cli, user_error, licensed, tmp_path, header):
    assert cli("export", licensed, tmp_path / "m.rnn").code == 0
    content = (tmp_path / "m.rnn").read_bytes()
    (tmp_path / "m.rnn").write_bytes(with_changed_header(content, lambda old: old.update(header)))
    assert "damaged" in user_error("inspect", tmp_path / "m.rnn")


def test_web_page_contains_licence_and_attribution(cli, exported_model, tmp_path):
    require_web_engine()
    assert cli("export", exported_model, tmp_path / "site", "--format", "web").code == 0
    (row,) = json.loads((tmp_path / "site/models.json").read_text(encoding="utf-8"))
    assert row["about"] == ORIGIN


@pytest.mark.skipif(find_spec("onnx") is None, reason="needs onnx: pip install onnx")
def test_onnx_export_contains_licence_and_attribution(cli, exported_model, tmp_path):
    assert cli("export", exported_model, tmp_path / "graphs", "--format", "onnx").code == 0
    assert json.loads((tmp_path / "graphs/model.json").read_text(encoding="utf-8"))["about"] == ORIGIN


def test_attributions_are_merged_without_duplicates(licensed, tmp_path):
    for number, corpus in enumerate(("toys", "games", "toys")):
        (tmp_path / f"{number}").mkdir()
        data = {"corpus": corpus, "licence": "CC BY 9.9", "attribution": f"The makers of {corpus}"}
        (tmp_path / f"{number}/training.json").write_text(json.dumps({"data": data}))
    (tmp_path / "merged").mkdir()
    shutil.copyfile(licensed / "training.json", tmp_path / "merged/training.json")
    write_origin([tmp_path / f"{number}" for number in range(3)], tmp_path / "merged")
    assert load_origin(tmp_path / "merged") == {
        "corpus": "en-de-toys; toys; games",
        "licence": "CC BY 9.9",
        "attribution": "The Toy Makers; The makers of toys; The makers of games",
    }


def test_foreign_origin_file_is_an_error(user_error, exported_model, tmp_path):
    shutil.copytree(exported_model, tmp_path / "m")
    (tmp_path / "m/training.json").unlink(missing_ok=True)
    (tmp_path / "m/origin.json").write_text("[3]")
    message = "must be a file written by rnnsearch; got another file (remove it)"
    assert user_error("export", tmp_path / "m", tmp_path / "m.rnn") == f"{tmp_path / 'm/origin.json'}: {message}"


@pytest.mark.parametrize("form", ["web", "onnx"])
def test_missing_candidate_lists_are_reported(cli, model, tmp_path, form):
    if form == "onnx" and find_spec("onnx") is None:
        pytest.skip("needs onnx: pip install onnx")
    if form == "web":
        require_web_engine()
    shutil.copytree(model, tmp_path / "run")
    config = tmp_path / "run/config.toml"
    errors = [cli("export", tmp_path / "run", tmp_path / "out", "--format", form).err]
    assert "candidates = 0" in config.read_text()
    config.write_text(config.read_text().replace("candidates = 0", "candidates = 10"))
    errors.append(cli("export", tmp_path / "run", tmp_path / "out", "--format", form).err)
    assert ["candidate lists are not exported" in error for error in errors] == [False, True]
