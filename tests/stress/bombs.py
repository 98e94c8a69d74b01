"""Bombs: files crafted to take far more time or memory than their size suggests, each read in a child process.

`python -m tests.stress.bombs --size 4194304` writes files of about that many bytes and of twice as many. Each must be
read or be rejected with short messages. The larger file may take at most `MAX_SLOWDOWN` times the time of the smaller
one, and memory is limited to `BASE_MEMORY_BYTES` plus `MEMORY_BYTES_PER_BYTE` for each byte of the file. `--only WORD`
runs the bombs whose name contains the word.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import io
import json
import os
import resource
import struct
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import torch
import zstandard
from safetensors.torch import save

from rnnsearch.cli.io import input_chunks
from rnnsearch.config import load
from rnnsearch.data.corpora.download import Archive, PipSettings, fetch
from rnnsearch.data.corpus import MAX_BUFFERED_BYTES, MAX_LINE_BYTES, read_chunks
from rnnsearch.errors import ConfigError, RnnsearchError
from rnnsearch.search import candidates
from rnnsearch.search.unknown_words import read_dictionary
from rnnsearch.systems.card import SCORES_FILE, TRAINING_FILE, load_scores, load_training_facts
from rnnsearch.text.alignments import read_pharaoh
from rnnsearch.text.documents import read_document
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.utils.weights import FORMAT, read_weights
from tests.untrained import TEXT

# The lines in memory at a time exist several times: whole, split, as text and as rows.
BASE_MEMORY_BYTES = 8 * (MAX_BUFFERED_BYTES + 32 * MAX_LINE_BYTES)
MEMORY_BYTES_PER_BYTE = 256  # a Python object for every one or two characters
MIN_MEASURABLE_SECONDS = 0.08
MAX_SLOWDOWN = 2.5
MAX_CPU_SECONDS = 120  # a child that takes longer is killed
MAX_MESSAGE_CHARACTERS = 1500

Read = Callable[[Path], object]
Make = Callable[[int], bytes]


def read_and_fill_document(path: Path) -> None:
    document = read_document(path.name, path.read_bytes(), "en", "de")
    document.fill(["x"] * len(document.segments))


def read_rows(path: Path) -> None:
    for chunk in read_chunks([str(path)], path.parent, chunk_rows=20_000):
        for _ in chunk.rows():
            pass


def read_portions(path: Path) -> None:
    for _ in input_chunks(path, 10_000):
        pass


def read_standard_input(path: Path) -> None:
    sys.stdin = io.TextIOWrapper(path.open("rb"))
    for _ in input_chunks(None, 10_000):
        pass


def load_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer.load(path)
    tokenizer.join(tokenizer.ids(["the dog sees"])[0])
    tokenizer.tokens()


def folder_reader(name: str, read_folder: Callable[[Path], object]) -> Read:
    """Return a function that renames a file to `name` and reads its folder."""

    def read(path: Path) -> object:
        path.rename(path.with_name(name))
        return read_folder(path.parent)

    return read


def fetch_from_index(path: Path) -> None:
    """Serve the file as a page of a package index and look for an archive in it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", f"text/{path.suffix[1:]}")
            self.end_headers()
            self.wfile.write(path.read_bytes())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = PipSettings(indexes=(f"http://127.0.0.1:{server.server_port}",))
    fetch(Archive("a", "a.whl", "0" * 64, 1), path.parent, settings)


def po(size: int, before: str = "", inside: str = "", text: str = "a", head: str = "") -> bytes:
    """Return a gettext catalogue with one entry, in which the given text is repeated up to the size."""
    parts = (before, inside, text if len(text) > 1 else "", head)
    count = size // max(1, len("".join(parts)))
    before, inside, text, head = (part * count for part in parts)
    top = f'msgid ""\nmsgstr "a: b{head}"\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    return f'{top}{before}msgid "{text}"\n{inside}"a"\nmsgstr ""\n'.encode()


