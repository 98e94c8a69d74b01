"""A corpus prepared and opened again: ids that give the text back, what is told of it, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rnnsearch.config import BatchConfig, RunConfig, resolve
from rnnsearch.data import catalog, cleaned
from rnnsearch.data.batches import Batches
from rnnsearch.data.cleaned import CleanedText
from rnnsearch.data.direction import Direction
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.data.word_counts import COUNTS, read_counts
from rnnsearch.errors import ConfigError, DataError, RnnsearchError
from rnnsearch.text.words import count_words

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
ZAHLEN = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]
PAIRS = [(f"The {a} and the {b}.", f"Die {c} und die {d}.") for a, c in zip(NUMBERS, ZAHLEN, strict=True)
         for b, d in zip(NUMBERS, ZAHLEN, strict=True)]  # fmt: skip
MODEL: dict[str, Any] = {
    "embedding": 4,
    "encoder": {"type": "bidirectional", "cell": "gru", "size": 4},
    "decoder": {"type": "bahdanau", "cell": "gru", "size": 4, "maxout": 4},
}


def config(base: Path, text: dict[str, Any] | None = None, **data: Any) -> RunConfig:
    tables = {
        "data": {"source": "en", "target": "de", **data},
        "text": text or {"type": "words", "vocabulary": 200},
        "model": MODEL,
        "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
    }
    return resolve(tables, base=base)


def write(folder: Path, name: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Two files of text; returns their spec."""
    sides = list(zip(*pairs, strict=True)) or [(), ()]
    for language, lines in zip(("en", "de"), sides, strict=True):
        (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return f"{name}.en|{name}.de"


@pytest.fixture
def given(tmp_path: Path) -> RunConfig:
    """A run whose train, dev and test are given."""
    train = write(tmp_path, "train", PAIRS[:80])
    dev = write(tmp_path, "dev", PAIRS[80:90])
    test = write(tmp_path, "test", PAIRS[90:])
    return config(tmp_path, train=[train], dev=dev, test=test)


def texts(prepared: Prepared) -> list[tuple[str, str]]:
    """The training text that the ids give back."""
    pairs = [prepared.train.row(i) for i in range(len(prepared.train))]
    return [(prepared.source.join(s.tolist()), prepared.target.join(t.tolist())) for s, t in pairs]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def beside(folder: Path) -> list[str]:
    """What lies beside a prepared folder that does not belong there."""
    return [path.name for path in folder.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "text",
    [
        {"type": "words", "vocabulary": 200},
        {"type": "bpe", "vocabulary": 400},
        {"type": "bpe", "vocabulary": 500, "joint": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("chunk", [7, 10_000])
def test_ids_give_the_text_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: dict[str, Any], chunk: int
) -> None:
    monkeypatch.setattr(cleaned, "CHUNK", chunk)
    run = config(tmp_path, text, train=[write(tmp_path, "train", PAIRS)], dev_size=10, test_size=12)
    prepared = prepare(run, tmp_path / "prepared")
    held = [(pair.source, pair.target) for part in (prepared.dev, prepared.test) for pair in part]
    assert (len(prepared.dev), len(prepared.test)) == (10, 12)
    assert sorted(texts(prepared) + held) == sorted(PAIRS)
    facts = prepared.facts
    assert facts["pairs"] == len(prepared.train) == 78
    assert facts["symbols"]["en"] == sum(len(prepared.train.row(i)[0]) for i in range(78))
    assert facts["unknown"] == {"en": 0.0, "de": 0.0}
    assert facts["vocabulary"] == {"en": len(prepared.source), "de": len(prepared.target)}
    english, german = ((prepared.folder / f"tokenizer.{side}.json").read_bytes() for side in ("en", "de"))
    assert (english == german) is bool(text.get("joint"))
    assert prepared.train.lengths(np.arange(78))[0].tolist() == [len(prepared.train.row(i)[0]) + 1 for i in range(78)]
    targets = [target for _, target in texts(prepared)]
    assert read_counts(prepared.folder / COUNTS) == count_words(targets)
    assert beside(prepared.folder) == []


def test_what_was_prepared_before_leaves_no_trace(tmp_path: Path) -> None:
    """Other text and other symbols in the same folder, by the same process."""
    spec = write(tmp_path, "train", PAIRS)
    runs = [config(tmp_path, {"type": "words", "vocabulary": size}, train=[spec], dev_size=10, test_size=12)
            for size in (200, 10, 200)]  # fmt: skip
    alone = [contents(prepare(run, tmp_path / f"{number}").folder) for number, run in enumerate(runs)]
    assert alone[0] != alone[1]
    assert [contents(prepare(run, tmp_path / "same").folder) for run in runs] == alone


def test_preparing_twice_gives_the_same_folder(tmp_path: Path, given: RunConfig) -> None:
    first = contents(prepare(given, tmp_path / "one").folder)
    assert contents(prepare(given, tmp_path / "one").folder) == first
    assert contents(prepare(given, tmp_path / "two").folder) == first


@pytest.mark.parametrize("aligned", [False, True])
def test_any_number_of_processes_makes_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aligned: bool
) -> None:
    """Duplicates within a chunk and over chunks, rejected pairs, a split, a chunk of which nothing is kept."""
    monkeypatch.setattr(cleaned, "CHUNK", 9)
    pairs = [*PAIRS[:40], *PAIRS[30:35], *[("", "leer")] * 20, *PAIRS, ("a\tb", "c"), ("bell \x07", "x")]
    spec = write(tmp_path, "train", pairs)
    links = {}
    if aligned:
        (tmp_path / "train.align").write_text("".join(f"{'0-0' * bool(source)}\n" for source, _ in pairs))
        links = {"alignments": ["train.align"]}
    run = config(tmp_path, {"type": "bpe", "vocabulary": 400}, train=[spec], dev_size=7, test_size=5, **links)
    one, three = (prepare(run, tmp_path / str(n), processes=n) for n in (1, 3))
    assert contents(one.folder) == contents(three.folder)
    assert len(one.train) == 89
    assert one.report["rejected"]["duplicate"]["count"] == 45
    assert one.report["rejected"]["duplicate"]["examples"][0].startswith(f"{tmp_path / 'train.en'}:41: The four and")
    assert sorted(texts(one)) == sorted(set(texts(one)))
    assert ("train.links" in contents(one.folder)) is aligned


def test_what_a_process_finds_wrong_is_said_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaned, "CHUNK", 9)
    spec = write(tmp_path, "train", PAIRS)
    (tmp_path / "train.align").write_text("0-0\n" * 98 + "0-99\n0-0\n")
    run = config(tmp_path, train=[spec], alignments=["train.align"], dev_size=0, test_size=0)
    with pytest.raises(DataError, match=r"train\.align:99: "):
        prepare(run, tmp_path / "prepared", processes=2)
    assert not (tmp_path / "prepared").exists()
    assert beside(tmp_path / "prepared") == []


def test_given_dev_and_test_are_kept_as_they_are(tmp_path: Path) -> None:
    odd = [("  spaced  the one.", "U+2028 \u2028 inside"), ("x" * 5, "y " * 300), ("same two", "same two")]
    run = config(
        tmp_path,
        train=[write(tmp_path, "train", PAIRS)],
        dev=write(tmp_path, "dev", [*odd, ("", "empty"), ("empty", " ")]),
        test=write(tmp_path, "test", [("new", "neu"), PAIRS[3], ("new one", PAIRS[4][1])]),
    )
    prepared = prepare(run, tmp_path / "prepared")
    assert [(pair.source, pair.target) for pair in prepared.dev] == odd
    assert texts(prepared) == PAIRS
    assert prepared.warnings == [
        "2 dev pairs with an empty side were left out",
        "2 training pairs share a sentence with test, so scores on test are too good",
    ]


def test_one_given_part_and_one_split_off(tmp_path: Path) -> None:
    dev = write(tmp_path, "dev", [("new", "neu")])
    run = config(tmp_path, train=[write(tmp_path, "train", PAIRS)], dev=dev, test_size=9)
    prepared = prepare(run, tmp_path / "prepared")
    assert [(pair.source, pair.target) for pair in prepared.dev] == [("new", "neu")]
    assert (len(prepared.test), len(prepared.train)) == (9, 91)


def test_without_a_split_there_is_no_dev(tmp_path: Path) -> None:
    run = config(tmp_path, train=[write(tmp_path, "train", PAIRS)], dev_size=0, test_size=0)
    prepared = prepare(run, tmp_path / "prepared")
    assert (prepared.dev, prepared.test, len(prepared.train)) == ([], [], 100)


def test_a_corpus_of_three_languages_keeps_the_rows_that_lack_one(tmp_path: Path) -> None:
    """Bilingual text, rows with all three, text of one language alone; a split has all languages."""
    spanish = [f"El {number} y el otro {n}." for n, number in enumerate(NUMBERS * 10)]
    write(tmp_path, "two", PAIRS[:40])
    (tmp_path / "three.tsv").write_text(
        "".join(f"{en}\t{es}\t{de}\n" for (en, de), es in zip(PAIRS[40:], spanish, strict=False)), encoding="utf-8"
    )
    (tmp_path / "one.es").write_text("Solo esto.\n\n", encoding="utf-8")
    train = ["two.en||two.de", "three.tsv", "|one.es|"]
    run = config(tmp_path, source=["en", "es"], train=train, dev_size=6, test_size=0)
    one, two = (prepare(run, tmp_path / str(n), processes=n) for n in (1, 2))
    assert contents(one.folder) == contents(two.folder)
    assert (one.facts["sides"], one.facts["lacking"]) == (["en", "es", "de"], {"en": 1, "es": 40, "de": 1})
    assert all(all(row.texts) for row in one.dev) and len(one.dev) == 6
    assert one.report["rejected"]["empty"]["count"] == 1
    everything = Batches(one.train, BatchConfig(sentences=200), None, seed=1)
    assert everything.count(0) == 1 and sorted(next(everything.epoch(0)).sides) == ["de", "en", "es"]
    pair = Batches(one.train, BatchConfig(sentences=200), None, seed=1, direction=Direction(("en",), "de"))
    [batch] = pair.epoch(0)
    found = [tuple(one.tokenizers[name].join(batch.sides[name].ids[n].tolist()) for name in ("en", "de"))
             for n in range(batch.sentences)]  # fmt: skip
    assert sorted(found) == sorted({*PAIRS} - {(row.source, row.target) for row in one.dev})


def test_a_corpus_of_one_language(tmp_path: Path) -> None:
    (tmp_path / "mono.de").write_text("".join(f"{german}\n" for _, german in PAIRS), encoding="utf-8")
    run = config(tmp_path, source=None, train=["mono.de"], dev_size=5, test_size=5)
    prepared = prepare(run, tmp_path / "prepared")
    [batch] = Batches(prepared.train, BatchConfig(sentences=200), None, seed=1).epoch(0)
    assert batch.direction == prepared.direction == Direction((), "de")
    assert batch.sentences == 90 and list(batch.sides) == ["de"]


DOCUMENTS = [[(f"The {a} in {n}.", f"Die {b} in {n}.") for a, b in zip(NUMBERS, ZAHLEN, strict=True)][: 1 + n % 5]
             for n in range(30)]  # fmt: skip


@pytest.mark.parametrize("chunk", [3, 1000])
def test_documents_stay_whole_and_every_row_knows_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """A repeated sentence stays in another document, a repeated document goes, a rejected row leaves a gap."""
    monkeypatch.setattr(cleaned, "CHUNK", chunk)
    long = ("w " * 200, "v")
    documents = [*DOCUMENTS, DOCUMENTS[7], [DOCUMENTS[0][0], long, ("new", "neu")]]
    rows = [row for document in documents for row in [*document, ("", "")]]
    given = [row for document in DOCUMENTS[2:4] for row in [*document, ("", "")]]
    run = config(tmp_path, train=[write(tmp_path, "train", rows)], documents=True, dev_size=9,
                 test=write(tmp_path, "test", given))  # fmt: skip
    one, two = (prepare(run, tmp_path / str(n), processes=n) for n in (1, 2))
    assert contents(one.folder) == contents(two.folder)
    assert (one.report["read"], one.report["rejected"]["duplicate"]["count"]) == (96, 3)
    found: dict[int, dict[int, tuple[str, str]]] = {}
    assert one.train.documents is not None
    for row, number, place in zip(texts(one), *one.train.documents, strict=True):
        found.setdefault(int(number), {})[int(place)] = row
    assert list(found) == list(range(len(found)))
    dev: dict[int, list[tuple[str, ...]]] = {}
    for held in one.dev:
        dev.setdefault(held.document, []).append(held.texts)
    whole = [[row for row in document if row is not long] for document in (*DOCUMENTS, documents[-1])]
    assert sorted([[*d.values()] for d in found.values()] + [*dev.values()]) == sorted(whole)
    assert len(one.dev) >= 9
    last = next((d for d in found.values() if ("new", "neu") in d.values()), {0: (), 2: ()})
    assert list(last) == [0, 2], "the place of what was left out stays free"
    assert [row.texts for row in one.test] == DOCUMENTS[2] + DOCUMENTS[3]
    assert (prepare(run, tmp_path / "1").folder / "test.en").read_text().split("\n")[3] == ""


def test_links_of_documents_have_a_line_a_row(tmp_path: Path) -> None:
    rows = [row for document in DOCUMENTS for row in [*document, ("", "")]]
    train = write(tmp_path, "train", rows)
    (tmp_path / "train.align").write_text("".join("0-0 1-1\n" if source else "\n" for source, _ in rows))
    run = config(tmp_path, train=[train], alignments=["train.align"], documents=True, dev_size=9, test_size=5)
    prepared = prepare(run, tmp_path / "prepared")
    for part, held in (("dev", prepared.dev), ("test", prepared.test)):
        links = prepared.links(part)
        assert links is not None
        assert [sorted(one.sure) for one in links] == [[(0, 0), (1, 1)]] * len(held)


def test_the_vocabulary_comes_from_the_cleaned_training_text_alone(tmp_path: Path) -> None:
    rejected = [("rejected " * 200, "abgelehnt")]
    run = config(
        tmp_path,
        train=[write(tmp_path, "train", [*PAIRS, *rejected])],
        dev=write(tmp_path, "dev", [("unseen", "ungesehen")]),
        test_size=0,
    )
    prepared = prepare(run, tmp_path / "prepared")
    assert "one" in " ".join(prepared.source.symbols())
    assert not {"rejected", "unseen"} & {symbol.strip("▁") for symbol in prepared.source.symbols()}
    assert prepared.report["rejected"]["too long"]["count"] == 1
    assert "abgelehnt" in prepared.report["rejected"]["too long"]["examples"][0]
    assert prepared.facts["cleaning"]["rejected"] == {"too long": {"count": 1}}
    assert "abgelehnt" not in str(prepared.facts), "the facts travel with a model, the text does not"


def test_the_share_of_unknown_words_is_told(tmp_path: Path) -> None:
    train = write(tmp_path, "train", [("a a a a a", "x"), ("a a a b", "x x")])
    run = config(tmp_path, {"type": "words", "vocabulary": 10, "min_count": 2}, train=[train], dev_size=0, test_size=0)
    assert prepare(run, tmp_path / "prepared").facts["unknown"] == {"en": 1 / 9, "de": 0.0}


def test_a_listed_corpus_brings_split_licence_and_alignments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = catalog.CORPORA["bible-grc-en"]
    folder = tmp_path / "cache"
    folder.mkdir()
    for part, pairs in (("train", PAIRS[:80]), ("dev", PAIRS[80:90]), ("test", PAIRS[90:])):
        write(folder, part, pairs)
        (folder / f"{part}.de").rename(folder / f"{part}.grc")
        (folder / f"{part}.align").write_text("0-0\n" * (len(pairs) - 1) + "0p0\n")
    monkeypatch.setattr(catalog, "get", lambda name, *_: {"bible-grc-en": folder}[name])
    run = config(tmp_path, source="grc", target="en", corpus="bible-grc-en")
    prepared = prepare(run, tmp_path / "prepared")
    assert [(pair.target, pair.source) for pair in prepared.test] == PAIRS[90:]
    assert prepared.facts["corpus"] == "bible-grc-en"
    assert prepared.facts["licence"] == corpus.licence
    assert prepared.facts["attribution"] == corpus.attribution
    assert (prepared.folder / "test.align").read_text() == "0-0\n" * 9 + "0p0\n"


def test_the_languages_must_be_the_corpus_own(tmp_path: Path) -> None:
    run = config(tmp_path, source="de", target="en", corpus="tatoeba-en-de")
    with pytest.raises(ConfigError) as error:
        prepare(run, tmp_path / "prepared")
    assert str(error.value) == (
        'data.source, data.target: must be "en" and "de", the languages of tatoeba-en-de; got "de" and "en" '
        '(did you mean "tatoeba-de-en"?)'
    )


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([("", "x"), ("y", "")], "no sentence pair is left for training in train.en|train.de: 2 of 2 pairs left "
         "out: 2 empty"),
        ([], "no sentence pair is left for training in train.en|train.de: 0 of 0 pairs left out"),
    ],
)  # fmt: skip
def test_an_empty_corpus_is_refused(tmp_path: Path, train: list[tuple[str, str]], message: str) -> None:
    run = config(tmp_path, train=[write(tmp_path, "train", train)])
    with pytest.raises(DataError) as error:
        prepare(run, tmp_path / "prepared")
    assert str(error.value) == message
    assert not (tmp_path / "prepared").exists()
    assert beside(tmp_path / "prepared") == []


