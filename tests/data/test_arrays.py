"""Files of arrays, as corpora and as hostile input, and prepared data with arrays."""

import io
from pathlib import Path

import numpy as np
import pytest

from rnnsearch.cli.io import parallel_rows
from rnnsearch.config import RunConfig, resolve
from rnnsearch.config.data import ArrayConfig
from rnnsearch.data.arrays import (
    ArrayIds,
    ArrayWriter,
    NamedArray,
    array_source,
    checked_values,
    ends_path,
    open_arrays,
    read_arrays,
)
from rnnsearch.data.batches import Batches
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, DataError, RnnsearchError

FRAMES = ArrayConfig(features=3)
GRID = ArrayConfig(features=2, grid=[2, 2])
COLOURS = ["red", "green", "blue", "white", "black"]


def arrays_of(lengths: list[int], features: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.normal(size=(length, features)).astype(np.float32) for length in lengths]


def write_frames(path: Path, arrays: list[np.ndarray]) -> None:
    np.save(path, np.concatenate(arrays))
    np.save(ends_path(path), np.cumsum([len(array) for array in arrays]))


def frames_config(base: Path, **data: object) -> RunConfig:
    tables = {
        "preset": "rnnsearch-small",
        "data": {"arrays": {"speech": {"features": 3}}, "source": "speech", "target": "en", "aligner": False, **data},
        "text": {"type": "words"},
    }
    return resolve(tables, base=base)


@pytest.fixture
def corpus(tmp_path: Path) -> RunConfig:
    """A run file with 40 arrays of frames and their texts; the 4th array has no frames."""
    arrays = arrays_of([5, 2, 7, 0, *([3] * 36)])
    write_frames(tmp_path / "a.npy", arrays)
    (tmp_path / "a.en").write_text("".join(f"{COLOURS[n % 5]} {COLOURS[n // 5 % 5]}\n" for n in range(40)))
    return frames_config(tmp_path, train=["a.npy|a.en"], dev_size=3, test_size=2)


def test_files_of_equal_and_different_lengths_are_mapped(tmp_path):
    arrays = arrays_of([4, 0, 2])
    write_frames(tmp_path / "frames.npy", arrays)
    opened = open_arrays(tmp_path / "frames.npy", FRAMES)
    assert isinstance(opened.flat, np.memmap)
    assert [array.tolist() for array in map(opened.array, range(3))] == [array.tolist() for array in arrays]
    np.save(tmp_path / "images.npy", np.arange(24, dtype=np.uint8).reshape(3, 4, 2))
    images = read_arrays(tmp_path / "images.npy", GRID)
    assert images == ["images.npy:1", "images.npy:2", "images.npy:3"]
    assert images[2].values.tolist() == [[16, 17], [18, 19], [20, 21], [22, 23]]


def test_written_arrays_are_read_back(tmp_path):
    arrays = arrays_of([3, 0, 12])
    with ArrayWriter(tmp_path / "x.npy", 3) as writer:
        for array in arrays:
            writer.add(array)
    assert (writer.num_rows, writer.num_missing) == (15, 1)
    assert [a.values.tolist() for a in read_arrays(tmp_path / "x.npy", FRAMES)] == [a.tolist() for a in arrays]
    assert np.load(tmp_path / "x.npy", allow_pickle=False).shape == (15, 3)


def npy(header: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + body


def saved(array: np.ndarray, **options: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


HOSTILE = {
    "empty": (b"", "must be a NumPy file"),
    "text": (b"a house\n", "must be a NumPy file"),
    "zip": (b"PK\x03\x04" + bytes(50), "must be a NumPy file"),
    "version": (npy("{}", version=b"\x09\x00"), "must be a NumPy file"),
    "header": (npy("__import__('os').abort()"), "must be a NumPy file"),
    "deep": (npy("(" * 9000), "must be a NumPy file"),
    "long": (b"\x93NUMPY\x02\x00" + b"\xff\xff\xff\x7f" + bytes(100), "must be a NumPy file"),
    "objects": (saved(np.array([[[{}, 1]]], dtype=object), allow_pickle=True), "must hold numbers of at most 64 bits"),
    "text items": (saved(np.array([["a", "b"]])), "must hold numbers of at most 64 bits"),
    "complex": (saved(np.zeros((1, 4, 2), complex)), "must hold numbers of at most 64 bits"),
    "records": (saved(np.zeros(3, [("a", "f4"), ("b", "f4")])), "must hold numbers of at most 64 bits"),
    "bool": (saved(np.zeros((1, 4, 2), bool)), "must hold numbers of at most 64 bits"),
    "huge": (
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 4, 2)}"),
        "bytes according to its header",
    ),
    "negative": (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -4, 2)}"), "must have .* bytes"),
    "truncated": (saved(np.zeros((2, 4, 2)))[:-1], "bytes according to its header; got"),
    "trailing": (saved(np.zeros((2, 4, 2))) + b"x", "bytes according to its header; got"),
    "fortran": (saved(np.asfortranarray(np.ones((2, 4, 2)))), "must be in C order"),
    "features": (saved(np.zeros((2, 4, 3))), r"must have the axes \[arrays, rows, 2\].*got \[2, 4, 3\]"),
    "axes": (saved(np.zeros(2)), "must have the axes"),
    "four axes": (saved(np.zeros((1, 1, 4, 2))), "must have the axes"),
    "no ends": (saved(np.zeros((4, 2))), "cannot be read: No such file"),
}


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_invalid_files_are_rejected_with_one_sentence(tmp_path, content, message):
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        open_arrays(path, GRID)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


