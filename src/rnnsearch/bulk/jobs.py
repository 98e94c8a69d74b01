"""Work in numbered pieces: what each is given and what comes of it are files in a store, there whole or not at all.

This is all that an engine knows of: who is killed, worker or program, loses no piece that was finished.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from rnnsearch.bulk.stores import Store
from rnnsearch.errors import DataError
from rnnsearch.utils.files import atomic_file, sha256_of

MANIFEST = "run.json"
"""What the work of a store hangs on, written when what it is to do is there."""
_OURS = re.compile(r"[0-9a-f]{16}(-\d{7,}\.(given|done)|\.(common|cut))")

Handler = Callable[[bytes], bytes]
"""Makes of what a piece is given what comes of it."""


@dataclass(frozen=True)
class Job:
    """What does a piece, wherever it runs: it can be sent to other processes."""

    store: Store
    key: str
    make: Callable[[], Handler]
    """Makes a `Work`, which may be heavy (a model) and stays where it was made."""

    def given(self, number: int) -> str:
        """The name of what a piece is given."""
        return f"{self.key}-{number:07}.given"

    def result(self, number: int) -> str:
        """The name of what came of it."""
        return f"{self.key}-{number:07}.done"

    def do(self, work: Handler, number: int) -> None:
        """Do a piece, unless it has been done. Errors: those of the store and of the work."""
        if not self.store.has(self.result(number)):
            self.store.write(self.result(number), work(self.store.read(self.given(number))))


Engine = Callable[[Job, Sequence[int]], Iterator[int]]
"""Does the pieces with these numbers, in any order, and yields the number of each when it is done."""


class Worker:
    """What one process does of a job; its `Work` is made at the first piece."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._work: Handler | None = None

    def do(self, number: int) -> int:
        """A piece; returns its number. Errors: as `Job.do`."""
        self._work = self._work or self._job.make()
        self._job.do(self._work, number)
        return number


