"""Values in a store: they are read back by their declared types, and nothing else is accepted."""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from rnnsearch.align.aligner import Aligner, learn_aligner
from rnnsearch.bulk.encoding import from_bytes, from_json, to_bytes, to_json
from rnnsearch.config import CleaningConfig, TextConfig
from rnnsearch.data.cleaning import Tally
from rnnsearch.data.corpus import Chunk
from rnnsearch.data.preprocess import LinkOptions
from rnnsearch.errors import RnnsearchError
from rnnsearch.text.subwords import train_bpe, without_rare

TALLY = Tally(3, Counter({"empty": 2, "a": 1}), {"empty": ["x:1: \ud800", "x:2: ä\u2028"]})


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ("ä\u2028\n\ud800", str),
        (Path("a b/\udcff"), Path),
        (b"", bytes),
        (b"\x00\xff", bytes),
        ((), tuple[()]),
        ((1, "x", None, 0.5, True), tuple[int, str, str | None, float, bool]),
        ([({"a"}, frozenset(["b"]))], list[tuple[set[str], frozenset[str]]]),
        ({"dev": [("x", "y")], "test": []}, dict[str, list[tuple[str, ...]]]),
        (Chunk((b"x\ny", None), 2, None, Path("f"), None, 7), Chunk),
        (TALLY, Tally),
        (CleaningConfig(max_words=7), CleaningConfig),
        (TextConfig(type="words", annotation={"type": "copyable"}), TextConfig),
    ],
    ids=repr,
)
def test_values_are_read_back_by_their_types(value, annotation):
    read = from_bytes(to_bytes(value, annotation), annotation, "x")
    assert read == value
    assert type(read) is type(value)


def test_order_of_counts_is_kept():
    read = from_bytes(to_bytes(TALLY, Tally), Tally, "x")
    assert list(read.rejected) == ["empty", "a"]
    assert type(read.rejected) is Counter


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.uint64)[::2], np.zeros(0, np.uint64)])
def test_arrays_are_read_back(array):
    read = from_bytes(to_bytes(array, NDArray[np.uint64]), NDArray[np.uint64], "x")
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype


def test_aligners_and_tokenizers_are_read_back():
    lines = ["the small cat sleeps", "the big dog sees the cat", "a dog sleeps"] * 5
    segmentation = learn_aligner(lines, lines).segmentations[0]
    options = LinkOptions(Aligner((segmentation,), 0.25, relative=True), True, TextConfig(type="bpe"), False)
    read = from_bytes(to_bytes(options, LinkOptions), LinkOptions, "x")
    assert (read.aligner.threshold, read.aligner.relative) == (0.25, True)
    assert read.text == options.text
    (copy,) = read.aligner.segmentations
    assert copy.source.json == segmentation.source.json
    np.testing.assert_array_equal(copy.lexicon.pairs, segmentation.lexicon.pairs)
    np.testing.assert_array_equal(copy.lexicon.backward.jumps, segmentation.lexicon.backward.jumps)
    rare = without_rare(train_bpe(lines, 260, 1), Counter({"the": 9}), 5)
    (read,) = from_bytes(to_bytes((rare,), tuple[type(rare)]), tuple[type(rare)], "x")
    assert read.json == rare.json


@pytest.mark.parametrize(
    ("written", "content", "read", "problem"),
    [
        (str, "x", int, "str where there must be int"),
        (bool, True, int, "bool where there must be int"),
        (list[int], [1, 2], tuple[int, int, int], "zip"),
        (list[int], [1], dict[str, int], "list where there must be dict"),
        (int, 3, bytes, "list index out of range"),
        (NDArray[np.uint64], np.zeros(2, np.uint64), NDArray[np.uint8], r"an array \[2\] of uint64"),
        (NDArray[np.uint64], np.zeros(2, np.uint64), bytes, r"an array \[2\] of uint64"),
        (list[list[str]], [["x"]], list[CleaningConfig], "CleaningConfig"),
    ],
)
def test_values_of_other_types_are_rejected(written, content, read, problem):
    with pytest.raises(RnnsearchError, match=rf"^store/file: must be as rnnsearch stored it .*{problem}"):
        from_bytes(to_bytes(content, written), read, "store/file")


@pytest.mark.parametrize("content", [b"", b"x", b"\x80\x04.", save({}), save({"json": np.frombuffer(b"[", np.uint8)})])
def test_damaged_bytes_are_rejected(content):
    with pytest.raises(RnnsearchError, match=r"^file: must be as rnnsearch stored it"):
        from_bytes(content, list[str], "file")
    with pytest.raises(RnnsearchError, match=r"^file: must be as rnnsearch stored it"):
        from_json(content, list[str], "file")


def test_json_is_read_back():
    assert from_json(to_json({"ä": [1]}), dict[str, list[int]], "x") == {"ä": [1]}


class Unsupported(NamedTuple):
    function: Any


@pytest.mark.parametrize("annotation", [object, Any, type, list[Any], dict[int, str], Unsupported, NDArray[Any]])
def test_types_that_are_not_data_cannot_be_declared(annotation):
    with pytest.raises(TypeError):
        from_bytes(to_bytes(None, annotation), annotation, "x")
