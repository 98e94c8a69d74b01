"""Errors of preparing and of opening prepared data; earlier data survive a failure."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rnnsearch.config import resolve
from rnnsearch.data import preprocess
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.data.preprocess import CleanedText
from rnnsearch.errors import ConfigError, DataError, RnnsearchError
from tests.data.toys import PAIRS, beside, config, contents, write


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train": ["blank.en|blank.de"]}, "^no sentence pair is left for training in blank.en.blank.de: 2 of 2 pairs "
         "left out: 2 empty$"),
        ({"train": ["none.en|none.de"]}, "^the training text must have at least one line; got none in none"),
        ({"dev_size": 60, "test_size": 60}, "60 dev, 60 test and some training pairs; got 100 pairs"),
        ({"dev": "nowhere.en|nowhere.de"}, r"nowhere\.en: no such file"),
        ({"alignments": ["nowhere.align"]}, r"nowhere\.align: no such file"),
        ({"dev": "none.en|none.de"}, r"none\.en\|none\.de: must hold dev sentence pairs; got none"),
        ({"dev": "bad.en|bad.de"}, r"bad\.en:2: every dev pair must be usable; got invalid UTF-8"),
    ],
)  # fmt: skip
def test_invalid_corpora_are_rejected(tmp_path, data, message):
    for name, pairs in {"train": PAIRS, "blank": [("", "x"), ("y", "")], "none": []}.items():
        write(tmp_path, name, pairs)
    (tmp_path / "bad.en").write_bytes(b"fine\nbad \xff\n")
    (tmp_path / "bad.de").write_bytes(b"gut\nschlecht\n")
    with pytest.raises(DataError, match=message):
        prepare(config(tmp_path, **{"train": ["train.en|train.de"], **data}), tmp_path / "prepared")
    assert not (tmp_path / "prepared").exists()
    assert beside(tmp_path / "prepared") == []


def test_error_of_a_process_is_raised_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(preprocess, "CHUNK_ROWS", 9)
    spec = write(tmp_path, "train", PAIRS)
    (tmp_path / "train.align").write_text("0-0\n" * 98 + "0-99\n0-0\n")
    run = config(tmp_path, train=[spec], alignments=["train.align"], dev_size=0, test_size=0)
    with pytest.raises(DataError, match=r"train\.align:99: "):
        prepare(run, tmp_path / "prepared", processes=2)
    assert not (tmp_path / "prepared").exists()
    assert beside(tmp_path / "prepared") == []


def test_unidentifiable_languages_are_named(tmp_path):
    run = config(tmp_path, target="tlh", train=["no.en|no.tlh"], cleaning={"language_id": True})
    with pytest.raises(ConfigError, match=r'must be for languages that can be identified; got "tlh"$'):
        prepare(run, tmp_path / "prepared")


def test_languages_must_match_the_listed_corpus(tmp_path):
    run = config(tmp_path, source="de", target="en", corpus="tatoeba-en-de")
    with pytest.raises(ConfigError) as error:
        prepare(run, tmp_path / "prepared")
    assert str(error.value) == (
        'data.source, data.target: must be "en" and "de", the languages of tatoeba-en-de; got "de" and "en" '
        '(did you mean "tatoeba-de-en"?)'
    )


def test_empty_list_of_files_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"^data\.train: must name at least one file; got none$"):
        prepare(config(tmp_path, train=[]), tmp_path / "prepared")


def test_joint_words_are_rejected(tmp_path):
    run = config(tmp_path, {"type": "words", "joint": True}, train=["train.tsv"])
    with pytest.raises(ConfigError, match=r"text.joint: has no effect"):
        prepare(run, tmp_path / "prepared")


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_failure_keeps_earlier_prepared_data(tmp_path, file_config, monkeypatch, failure):
    folder = prepare(file_config, tmp_path / "prepared").folder
    before = contents(folder)

    spans = CleanedText.chunks

    def fail(self: CleanedText, parts: Any) -> Iterator[Any]:
        yield from spans(self, parts)
        raise failure

    monkeypatch.setattr(CleanedText, "chunks", fail)
    full = "prepared: cannot be written: No space left on device"
    with pytest.raises((KeyboardInterrupt, RnnsearchError), match=full if isinstance(failure, OSError) else None):
        prepare(file_config, folder)
    assert contents(folder) == before
    assert beside(folder) == []


def test_other_folders_are_never_replaced(tmp_path, file_config):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("work")
    with pytest.raises(DataError, match="must be a new folder or one of prepared data; got one with other files"):
        prepare(file_config, tmp_path / "mine")
    assert contents(tmp_path / "mine") == {"thesis.txt": b"work"}


def test_open_rejects_missing_foreign_and_truncated_folders(tmp_path, file_config):
    with pytest.raises(DataError, match="nowhere: no such folder of prepared data"):
        Prepared.open(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"must be a folder of prepared data; got one without prepared\.json"):
        Prepared.open(tmp_path)
    folder = prepare(file_config, tmp_path / "prepared").folder
    facts = folder / "prepared.json"
    whole, ids = facts.read_text(encoding="utf-8"), folder / "train.en.ids"
    for broken in (whole[:50], "[1]", "{}", '{"format": 1}'):
        facts.write_text(broken, encoding="utf-8")
        with pytest.raises(DataError, match="must describe prepared data; got a truncated or foreign file"):
            Prepared.open(folder)
    facts.write_text(json.dumps(json.loads(whole) | {"format": 99}), encoding="utf-8")
    with pytest.raises(DataError, match=r"must have format 2.*got 99"):
        Prepared.open(folder)
    facts.write_text(whole, encoding="utf-8")
    size = ids.stat().st_size
    ids.write_bytes(ids.read_bytes()[:-2])
    with pytest.raises(DataError, match=rf"train\.en\.ids: must have {size} bytes; got {size - 2}"):
        Prepared.open(folder)
    ids.unlink()
    with pytest.raises(DataError, match="got no such file"):
        Prepared.open(folder)


def test_open_rejects_other_settings_and_changed_files(tmp_path, file_config):
    folder = prepare(file_config, tmp_path / "prepared").folder
    assert Prepared.open(folder, file_config).facts["pairs"] == 80
    tables = file_config.model_dump(exclude_none=True)
    tables["text"]["vocabulary"] = 300
    with pytest.raises(DataError, match=r"was prepared with text\.vocabulary = 200; got 300 \(prepare the corpus"):
        Prepared.open(folder, resolve(tables, base=tmp_path))
    tables["text"] |= {"vocabulary": 200, "target_vocabulary": 12}
    with pytest.raises(DataError, match="target_vocabulary"):
        Prepared.open(folder, resolve(tables, base=tmp_path))
    del tables["text"]["target_vocabulary"]
    tables["training"]["seed"] = 7
    tables["data"]["prepared"] = "elsewhere"
    assert Prepared.open(folder, resolve(tables, base=tmp_path)).facts["pairs"] == 80
    (tmp_path / "train.en").write_text("changed\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"train\.en has changed since it was prepared"):
        Prepared.open(folder, file_config)
    (tmp_path / "train.en").unlink()
    assert Prepared.open(folder, file_config).facts["pairs"] == 80