def tmx(body: bytes, before: bytes = b"", root: bytes = b"") -> bytes:
    return before + b"<tmx" + root + b"><body>" + body + b"</body></tmx>"


def unit(inside: bytes) -> bytes:
    return b"<tu><tuv lang='en'><seg>a</seg></tuv>" + inside + b"</tu>"


def numbered(template: bytes, size: int) -> bytes:
    """Repeat a template up to the size, each time with another number."""
    return b"".join(template % number for number in range(size // len(template % 10_000)))


def frames(content: bytes, size: int) -> bytes:
    """Return a .zst file of repeated frames, which decompresses to 1,024 times the size."""
    frame = zstandard.ZstdCompressor().compress(content * max(1, (1 << 20) // len(content)))
    return frame * (size // 1024)


def members(content: bytes, size: int) -> bytes:
    """Return a .gz file of repeated members, which decompresses to 512 times the size."""
    return gzip.compress(content * max(1, (1 << 19) // len(content))) * (size // 1024)


def skippable_frame(size: int) -> bytes:
    return struct.pack("<II", 0x184D2A50, size)


def safetensors_file(header: Any, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps({"__metadata__": {"format": FORMAT}, **header}).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def candidate_file(translations: torch.Tensor, frequent: torch.Tensor) -> bytes:
    return save({"translations": translations, "frequent": frequent}, {"format": FORMAT})


def trained_tokenizer() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        train_bpe(TEXT["en"], 340, 1).save(Path(folder) / "a.json")
        return json.loads((Path(folder) / "a.json").read_text())


TOKENIZER = json.dumps(trained_tokenizer())


def changed_tokenizer(change_model: Callable[[dict[str, Any]], object] | None = None, **entries: object) -> bytes:
    """Return the tokenizer with other entries, or with changes to its model."""
    tokenizer = {**json.loads(TOKENIZER), **entries}
    if change_model is not None:
        change_model(tokenizer["model"])
    return json.dumps(tokenizer).encode()


def extended_vocabulary(added: dict[str, int]) -> bytes:
    return changed_tokenizer(lambda model: model["vocab"].update(added))


def new_tokens(count: int, name: str = "q") -> dict[str, int]:
    first = len(json.loads(TOKENIZER)["model"]["vocab"])
    return {f"{name}{number}": first + number for number in range(count)}


PADDING: dict[str, Any] = {"strategy": {"Fixed": 1 << 40}, "direction": "Right", "pad_to_multiple_of": None}
PADDING |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
SPLIT = {"type": "Split", "pattern": {"Regex": "(?:(?:[a-z ]?)+)+$!"}, "behavior": "Isolated", "invert": False}
INTEGERS = torch.full((10, candidates.MAX_CANDIDATES), 1, dtype=torch.int32)

BOMBS: dict[str, tuple[Read, dict[str, Make]]] = {
    "po": (
        read_and_fill_document,
        {
            "continued.po": lambda n: po(n, inside='"x"\n'),
            "comments.po": lambda n: po(n, before="# x\n"),
            "comments of an obsolete entry.po": lambda n: po(n, before='#~ # x\n#~ msgid "a"\n'),
            "mixed comments.po": lambda n: po(n, before="# x\n#, y\n"),
            "previous msgid.po": lambda n: po(n, before='#| msgid "a"\n' + '#| "b"\n' * 99),
            "header comments.po": lambda n: b"# x\n" * (n // 4) + po(9),
            "metadata.po": lambda n: po(n, head="\\nx"),
            "one word.po": lambda n: po(n, text="xy"),
            "hyphens.po": lambda n: po(n, text="x-"),
            "dashes.po": lambda n: po(n, text="--"),
            "words.po": lambda n: po(n, text="x "),
            "backslashes.po": lambda n: po(n, text="\\\\"),
            "references.po": lambda n: po(n, before="#: a:1\n"),
            "flags.po": lambda n: po(n, before="#, a,b\n"),
            "entries.po": lambda n: numbered(b'msgid "%d"\nmsgstr ""\n\n', n),
            "one line.po": lambda n: b"x" * n,
            "zeros.po": lambda n: b"\0" * n,
            "surrogates.po": lambda n: b"\xed\xa0\x80" * (n // 3),
            "entries in one line.po": lambda n: numbered(b'msgid "%d" msgstr "" ', n),
            "forms.po": lambda n: b'msgid "a" msgid_plural "b" msgstr[19] ""\n' * (n // 42),
            "large forms.po": lambda n: b'msgid "a" msgid_plural "b" msgstr[9999] ""\n' * (n // 44),
            "placeholders.po": lambda n: po(9) + b'msgid "a"\nmsgid_plural "' + b"%d" * (n // 2) + b'"\nmsgstr[0] ""\n',
            "tags.po": lambda n: po(9) + b'msgid "' + b"<b>a</b>" * (n // 8) + b'"\nmsgstr ""\n',
            "open tags.po": lambda n: po(9) + b'msgid "' + b"<b" * (n // 2) + b'"\nmsgstr ""\n',
            "encoding.po": lambda n: b'"charset=punycode\\n"' + b"\xff" * n,
        },
    ),
    "tmx": (
        read_and_fill_document,
        {
            "entities.tmx": lambda n: b'<!DOCTYPE tmx [<!ENTITY a "' + b"a" * n + b'">]><tmx>&a;&a;</tmx>',
            "external entity.tmx": lambda _: b'<!DOCTYPE tmx [<!ENTITY a SYSTEM "/dev/zero">]><tmx>&a;</tmx>',
            "external document type.tmx": lambda _: tmx(unit(b""), b'<!DOCTYPE tmx SYSTEM "/dev/zero">'),
            "default attributes.tmx": lambda n: tmx(
                b"<s/>" * (n // 8), b'<!DOCTYPE tmx [<!ATTLIST s x CDATA "' + b"d" * (n // 2) + b'">]>'
            ),
            "long prefix.tmx": lambda n: tmx(b"<a:x/>" * (n // 12), b"", b' xmlns:a="' + b"u" * (n // 2) + b'"'),
            "long prefix, many names.tmx": lambda n: tmx(
                numbered(b"<a:x%d/>", n // 2), b"", b' xmlns:a="' + b"u" * (n // 2) + b'"'
            ),
            "attributes.tmx": lambda n: tmx(b"<x" + numbered(b' a%d=""', n) + b"/>"),
            "elements.tmx": lambda n: tmx(b"<a/>" * (n // 4)),
            "variants.tmx": lambda n: tmx(unit(b"<tuv lang='fr'/>" * (n // 32) + b"<tuv lang='de'/>" * (n // 32))),
            "units.tmx": lambda n: tmx(unit(b"") * (n // 45)),
            "nested units.tmx": lambda n: tmx(b"<tu>" * 40 + unit(b"") * (n // 45) + b"</tu>" * 40),
            "deep.tmx": lambda n: b"<tmx>" + b"<a>" * (n // 3),
            "one segment.tmx": lambda n: tmx(b"<tu><tuv lang='en'><seg>" + b"a" * n + b"</seg></tuv></tu>"),
            "line ends.tmx": lambda n: tmx(b"<tu><tuv lang='en'><seg>" + b"\na" * (n // 2) + b"</seg></tuv></tu>"),
            "references.tmx": lambda n: tmx(b"<tu><tuv lang='en'><seg>" + b"&lt;" * (n // 4) + b"</seg></tuv></tu>"),
            "language.tmx": lambda n: tmx(b"<tu><tuv lang='" + b"-" * n + b"'><seg>a</seg></tuv></tu>"),
            "long name.tmx": lambda n: b"<" + b"a" * n + b"/>",
            "open name.tmx": lambda n: b"<tmx " + b"a" * n,
            "open attribute.tmx": lambda n: b"<tmx a='" + b"a" * n,
            "open comment.tmx": lambda n: b"<tmx><!--" + b"-a" * (n // 2),
            "utf-16.tmx": lambda n: tmx(unit(b"") * (n // 90)).decode().encode("utf-16"),
            "comments in a segment.tmx": lambda n: tmx(unit(b"<!--a-->" * (n // 8))),
            "spaces.tmx": lambda n: tmx(unit(b"") + b" " * n + unit(b"")),
            "spaces in a segment.tmx": lambda n: tmx(b"<tu><tuv lang='en'><seg>a" + b" " * n + b"b</seg></tuv></tu>"),
            "character data.tmx": lambda n: tmx(
                b"<tu><tuv lang='en'><seg>" + b"<![CDATA[a&]]>" * (n // 14) + b"</seg></tuv></tu>"
            ),
            "nested segments.tmx": lambda n: tmx(
                b"<tu><tuv lang='en'><seg>" * 15 + b"a" * n + b"</seg></tuv></tu>" * 15
            ),
            "units.xliff": lambda n: b"<xliff>" + b"<segment><source>a</source></segment>" * (n // 40) + b"</xliff>",
            "surrogates.tmx": lambda n: tmx(b"&#xD800;" * (n // 8)),
        },
    ),
    "plain": (
        read_and_fill_document,
        {
            "lines.txt": lambda n: b"a\n" * (n // 2),
            "one line.txt": lambda n: b"a" * n,
            "rows.tsv": lambda n: b"a\n" * (n // 2),
            "tabs.tsv": lambda n: b"a" + b"\t" * n,
            "one line.html": lambda n: b"a" * n,
            "elements.html": lambda n: b"<p>a" * (n // 4),
            "inline elements.html": lambda n: b"<b>a" * (n // 4),
            "open tags.html": lambda n: b"<p " * (n // 3),
            "open comments.html": lambda n: b"<!-- " * (n // 5),
            "cues.srt": lambda n: b"1\n0:00,0 --> 0:00,0\na b\n\n" * (n // 25),
            "lines of a cue.srt": lambda n: b"0:00,0 --> 0:00,0\n" + b"a b\n" * (n // 4),
            "speakers.srt": lambda n: b"0:00,0 --> 0:00,0\n" + b"- a\n" * (n // 4),
            "one line.srt": lambda n: b"0:00,0 --> 0:00,0\n" + b"a " * (n // 2),
            "overrides.srt": lambda n: b"0:00,0 --> 0:00,0\n" + b"{\\a}" * (n // 4),
            "spaces.srt": lambda n: b"0:00,0 --> 0:00,0\n" + b" " * n + b"a",
        },
    ),
    "corpus": (
        read_rows,
        {
            "endless.tsv": lambda n: b"a" * 64 * n,
            "endless.tsv.gz": lambda n: members(b"a", n),
            "endless.tsv.zst": lambda n: frames(b"a", n),
            "one frame.tsv.zst": lambda n: zstandard.ZstdCompressor().compress(b"a" * 1024 * n),
            "long lines.tsv.gz": lambda n: members(b"a\t" + b"b" * (1 << 18) + b"\n", n),
            "long lines.tsv.zst": lambda n: frames(b"a\t" + b"b" * (1 << 19) + b"\n", n),
            "tabs.tsv.zst": lambda n: frames(b"\t" * (1 << 19) + b"\n", n),
            "lines.tsv.zst": lambda n: zstandard.ZstdCompressor().compress(b"a\tb\n" * n),
            "empty members.tsv.gz": lambda n: gzip.compress(b"") * (n // 20),
            "empty frames.tsv.zst": lambda n: zstandard.ZstdCompressor().compress(b"") * (n // 9),
            "skipped frames.tsv.zst": lambda n: skippable_frame(0) * (n // 8),
            "skipped frame.tsv.zst": lambda n: skippable_frame(n) + b"a" * n,
            "skipped frame past the end.tsv.zst": lambda n: skippable_frame(0xFFFFFFFF) + b"a" * n,
            "window.tsv.zst": lambda n: b"\x28\xb5\x2f\xfd\x00\xa8" + b"\x01\0\0" + b"a" * n,
            "nested.tsv.gz": lambda n: gzip.compress(members(b"a", n)),
            "name.tsv.gz": lambda n: b"\x1f\x8b\x08\x08" + b"\0" * 6 + b"n" * n,
            "zeros.tsv.gz": lambda n: gzip.compress(b"a\tb\n") + b"\0" * n,
            "not utf-8.tsv": lambda n: b"\xed\xa0\x80\t\xff\n" * (n // 6),
            "utf-16.tsv": lambda n: ("a\tb\n" * (n // 8)).encode("utf-16"),
        },
    ),
    "portions": (
        read_portions,
        {
            "endless.gz": lambda n: members(b"a", n),
            "long lines.zst": lambda n: frames(b"b" * (1 << 19) + b"\n", n),
        },
    ),
    "input": (
        read_standard_input,
        {"endless": lambda n: b"a" * 64 * n, "short blocks": lambda n: b"\n" + b"a" * n, "zeros": lambda n: b"\0" * n},
    ),
    "pharaoh": (
        read_pharaoh,
        {
            "digits": lambda n: b"0-" + b"9" * n,
            "links": lambda n: b"0-9 " * (n // 4),
            "no link": lambda n: b"x" * n,
            "spaces": lambda n: b" " * n,
        },
    ),
    "dictionary": (
        read_dictionary,
        {
            "one word.tsv.gz": lambda n: members(b"a", n),
            "no tab": lambda n: b"a" * n,
            "tabs": lambda n: b"a" + b"\t" * n,
        },
    ),
    "tokenizer": (
        load_tokenizer,
        {
            "deep.json": lambda n: b"[" * n,
            "deep tables.json": lambda n: b'{"a":' * (n // 5),
            "deep and complete.json": lambda _: b'{"a":' * 500 + b"1" + b"}" * 500,
            "digits.json": lambda n: b"1" * n,
            "zeros.json": lambda n: b"\0" * n,
            "protocol buffer.json": lambda n: b"\x0a\x0e\x0a\x05<unk>" * (n // 9),
            "utf-16.json": lambda _: changed_tokenizer().decode().encode("utf-16"),
            "surrogate.json": lambda _: extended_vocabulary(new_tokens(1, "\ud800")),
            "prepended.json": lambda n: changed_tokenizer(normalizer={"type": "Prepend", "prepend": "a" * n}),
            "padded.json": lambda _: changed_tokenizer(padding=PADDING),
            "split.json": lambda _: changed_tokenizer(pre_tokenizer=SPLIT),
            "splits.json": lambda n: changed_tokenizer(
                pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}] * (n // 22)}
            ),
            "unknown model.json": lambda n: changed_tokenizer(lambda model: model.update(type="a" * n)),
            "tokens.json": lambda n: extended_vocabulary(new_tokens(n // 16)),
            "long token.json": lambda n: extended_vocabulary(new_tokens(1, "z" * n)),
            "high id.json": lambda _: extended_vocabulary({"dog": (1 << 32) - 1}),
            "higher id.json": lambda _: extended_vocabulary({"dog": 1 << 32}),
            "one id twice.json": lambda _: extended_vocabulary({"dog": 7}),
            "merges.json": lambda n: changed_tokenizer(
                lambda model: model.update(merges=model["merges"][:1] * (n // 14))
            ),
        },
    ),
    "weights": (
        read_weights,
        {
            "header length": lambda n: safetensors_file(b"{}", b"a" * n, 1 << 63),
            "header length past the end": lambda n: safetensors_file(b"{}", b"a" * n, 99_999_999),
            "deep": lambda n: safetensors_file(b'{"a":' * (n // 5)),
            "metadata": lambda n: safetensors_file({"__metadata__": {"format": FORMAT, "x": "a" * n}}),
            "empty": lambda n: safetensors_file({str(m): tensor("F32", [0], 0, 0) for m in range(n // 60)}),
            "tiny": lambda n: safetensors_file(
                {str(m): tensor("U8", [1], m, m + 1) for m in range(n // 60)}, b"a" * (n // 60)
            ),
            "overlapping": lambda n: safetensors_file({str(m): tensor("U8", [n], 0, n) for m in range(999)}, b"a" * n),
            "huge": lambda _: safetensors_file({"a": tensor("F32", [1 << 62, 4], 0, 16)}, b"a" * 16),
            "huge and empty": lambda _: safetensors_file({"a": tensor("F32", [1 << 62, 0], 0, 0)}),
            "many axes": lambda n: safetensors_file({"a": tensor("F32", [1] * (n // 3), 0, 4)}, b"aaaa"),
            "negative": lambda _: safetensors_file({"a": tensor("F32", [-1], 0, -4)}, b"aaaa"),
            "unknown type": lambda _: safetensors_file({"a": tensor("F6_E2M3", [8], 0, 6)}, b"aaaaaa"),
        },
    ),
    "candidates": (
        folder_reader(candidates.CANDIDATES_FILE, lambda folder: candidates.load_candidates(folder, 5, 10, 10)),
        {
            "infinite": lambda _: candidate_file(INTEGERS / 0, INTEGERS[0]),
            "before the first": lambda n: candidate_file(INTEGERS, -INTEGERS[0] * (n % 2**30)),
            "past the last": lambda n: candidate_file(INTEGERS * (n % 2**30), INTEGERS[0]),
            "complex": lambda _: candidate_file(INTEGERS * 1j, INTEGERS[0]),
        },
    ),
    "training": (
        folder_reader(TRAINING_FILE, load_training_facts),
        {
            "deep": lambda n: b"[" * n,
            "digits": lambda n: b"1" * n,
            "tables": lambda n: b"[" + b"{}," * (n // 3) + b"0]",
        },
    ),
    "scores": (
        folder_reader(SCORES_FILE, lambda folder: load_scores(folder, "x")),
        {"deep": lambda n: b"[" * n, "rows": lambda n: b"[" + b'{"weights":0},' * (n // 14) + b'{"weights":"x"}]'},
    ),
    "run": (
        load,
        {
            "long key.toml": lambda n: b"a." * (n // 2) + b"a=1",
            "long quoted key.toml": lambda n: b'"\\"" . ' * (n // 7) + b"a=1",
            "long table header.toml": lambda n: b"[" + b"a." * (n // 2) + b"a]\n",
            "keys in tables.toml": lambda n: b"a=" + (b"{" + b"a." * 30 + b"a=") * (n // 64),
            "tables in tables.toml": lambda _: b"a=" + b"{a=" * 150 + b"1" + b"}" * 150,
            "deep tables.toml": lambda _: b"a=" + (b"{" + b"a." * 30 + b"a=") * 90 + b"1" + b"}" * 90,
            "arrays.toml": lambda n: b"a=" + b"[" * n,
            "digits.toml": lambda n: b"a=" + b"1" * n,
            "one word.toml": lambda n: b"a" * n,
            "quotes.toml": lambda n: b'a="' + b'\\"' * (n // 2),
            "keys.toml": lambda n: numbered(b"a%d=1\n", n),
        },
    ),
    "page": (
        fetch_from_index,
        {
            "open tags.html": lambda n: b"<a " * (n // 3),
            "attributes.html": lambda n: b"<a " + b"x=1 " * (n // 4) + b">",
            "quotes.html": lambda n: b"<a " + b"x='" * (n // 3) + b">",
            "comments.html": lambda n: b"<!--" * (n // 4),
            "openers.html": lambda n: b"<" * n,
            "deep.html": lambda n: b"<b>" * (n // 3),
            "links.html": lambda n: b"<a href=x>" * (n // 10),
            "parent folders.html": lambda n: b"<a href='" + b"../" * (n // 3) + b"'>",
            "invalid address.html": lambda _: b"<a href='http://[x'>",
            "script.html": lambda n: b"<script>" + b"</" * (n // 2),
            "endless.html": lambda n: b"a" * 64 * n,
            "deep.json": lambda n: b"[" * n,
            "no files.json": lambda n: b"{}" + b" " * n,
            "invalid files.json": lambda n: b'{"files":[' + b"0," * (n // 2) + b"0]}",
        },
    ),
}


def in_child(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the function's result, computed in a forked child so that its memory is released."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # libraries have threads, which the child does not need
        child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(write_end, json.dumps(function()).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        result = file.read()
    _, status = os.waitpid(child, 0)
    return json.loads(result) if result else {"failure": f"killed by signal {-os.waitstatus_to_exitcode(status)}"}


def measure(read: Read, path: Path) -> dict[str, Any]:
    """Read a file in this process; return the failure, or "", the CPU seconds and the bytes of memory."""
    memory_limit = BASE_MEMORY_BYTES + MEMORY_BYTES_PER_BYTE * path.stat().st_size
    current_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    # Address space is limited more generously, so that most excesses are measured rather than end in a MemoryError.
    address_space_limit = current_bytes + 4 * memory_limit
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (address_space_limit, address_space_limit))
    failure = ""
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    try:
        read(path)
    except RnnsearchError as error:
        messages = error.problems if isinstance(error, ConfigError) else [str(error)]
        failure = next((f"not a short line: {text[:99]!r}" for text in messages if not is_short_line(text)), "")
    except BaseException as error:
        failure = repr(error)[:200]
    seconds = time.process_time() - start
    memory = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before)
    if memory > memory_limit:
        failure = failure or f"{memory >> 20:,} MiB of memory, more than {memory_limit >> 20:,}"
    return {"failure": failure, "seconds": seconds, "memory": memory}


def is_short_line(message: str) -> bool:
    return 0 < len(message) <= MAX_MESSAGE_CHARACTERS and "\n" not in message


def run_bomb(read: Read, make: Make, name: str, size: int) -> tuple[str, str]:
    """Read a bomb at two sizes; return the failure, or "", and the time and memory as text."""
    with tempfile.TemporaryDirectory() as folder:
        small_file, large_file = (Path(folder) / part / name for part in ("small", "large"))

        def write() -> dict[str, Any]:
            for path, bytes_ in ((small_file, size), (large_file, 2 * size)):
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(make(bytes_))
            return {}

        usage = ""
        for _ in range(4):  # other processes disturb the measurement
            in_child(write)
            small, large = (in_child(partial(measure, read, path)) for path in (small_file, large_file))
            if failure := small["failure"] or large["failure"]:
                return failure, usage
            usage = f"{small['seconds']:.2f} s, then {large['seconds']:.2f} s and {large['memory'] >> 20} MiB"
            if large["seconds"] <= MAX_SLOWDOWN * max(small["seconds"], MIN_MEASURABLE_SECONDS):
                return "", usage
        return "doubling the size takes too much time", usage


def main(arguments: list[str] | None = None) -> int:
    """Run the bombs and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4 << 20, help="bytes of the smaller file [default: %(default)s]")
    parser.add_argument("--only", default="", help="run the bombs whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="print time and memory of each bomb")
    options = parser.parse_args(arguments)
    num_bombs = failures = 0
    gc.freeze()  # children then do not scan the objects of this process
    for reader, (read, makers) in BOMBS.items():
        for name, make in makers.items():
            if options.only not in f"{reader}: {name}":
                continue
            failure, usage = run_bomb(read, make, name, options.size)
            num_bombs += 1
            failures += bool(failure)
            if failure or options.verbose:
                sys.stdout.write(f"{reader}: {name}: {usage} {failure}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{num_bombs} bombs, {failures} failures\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
