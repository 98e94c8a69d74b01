"""Several models on one exported page."""

import json
import shutil

import pytest

from rnnsearch.engine.file import read_header
from rnnsearch.errors import RnnsearchError
from rnnsearch.export.web_page import export_page, file_name
from tests.engines import require_native_code, require_web_engine
from tests.untrained import BAHDANAU, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    require_native_code()
    require_web_engine()
    return write_model(tmp_path_factory.mktemp("models") / "model", BAHDANAU)


def copy_model(model, folder):
    shutil.copytree(model, folder)
    return folder


def model_list(page):
    return json.loads((page / "models.json").read_text(encoding="utf-8"))


def test_names_that_are_not_portable_get_unique_files(model, tmp_path):
    site = tmp_path / "site"
    names = ["модель", "другая", "an other", "an-other", "größe"]
    for name in names:
        export_page(copy_model(model, tmp_path / name), site)
    export_page(tmp_path / names[0], site)
    entries = model_list(site)
    files = {entry["name"]: entry["file"] for entry in entries}
    assert len(entries) == len(names)
    assert set(files) == set(names)
    assert len(set(files.values())) == len(names)
    assert files["an-other"] == "models/an-other.rnn"
    assert all((site / file).is_file() for file in files.values())


def test_export_replaces_only_the_same_model(model, tmp_path):
    site = tmp_path / "site"
    first = copy_model(model, tmp_path / "a/best")
    second = copy_model(model, tmp_path / "b/best")
    export_page(first, site)
    message = r"site: the page already has a model best from another folder; rename the folder .*b/best"
    with pytest.raises(RnnsearchError, match=message):
        export_page(second, site)
    export_page(first, site, "fp32")
    (entry,) = model_list(site)
    assert entry["precision"] == "fp32"
    assert read_header(site / entry["file"])["kind"] == "fp32"
    assert str(tmp_path) not in (site / "models.json").read_text(encoding="utf-8")


def test_page_of_earlier_version_without_origin_is_updated(model, tmp_path):
    site = tmp_path / "site"
    export_page(copy_model(model, tmp_path / "an other"), site)
    (entry,) = model_list(site)
    (site / entry["file"]).rename(site / "models/an-other.rnn")
    del entry["origin"]
    entry["file"] = "models/an-other.rnn"
    (site / "models.json").write_text(json.dumps([entry]))
    with pytest.raises(RnnsearchError, match="already has a model an other from another folder"):
        export_page(copy_model(model, tmp_path / "an-other"), site)
    export_page(tmp_path / "an other", site)
    assert [entry["file"] for entry in model_list(site)] == [f"models/{file_name('an other')}"]
    assert not (site / "models/an-other.rnn").exists()
