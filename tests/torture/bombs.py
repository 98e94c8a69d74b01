"""Bombs: files made to take more time or memory than their size allows, each read in a process of its own.

`python -m tests.torture.bombs --size 4194304` makes files of about so many bytes and of twice as many. What comes of
each must be what is read or short sentences; twice the size may take 2.5 times the time, and memory be at most `FIXED`
and `EACH` bytes for every byte of the file. `--only WORD` tries those alone whose names hold a word.
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

from rnnsearch.cli.io import input_portions
from rnnsearch.config import load
from rnnsearch.data.corpus import HELD, LONGEST, read_chunks
from rnnsearch.data.download import Archive, PipSettings, fetch
from rnnsearch.data.formats import read_document
from rnnsearch.errors import ConfigError, RnnsearchError
from rnnsearch.search import candidates
from rnnsearch.search.unknown_words import read_dictionary
from rnnsearch.systems.card import SCORES, TRAINING, measured, training_facts
from rnnsearch.text.alignments import read_pharaoh
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.weights import FORMAT, read_weights
from tests.untrained import TEXT

FIXED = 8 * (HELD + 32 * LONGEST)
"""Bytes of memory that any file may take: the lines that are held at a time, whole, split, as text and as rows."""
EACH = 256
"""Bytes of memory for every byte of a file: an object each for a letter or two."""
LEAST = 0.08
"""Seconds of the smaller file: less is not measured well."""
MOST = 2.5
SECONDS = 120
"""Of a processor, for one file; who takes more is killed."""
LONGEST_SENTENCE = 1500

Read = Callable[[Path], object]
Make = Callable[[int], bytes]


def document(path: Path) -> None:
    found = read_document(path.name, path.read_bytes(), "en", "de")
    found.filled(["x"] * len(found.segments))


def rows(path: Path) -> None:
    for chunk in read_chunks([str(path)], path.parent, size=20_000):
        for _ in chunk.rows():
            pass


def portions(path: Path) -> None:
    for _ in input_portions(path, 10_000):
        pass


def standard_input(path: Path) -> None:
    sys.stdin = io.TextIOWrapper(path.open("rb"))
    for _ in input_portions(None, 10_000):
        pass


def tokenizer(path: Path) -> None:
    found = Tokenizer.load(path)
    found.join(found.ids(["the dog sees"])[0])
    found.symbols()


def under(name: str, read: Callable[[Path], object]) -> Read:
    """A reader of a folder that has the file by its own name."""

    def moved(path: Path) -> object:
        path.rename(path.with_name(name))
        return read(path.parent)

    return moved


def page(path: Path) -> None:
    """A page of a package index, from a server."""

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
    """A catalogue of one entry, something of it again and again."""
    parts = (before, inside, text if len(text) > 1 else "", head)
    count = size // max(1, len("".join(parts)))
    again = [part * count for part in parts]
    top = f'msgid ""\nmsgstr "a: b{again[3]}"\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    return f'{top}{again[0]}msgid "{again[2]}"\n{again[1]}"a"\nmsgstr ""\n'.encode()


def tmx(body: bytes, before: bytes = b"", root: bytes = b"") -> bytes:
    return before + b"<tmx" + root + b"><body>" + body + b"</body></tmx>"


def unit(inside: bytes) -> bytes:
    return b"<tu><tuv lang='en'><seg>a</seg></tuv>" + inside + b"</tu>"


def numbered(template: bytes, size: int) -> bytes:
    """A piece of text with a number in it, again and again."""
    return b"".join(template % number for number in range(size // len(template % 10_000)))


def frames(content: bytes, size: int) -> bytes:
    """A .zst file that becomes 1,024 times its size, of frames of this content again and again."""
    frame = zstandard.ZstdCompressor().compress(content * max(1, (1 << 20) // len(content)))
    return frame * (size // 1024)


def members(content: bytes, size: int) -> bytes:
    """The same of .gz, 512 times its size."""
    return gzip.compress(content * max(1, (1 << 19) // len(content))) * (size // 1024)


def skippable(size: int) -> bytes:
    return struct.pack("<II", 0x184D2A50, size)


def tensors(header: Any, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps({"__metadata__": {"format": FORMAT}, **header}).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def tensor(kind: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


def table(translations: torch.Tensor, frequent: torch.Tensor) -> bytes:
    return save({"translations": translations, "frequent": frequent}, {"format": FORMAT})


def trained() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        train_bpe(TEXT["en"], 340, 1).save(Path(folder) / "a.json")
        return json.loads((Path(folder) / "a.json").read_text())


WHOLE = json.dumps(trained())


def changed(model: Callable[[dict[str, Any]], object] | None = None, **parts: object) -> bytes:
    """A tokenizer with other parts, or other parts of its model."""
    made = {**json.loads(WHOLE), **parts}
    if model is not None:
        model(made["model"])
    return json.dumps(made).encode()


def vocabulary(more: dict[str, int]) -> bytes:
    return changed(lambda model: model["vocab"].update(more))


def some(count: int, name: str = "q") -> dict[str, int]:
    first = len(json.loads(WHOLE)["model"]["vocab"])
    return {f"{name}{number}": first + number for number in range(count)}


PADDING: dict[str, Any] = {"strategy": {"Fixed": 1 << 40}, "direction": "Right", "pad_to_multiple_of": None}
PADDING |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
SPLIT = {"type": "Split", "pattern": {"Regex": "(?:(?:[a-z ]?)+)+$!"}, "behavior": "Isolated", "invert": False}
INTEGERS = torch.full((10, candidates.KEPT), 1, dtype=torch.int32)

BOMBS: dict[str, tuple[Read, dict[str, Make]]] = {
    "po": (
        document,
        {
            "continued.po": lambda n: po(n, inside='"x"\n'),
            "comments.po": lambda n: po(n, before="# x\n"),
            "comments of an old entry.po": lambda n: po(n, before='#~ # x\n#~ msgid "a"\n'),
            "mixed comments.po": lambda n: po(n, before="# x\n#, y\n"),
            "earlier text.po": lambda n: po(n, before='#| msgid "a"\n' + '#| "b"\n' * 99),
            "head.po": lambda n: b"# x\n" * (n // 4) + po(9),
            "metadata.po": lambda n: po(n, head="\\nx"),
            "one word.po": lambda n: po(n, text="xy"),
            "hyphens.po": lambda n: po(n, text="x-"),
            "dashes.po": lambda n: po(n, text="--"),
            "words.po": lambda n: po(n, text="x "),
            "backslashes.po": lambda n: po(n, text="\\\\"),
            "places.po": lambda n: po(n, before="#: a:1\n"),
            "flags.po": lambda n: po(n, before="#, a,b\n"),
            "entries.po": lambda n: numbered(b'msgid "%d"\nmsgstr ""\n\n', n),
            "one line.po": lambda n: b"x" * n,
            "no text.po": lambda n: b"\0" * n,
            "surrogates.po": lambda n: b"\xed\xa0\x80" * (n // 3),
        },
    ),
    "tmx": (
        document,
        {
            "entities.tmx": lambda n: b'<!DOCTYPE tmx [<!ENTITY a "' + b"a" * n + b'">]><tmx>&a;&a;</tmx>',
            "outer entity.tmx": lambda _: b'<!DOCTYPE tmx [<!ENTITY a SYSTEM "/dev/zero">]><tmx>&a;</tmx>',
            "outer type.tmx": lambda _: tmx(unit(b""), b'<!DOCTYPE tmx SYSTEM "/dev/zero">'),
            "attributes given.tmx": lambda n: tmx(
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
            "units in units.tmx": lambda n: tmx(b"<tu>" * 40 + unit(b"") * (n // 45) + b"</tu>" * 40),
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
            "surrogates.tmx": lambda n: tmx(b"&#xD800;" * (n // 8)),
        },
    ),
    "plain": (
        document,
        {
            "lines.txt": lambda n: b"a\n" * (n // 2),
            "one line.txt": lambda n: b"a" * n,
            "rows.tsv": lambda n: b"a\n" * (n // 2),
            "tabs.tsv": lambda n: b"a" + b"\t" * n,
        },
    ),
    "corpus": (
        rows,
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
            "skipped frames.tsv.zst": lambda n: skippable(0) * (n // 8),
            "skipped frame.tsv.zst": lambda n: skippable(n) + b"a" * n,
            "skipped too far.tsv.zst": lambda n: skippable(0xFFFFFFFF) + b"a" * n,
            "window.tsv.zst": lambda n: b"\x28\xb5\x2f\xfd\x00\xa8" + b"\x01\0\0" + b"a" * n,
            "nested.tsv.gz": lambda n: gzip.compress(members(b"a", n)),
            "name.tsv.gz": lambda n: b"\x1f\x8b\x08\x08" + b"\0" * 6 + b"n" * n,
            "zeros.tsv.gz": lambda n: gzip.compress(b"a\tb\n") + b"\0" * n,
            "not utf-8.tsv": lambda n: b"\xed\xa0\x80\t\xff\n" * (n // 6),
            "utf-16.tsv": lambda n: ("a\tb\n" * (n // 8)).encode("utf-16"),
        },
    ),
    "portions": (
        portions,
        {
            "endless.gz": lambda n: members(b"a", n),
            "long lines.zst": lambda n: frames(b"b" * (1 << 19) + b"\n", n),
        },
    ),
    "input": (
        standard_input,
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
        tokenizer,
        {
            "deep.json": lambda n: b"[" * n,
            "deep tables.json": lambda n: b'{"a":' * (n // 5),
            "deep and whole.json": lambda _: b'{"a":' * 500 + b"1" + b"}" * 500,
            "digits.json": lambda n: b"1" * n,
            "zeros.json": lambda n: b"\0" * n,
            "protocol buffer.json": lambda n: b"\x0a\x0e\x0a\x05<unk>" * (n // 9),
            "utf-16.json": lambda _: changed().decode().encode("utf-16"),
            "surrogate.json": lambda _: vocabulary(some(1, "\ud800")),
            "prepended.json": lambda n: changed(normalizer={"type": "Prepend", "prepend": "a" * n}),
            "padded.json": lambda _: changed(padding=PADDING),
            "split.json": lambda _: changed(pre_tokenizer=SPLIT),
            "splits.json": lambda n: changed(
                pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}] * (n // 22)}
            ),
            "unknown model.json": lambda n: changed(lambda model: model.update(type="a" * n)),
            "symbols.json": lambda n: vocabulary(some(n // 16)),
            "long symbol.json": lambda n: vocabulary(some(1, "z" * n)),
            "high id.json": lambda _: vocabulary({"dog": (1 << 32) - 1}),
            "higher id.json": lambda _: vocabulary({"dog": 1 << 32}),
            "one id twice.json": lambda _: vocabulary({"dog": 7}),
            "merges.json": lambda n: changed(lambda model: model.update(merges=model["merges"][:1] * (n // 14))),
        },
    ),
    "weights": (
        read_weights,
        {
            "long head": lambda n: tensors(b"{}", b"a" * n, 1 << 63),
            "longer head": lambda n: tensors(b"{}", b"a" * n, 99_999_999),
            "deep": lambda n: tensors(b'{"a":' * (n // 5)),
            "metadata": lambda n: tensors({"__metadata__": {"format": FORMAT, "x": "a" * n}}),
            "empty": lambda n: tensors({str(m): tensor("F32", [0], 0, 0) for m in range(n // 60)}),
            "tiny": lambda n: tensors({str(m): tensor("U8", [1], m, m + 1) for m in range(n // 60)}, b"a" * (n // 60)),
            "overlapping": lambda n: tensors({str(m): tensor("U8", [n], 0, n) for m in range(999)}, b"a" * n),
            "huge": lambda _: tensors({"a": tensor("F32", [1 << 62, 4], 0, 16)}, b"a" * 16),
            "huge and empty": lambda _: tensors({"a": tensor("F32", [1 << 62, 0], 0, 0)}),
            "many axes": lambda n: tensors({"a": tensor("F32", [1] * (n // 3), 0, 4)}, b"aaaa"),
            "negative": lambda _: tensors({"a": tensor("F32", [-1], 0, -4)}, b"aaaa"),
            "unknown type": lambda _: tensors({"a": tensor("F6_E2M3", [8], 0, 6)}, b"aaaaaa"),
        },
    ),
    "candidates": (
        under(candidates.FILE, lambda folder: candidates.read(folder, 5, 10, 10)),
        {
            "no numbers": lambda _: table(INTEGERS / 0, INTEGERS[0]),
            "before the first": lambda n: table(INTEGERS, -INTEGERS[0] * (n % 2**30)),
            "past the last": lambda n: table(INTEGERS * (n % 2**30), INTEGERS[0]),
            "complex": lambda _: table(INTEGERS * 1j, INTEGERS[0]),
        },
    ),
    "training": (
        under(TRAINING, training_facts),
        {
            "deep": lambda n: b"[" * n,
            "digits": lambda n: b"1" * n,
            "tables": lambda n: b"[" + b"{}," * (n // 3) + b"0]",
        },
    ),
    "scores": (
        under(SCORES, lambda folder: measured(folder, "x")),
        {"deep": lambda n: b"[" * n, "rows": lambda n: b"[" + b'{"weights":0},' * (n // 14) + b'{"weights":"x"}]'},
    ),
    "run": (
        load,
        {
            "long key.toml": lambda n: b"a." * (n // 2) + b"a=1",
            "long quoted key.toml": lambda n: b'"\\"" . ' * (n // 7) + b"a=1",
            "long head.toml": lambda n: b"[" + b"a." * (n // 2) + b"a]\n",
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
        page,
        {
            "open tags.html": lambda n: b"<a " * (n // 3),
            "attributes.html": lambda n: b"<a " + b"x=1 " * (n // 4) + b">",
            "quotes.html": lambda n: b"<a " + b"x='" * (n // 3) + b">",
            "comments.html": lambda n: b"<!--" * (n // 4),
            "openers.html": lambda n: b"<" * n,
            "deep.html": lambda n: b"<b>" * (n // 3),
            "links.html": lambda n: b"<a href=x>" * (n // 10),
            "up.html": lambda n: b"<a href='" + b"../" * (n // 3) + b"'>",
            "no address.html": lambda _: b"<a href='http://[x'>",
            "script.html": lambda n: b"<script>" + b"</" * (n // 2),
            "endless.html": lambda n: b"a" * 64 * n,
            "deep.json": lambda n: b"[" * n,
            "no files.json": lambda n: b"{}" + b" " * n,
            "other files.json": lambda n: b'{"files":[' + b"0," * (n // 2) + b"0]}",
        },
    ),
}


def apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is found in a child of this process, which leaves no memory behind."""
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # libraries have threads, which the child does not need
        child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(sending, json.dumps(work()).encode())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as file:
        told = file.read()
    _, status = os.waitpid(child, 0)
    return json.loads(told) if told else {"fault": f"killed by signal {-os.waitstatus_to_exitcode(status)}"}