def test_too_few_sentences_to_split_are_refused(tmp_path: Path) -> None:
    run = config(tmp_path, train=[write(tmp_path, "train", PAIRS)], dev_size=60, test_size=60)
    with pytest.raises(DataError, match=r"60 dev, 60 test and some training pairs; got 100 pairs"):
        prepare(run, tmp_path / "prepared")
    assert beside(tmp_path / "prepared") == []


def test_missing_files_are_named_before_anything_is_done(tmp_path: Path) -> None:
    run = config(tmp_path, train=[write(tmp_path, "train", PAIRS)], dev="dev.en|dev.de")
    with pytest.raises(DataError, match=r"dev\.en: no such file"):
        prepare(run, tmp_path / "prepared")


def test_dev_text_must_be_sound_where_training_text_is_counted(tmp_path: Path, given: RunConfig) -> None:
    for name, line in (("train.en", b"bad \xff line\n"), ("train.de", b"zeile\n")):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + line)
    assert prepare(given, tmp_path / "prepared").report["rejected"]["invalid UTF-8"]["count"] == 1
    (tmp_path / "dev.en").write_bytes(b"fine\nbad \xff\n")
    (tmp_path / "dev.de").write_bytes(b"gut\nschlecht\n")
    with pytest.raises(DataError, match=r"dev\.en:2: every dev pair must be usable; got invalid UTF-8"):
        prepare(given, tmp_path / "prepared")


