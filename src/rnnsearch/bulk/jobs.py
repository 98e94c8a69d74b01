"""Jobs of numbered shards, and `run`, which processes the lines of a file as such a job.

The input and the output of each shard are files in a store, which appear only when they are complete. Engines need
nothing else: a process that is killed, worker or main program, loses no finished shard.

A store belongs to one run, described by its manifest. The names of files start with a key that depends on the input,
the work and the shards, so that the result of another input or other options is never used by mistake.

Names and contents of stored files are a format that a newer version may find: what changes a result must be part of the
digest (`about`). Jobs are pickled for other processes, so `make` must be picklable; files in a store never are pickles
(`encoding.py`). Tests: tests/commands/test_bulk.py.
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

from pydantic import BaseModel

from rnnsearch.bulk.encoding import from_json, to_json
from rnnsearch.bulk.stores import Store
from rnnsearch.errors import DataError, RnnsearchError
from rnnsearch.utils.files import atomic_file, sha256_of

MANIFEST = "run.json"
"""Description of the run in a store, written when the inputs of all shards are there."""
_INPUT_SUFFIX = ".given"
_OUTPUT_SUFFIX = ".done"
COMMON_SUFFIX = ".common"
"""Suffix of the file of the arguments that all tasks of a pass share, see `prepare.py`."""
COUNT_SUFFIX = ".cut"
"""Suffix of the file of the number of shards of a pass, see `prepare.py`."""
_SHARD_SUFFIXES = "|".join(map(re.escape, (_INPUT_SUFFIX, _OUTPUT_SUFFIX)))
_PASS_SUFFIXES = "|".join(map(re.escape, (COMMON_SUFFIX, COUNT_SUFFIX)))
_FILE_OF_RUN = re.compile(rf"[0-9a-f]{{16}}(-\d{{7,}}({_SHARD_SUFFIXES})|{_PASS_SUFFIXES})")

SKIPPED_FOLDERS = ("checkpoints", "data", "data.partial")
"""Folders in a model folder that only training and preparation read."""
MODEL_SUFFIXES = (".toml", ".safetensors", ".json", ".tsv")
"""Suffixes of files in a model folder that translation may read."""

Handler = Callable[[bytes, str], bytes]
"""Function of the input of a shard, and its location for messages, that returns the output."""
Counts = dict[str, int | float]
"""Named counts, summed over all lines."""


@dataclass(frozen=True)
class Job:
    """The work on all shards; picklable, for workers."""

    store: Store
    """Store with the job's files."""
    key: str
    """Start of the names of the job's files, from `digest_key`."""
    make: Callable[[], Handler]
    """Makes the function for shards, which may be large (a model) and stays in the process that made it."""

    def input_name(self, number: int) -> str:
        """Return the file name of a shard's input."""
        return f"{self.key}-{number:07}{_INPUT_SUFFIX}"

    def output_name(self, number: int) -> str:
        """Return the file name of a shard's output."""
        return f"{self.key}-{number:07}{_OUTPUT_SUFFIX}"

    def do(self, work: Handler, number: int) -> None:
        """Process a shard, unless its output exists. Raises the exceptions of the store and of `work`."""
        if not self.store.has(self.output_name(number)):
            name = self.input_name(number)
            self.store.write(self.output_name(number), work(self.store.read(name), f"{self.store}/{name}"))


Engine = Callable[[Job, Sequence[int]], Iterator[int]]
"""Function that processes the shards with these numbers, in any order, and yields each number when it is done."""


