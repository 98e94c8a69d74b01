"""The aligner in prepared data: when it is learned, from which rows, and its links."""

from dataclasses import replace

import pytest

from rnnsearch.align import aligner
from rnnsearch.align.aligner import LEARNED_THRESHOLDS, Aligner, Pair
from rnnsearch.data import aligner_text
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.data.preprocess import _align_rows
from rnnsearch.errors import DataError
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
    assert usual is not None and usual.relative
    assert LEARNED_THRESHOLDS[0] <= usual.threshold <= LEARNED_THRESHOLDS[1]


@pytest.mark.parametrize("chunk", [7, 1000])
def test_aligner_is_learned_from_evenly_spaced_rows(tmp_path, monkeypatch, chunk):
    learned = []
    monkeypatch.setattr("rnnsearch.data.preprocess.CHUNK_ROWS", chunk)
    monkeypatch.setattr("rnnsearch.align.aligner.MAX_PAIRS", 20)
    original = aligner.learn_from_pairs

    def learn_from_pairs(pairs, normalize):
        learned.extend(pairs)
        return original(learned, normalize)

    monkeypatch.setattr(aligner, "learn_from_pairs", learn_from_pairs)
    pairs = [(f"word{n} a", f"wort{n} b") for n in range(58)]
    spec = write(tmp_path, "train", pairs)
    prepare(config(tmp_path, train=[spec], dev_size=0, test_size=0), tmp_path / "data")
    assert learned == pairs[::3]


def test_aligner_is_equal_for_any_number_of_processes(tmp_path):
    spec = write(tmp_path, "train", [row[:2] for row in rows()])
    run_config = config(tmp_path, train=[spec], dev_size=2, test_size=2)
    one, two = (contents(prepare(run_config, tmp_path / str(n), processes=n).folder / "aligner") for n in (1, 2))
    assert one == two and len(one) >= 3


def contents_and_files(prepared: Prepared) -> tuple[dict[str, bytes], set[str]]:
    return contents(prepared.folder / "aligner"), {path.name for path in prepared.folder.iterdir()}


@pytest.mark.parametrize("links", [{}, {"dev_alignments": "dev.align"}])
def test_aligner_learned_later_equals_one_learned_at_once(tmp_path, links):
    write(tmp_path, "train", rows())
    write(tmp_path, "dev", rows(7))
    files = {"train": ["train.en|train.de"], "dev": "dev.en|dev.de", "test_size": 2, **links}
    at_once = prepare(config(tmp_path, **files), tmp_path / "at-once")
    later = prepare(config(tmp_path, **files), tmp_path / "later", learn_aligner=False)
    assert later.aligner is None and aligner_text.is_pending(later) and not aligner_text.is_pending(at_once)
    assert aligner_text.learn_pending(later) is not None
    assert contents_and_files(later) == contents_and_files(at_once)
    reopened = Prepared.open(tmp_path / "later", config(tmp_path, **files))
    assert reopened.aligner is not None and not aligner_text.is_pending(reopened)


def test_pairs_that_a_killed_process_left_are_removed(tmp_path):
    """Found by tests/stress/kills.py: a run resumed after the aligner was stored kept them forever."""
    write(tmp_path, "train", rows())
    data = prepare(config(tmp_path, train=["train.en|train.de"], dev_size=2), tmp_path / "data", learn_aligner=False)
    pairs = {path: path.read_bytes() for path in aligner_text.paths(data.folder, ["en", "de"])}
    assert not aligner_text.has_learned_pairs(data)
    aligner_text.learn_pending(data)
    for path, content in pairs.items():
        path.write_bytes(content)
    assert aligner_text.has_learned_pairs(data)
    assert aligner_text.learn_pending(data) is not None
    assert not any(path.exists() for path in pairs) and not aligner_text.has_learned_pairs(data)


def test_aligner_that_the_training_text_needs_is_learned_at_once(tmp_path):
    spec = write(tmp_path, "train", [row[:2] for row in rows()])
    guided = config(tmp_path, train=[spec], dev_size=2, test_size=2, alignments="aligner")
    assert prepare(guided, tmp_path / "data", learn_aligner=False).aligner is not None


def test_pending_aligner_of_a_read_only_folder_is_returned(tmp_path, monkeypatch):
    spec = write(tmp_path, "train", [row[:2] for row in rows()])
    later = prepare(config(tmp_path, train=[spec], dev_size=2, test_size=2), tmp_path / "data", learn_aligner=False)

    def replacing(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(aligner_text, "replacing", replacing)
    assert aligner_text.learn_pending(later) is not None
    assert aligner_text.is_pending(later)


def test_damaged_text_of_the_aligner_is_an_error(tmp_path):
    spec = write(tmp_path, "train", [row[:2] for row in rows()])
    later = prepare(config(tmp_path, train=[spec], dev_size=2, test_size=2), tmp_path / "data", learn_aligner=False)
    (tmp_path / "data" / "aligner.de").write_text("eins\n")
    with pytest.raises(DataError, match=r"aligner.de: must have as many lines as .*aligner.en; it ends after line 1"):
        aligner_text.learn_pending(later)
    (tmp_path / "data" / "aligner.de").write_bytes(b"\xff\n")
    with pytest.raises(DataError, match=r"aligner.de: must be UTF-8"):
        aligner_text.learn_pending(later)
