"""Preparation of corpora: ids, vocabularies, held-out parts and facts."""

import numpy as np
import pytest

from rnnsearch.config import BatchConfig
from rnnsearch.data import preprocess
from rnnsearch.data.batch import Direction
from rnnsearch.data.batches import Batches
from rnnsearch.data.corpora import catalog
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import WORD_COUNTS_FILE, Prepared, read_word_counts
from rnnsearch.errors import DataError
from rnnsearch.text.vocabulary import PAD, UNK
from rnnsearch.text.words import count_words
from tests.data.toys import NUMBERS, PAIRS, ZAHLEN, beside, config, contents, texts, write


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
def test_ids_decode_to_the_text(tmp_path, monkeypatch, text, chunk):
    monkeypatch.setattr(preprocess, "CHUNK_ROWS", chunk)
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
    assert read_word_counts(prepared.folder / WORD_COUNTS_FILE) == count_words(targets)
    assert beside(prepared.folder) == []


@pytest.mark.parametrize("text", [{"type": "words", "vocabulary": 200}, {"type": "bpe", "vocabulary": 400}], ids=str)
def test_normalised_text_has_the_ids_of_clean_text(tmp_path, text):
    noisy_pairs = [(f"\ufeff{source}".replace(" ", "\u00a0"), target.replace(" ", "  ")) for source, target in PAIRS]
    text = text | {"normalize": "standard"}
    results = []
    for name, pairs in (("clean", PAIRS), ("noisy", noisy_pairs)):
        run = config(tmp_path, text, train=[write(tmp_path, name, pairs)], dev_size=0, test_size=0)
        results.append(prepare(run, tmp_path / f"prepared-{name}"))
    clean, noisy = results
    assert texts(noisy) == texts(clean)
    for language, tokenizer in clean.tokenizers.items():
        assert tokenizer.normalization.level == "standard"
        assert tokenizer.json == noisy.tokenizers[language].json
        assert contents(noisy.folder)[f"train.{language}.ids"] == contents(clean.folder)[f"train.{language}.ids"]
    unlike = run.model_copy(update={"text": run.text.model_copy(update={"normalize": "none"})})
    with pytest.raises(DataError, match=r"was prepared with text\.normalize = standard; got none"):
        Prepared.open(noisy.folder, unlike)