class JobWorker:
    """Processes shards of a job in one process; the function for shards is made at the first one."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._handler: Handler | None = None

    def do(self, number: int) -> int:
        """Process a shard and return its number."""
        self._handler = self._handler or self._job.make()
        self._job.do(self._handler, number)
        return number


# The manifest and files of a run.


class Manifest(BaseModel):
    """Description of a run in its store."""

    about: dict[str, Any]
    """Everything that the results depend on."""
    ends: list[int] | None = None
    """Ends of the ranges of lines, if the run has any."""


def digest_key(value: Any) -> str:
    """Return 16 hexadecimal digits that depend on a JSON value."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def read_manifest(store: Store, about: Mapping[str, Any]) -> Manifest | None:
    """Return the manifest of a run that is described by `about`, or None if the store holds no run.

    Raises:
        DataError: The store holds another run.
        RnnsearchError: The manifest is damaged.
    """
    if MANIFEST not in store.names():
        return None
    manifest: Manifest = from_json(store.read(MANIFEST), Manifest, f"{store}/{MANIFEST}")
    stored = manifest.about
    if stored.get("format") != about.get("format"):
        raise DataError(
            f"{store}: holds a run of another version, which this one cannot read; delete it to start again"
        )
    if stored != about:
        differing = next(key for key in {**about, **stored} if about.get(key) != stored.get(key))
        raise DataError(f"{store}: holds a run with other {differing}; finish that one, or delete it")
    return manifest


def write_manifest(store: Store, about: Mapping[str, Any], ends: Sequence[int] | None = None) -> None:
    """Write the manifest of a run; `ends` are the ends of its ranges of lines, if it has any."""
    store.write(MANIFEST, to_json({"about": about} if ends is None else {"about": about, "ends": ends}))


def clear_run(store: Store) -> None:
    """Remove the files of a run; other files stay."""
    store.remove({MANIFEST, *(name for name in store.names() if _FILE_OF_RUN.fullmatch(name))})


def digest(path: Path) -> str:
    """Return 32 hexadecimal digits that depend on the content of a file, or of a folder's files that a model needs."""
    if not path.is_dir():
        return sha256_of(path)[:32]
    lines = []
    for file in sorted(path.rglob("*"), key=lambda file: file.relative_to(path).as_posix()):
        name = file.relative_to(path).as_posix()
        is_read = file.suffix in MODEL_SUFFIXES and not file.name.startswith(".") and file.is_file()
        if is_read and name.split("/")[0] not in SKIPPED_FOLDERS:
            lines.append(f"{name} {digest(file)}")
    return sha256("\n".join(lines).encode()).hexdigest()[:32]


# Lines of a file as a job: ranges of lines are shards, whose outputs are joined in order at the end.


class Done(NamedTuple):
    """Result of some lines."""

    outputs: dict[str, str]
    """Texts by name to append to an output file, including line ends."""
    messages: list[str]
    """Messages to the user."""
    counts: Counts
    """Counts over these lines."""

    @classmethod
    def concatenate(cls, results: Iterable[Done]) -> Done:
        """Return the result of consecutive ranges of lines."""
        outputs: dict[str, list[str]] = {}
        messages: list[str] = []
        counts: Counts = {}
        for result in results:
            for name, text in result.outputs.items():
                outputs.setdefault(name, []).append(text)
            messages += result.messages
            for name, count in result.counts.items():
                counts[name] = counts.get(name, 0) + count
        return cls({name: "".join(texts) for name, texts in outputs.items()}, messages, counts)

    def to_json(self) -> bytes:
        """Return the result as it is stored."""
        return to_json({"outputs": self.outputs, "said": self.messages, "counts": self.counts})

    @classmethod
    def from_json(cls, content: bytes, location: str) -> Done:
        """Return the stored result, or raise RnnsearchError, with its location, if it is damaged."""
        stored: _StoredDone = from_json(content, _StoredDone, location)
        return cls(stored.outputs, stored.said, stored.counts)


class _StoredDone(BaseModel):
    """A `Done` in a store."""

    outputs: dict[str, str]
    said: list[str]
    counts: Counts


class _StoredLines(BaseModel):
    """The input of a shard: some lines and the number of the first one."""

    first: int
    lines: list[str]


Work = Callable[[Sequence[str], int], Done]
"""Function of some lines and the number of the first one, counted from 0.

Results must not depend on how lines are grouped into ranges, as long as portions (see `run`) are whole.
"""


