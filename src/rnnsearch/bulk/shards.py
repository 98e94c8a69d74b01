"""Lines in fixed ranges, the result of each kept whole when it is done, all of them joined in order at the end.

A store holds, of each range, what is to be done (its lines) and what has been done, under names that begin with a key
of the input, the work and the ranges; and a manifest, written when all ranges are there. So whoever is killed, worker
or program, loses no range that was finished, and a result of other input or options can never be taken for one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rnnsearch.bulk import jobs
from rnnsearch.bulk.jobs import MANIFEST, Engine, Job, json_bytes
from rnnsearch.bulk.stores import Store
from rnnsearch.files import atomic_file

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

    def __call__(self) -> jobs.Work:
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
        job = Job(store, jobs.key_of(about), _OfLines(make))
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
    if (manifest := jobs.manifest_of(job.store, about)) is not None:
        known: list[int] = manifest["ends"]
        return known
    jobs.forget(job.store)  # of a run that was killed while it cut
    ends, first = list[int](), 0
    for lines in _at_least(portions, rows):
        job.store.write(job.given(len(ends)), json_bytes({"first": first, "lines": lines}))
        first += len(lines)
        ends.append(first)
    jobs.write_manifest(job.store, about, ends)
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