def tried(read: Read, path: Path) -> dict[str, Any]:
    """What is wrong with the reading of a file, if anything, and the processor time and memory that it takes."""
    allowed = FIXED + EACH * path.stat().st_size
    most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 4 * allowed
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    wrong, before, began = "", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        read(path)
    except RnnsearchError as error:
        sentences = error.faults if isinstance(error, ConfigError) else [str(error)]
        wrong = next((f"no sentence: {one[:99]!r}" for one in sentences if not short(one)), "")
    except BaseException as error:
        wrong = repr(error)[:200]
    seconds = time.process_time() - began
    memory = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if memory > allowed:
        wrong = wrong or f"{memory >> 20:,} MiB of memory, more than {allowed >> 20:,}"
    return {"fault": wrong, "seconds": seconds, "memory": memory}


def short(sentence: str) -> bool:
    return 0 < len(sentence) <= LONGEST_SENTENCE and "\n" not in sentence


def fault(read: Read, make: Make, name: str, size: int) -> tuple[str, str]:
    """What is wrong with the reading of a bomb, if anything, and what it took."""
    with tempfile.TemporaryDirectory() as folder:
        small_file, large_file = (Path(folder) / part / name for part in ("small", "large"))

        def write() -> dict[str, Any]:
            for path, bytes_ in ((small_file, size), (large_file, 2 * size)):
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(make(bytes_))
            return {}

        took = ""
        for _ in range(4):  # another process may have had the caches
            apart(write)
            small, large = (apart(partial(tried, read, path)) for path in (small_file, large_file))
            if wrong := small["fault"] or large["fault"]:
                return wrong, took
            took = f"{small['seconds']:.2f} s, then {large['seconds']:.2f} s and {large['memory'] >> 20} MiB"
            if large["seconds"] <= MOST * max(small["seconds"], LEAST):
                return "", took
        return "twice the size takes too much time", took


def main(given: list[str] | None = None) -> int:
    """Try all; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4 << 20)
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true")
    chosen = parser.parse_args(given)
    bombs = [(read, make, kind, name) for kind, (read, makes) in BOMBS.items() for name, make in makes.items()]
    bombs = [bomb for bomb in bombs if chosen.only in f"{bomb[2]}: {bomb[3]}"]
    faults = 0
    gc.freeze()  # children need not look through what is there
    for read, make, kind, name in bombs:
        wrong, took = fault(read, make, name, chosen.size)
        faults += bool(wrong)
        if wrong or chosen.verbose:
            sys.stdout.write(f"{kind}: {name}: {took} {wrong}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(bombs)} bombs, {faults} faults\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
