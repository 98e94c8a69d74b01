"""The aligner in prepared data: when it is learned, from which rows, and its links."""

from dataclasses import replace

import pytest

from rnnsearch.align.aligner import THRESHOLD, Aligner, Pair
from rnnsearch.data import prepare as module
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.data.preprocess import _align_rows
from rnnsearch.text.alignments import Links
from tests.data.toys import config, contents, write

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven"]
ZAHLEN = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben"]


def rows(count=60):
    """Three numbers a sentence, said in the other order there; with their links."""
    chosen = [(n % 7, (n // 7 + n + 1) % 7, (3 * n + 2) % 7) for n in range(count)]
    return [
        (" ".join(NUMBERS[i] for i in own), " ".join(ZAHLEN[i] for i in reversed(own)), "0-2 1-1 2-0")
        for own in dict.fromkeys(chosen)
    ]


def aligned_words(prepared: Prepared, source: str, target: str) -> set[tuple[int, int]]:
    assert prepared.aligner is not None
    return prepared.aligner.links([Pair.from_words(source, target)])[0]


def test_corpus_without_links_gets_an_aligner(tmp_path):
    spec = write(tmp_path, "train", [row[:2] for row in rows()])
    prepared = prepare(config(tmp_path, train=[spec], dev_size=2, test_size=2), tmp_path / "data")
    assert aligned_words(prepared, "six two three", "drei zwei sechs") == {(0, 2), (1, 1), (2, 0)}
    assert not prepared.facts["aligned"]
    assert Prepared.open(tmp_path / "data").aligner is not None


@pytest.mark.parametrize("processes", [1, 2])
def test_links_of_the_aligner_are_stored_on_request(tmp_path, monkeypatch, processes):
    monkeypatch.setattr("rnnsearch.data.preprocess.CHUNK_ROWS", 17)
    monkeypatch.setattr("rnnsearch.align.aligner.MAX_BATCH_SIZE", 40)
    write(tmp_path, "train", rows())
    files = {"train": ["train.en|train.de"], "dev_size": 2, "test_size": 2}
    guided = config(tmp_path, **files, alignments="aligner")
    prepared = prepare(guided, tmp_path / "data", processes=processes)
    by_hand = prepare(config(tmp_path, **files, alignments=["train.align"]), tmp_path / "by-hand")
    assert prepared.facts["aligned"] and prepared.facts["links"] == by_hand.facts["links"] > 0
    found, gold = prepared.train.links, by_hand.train.links
    assert found is not None and gold is not None
    assert [found.row(n).tolist() for n in range(len(found))] == [gold.row(n).tolist() for n in range(len(gold))]
    assert Prepared.open(tmp_path / "data", guided).train.links is not None


def test_row_with_missing_text_has_no_link(tmp_path):
    spec = write(tmp_path, "train", [row[:2] for row in rows()])
    aligner = prepare(config(tmp_path, train=[spec], dev_size=0, test_size=0), tmp_path / "data").folder / "aligner"
    assert _align_rows(Aligner.load(aligner), ["one two", "", "one"], ["", "eins", "eins"]) == ["", "", "0-0"]


def test_aligner_can_be_disabled(tmp_path):
    spec = write(tmp_path, "train", [row[:2] for row in rows()])
    without = config(tmp_path, train=[spec], dev_size=2, test_size=2, aligner=False)
    prepared = prepare(without, tmp_path / "data")
    assert prepared.aligner is None and not (tmp_path / "data" / "aligner").exists()
    with_one = config(tmp_path, train=[spec], dev_size=2, test_size=2)
    assert Prepared.open(tmp_path / "data", with_one).aligner is None, (
        "it has no part in training: the data still serve"
    )


def test_dev_links_determine_the_threshold(tmp_path, monkeypatch):
    asked = []

    def tuned(aligner: Aligner, pairs: list[Pair], gold: list[Links]) -> Aligner:
        asked.append((pairs, gold))
        return replace(aligner, threshold=0.07)

    monkeypatch.setattr(Aligner, "tuned", tuned)
    all_rows = rows()
    write(tmp_path, "train", [row[:2] for row in all_rows[10:]])
    write(tmp_path, "dev", all_rows[:10])
    files = {"train": ["train.en|train.de"], "dev": "dev.en|dev.de", "test_size": 0}
    chosen = prepare(config(tmp_path, **files, dev_alignments="dev.align"), tmp_path / "chosen").aligner
    assert chosen is not None and chosen.threshold == 0.07
    links = frozenset({(0, 2), (1, 1), (2, 0)})
    assert asked == [([Pair.from_words(*row[:2]) for row in all_rows[:10]], [Links(links, links)] * 10)]
    usual = prepare(config(tmp_path, **files), tmp_path / "usual").aligner
    assert usual is not None and usual.threshold == THRESHOLD


@pytest.mark.parametrize("chunk", [7, 1000])
def test_aligner_is_learned_from_evenly_spaced_rows(tmp_path, monkeypatch, chunk):
    learned = []
    monkeypatch.setattr("rnnsearch.data.preprocess.CHUNK_ROWS", chunk)
    monkeypatch.setattr("rnnsearch.align.aligner.MAX_PAIRS", 20)
    original = module.learn_aligner
    monkeypatch.setattr(module, "learn_aligner", lambda s, t, *more: learned.append((s, t)) or original(s, t, *more))
    pairs = [(f"word{n} a", f"wort{n} b") for n in range(58)]
    spec = write(tmp_path, "train", pairs)
    prepare(config(tmp_path, train=[spec], dev_size=0, test_size=0), tmp_path / "data")
    [(sources, targets)] = learned
    assert list(zip(sources, targets, strict=True)) == pairs[::3]


def test_aligner_is_equal_for_any_number_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("rnnsearch.align.aligner.MIN_PARALLEL_CHARACTERS", 0)
    spec = write(tmp_path, "train", [row[:2] for row in rows()])
    run_config = config(tmp_path, train=[spec], dev_size=2, test_size=2)
    one, two = (contents(prepare(run_config, tmp_path / str(n), processes=n).folder / "aligner") for n in (1, 2))
    assert one == two and len(one) >= 3
