"""Lines in fixed ranges, the result of each kept whole when it is done, all of them joined in order at the end.

A store holds, of each range, what is to be done (its lines) and what has been done, under names that begin with a key
of the input, the work and the ranges; and a manifest, written when all ranges are there. So whoever is killed, worker
or program, loses no range that was finished, and a result of other input or options can never be taken for one.
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
from rnnsearch.files import atomic_file

MANIFEST = "run.json"
Counts = dict[str, int | float]
"""What is summed over lines, by name."""
_OURS = re.compile(r"[0-9a-f]{16}-\d{7,}\.(lines|done)")


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
class Job:
    """What does a range, wherever it runs: it can be sent to other processes."""

    store: Store
    key: str
    make: Callable[[], Work]
    """Makes a `Work`, which may be heavy (a model) and stays where it was made."""

    def given(self, number: int) -> str:
        """The name of a range's lines."""
        return f"{self.key}-{number:07}.lines"

    def result(self, number: int) -> str:
        """The name of what came of them."""
        return f"{self.key}-{number:07}.done"

    def do(self, work: Work, number: int) -> None:
        """Do a range, unless it has been done. Errors: those of the store and of the work."""
        if self.store.has(self.result(number)):
            return
        given = json.loads(self.store.read(self.given(number)))
        done = work(given["lines"], given["first"])
        self.store.write(self.result(number), _bytes(done._asdict()))

    def done(self, number: int) -> Done:
        """What came of a range."""
        return Done(**json.loads(self.store.read(self.result(number))))


Engine = Callable[[Job, Sequence[int]], Iterator[int]]
"""Does the ranges with these numbers, in any order, and yields the number of each when it is done."""


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
        key = sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
        job = Job(store, key, make)
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
    there = job.store.names()
    if MANIFEST in there:
        manifest = json.loads(job.store.read(MANIFEST))
        other = manifest["about"]
        if other != about:
            differs = next(key for key in {**about, **other} if about.get(key) != other.get(key))
            raise DataError(f"{job.store}: holds a run with other {differs}; finish that one, or delete it")
        known: list[int] = manifest["ends"]
        return known
    job.store.remove({name for name in there if _OURS.fullmatch(name)})  # of a run that was killed while it cut
    ends, first = list[int](), 0
    for lines in _at_least(portions, rows):
        job.store.write(job.given(len(ends)), _bytes({"first": first, "lines": lines}))
        first += len(lines)
        ends.append(first)
    job.store.write(MANIFEST, _bytes({"about": about, "ends": ends}))
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

        return Done.together(rest(job.done(number)) for number in range(count))


def _bytes(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