def test_an_empty_dev_file_is_refused(tmp_path: Path) -> None:
    run = config(tmp_path, train=[write(tmp_path, "train", PAIRS)], dev=write(tmp_path, "dev", [("", "")]))
    with pytest.raises(DataError, match=r"dev\.en\|dev\.de: must hold dev sentence pairs; got none"):
        prepare(run, tmp_path / "prepared")


def test_joint_words_are_refused(tmp_path: Path) -> None:
    run = config(tmp_path, {"type": "words", "joint": True}, train=["train.tsv"])
    with pytest.raises(ConfigError, match=r"text.joint: has no effect"):
        prepare(run, tmp_path / "prepared")


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, given: RunConfig, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    folder = prepare(given, tmp_path / "prepared").folder
    before = contents(folder)

    spans = CleanedText.spans

    def fail(self: CleanedText, parts: Any) -> Iterator[Any]:
        yield from spans(self, parts)
        raise failure

    monkeypatch.setattr(CleanedText, "spans", fail)
    full = "prepared: cannot be written: No space left on device"
    with pytest.raises((KeyboardInterrupt, RnnsearchError), match=full if isinstance(failure, OSError) else None):
        prepare(given, folder)
    assert contents(folder) == before
    assert beside(folder) == []


def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path, given: RunConfig) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("work")
    with pytest.raises(DataError, match="must be a new folder or one of prepared data; got one with other files"):
        prepare(given, tmp_path / "mine")
    assert contents(tmp_path / "mine") == {"thesis.txt": b"work"}