def key_of(about: Any) -> str:
    """16 hexadecimal digits of what work hangs on (JSON)."""
    return sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def manifest_of(store: Store, about: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest, where the store holds a run about this. Errors: DataError where it holds one about another."""
    if MANIFEST not in store.names():
        return None
    manifest: dict[str, Any] = json.loads(store.read(MANIFEST))
    other = manifest["about"]
    if other != about:
        differs = next(key for key in {**about, **other} if about.get(key) != other.get(key))
        raise DataError(f"{store}: holds a run with other {differs}; finish that one, or delete it")
    return manifest


def write_manifest(store: Store, about: Mapping[str, Any], ends: Sequence[int] | None = None) -> None:
    """The store holds a run about this from now on; `ends`: where its ranges of lines do, if it has such."""
    store.write(MANIFEST, json_bytes({"about": about} if ends is None else {"about": about, "ends": ends}))


def forget(store: Store) -> None:
    """Nothing of a run is kept; what others keep there stays."""
    store.remove({MANIFEST, *(name for name in store.names() if _OURS.fullmatch(name))})


def json_bytes(value: object) -> bytes:
    """As JSON."""
    return json.dumps(value, ensure_ascii=False).encode()


# What tells files, and folders of files, from others.

PASSED_OVER = ("checkpoints", "data", "data.partial")
"""Folders in a model folder that only training and preparation read."""
READ = (".toml", ".safetensors", ".json", ".tsv")
"""What translation may read of a model folder; a run's log is not of it."""


def digest(path: Path) -> str:
    """32 hexadecimal digits of what a file holds; of a folder, of what a model is read from there."""
    if not path.is_dir():
        return sha256_of(path)[:32]
    every = sorted(path.rglob("*"), key=lambda file: file.relative_to(path).as_posix())
    held = [file for file in every if file.suffix in READ and file.is_file() and not file.name.startswith(".")]
    names = {file.relative_to(path).as_posix(): file for file in held}
    parts = [f"{name} {digest(file)}" for name, file in names.items() if name.split("/")[0] not in PASSED_OVER]
    return sha256("\n".join(parts).encode()).hexdigest()[:32]


# Lines in fixed ranges, the result of each kept whole when it is done, all of them joined in order at the end.
#
# A store holds, of each range, what is to be done (its lines) and what has been done, under names that begin with a key
# of the input, the work and the ranges; and a manifest, written when all ranges are there. So whoever is killed, worker
# or program, loses no range that was finished, and a result of other input or options can never be taken for one.

Counts = dict[str, int | float]
"""What is summed over lines, by name."""


class Done(NamedTuple):
    """What came of some lines."""

    outputs: dict[str, str]
    """By name, text that goes to the end of an output, line feeds included."""
    said: list[str]
    """Messages to the user."""
    counts: Counts

    @classmethod
    def together(cls, parts: Iterable[Done]) -> Done:
        """That of lines that follow one another."""
        outputs, said, counts = dict[str, list[str]](), list[str](), Counts()
        for part in parts:
            for name, text in part.outputs.items():
                outputs.setdefault(name, []).append(text)
            said += part.said
            for name, count in part.counts.items():
                counts[name] = counts.get(name, 0) + count
        return cls({name: "".join(texts) for name, texts in outputs.items()}, said, counts)


Work = Callable[[Sequence[str], int], Done]
"""Does some lines, of which the first has that number, from 0. What it makes of lines must not hang on where ranges
end, as long as ranges end where portions do (`run`)."""


@dataclass(frozen=True)
class _OfLines:
    """Makes of a `Work` one of the bytes that the store holds; it can be sent to other processes."""

    make: Callable[[], Work]

    def __call__(self) -> Handler:
        work = self.make()

        def of_bytes(given: bytes) -> bytes:
            lines = json.loads(given)
            return json_bytes(work(lines["lines"], lines["first"])._asdict())

        return of_bytes


def run(
    portions: Iterable[Sequence[str]],
    about: Mapping[str, Any],
    make: Callable[[], Work],
    outputs: Mapping[str, Path],
    store: Store,
    engine: Engine,
    rows: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Done:
    """Do all lines and write what came of them to the files of `outputs`, each there whole at the end or not at all.

    `portions`: the lines, in pieces that must not be cut; a range is as many of them as have `rows` lines or more.
    `about`: what tells this work from other work, input included (JSON). `progress` is told of the lines that are done
    and of all there are: first of those that an earlier run has done. Returns the messages and counts of all lines,
    whichever run has done them.
    Errors: DataError where the store holds a run about something else; those of store, engine and work.
    """
    with store.locked():
        about = {**about, "rows": rows}
        job = Job(store, key_of(about), _OfLines(make))
        ends = _ranges(job, about, portions, rows)
        begins = [0, *ends][: len(ends)]
        there, every = store.names(), range(len(ends))
        missing = [number for number in every if job.result(number) not in there]
        lines, left = ends[-1] if ends else 0, sum(ends[number] - begins[number] for number in missing)
        if progress is not None:
            progress(lines - left, lines)
        for number in engine(job, missing):
            left -= ends[number] - begins[number]
            if progress is not None:
                progress(lines - left, lines)
        told = _joined(job, len(ends), outputs)
        store.remove({MANIFEST, *map(job.given, every), *map(job.result, every)})
    return told


def _ranges(job: Job, about: Mapping[str, Any], portions: Iterable[Sequence[str]], rows: int) -> list[int]:
    """Where ranges end, by the manifest, or by cutting the lines, which the store then holds."""
    if (manifest := manifest_of(job.store, about)) is not None:
        known: list[int] = manifest["ends"]
        return known
    forget(job.store)  # of a run that was killed while it cut
    ends, first = list[int](), 0
    for lines in _at_least(portions, rows):
        job.store.write(job.given(len(ends)), json_bytes({"first": first, "lines": lines}))
        first += len(lines)
        ends.append(first)
    write_manifest(job.store, about, ends)
    return ends


def _at_least(portions: Iterable[Sequence[str]], rows: int) -> Iterator[list[str]]:
    """Portions put together until they have so many lines."""
    held = list[str]()
    for lines in portions:
        held += lines
        if len(held) >= rows:
            yield held
            held = []
    if held:
        yield held


def _joined(job: Job, count: int, outputs: Mapping[str, Path]) -> Done:
    """Write the outputs of all ranges, in order; what else came of them."""
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(stack.enter_context(atomic_file(path)).open("w", encoding="utf-8", newline="\n"))
            for name, path in outputs.items()
        }

        def rest(done: Done) -> Done:
            for name, file in files.items():
                file.write(done.outputs[name])
            return done._replace(outputs={})

        every = (Done(**json.loads(job.store.read(job.result(number)))) for number in range(count))
        return Done.together(map(rest, every))
