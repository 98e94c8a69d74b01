"""Damaged engine files, read by the runtime under AddressSanitizer: each translates, or is refused by one sentence.

`python -m tests.torture.engine_files --count 6000` changes bytes of so many copies of small models, a million in all,
in arrays and in the header, with the hash made right again, so that what they say is believed; what can still be loaded
is asked for translations of odd texts, with odd beams and beginnings. `--plain`, or a compiler that has no
AddressSanitizer: the same without it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from rnnsearch.errors import RnnsearchError
from rnnsearch.kernels.native.building import compiler
from rnnsearch.kernels.native.places import built
from rnnsearch.runtime import library, translator
from tests.torture import mutants

SANITISED = ("-fsanitize=address", "-fno-omit-frame-pointer", "-g1")
WHOLES = "RNNSEARCH_TORTURE_WHOLES"
"""Where the files are that are damaged, in the process that does it."""
TEXTS = ["the dog sees the cat.", "", "a " * 40, "Ünï \u0000 \u2028 ☃", "dog"]
flips = 0


def write_wholes(folder: Path) -> None:
    """Small models in each precision, one of them with candidate lists and zeros, and of other families. PyTorch is
    needed for this alone."""
    from rnnsearch.export import export
    from rnnsearch.search.candidates import learn, save
    from rnnsearch.systems.folder import load_system
    from rnnsearch.systems.pruning import prune
    from tests.untrained import BAHDANAU, OTHERS, write_model

    bpe = write_model(folder / "bpe", BAHDANAU, "bpe")
    system = load_system(bpe)
    save(bpe, learn([[5, 6, 7]], [[8, 5, 9]], len(system.source), len(system.target)))
    prune(write_model(folder / "words", BAHDANAU, "words"), folder / "pruned", 0.8, "class-uniform")
    for precision in ("int4", "int8", "bf16", "fp32"):
        export(bpe, folder / f"bpe-{precision}.rnn", precision, candidates=3 if precision == "int8" else 0)
        export(folder / "pruned", folder / f"pruned-{precision}.rnn", precision)
    for name, model in OTHERS.items():
        for precision in ("int8", "fp32"):
            export(write_model(folder / name, model, "words"), folder / f"{name}-{precision}.rnn", precision)


def flipped(content: bytes, draw: random.Random) -> bytes:
    """Some bytes changed: one, or a thousand."""
    global flips  # noqa: PLW0603
    changed, count = bytearray(content), int(10 ** draw.uniform(0, 3.3))
    for _ in range(count):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    flips += count
    return bytes(changed)


def odd(value: Any, draw: random.Random) -> Any:
    """A value in the place of one, or one inside it in another's."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        return value | {key: odd(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.9:
        at = draw.randrange(len(value))
        return [*value[:at], odd(value[at], draw), *value[at + 1 :]]
    if isinstance(value, int) and draw.random() < 0.7:
        near = [value + 1, value - 1, value + 16, value - 16, value + 64, float(value)]
        return draw.choice([*near, -value, value * 2, 1 << 31, 1 << 62])
    return draw.choice([None, 0, -1, 1e308, 1 << 70, "", "int8", "dense", "sparse", "int4", [], {}, [1], True])


def damaged(whole: bytes, draw: random.Random) -> bytes:
    """A file whose hash is right."""
    length = int.from_bytes(whole[8:16], "little")
    header = json.loads(zlib.decompress(whole[24 : 24 + length]))
    payload = whole[24 + length + -(24 + length) % 64 :]
    if draw.random() < 0.6:
        payload = flipped(payload, draw)
    else:
        own = ["program"] * 6 if "program" in header else ["sizes"]
        part = draw.choice(["arrays", "arrays", *own, "search", "tokenizers", "kind", "calibration", "languages"])
        header = header | {part: odd(header.get(part), draw)}
    if draw.random() < 0.1:
        payload = payload[: draw.randrange(len(payload))]
    header["sha256"] = hashlib.sha256(payload).hexdigest()
    text = json.dumps(header).encode()
    packed = zlib.compress(text)
    head = whole[:8] + len(packed).to_bytes(8, "little") + len(text).to_bytes(8, "little") + packed
    return head + bytes(-len(head) % 64) + payload


def translates(path: Path, draw: random.Random) -> bool:
    """Whether it can be used. Errors: whatever is wrong with our reading."""
    try:
        found = translator.load(path)
        texts = draw.sample(TEXTS, 2)
        beam = draw.choice([1, 1, 2, 7])
        begins = [text and draw.choice(["", "d", "das Haus ", "☃"]) for text in texts]
        prefixes = begins if draw.random() < 0.4 else None
        found.n_best(texts, draw.randint(1, beam), beam, prefixes)
    except RnnsearchError as error:
        if not str(error).strip() or "\n" in str(error):
            raise AssertionError("it must say in a line what is wrong") from error
        return False
    return True


@cache
def sanitised() -> ctypes.CDLL:
    """The runtime's library, which stops the process where it reads or writes what is not its own."""
    return ctypes.CDLL(str(built(library.variant(), compiler() or (), SANITISED)))


def runtime_of_sanitiser() -> str | None:
    """Where the compiler has what must be loaded first; None where it has none."""
    command = compiler()
    if command is None:
        return None
    told = subprocess.run([*command, "-print-file-name=libasan.so"], check=False, capture_output=True, text=True)
    found = told.stdout.strip()
    return found if told.returncode == 0 and Path(found).is_absolute() and Path(found).exists() else None


def torture(chosen: Any, folder: Path) -> int:
    """Damage many; returns the exit status."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        translator.library = sanitised
    wholes = [path.read_bytes() for path in sorted(folder.glob("*.rnn"))]
    path = folder / "damaged.rnn"

    def fits(draw: random.Random) -> bool:
        path.write_bytes(damaged(draw.choice(wholes), draw))
        return translates(path, draw)

    found = mutants.run(chosen, "engine files", fits)
    path.unlink(missing_ok=True)
    sys.stderr.write(f"{flips:,} bytes of arrays changed\n")
    return found


def main(given: list[str] | None = None) -> int:
    """Write the models, and damage them in a process of their own."""
    chosen = mutants.options(__doc__, 6_000, given, {"--plain": "without AddressSanitizer"})
    if folder := os.environ.get(WHOLES):
        return torture(chosen, Path(folder))
    if compiler() is None:
        sys.stdout.write("there is no C++ compiler: 0 faults\n")
        return 0
    with tempfile.TemporaryDirectory() as place:
        write_wholes(Path(place))
        environment, first = os.environ | {WHOLES: place}, None if chosen.plain else runtime_of_sanitiser()
        if first is not None:
            environment |= {"LD_PRELOAD": first, "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
        else:
            sys.stderr.write("without AddressSanitizer\n")
        options = ["--count", str(chosen.count), "--seed", str(chosen.seed)]
        return subprocess.run([sys.executable, "-m", __spec__.name, *options], check=False, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
