"""Damaged engine files, read by the runtime under AddressSanitizer: each must translate or be rejected.

`python -m tests.stress.engine_files --count 6000` damages that many copies of small models, in the arrays (about a
million bytes altogether) or in the header, and corrects the hash so that the damage is not noticed by it. Files that
still load translate unusual texts with various beam sizes and prefixes. With `--plain`, or if the compiler has no
AddressSanitizer, the runtime is used without it.
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
from rnnsearch.ops.native.building import build_if_missing, find_compiler
from rnnsearch.runtime import translator
from tests.stress import mutants

SANITIZER_FLAGS = ("-fsanitize=address", "-fno-omit-frame-pointer", "-g1")
FOLDER_VARIABLE = "RNNSEARCH_STRESS_FOLDER"
"""Environment variable that passes the folder of intact files to the child process."""
TEXTS = ["the dog sees the cat.", "", "a " * 40, "Ünï \u0000 \u2028 ☃", "dog"]
num_changed_bytes = 0


def write_intact_files(folder: Path) -> None:
    """Write small models of several families in several precisions, with candidate lists and with pruned weights.

    Only this function needs PyTorch.
    """
    from rnnsearch.export.engine_file import export
    from rnnsearch.search.candidates import learn_candidate_tables, save_candidate_tables
    from rnnsearch.systems.folder import load_system
    from rnnsearch.systems.pruning import prune
    from tests.untrained import BAHDANAU, OTHER_FAMILIES, write_model

    bpe = write_model(folder / "bpe", BAHDANAU, "bpe")
    system = load_system(bpe)
    save_candidate_tables(bpe, learn_candidate_tables([[5, 6, 7]], [[8, 5, 9]], len(system.source), len(system.target)))
    prune(write_model(folder / "words", BAHDANAU, "words"), folder / "pruned", 0.8, "class-uniform")
    for precision in ("int4", "int8", "bf16", "fp32"):
        export(bpe, folder / f"bpe-{precision}.rnn", precision, candidates=3 if precision == "int8" else 0)
        export(folder / "pruned", folder / f"pruned-{precision}.rnn", precision)
    for name, model in OTHER_FAMILIES.items():
        for precision in ("int8", "fp32"):
            export(write_model(folder / name, model, "words"), folder / f"{name}-{precision}.rnn", precision)


def change_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return the content with between one and about two thousand bytes changed."""
    global num_changed_bytes  # noqa: PLW0603
    changed = bytearray(content)
    count = int(10 ** rng.uniform(0, 3.3))
    for _ in range(count):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    num_changed_bytes += count
    return bytes(changed)


def corrupt_value(value: Any, rng: random.Random) -> Any:
    """Return another value, or a copy of the value with one nested value corrupted."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        return value | {key: corrupt_value(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], corrupt_value(value[at], rng), *value[at + 1 :]]
    if isinstance(value, int) and rng.random() < 0.7:
        near = [value + 1, value - 1, value + 16, value - 16, value + 64, float(value)]
        return rng.choice([*near, -value, value * 2, 1 << 31, 1 << 62])
    return rng.choice([None, 0, -1, 1e308, 1 << 70, "", "int8", "dense", "sparse", "int4", [], {}, [1], True])


def damage(intact: bytes, rng: random.Random) -> bytes:
    """Return a damaged copy of an engine file with a correct hash."""
    length = int.from_bytes(intact[8:16], "little")
    header = json.loads(zlib.decompress(intact[24 : 24 + length]))
    payload = intact[24 + length + -(24 + length) % 64 :]
    if rng.random() < 0.6:
        payload = change_bytes(payload, rng)
    else:
        structure = ["program"] * 6 if "program" in header else ["sizes"]
        key = rng.choice(["arrays", "arrays", *structure, "search", "tokenizers", "kind", "calibration", "languages"])
        header = header | {key: corrupt_value(header.get(key), rng)}
    if rng.random() < 0.1:
        payload = payload[: rng.randrange(len(payload))]
    header["sha256"] = hashlib.sha256(payload).hexdigest()
    text = json.dumps(header).encode()
    packed = zlib.compress(text)
    head = intact[:8] + len(packed).to_bytes(8, "little") + len(text).to_bytes(8, "little") + packed
    return head + bytes(-len(head) % 64) + payload


def translates(path: Path, rng: random.Random) -> bool:
    """Return True if the model loads and translates, False if it is rejected. Any other exception is a failure."""
    try:
        loaded = translator.load(path)
        texts = rng.sample(TEXTS, 2)
        beam = rng.choice([1, 1, 2, 7])
        all_prefixes = [text and rng.choice(["", "d", "das Haus ", "☃"]) for text in texts]
        prefixes = all_prefixes if rng.random() < 0.4 else None
        loaded.n_best(texts, rng.randint(1, beam), beam, prefixes)
    except RnnsearchError as error:
        if not str(error).strip() or "\n" in str(error):
            raise AssertionError("the error must have a one-line message") from error
        return False
    return True


@cache
def sanitized_library() -> ctypes.CDLL:
    """Load the runtime's library, built with AddressSanitizer, which aborts on invalid memory accesses."""
    return ctypes.CDLL(str(build_if_missing(translator.best_variant(), find_compiler() or (), SANITIZER_FLAGS)))


def sanitizer_runtime() -> str | None:
    """Return the path of the compiler's libasan, which must be preloaded, or None if it has none."""
    command = find_compiler()
    if command is None:
        return None
    result = subprocess.run([*command, "-print-file-name=libasan.so"], check=False, capture_output=True, text=True)
    path = result.stdout.strip()
    return path if result.returncode == 0 and Path(path).is_absolute() and Path(path).exists() else None


def damage_many(options: Any, folder: Path) -> int:
    """Damage and load many copies of the engine files in a folder; return the exit status."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        translator.library = sanitized_library
    intact_files = [path.read_bytes() for path in sorted(folder.glob("*.rnn"))]
    path = folder / "damaged.rnn"

    def accepts(rng: random.Random) -> bool:
        path.write_bytes(damage(rng.choice(intact_files), rng))
        return translates(path, rng)

    status = mutants.run(options, "engine files", accepts)
    path.unlink(missing_ok=True)
    sys.stderr.write(f"{num_changed_bytes:,} bytes of arrays changed\n")
    return status


def main(arguments: list[str] | None = None) -> int:
    """Write the models and damage them in a child process; return the exit status."""
    options = mutants.parse_options(__doc__, 6_000, arguments, {"--plain": "do not use AddressSanitizer"})
    if folder := os.environ.get(FOLDER_VARIABLE):
        return damage_many(options, Path(folder))
    if find_compiler() is None:
        sys.stdout.write("skipped, there is no C++ compiler: 0 failures\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        write_intact_files(Path(folder))
        environment = os.environ | {FOLDER_VARIABLE: folder}
        libasan = None if options.plain else sanitizer_runtime()
        if libasan is not None:
            environment |= {"LD_PRELOAD": libasan, "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
        else:
            sys.stderr.write("running without AddressSanitizer\n")
        command = [sys.executable, "-m", __spec__.name]
        for name in ("count", "minutes", "seed"):
            command += [f"--{name}", str(getattr(options, name))]
        return subprocess.run(command, check=False, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