@dataclass(frozen=True)
class _LinesHandlerFactory:
    """Makes a handler of stored lines from a factory of `Work`; can be sent to other processes."""

    make: Callable[[], Work]

    def __call__(self) -> Handler:
        work = self.make()

        def handle(content: bytes, location: str) -> bytes:
            stored: _StoredLines = from_json(content, _StoredLines, location)
            return work(stored.lines, stored.first).to_json()

        return handle


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
    """Process lines in shards and write their outputs to files.

    A run that was killed is resumed by calling this function again with the same arguments.

    Args:
        portions: The lines, in portions that are never split.
        about: Description of the work, including its input (JSON). A store of another run is rejected.
        make: Makes the function for lines; called once in each process.
        outputs: Output files by name. Each appears only when it is complete.
        store: Store of the shards, emptied at the end.
        engine: Processes the shards.
        rows: Minimum number of lines per shard.
        progress: Called with the number of lines that are done and the number of all lines, first with the lines that
            an earlier run has done.

    Returns:
        The messages and counts of all lines, including those that an earlier run has done.

    Raises:
        DataError: The store holds another run. Exceptions of the store, the engine and the work are raised, too.
    """
    with store.locked():
        about = {**about, "rows": rows}
        job = Job(store, digest_key(about), _LinesHandlerFactory(make))
        ends = _prepare_ranges(job, about, portions, rows)
        sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        numbers = range(len(ends))
        names = store.names()
        missing = [number for number in numbers if job.output_name(number) not in names]
        total = sum(sizes)
        done = total - sum(sizes[number] for number in missing)
        if progress is not None:
            progress(done, total)
        for number in engine(job, missing):
            done += sizes[number]
            if progress is not None:
                progress(done, total)
        result = _join_outputs(job, len(ends), outputs)
        store.remove({MANIFEST, *map(job.input_name, numbers), *map(job.output_name, numbers)})
    return result


def _prepare_ranges(job: Job, about: Mapping[str, Any], portions: Iterable[Sequence[str]], rows: int) -> list[int]:
    """Return the ends of all ranges: from the manifest of an earlier run, or after writing the inputs of all shards."""
    manifest = read_manifest(job.store, about)
    if manifest is not None:
        return manifest.ends or []
    clear_run(job.store)  # an earlier run may have been killed before it wrote the manifest
    ends: list[int] = []
    first = 0
    for lines in _merge_portions(portions, rows):
        job.store.write(job.input_name(len(ends)), to_json({"first": first, "lines": lines}))
        first += len(lines)
        ends.append(first)
    write_manifest(job.store, about, ends)
    return ends


def _merge_portions(portions: Iterable[Sequence[str]], min_rows: int) -> Iterator[list[str]]:
    """Yield consecutive portions, merged until they have enough lines."""
    merged: list[str] = []
    for lines in portions:
        merged += lines
        if len(merged) >= min_rows:
            yield merged
            merged = []
    if merged:
        yield merged


def _join_outputs(job: Job, num_shards: int, paths: Mapping[str, Path]) -> Done:
    """Write the outputs of all shards in order and return their messages and counts."""
    with ExitStack() as stack:
        files = {}
        for name, path in paths.items():
            temporary = stack.enter_context(atomic_file(path))
            files[name] = stack.enter_context(temporary.open("w", encoding="utf-8", newline="\n"))

        def write_outputs(number: int) -> Done:
            shard = job.output_name(number)
            result = Done.from_json(job.store.read(shard), f"{job.store}/{shard}")
            if not files.keys() <= result.outputs.keys():
                raise RnnsearchError(f"{job.store}/{shard}: must have the outputs {', '.join(files)}; got others")
            for name, file in files.items():
                file.write(result.outputs[name])
            return result._replace(outputs={})

        return Done.concatenate(map(write_outputs, range(num_shards)))
