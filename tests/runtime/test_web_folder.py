"""Models of one page: none takes another's place unasked."""

import json
import shutil

import pytest

from rnnsearch.engine.file import header_of
from rnnsearch.errors import RnnsearchError
from rnnsearch.export.web_page import export_page, file_name
from tests.engines import engine_for_browsers, require_native_code
from tests.untrained import BAHDANAU, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    require_native_code()
    engine_for_browsers()
    return write_model(tmp_path_factory.mktemp("models") / "model", BAHDANAU)


def copied(model, folder):
    shutil.copytree(model, folder)
    return folder


def rows(page):
    return json.loads((page / "models.json").read_text(encoding="utf-8"))


def test_names_in_other_letters_have_files_of_their_own(model, tmp_path):
    names = ["модель", "другая", "an other", "an-other", "größe"]
    for name in (*names, names[0]):
        export_page(
            copied(model, tmp_path / name) if not (tmp_path / name).exists() else tmp_path / name, tmp_path / "site"
        )
    made = {row["name"]: row["file"] for row in rows(tmp_path / "site")}
    assert len(rows(tmp_path / "site")) == len(names) and set(made) == set(names)
    assert len(set(made.values())) == len(names) and made["an-other"] == "models/an-other.rnn"
    assert all((tmp_path / "site" / file).is_file() for file in made.values())


def test_a_model_takes_its_own_place_alone(model, tmp_path):
    first, second, site = (tmp_path / name for name in ("a/best", "b/best", "site"))
    export_page(copied(model, first), site)
    copied(model, second)
    with pytest.raises(
        RnnsearchError, match=r"site: has a model best from another folder already: rename the folder .*b/best"
    ):
        export_page(second, site)
    export_page(first, site, "fp32")
    (row,) = rows(site)
    assert (row["precision"], header_of(site / row["file"])["kind"]) == ("fp32", "fp32")
    assert str(tmp_path) not in (site / "models.json").read_text(encoding="utf-8")


def test_a_page_of_before_does_not_say_from_where(model, tmp_path):
    export_page(copied(model, tmp_path / "an other"), tmp_path / "site")
    (row,) = rows(tmp_path / "site")
    (tmp_path / "site" / row["file"]).rename(tmp_path / "site/models/an-other.rnn")
    old = {name: value for name, value in row.items() if name != "origin"} | {"file": "models/an-other.rnn"}
    (tmp_path / "site/models.json").write_text(json.dumps([old]))
    with pytest.raises(RnnsearchError, match="has a model an other from another folder already"):
        export_page(copied(model, tmp_path / "an-other"), tmp_path / "site")
    export_page(tmp_path / "an other", tmp_path / "site")
    assert [row["file"] for row in rows(tmp_path / "site")] == [f"models/{file_name('an other')}"]
    assert not (tmp_path / "site/models/an-other.rnn").exists()
