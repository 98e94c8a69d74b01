"""Reading of lines and rows: line ends, compressed files, and errors with their messages."""

import bz2
import gzip
import lzma
import zlib
from pathlib import Path

import pytest
import zstandard

from rnnsearch.data.corpus import MAX_LINE_BYTES, Row, read_chunks, read_lines, read_rows
from rnnsearch.errors import DataError


def texts(specs: list[str], base: Path) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_rows(specs, base)]


def test_only_newline_ends_a_line(tmp_path):
    lines = ["a\u2028b", "", "c\x0bd\x0c", "e\x85f", "g\rh", " spaced ", "last"]
    path = tmp_path / "text"
    path.write_bytes("\n".join(lines).encode())
    assert list(read_lines(path)) == lines
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    assert list(read_lines(path)) == lines


def test_windows_line_ends_and_byte_order_mark_are_removed(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\r\ntwo\xef\xbb\xbf\r\n")
    assert list(read_lines(path)) == ["one", "", "two\ufeff"]


def test_empty_file_has_no_lines(tmp_path):
    (tmp_path / "text").touch()
    assert list(read_lines(tmp_path / "text")) == []
    assert texts(["text|text", "text"], tmp_path) == []


def test_lines_must_be_utf8(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"good\ncaf\xe9\n")
    with pytest.raises(DataError) as error:
        list(read_lines(path))
    assert str(error.value) == f"{path}:2: must be UTF-8; got byte 0xe9 at position 3"


def test_pairs_are_read_from_text_and_tsv_files_compressed_or_not(tmp_path):
    (tmp_path / "a.en").write_text("one\n\n", encoding="utf-8")
    (tmp_path / "a.de").write_text("eins\nzwei\n", encoding="utf-8")
    (tmp_path / "b.en.gz").write_bytes(gzip.compress(b"three\n") + gzip.compress(b"four\n"))
    compress = zstandard.ZstdCompressor().compress
    (tmp_path / "b.de.zst").write_bytes(compress(b"drei\n") + compress(b"vier"))
    (tmp_path / "c.tsv").write_text("five\tfünf\tnote\n\nsix\t\n", encoding="utf-8")
    pairs = list(read_rows(["a.en | a.de", "b.en.gz|b.de.zst", "c.tsv"], tmp_path))
    assert [(pair.source, pair.target) for pair in pairs] == [
        ("one", "eins"),
        ("", "zwei"),
        ("three", "drei"),
        ("four", "vier"),
        ("five", "fünf"),
        ("", ""),
        ("six", ""),
    ]
    assert [pair.location for pair in pairs[-2:]] == [f"{tmp_path / 'c.tsv'}:{line}" for line in (2, 3)]
    assert all(pair.problem is None for pair in pairs)


@pytest.mark.parametrize(("sources", "targets"), [(3, 5), (5, 3), (0, 2)])
def test_different_line_counts_are_reported(tmp_path, sources, targets):
    (tmp_path / "s").write_text("x\n" * sources, encoding="utf-8")
    (tmp_path / "t").write_text("y\n" * targets, encoding="utf-8")
    with pytest.raises(DataError) as error:
        list(read_rows(["s|t"], tmp_path))
    files = f"{tmp_path / 's'} and {tmp_path / 't'}"
    assert str(error.value) == f"{files} must have the same number of lines; got {sources} and {targets}"


def test_invalid_pairs_have_their_problem(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"good\tgut\nonly one\nbad \xff\tschlecht\n")
    assert [pair.problem for pair in read_rows(["a.tsv"], tmp_path)] == [None, "one column", "invalid UTF-8"]
    last = list(read_rows(["a.tsv"], tmp_path))[-1]
    assert last == Row(("bad \ufffd", "schlecht"), tmp_path / "a.tsv", 3, "invalid UTF-8")


def test_tsv_without_tabs_is_rejected(tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a.en:1: must have a source and a target with a tab between.*got no tab"):
        list(read_rows(["a.en"], tmp_path))


@pytest.mark.parametrize(("row", "got"), [("Hallo\thello", "2 columns"), ("a\tb\tc\td", "4 columns")])
def test_tsv_of_other_languages_is_rejected(tmp_path, row, got):
    """Columns have no names: a file with a column per language of another run would be read as other languages."""
    (tmp_path / "a.tsv").write_text(f"{row}\n", encoding="utf-8")
    with pytest.raises(DataError, match=rf"a.tsv:1: must have 3 columns, one per language .*; got {got}$"):
        list(read_rows(["a.tsv"], tmp_path, num_texts=3))


@pytest.mark.parametrize("spec", ["a|b|c", "a|", "|"])
def test_malformed_spec_is_rejected(tmp_path, spec):
    with pytest.raises(DataError, match=r"must be written source_file\|target_file"):
        list(read_rows([spec], tmp_path))


def test_missing_files_and_folders_are_rejected_by_name(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.tsv: no such file"):
        list(read_rows(["nowhere.tsv"], tmp_path))
    with pytest.raises(DataError, match="is a folder, not a file"):
        list(read_lines(tmp_path))


COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("upper", [False, True])
def test_compressed_files_of_several_streams_are_read(tmp_path, suffix, upper):
    path = tmp_path / f"text{suffix.upper() if upper else suffix}"
    path.write_bytes(COMPRESS[suffix](b"one\nt") + COMPRESS[suffix](b"wo\n"))
    assert list(read_lines(path)) == ["one", "two"]


def test_xz_files_need_little_memory(tmp_path):
    path = tmp_path / "text.xz"
    compressor = lzma.LZMACompressor(filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}])
    small = compressor.compress(b"text\n") + compressor.flush()
    path.write_bytes(small)
    assert list(read_lines(path)) == ["text"]
    # The size of the dictionary is a byte of the block header, which ends with its CRC32.
    header = bytearray(small[12:24])
    header[4] = 37  # 1.5 GiB
    header[8:12] = zlib.crc32(header[:8]).to_bytes(4, "little")
    path.write_bytes(small[:12] + bytes(header) + small[24:])
    with pytest.raises(DataError, match=r"text\.xz:1: the compressed file is damaged .*[Mm]emory"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("damage", ["cut", "foreign"])
def test_damaged_compressed_files_are_rejected(tmp_path, suffix, damage):
    compress = COMPRESS[suffix]
    whole = compress("".join(f"{n * 7919 % 1000003}\n" for n in range(3000)).encode())
    path = tmp_path / f"text{suffix}"
    path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"plain text, not compressed at all")
    with pytest.raises(DataError, match=r"text\.(gz|bz2|xz|zst):\d+: the compressed file is damaged"):
        list(read_lines(path))


def test_too_long_line_is_rejected_or_truncated(tmp_path):
    path = tmp_path / "text"
    for size, end in ((MAX_LINE_BYTES, b""), (MAX_LINE_BYTES, b"\n"), (MAX_LINE_BYTES - 1, b"\r\n")):
        path.write_bytes(b"\n" + b"a" * size + end)
        assert list(map(len, read_lines(path))) == [0, size]
    path.write_bytes(b"\n" + b"a" * (MAX_LINE_BYTES + 1) + b"\n")
    with pytest.raises(
        DataError, match=r"text:2: a line must have at most 1,048,576 bytes; it has more \(must be text"
    ):
        list(read_lines(path))


def test_chunks_of_long_lines_are_smaller(tmp_path, monkeypatch):
    monkeypatch.setattr("rnnsearch.data.corpus.MAX_BUFFERED_BYTES", 500)
    (tmp_path / "a.en").write_bytes(b"".join(b"%d\n" % n for n in range(300)))
    (tmp_path / "a.de").write_bytes(b"".join(b"%100d\n" % n for n in range(300)))
    chunks = list(read_chunks(["a.en|a.de"], tmp_path))
    assert len(chunks) == 300 // 16 + 1
    rows = [(row.line, int(row.source), int(row.target)) for chunk in chunks for row in chunk.rows()]
    assert rows == [(n + 1, n, n) for n in range(300)]


def test_texts_may_be_missing_in_any_number_of_languages(tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "a.de").write_text("eins\nzwei\n", encoding="utf-8")
    (tmp_path / "b.tsv").write_text("three\ttrois\tdrei\n\t quatre\n", encoding="utf-8")
    rows = list(read_rows(["a.en||a.de", "b.tsv"], tmp_path, num_texts=3))
    texts = [("one", "", "eins"), ("two", "", "zwei"), ("three", "trois", "drei"), ("", " quatre", "")]
    assert [row.texts for row in rows] == texts and not any(row.problem for row in rows)
    assert [row.texts for row in read_rows(["b.tsv"], tmp_path, num_texts=1)][1] == ("\t quatre",)
    with pytest.raises(DataError, match=r'must be written file\|file\|file; got "a.en\|a.de"'):
        list(read_rows(["a.en|a.de"], tmp_path, num_texts=3))


def test_empty_line_or_end_of_file_ends_a_document(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tb\n\nc\td\n\t \n \t\ne\t\n", encoding="utf-8")
    rows = list(read_rows(["a.tsv", "a.tsv"], tmp_path, documents=True))
    assert [row.source for row in rows] == ["a", "c", "e"] * 2, "what is empty on one side alone is no end"
    assert len({row.document for row in rows}) == 6 and rows == sorted(rows, key=lambda row: row.document)