def test_opening_refuses_missing_foreign_and_truncated_folders(tmp_path: Path, given: RunConfig) -> None:
    with pytest.raises(DataError, match="nowhere: no such folder of prepared data"):
        Prepared.open(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"must be a folder of prepared data; got one without prepared\.json"):
        Prepared.open(tmp_path)
    folder = prepare(given, tmp_path / "prepared").folder
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


def test_opening_with_other_settings_or_changed_files_is_refused(tmp_path: Path, given: RunConfig) -> None:
    folder = prepare(given, tmp_path / "prepared").folder
    assert Prepared.open(folder, given).facts["pairs"] == 80
    tables = given.model_dump(exclude_none=True)
    tables["text"]["vocabulary"] = 300
    with pytest.raises(DataError, match=r"was prepared with text\.vocabulary = 200; got 300 \(prepare the corpus"):
        Prepared.open(folder, resolve(tables, base=tmp_path))
    tables["text"]["vocabulary"] = 200
    tables["training"]["seed"] = 7
    tables["data"]["prepared"] = "elsewhere"
    assert Prepared.open(folder, resolve(tables, base=tmp_path)).facts["pairs"] == 80
    (tmp_path / "train.en").write_text("changed\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"train\.en has changed since it was prepared"):
        Prepared.open(folder, given)
    (tmp_path / "train.en").unlink()
    assert Prepared.open(folder, given).facts["pairs"] == 80


def test_ids_are_read_from_disk_not_held(tmp_path: Path, given: RunConfig) -> None:
    prepared = prepare(given, tmp_path / "prepared")
    assert isinstance(prepared.train._sides["en"].flat, np.memmap)
    assert prepared.facts["dtypes"] == {"en": "<u2", "de": "<u2"}
