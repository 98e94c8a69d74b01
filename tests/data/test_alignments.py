"""Word alignments from files to batches: reading, checks, cleaning, splitting and links between tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rnnsearch.config import RunConfig
from rnnsearch.data.batches import Batches, make_batch
from rnnsearch.data.corpus import read_rows
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.data.links import links_matrix, ragged_links, strip_links, token_links
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, DataError
from rnnsearch.text.alignments import Links, format_pharaoh, parse_pharaoh
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.words import train_words
from tests.data.toys import config, write

PAIRS = [(f"the {a} house", f"maison {b} la", "0-2 1-1 2-0") for a, b in zip("abcdefgh", "rstuvwxy", strict=True)]


def run(base: Path, **data: Any) -> RunConfig:
    return config(base, **{"train": ["train.en|train.de"], "dev_size": 0, "test_size": 0, **data})


def words_of(prepared: Prepared, index: int) -> list[tuple[str, str]]:
    """The linked symbols of a training pair."""
    source, target = prepared.train.row(index)
    return [
        (prepared.source.token(int(source[s])), prepared.target.token(int(target[t])))
        for s, t in prepared.train.links.row(index)
    ]


def test_links_follow_their_rows_through_cleaning(tmp_path):
    empty, long = ("", "", ""), ("a " * 30, "b", "29-0")
    rows = [empty, PAIRS[0], long, PAIRS[1], PAIRS[1], ("only this", "cela", ""), PAIRS[2]]
    write(tmp_path, "train", rows)
    prepared = prepare(run(tmp_path, alignments=["train.align"]), tmp_path / "data")
    assert prepared.facts["aligned"] and prepared.facts["links"] == 9 and len(prepared.train) == 4
    for index, (a, b) in ((0, "ar"), (1, "bs"), (3, "ct")):
        assert words_of(prepared, index) == [("▁the", "▁la"), (f"▁{a}", f"▁{b}"), ("▁house", "▁maison")]
    assert words_of(prepared, 2) == []
    assert {path.name for path in prepared.folder.iterdir()} == {
        "tokenizer.en.json", "tokenizer.de.json", "prepared.json", "cleaning.json", "train.links", "train.links.ends",
        "train.en.ids", "train.en.ids.ends", "train.de.ids", "train.de.ids.ends", "train.target.words.tsv",
        "train.en.unknown", "train.en.unknown.ends", "train.de.unknown", "train.de.unknown.ends", "aligner",
    }  # fmt: skip


def test_links_are_split_with_their_rows(tmp_path):
    numbers = [(f"{n} w{n} x", f"v{n} y", f"0-0 2-1 {n % 3}-{n % 2}") for n in range(40)]
    write(tmp_path, "train", numbers)
    prepared = prepare(run(tmp_path, alignments=["train.align"], dev_size=5, test_size=4), tmp_path / "data")
    by_text = {source: line for source, _, line in numbers}
    for part, pairs in (("dev", prepared.dev), ("test", prepared.test)):
        found = prepared.links(part)
        assert found is not None and len(found) == len(pairs) > 0
        assert found == [parse_pharaoh(by_text[pair.source], "here") for pair in pairs]
    assert len(prepared.train) == 31


def test_dev_alignments_of_dropped_rows_are_dropped(tmp_path):
    write(tmp_path, "train", PAIRS[:4])
    write(tmp_path, "dev", [("", "x", ""), PAIRS[4], ("y", " ", ""), PAIRS[5]])
    run_config = run(tmp_path, dev="dev.en|dev.de", dev_alignments="dev.align")
    prepared = prepare(run_config, tmp_path / "data")
    assert [format_pharaoh(links) for links in prepared.links("dev") or []] == ["0-2 1-1 2-0"] * 2
    assert prepared.train.links is None and prepared.links("test") is None and not prepared.facts["aligned"]
    (tmp_path / "dev.align").write_text("0-0\n")
    with pytest.raises(DataError, match=r"dev\.align has changed since it was prepared"):
        Prepared.open(prepared.folder, run_config)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("0-2\n0-0\n", r"train\.en and .*train\.align must have the same number of lines; got 3 and 2"),
        ("0-2\n0-0\n\n1-1\n", r"train\.en and .*train\.align must have the same number of lines; got 3 and 4"),
        ("0-2\n0=0\n\n", r'train\.align:2: a link must be i-j, or ipj or i\?j if it is only possible; got "0=0"'),
        ("0-2\n\n0-0 1-3\n", r"train\.align:3: links must lie within 3 source and 3 target words, .*; got 1-3"),
    ],
)  # fmt: skip
def test_invalid_alignments_are_rejected(tmp_path, lines, message):
    write(tmp_path, "train", PAIRS[:3])
    (tmp_path / "train.align").write_text(lines)
    with pytest.raises(DataError, match=message):
        prepare(run(tmp_path, alignments=["train.align"]), tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"alignments": "aligner", "aligner": False}, '`alignments = "aligner"` needs `aligner = true`'),
        ({"alignments": ["a", "b"]}, "alignments: must have one file per file of `train`; got 2 for 1"),
        ({"dev_alignments": "a"}, "dev_alignments: has no effect without `dev`"),
        ({"test_alignments": "a"}, "test_alignments: has no effect without `test`"),
        ({"train": None, "corpus": "bible-grc-en", "alignments": ["a"]}, "alignments: has no effect with `corpus`"),
    ],
)
def test_options_without_effect_are_rejected(tmp_path, data, message):
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, **data)


def test_word_link_connects_all_tokens_of_both_words():
    texts = ["the indivisible whole", "das unteilbare Ganze"]
    bpe, whole = train_bpe(["a b"], 270, 1), train_words([texts[1]], 50, 1)
    [source], [target] = bpe.segment([texts[0]]), whole.segment([texts[1]])
    links = token_links(parse_pharaoh("1-1 0p0", "here"), source, target)
    of_word = [[n for n, (a, b) in enumerate(source.offsets) if start <= a and b <= end and a < b] or [0]
               for start, end in ((0, 3), (4, 15))]  # fmt: skip
    assert len(of_word[1]) > 5
    assert {(s, t) for s, t in links if t == 1} >= {(s, 1) for s in of_word[1]}
    assert all(source.offsets[s][1] <= 15 for s, _ in links)
    assert {t for _, t in links} == {0, 1}


@pytest.mark.parametrize(
    ("source", "target", "before", "after"),
    [
        ("a b", "c", "1-0", "1-0"),
        ("  a b ", "c\t", "0-0 1p0", "0-0 1p0"),
        ("\u00a0 a b", "c", "0-0 1-0 2p0", "0-0 1p0"),  # a no-break space is a word, but `strip` takes it
        ("\u00a0a b \u2003", "c \u00a0", "0-0 2-0 1-1 1p0", "0-0 1p0"),
    ],
)
def test_links_are_shifted_after_strip(source, target, before, after):
    assert strip_links(parse_pharaoh(before, "x"), source, target) == parse_pharaoh(after, "x")


def test_stored_links_become_matrices():
    rows = [{(0, 0), (2, 1)}, set(), {(1, 1)}, {(0, 2), (1, 2), (1, 0)}]
    links = ragged_links(rows)
    assert len(links) == 4 and [set(map(tuple, links.row(n).tolist())) for n in range(4)] == rows
    indices = np.array([3, 1, 0, 2])
    dense = links_matrix(links, indices, 4, 3)
    for row, index in enumerate(indices):
        assert {(int(s), int(t)) for t, s in zip(*np.nonzero(dense[row]), strict=True)} == rows[index]


def test_batches_have_links():
    source, target = [[5, 6], [7], [8, 9, 5], [5]], [[5], [6, 7], [8, 9, 9], [4]]
    rows = [{(0, 0), (1, 0)}, {(0, 1)}, {(2, 2)}, set()]
    ids = ParallelIds.from_rows({"en": source, "de": target}, ragged_links(rows))
    from rnnsearch.config import BatchConfig

    for batch in Batches(ids, BatchConfig(sentences=3), None, 1).epoch(0):
        assert batch.links is not None and batch.links.shape == (*batch.target.ids.shape, batch.source.ids.shape[1])
        for one in (batch, batch.to("cpu"), *(batch.split() if batch.sentences > 1 else ())):
            for number, index in enumerate(one.indices):
                found = {(int(s), int(t)) for t, s in one.links[number].nonzero()}
                assert found == rows[index]
        turned = batch.reversed()
        assert turned.links is not None and torch.equal(turned.links.transpose(1, 2), batch.links)
        assert torch.equal(turned.source.ids, batch.target.ids) and torch.equal(turned.target.mask, batch.source.mask)
    assert make_batch([([5], [6])], [0]).links is None


def test_links_of_invalid_pairs_are_not_checked(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"a b\tc\nbad \xff\td\n")
    (tmp_path / "a.align").write_text("1-0\n7-7\n")
    first, second = read_rows(["a.tsv"], tmp_path, alignments=["a.align"])
    assert first.links == Links(frozenset({(1, 0)}), frozenset({(1, 0)}))
    assert second.links is None and second.problem == "invalid UTF-8"
