"""Whole files, translated in the background one after another, a few segments at a time between other requests."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePath
from typing import Literal

from rnnsearch.errors import RnnsearchError
from rnnsearch.serve.limits import ServeError, Settings, apart
from rnnsearch.serve.observability import log, unforeseen
from rnnsearch.serve.registry import Registry, Search, Served
from rnnsearch.serve.schemas import About
from rnnsearch.serve.texts import TextTranslation, translate_texts
from rnnsearch.text.documents import Document, read_document
from rnnsearch.text.languages import detect
from rnnsearch.text.markup.marks import MarkedText, Protected

TOO_LARGE = 413
"""The status of what is too long."""
CHUNK = 16
"""Segments that are in the queue at a time."""
SAMPLE = 500
"""Segments, the first, by which a file's language is known."""
KEPT_SECONDS = 3600.0
"""How long a result waits to be fetched."""
KEPT = 50
"""Results that wait, at most."""
FETCH_SECONDS = 30.0
"""How long a server that is told to stop waits for its last results to be fetched."""


@dataclass(eq=False)
class FileJob:
    """A file being translated."""

    id: str
    name: str
    about: About
    document: Document
    state: Literal["queued", "running", "done", "failed"] = "queued"
    done: int = 0
    left: list[int] = field(default_factory=list)
    """The numbers, from 1, of segments that stay empty: a sentence of theirs is too long."""
    error: str | None = None
    result: bytes | None = None
    fetched: bool = False
    since: float = field(default_factory=time.monotonic)
    """When it was sent and, later, when it ended."""
    task: asyncio.Task[None] = field(init=False)

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.state in ("done", "failed")

    @property
    def result_name(self) -> str:
        """The name of the translated file: `letter.de.txt` for `letter.txt`."""
        path = PurePath(self.name)
        return f"{path.stem}.{self.about.target}{path.suffix}"

    @property
    def segments(self) -> int:
        """How many there are to be done."""
        return len(self.document.segments)


def _marked(segments: Sequence[str], protect: Collection[Protected]) -> list[MarkedText]:
    return [MarkedText(segment, tags=False, protect=protect) for segment in segments]


def _placed(marked: Sequence[MarkedText], found: Sequence[TextTranslation | None]) -> list[str]:
    each = zip(marked, found, strict=True)
    return [text.placed(own.text(), own.links() if text.marks else ()) if own else "" for text, own in each]


async def _fitting(served: Served, texts: Sequence[str], search: Search) -> list[TextTranslation | None]:
    """The translations of texts, None of one with a sentence that is too long; none at fault keeps others waiting."""
    try:
        return list(await translate_texts(served, texts, search, patient=True))
    except ServeError as error:
        if error.status != TOO_LARGE:
            raise
    if len(texts) == 1:
        return [None]
    return [one for text in texts for one in await _fitting(served, [text], search)]


def _read(name: str, content: bytes, abouts: Sequence[About]) -> tuple[About, Document]:
    """The model whose source language fits a file's text best, and what there is to translate for it."""

    @cache
    def read(about: About) -> Document:
        return read_document(name, content, about.source, about.target)

    if len(abouts) == 1:
        return abouts[0], read(abouts[0])
    # A translation memory says itself which languages it has: for the others there is nothing to translate in it.
    some = next((segments for about in abouts if (segments := read(about).segments)), [])
    of = {about.source: about for about in abouts}
    ranked = [of[code] for code, _ in detect(" ".join(some[:SAMPLE]), list(of))]
    best = next((about for about in ranked if read(about).segments), ranked[0])
    return best, read(best)


class Files:
    """The file jobs of a server."""

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._most = settings.max_files
        self._jobs: dict[str, FileJob] = {}
        self._turn = asyncio.Semaphore(1)
        self._arriving = 0
        """Files that are being read."""
        self._stopping = False

    async def add(self, name: str, content: bytes, abouts: Sequence[About]) -> FileJob:
        """Take a file in, for the model of those whose language it is in.

        Errors: DataError for one that cannot be read; ServeError 429 or 503.
        """
        if self._stopping:
            raise ServeError(503, "the server is shutting down and takes no more files", 60)
        if self._arriving + sum(not job.ended for job in self._jobs.values()) >= self._most:
            raise ServeError(429, f"at most {self._most} files may wait; try again later", 60)
        name = PurePath(name.replace("\\", "/")).name
        self._arriving += 1
        try:
            about, document = await asyncio.to_thread(_read, name, content, abouts)
        finally:
            self._arriving -= 1
        self._forget()
        # Who knows the id may fetch the result: it cannot be guessed.
        job = FileJob(secrets.token_urlsafe(16), name, about, document)
        self._jobs[job.id] = job
        job.task = asyncio.create_task(self._run(job))
        return job

    def get(self, id: str) -> FileJob:
        """Errors: ServeError 404."""
        if id not in self._jobs:
            raise ServeError(404, "the file must be one that was sent here lately; there is none of this id")
        return self._jobs[id]

    def remove(self, id: str) -> None:
        """Stop working on a file, and forget it. Errors: ServeError 404."""
        job = self.get(id)
        del self._jobs[id]
        job.task.cancel()

    async def finish(self) -> None:
        """Take no more files; return when all are done and fetched, or have waited long enough to be."""
        self._stopping = True
        while any(self._awaited(job) for job in self._jobs.values()):
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Stop everything."""
        for id in list(self._jobs):
            self.remove(id)

    def _awaited(self, job: FileJob) -> bool:
        waits = job.state == "done" and not job.fetched and time.monotonic() - job.since < FETCH_SECONDS
        return not job.ended or waits

    def _forget(self) -> None:
        """Let results go that are too old or too many."""
        ended = sorted((job for job in self._jobs.values() if job.ended), key=lambda job: job.since)
        now = time.monotonic()
        for n, job in enumerate(ended):
            if now - job.since > KEPT_SECONDS or len(ended) - n > KEPT:
                del self._jobs[job.id]

    async def _run(self, job: FileJob) -> None:
        try:
            async with self._turn:
                job.state = "running"
                translations: list[str] = []
                for begin in range(0, job.segments, CHUNK):
                    segments = job.document.segments[begin : begin + CHUNK]
                    size = sum(map(len, segments))
                    marked = await apart(_marked, segments, job.document.protect, size=size)
                    search = Search(aligned=any(text.marks for text in marked))
                    async with self._registry.lease(job.about) as served:
                        found = await _fitting(served, [text.text for text in marked], search)
                    job.left += [number for number, own in enumerate(found, begin + 1) if own is None]
                    translations += await apart(_placed, marked, found, size=size)
                    job.done = len(translations)
                if job.segments and len(job.left) == job.segments:
                    raise ServeError(TOO_LARGE, "each of its segments has a sentence that is too long")
                job.result = await asyncio.to_thread(job.document.filled, translations)
                job.state = "done"
        except RnnsearchError as error:
            job.state, job.error = "failed", f"{job.name}: {error}"
        except Exception as error:
            job.state, job.error = "failed", unforeseen(error)
        finally:
            if not job.ended:  # its sender has left, so that this was cancelled: nobody waits for it
                job.state, job.error = "failed", f"{job.name}: its translation was called off"
            job.since = time.monotonic()
            log("file", {"state": job.state, "segments": job.done})