@pytest.mark.parametrize("ends", [[1, 3], [3, 2, 4], [-1, 4], [0.5, 4.0], [[1], [4]], [1, 5]])
def test_invalid_ends_are_rejected(tmp_path, ends):
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    np.save(tmp_path / "x.ends.npy", np.array(ends))
    with pytest.raises(DataError, match=r"x\.ends\.npy: must"):
        open_arrays(tmp_path / "x.npy", GRID)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full((4, 2), np.nan), "must hold finite numbers"),
        (np.full((4, 2), 1e300), "must hold finite numbers"),
        (np.zeros((3, 2)), "must have 4 rows, one per cell of the grid; got 3"),
        (np.zeros((4, 3)), r"must be an array of numbers \[rows, 2\]; got float64 \[4, 3\]"),
        (np.zeros(4), "must be an array of numbers"),
        (np.zeros((4, 2), object), "must be an array of numbers"),
    ],
)
def test_invalid_arrays_are_rejected(values, message):
    with pytest.raises(DataError, match=message):
        checked_values(values, GRID, "x.npy:2")


def test_array_is_a_sentence_with_a_word_per_row():
    values = np.ones((4, 2), np.float32)
    source = array_source(NamedArray("x.npy:1", values), GRID, "image")
    assert source.tokens == ["1,1", "1,2", "2,1", "2,2"] == source.texts == source.text.split()
    assert isinstance(source.spelled_ids, ArrayIds)
    assert source.spelled_ids.values.tolist() == values.tolist()
    assert not source.is_text
    with pytest.raises(RnnsearchError, match=r"the model reads arrays \(image\), not text"):
        array_source("a house", GRID, "image")


def test_prepared_data_have_arrays_in_place_of_text(corpus, tmp_path):
    prepared = prepare(corpus, tmp_path / "data")
    assert prepared.report["rejected"]["empty"]["count"] == 1
    assert (len(prepared.train), len(prepared.dev), len(prepared.test)) == (34, 3, 2)
    assert list(prepared.tokenizers) == ["en"]
    train = prepared.train
    assert train.names == ("speech", "en")
    assert isinstance(train._streams["speech"].flat, np.memmap)
    original = read_arrays(tmp_path / "a.npy", FRAMES)
    texts = (tmp_path / "a.en").read_text().splitlines()
    by_values = {array.values.tobytes(): text for array, text in zip(original, texts, strict=True)}
    # Every array is with its own text, in train, dev and test, and each is in one part only.
    pairs = [(train.arrays("speech", np.array([n]))[0], train.row(n)[1].tolist()) for n in range(len(train))]
    parts = [(values, prepared.target.join(ids)) for values, ids in pairs]
    parts += [(row.source.values, row.target) for row in (*prepared.dev, *prepared.test)]
    assert len({values.tobytes() for values, _ in parts}) == 39
    assert all(by_values[values.tobytes()] == text for values, text in parts)


def test_preparation_depends_on_the_values(corpus, tmp_path):
    first = prepare(corpus, tmp_path / "data").facts
    values = np.load(tmp_path / "a.npy")
    values[0, 0] += 1
    np.save(tmp_path / "a.npy", values)
    second = prepare(corpus, tmp_path / "data2").facts
    assert first["sha256"] != second["sha256"]
    assert first["pairs"] == second["pairs"]
    assert Prepared.open(tmp_path / "data2", corpus).facts == second


def test_nan_in_a_corpus_names_file_and_array(corpus, tmp_path):
    values = np.load(tmp_path / "a.npy")
    values[6, 1] = np.inf  # in the second array
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(DataError, match=r"a\.npy:2: must hold finite numbers"):
        prepare(corpus, tmp_path / "data")