@pytest.mark.parametrize("chunk", [7, 10_000])
def test_unknown_words_are_stored(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(preprocess, "CHUNK_ROWS", chunk)
    run = config(tmp_path, {"type": "words", "vocabulary": 9}, train=[write(tmp_path, "train", PAIRS)], dev_size=0)
    prepared = prepare(run, tmp_path / "prepared")
    found, numbers = [], np.arange(len(prepared.train))
    assert prepared.facts["spelled"] == ["en", "de"] and prepared.facts["unknown"]["en"] > 0.2
    for name, tokenizer in prepared.tokenizers.items():
        side = prepared.train.select([name])
        each = zip(side.padded(name, numbers), side.unknown_words(name, numbers), strict=True)
        column = []
        for ids, words in each:
            known = dict(zip(np.flatnonzero(ids == UNK).tolist(), words, strict=True))
            column.append(tokenizer.join_with_offsets(ids[ids != PAD].tolist()[:-1], known).text)
        found.append(column)
    held = [(pair.source, pair.target) for pair in prepared.test]
    assert sorted([*zip(*found, strict=True), *held]) == sorted(PAIRS)
    assert side.unknown_words("de", numbers[5:2:-1]) == side.unknown_words("de", numbers)[5:2:-1]


def test_earlier_prepared_data_are_replaced(tmp_path):
    """Other text and other symbols in the same folder, by the same process."""
    spec = write(tmp_path, "train", PAIRS)
    runs = [config(tmp_path, {"type": "words", "vocabulary": size}, train=[spec], dev_size=10, test_size=12)
            for size in (200, 10, 200)]  # fmt: skip
    alone = [contents(prepare(run, tmp_path / f"{number}").folder) for number, run in enumerate(runs)]
    assert alone[0] != alone[1]
    assert [contents(prepare(run, tmp_path / "same").folder) for run in runs] == alone


def test_preparation_is_deterministic(tmp_path, file_config):
    first = contents(prepare(file_config, tmp_path / "one").folder)
    assert contents(prepare(file_config, tmp_path / "one").folder) == first
    assert contents(prepare(file_config, tmp_path / "two").folder) == first


@pytest.mark.parametrize("aligned", [False, True])
def test_folder_is_equal_for_any_number_of_processes(tmp_path, monkeypatch, aligned):
    """Duplicates within a chunk and over chunks, rejected pairs, a split, a chunk of which nothing is kept."""
    monkeypatch.setattr(preprocess, "CHUNK_ROWS", 9)
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


def test_dev_and_test_files_are_used_unchanged(tmp_path):
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


def test_held_out_part_is_from_files_or_split_off_or_missing(tmp_path):
    train, dev = write(tmp_path, "train", PAIRS), write(tmp_path, "dev", [("new", "neu")])
    prepared = prepare(config(tmp_path, train=[train], dev=dev, test_size=9), tmp_path / "prepared")
    assert [(pair.source, pair.target) for pair in prepared.dev] == [("new", "neu")]
    assert (len(prepared.test), len(prepared.train)) == (9, 91)
    prepared = prepare(config(tmp_path, train=[train], dev_size=0, test_size=0), tmp_path / "none")
    assert (prepared.dev, prepared.test, len(prepared.train)) == ([], [], 100)


def test_languages_have_separate_vocabulary_sizes(tmp_path):
    train = write(tmp_path, "train", PAIRS)
    for sizes, found in (({"vocabulary": 16}, (16, 16)), ({"vocabulary": 16, "target_vocabulary": 12}, (16, 12))):
        run = config(tmp_path, {"type": "words", **sizes}, train=[train], dev_size=5, test_size=5)
        prepared = prepare(run, tmp_path / "prepared")
        assert (len(prepared.source), len(prepared.target)) == found


def test_rows_of_two_of_three_languages_are_kept(tmp_path):
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
    assert everything.count(0) == 1 and sorted(next(everything.epoch(0)).streams) == ["de", "en", "es"]
    pair = Batches(one.train, BatchConfig(sentences=200), None, seed=1, direction=Direction(("en",), "de"))
    [batch] = pair.epoch(0)
    found = [tuple(one.tokenizers[name].join(batch.streams[name].ids[n].tolist()) for name in ("en", "de"))
             for n in range(batch.sentences)]  # fmt: skip
    assert sorted(found) == sorted({*PAIRS} - {(row.source, row.target) for row in one.dev})


def test_pairs_in_other_languages_are_rejected(tmp_path):
    french = ("The one and the ten.", "La maison est grande et le jardin est petit.")
    turned = ("Die kleine Katze sieht den Hund.", "The small cat sees the dog.")
    train = [write(tmp_path, "train", [*PAIRS, french, turned])]
    run = config(tmp_path, train=train, cleaning={"language_id": True}, dev_size=0, test_size=0)
    prepared = prepare(run, tmp_path / "prepared", processes=2)
    assert prepared.report["rejected"]["other language"] == {
        "count": 2,
        "examples": [f"{tmp_path / 'train.en'}:{n}: {' | '.join(row)}" for n, row in ((101, french), (102, turned))],
    }
    assert len(prepared.train) == 100


def test_corpus_in_one_language(tmp_path):
    (tmp_path / "mono.de").write_text("".join(f"{german}\n" for _, german in PAIRS), encoding="utf-8")
    run = config(tmp_path, source=None, train=["mono.de"], dev_size=5, test_size=5)
    prepared = prepare(run, tmp_path / "prepared")
    [batch] = Batches(prepared.train, BatchConfig(sentences=200), None, seed=1).epoch(0)
    assert batch.direction == prepared.direction == Direction((), "de")
    assert batch.sentences == 90 and list(batch.streams) == ["de"]


DOCUMENTS = [[(f"The {a} in {n}.", f"Die {b} in {n}.") for a, b in zip(NUMBERS, ZAHLEN, strict=True)][: 1 + n % 5]
             for n in range(30)]  # fmt: skip


@pytest.mark.parametrize("chunk", [3, 1000])
def test_documents_stay_whole_and_rows_have_their_numbers(tmp_path, monkeypatch, chunk):
    """A repeated sentence stays in another document, a repeated document goes, a rejected row leaves a gap."""
    monkeypatch.setattr(preprocess, "CHUNK_ROWS", chunk)
    long = ("w " * 200, "v")
    documents = [*DOCUMENTS, DOCUMENTS[7], [DOCUMENTS[0][0], long, ("new", "neu")]]
    rows = [row for document in documents for row in [*document, ("", "")]]
    test_rows = [row for document in DOCUMENTS[2:4] for row in [*document, ("", "")]]
    run = config(tmp_path, train=[write(tmp_path, "train", rows)], documents=True, dev_size=9,
                 test=write(tmp_path, "test", test_rows))  # fmt: skip
    one, two = (prepare(run, tmp_path / str(n), processes=n) for n in (1, 2))
    assert contents(one.folder) == contents(two.folder)
    assert (one.report["read"], one.report["rejected"]["duplicate"]["count"]) == (96, 3)
    found: dict[int, dict[int, tuple[str, str]]] = {}
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


def test_links_of_documents_have_one_line_per_row(tmp_path):
    rows = [row for document in DOCUMENTS for row in [*document, ("", "")]]
    train = write(tmp_path, "train", rows)
    (tmp_path / "train.align").write_text("".join("0-0 1-1\n" if source else "\n" for source, _ in rows))
    run = config(tmp_path, train=[train], alignments=["train.align"], documents=True, dev_size=9, test_size=5)
    prepared = prepare(run, tmp_path / "prepared")
    for part, held in (("dev", prepared.dev), ("test", prepared.test)):
        links = prepared.links(part)
        assert [sorted(one.sure) for one in links] == [[(0, 0), (1, 1)]] * len(held)


def test_vocabulary_depends_only_on_the_cleaned_training_text(tmp_path):
    rejected = [("rejected " * 200, "abgelehnt")]
    run = config(
        tmp_path,
        train=[write(tmp_path, "train", [*PAIRS, *rejected])],
        dev=write(tmp_path, "dev", [("unseen", "ungesehen")]),
        test_size=0,
    )
    prepared = prepare(run, tmp_path / "prepared")
    assert "one" in " ".join(prepared.source.tokens())
    assert not {"rejected", "unseen"} & {symbol.strip("▁") for symbol in prepared.source.tokens()}
    assert prepared.report["rejected"]["too long"]["count"] == 1
    assert "abgelehnt" in prepared.report["rejected"]["too long"]["examples"][0]
    assert prepared.facts["cleaning"]["rejected"] == {"too long": {"count": 1}}
    assert "abgelehnt" not in str(prepared.facts), "the facts travel with a model, the text does not"


def test_rate_of_unknown_words_is_reported(tmp_path):
    train = write(tmp_path, "train", [("a a a a a", "x"), ("a a a b", "x x")])
    run = config(tmp_path, {"type": "words", "vocabulary": 10, "min_count": 2}, train=[train], dev_size=0, test_size=0)
    prepared = prepare(run, tmp_path / "prepared")
    assert prepared.facts["unknown"] == prepared.unknown == {"en": 1 / 9, "de": 0.0}
    dev = write(tmp_path, "dev", [("a b", "x y z"), ("c a", "x")])
    text = {"type": "words", "vocabulary": 10, "min_count": 2}
    run = config(tmp_path, text, train=[train], dev=dev, test_size=0)
    assert prepare(run, tmp_path / "with-dev").unknown == {"en": 0.5, "de": 0.5}


def test_listed_corpus_has_split_licence_and_alignments(tmp_path, monkeypatch):
    corpus = catalog.CORPORA["bible-grc-en"]
    folder = tmp_path / "cache"
    folder.mkdir()
    for part, pairs in (("train", PAIRS[:80]), ("dev", PAIRS[80:90]), ("test", PAIRS[90:])):
        write(folder, part, pairs)
        (folder / f"{part}.de").rename(folder / f"{part}.grc")
        links = [*(f"{n % 4}-{n % 3}\n" for n in range(len(pairs) - 1)), "0p0\n"]
        (folder / f"{part}.align").write_text("".join(links))
    monkeypatch.setattr(catalog, "get", lambda name, *_: {"bible-grc-en": folder}[name])
    run = config(tmp_path, source="grc", target="en", corpus="bible-grc-en")
    prepared = prepare(run, tmp_path / "prepared")
    assert [(pair.target, pair.source) for pair in prepared.test] == PAIRS[90:]
    assert prepared.facts["corpus"] == "bible-grc-en"
    assert prepared.facts["licence"] == corpus.licence
    assert prepared.facts["attribution"] == corpus.attribution
    assert (prepared.folder / "test.align").read_text() == "".join(links)
    assert [prepared.train.links.row(n).tolist() for n in (6, 7)] == [[[2, 0]], [[3, 1]]]


def test_ids_are_memory_mapped(tmp_path, file_config):
    prepared = prepare(file_config, tmp_path / "prepared")
    assert isinstance(prepared.train._streams["en"].flat, np.memmap)
    assert prepared.facts["dtypes"] == {"en": "<u2", "de": "<u2"}