def test_dev_and_test_files_and_several_training_files(tmp_path):
    for name, lengths in {"a": [2, 3], "b": [1, 4], "dev": [5, 2], "test": [3]}.items():
        write_frames(tmp_path / f"{name}.npy", arrays_of(lengths))
        (tmp_path / f"{name}.en").write_text("red\n" * len(lengths))
    config = frames_config(tmp_path, train=["a.npy|a.en", "b.npy|b.en"], dev="dev.npy|dev.en", test="test.npy|test.en")
    prepared = prepare(config, tmp_path / "data")
    assert prepared.warnings == []
    assert prepared.train.lengths(np.arange(4))[0].tolist() == [2, 3, 1, 4]
    assert [len(row.source.values) for row in prepared.dev] == [5, 2]


def test_number_of_arrays_must_be_that_of_lines(tmp_path):
    write_frames(tmp_path / "a.npy", arrays_of([2, 3]))
    (tmp_path / "a.en").write_text("red\n")
    with pytest.raises(DataError, match="must have the same number of lines; got 2 and 1"):
        prepare(frames_config(tmp_path, train=["a.npy|a.en"]), tmp_path / "data")


def test_batches_have_values_without_an_end_token(corpus, tmp_path):
    train = prepare(corpus, tmp_path / "data").train
    batches = Batches(train, corpus.training.batch, 6, seed=1)
    assert batches.left_out == 1  # the array of 7 frames
    seen = []
    for batch in batches.epoch(0):
        source = batch.source
        assert source.values.shape == (*source.ids.shape, 3)
        assert source.word_mask.equal(source.mask)
        for row, index in enumerate(batch.indices):
            values = train.arrays("speech", np.array([index]))[0]
            assert source.mask[row].sum() == len(values) == source.num_words[row]
            assert source.values[row, : len(values)].tolist() == values.tolist()
            assert not source.values[row, len(values) :].any()
            seen.append(index)
    assert sorted(seen) == sorted(set(range(len(train))) - {int(train.lengths(np.arange(34))[0].argmax())})
    whole = batches.whole_batch([0, 1, 2])
    one, two = whole.split()
    assert one.source.values.equal(whole.source.values[:1])
    assert two.source.values.equal(whole.source.values[1:])


def test_segmentation_is_sampled_next_to_arrays(corpus, tmp_path):
    train = prepare(corpus, tmp_path / "data").train
    plain = Batches(train, corpus.training.batch, None, seed=1)
    sampled = Batches(train, corpus.training.batch, None, seed=1, segments={"en": lambda ids, _: [*ids, 5]})
    for one, other in zip(plain.epoch(0), sampled.epoch(0), strict=True):
        assert one.source.values.equal(other.source.values)
        assert other.target.num_tokens == one.target.num_tokens + one.sentences


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"arrays": {"speech": {}}}, "data.arrays.speech.features: must be given"),
        ({"arrays": {"Speech!": {"features": 3}}}, "data.arrays.Speech!"),
        ({"arrays": {"speech": {"features": 3}}, "source": "de"}, 'must name "speech"'),
        ({"source": "image"}, "data.source: must be a language code"),
        ({"arrays": {"speech": {"features": 3, "grid": [3]}}}, "data.arrays.speech.grid"),
    ],
)
def test_invalid_options_are_rejected(tmp_path, data, message):
    tables = {"preset": "rnnsearch-small", "data": {"source": "speech", "target": "en", "train": ["x"], **data}}
    with pytest.raises(ConfigError, match=message):
        resolve(tables, base=tmp_path)


def test_rows_of_two_array_files_have_the_values_and_names_of_their_own(tmp_path):
    speech, images = arrays_of([2, 1]), arrays_of([3, 4], features=2)
    write_frames(tmp_path / "speech.npy", speech)
    write_frames(tmp_path / "images.npy", images)
    (tmp_path / "text.en").write_text("red\nblue\n")
    files = [tmp_path / name for name in ("speech.npy", "images.npy", "text.en")]
    options = {"speech": FRAMES, "images": ArrayConfig(features=2)}
    [rows] = parallel_rows(files, ["speech", "images", "en"], options, 10)
    assert rows == [("speech.npy:1", "images.npy:1", "red"), ("speech.npy:2", "images.npy:2", "blue")]
    for row, frames, regions in zip(rows, speech, images, strict=True):
        np.testing.assert_array_equal(row[0].values, frames)
        np.testing.assert_array_equal(row[1].values, regions)
