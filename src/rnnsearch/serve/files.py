"""Translation of files in the background: one file per client at a time, a few segments at a time in turn.

The routes are in `v1` (`files_router`); `documents.FileReader` reads and fills files, in processes if they are large.

`service.Service` holds the `Files`. Jobs are tasks of the event loop; texts are translated by `texts.translate_texts`
as patient requests, which are accepted even if the queue is full.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from rnnsearch.config.data import MAX_CONTEXT_SENTENCES
from rnnsearch.errors import RnnsearchError
from rnnsearch.serve.documents import FileReader
from rnnsearch.serve.limits import ServeError, Settings, run_in_thread
from rnnsearch.serve.long_texts import markup_size
from rnnsearch.serve.observability import log_bug, log_event
from rnnsearch.serve.pivot import LeasedModel
from rnnsearch.serve.registry import Registry
from rnnsearch.serve.schemas import FileStatus, ModelInfo
from rnnsearch.serve.served_model import BatchOptions, Pairs, RequestOptions
from rnnsearch.serve.texts import translate_texts
from rnnsearch.text.documents.packed import PackedTexts
from rnnsearch.text.documents.process import ParsedFile
from rnnsearch.text.long_texts import Filling, Markup, ParsedText
from rnnsearch.translator.texts import TextTranslation

TOO_LARGE = 413  # status of a sentence that is too long
CHUNK_SEGMENTS = 16  # segments of a file in the queue at a time
RESULT_SECONDS = 3600.0  # time that a result is available
MAX_RESULTS = 50  # results that are available at a time
MAX_RESULT_BYTES = 64 << 20  # of all results together, except the latest one
MAX_FILE_SECONDS = 7200.0  # time to translate a file
CLIENTS_WITH_FILES = 4  # clients that can have the maximum number of files at the same time
FETCH_SECONDS = 30.0  # time that a stopping server waits for its last results to be fetched
_MARKUP = Markup("segment")


@dataclass(eq=False)
class FileJob:
    """A file to translate, its progress and its result."""

    id: str
    """Random name of the job in URLs."""
    name: str
    """File name as sent by the client."""
    model: ModelInfo
    """Model that translates the file."""
    document: ParsedFile | None
    """The file and its segments; None when the job has ended."""
    client: str
    """API key or address of the client."""
    num_bytes: int
    """Size of the file."""
    state: Literal["queued", "running", "done", "failed"] = "queued"
    """State of the job, as in `/v1/files`."""
    done: int = 0
    """Number of translated segments."""
    too_long: list[int] = field(default_factory=list)
    """Numbers, from 1, of segments that are not translated because a sentence in them is too long."""
    untranslated: list[int] = field(default_factory=list)
    """Numbers, from 1, of segments that stay as they are because their placeholders were lost in all attempts."""
    error: str | None = None
    """Message for the client if the job has failed."""
    result: bytes | None = None
    """The translated file if the job is done."""
    is_fetched: bool = False
    """True if the client has fetched the result."""
    changed: float = field(default_factory=time.monotonic)
    """Time when the file was sent or, later, when the job ended (monotonic clock, in seconds)."""
    num_segments: int = field(init=False)
    """Number of segments to translate."""
    task: asyncio.Task[None] = field(init=False)
    """Task of the event loop that translates the file; `Files.add` sets it."""

    def __post_init__(self) -> None:
        self.num_segments = 0 if self.document is None else len(self.document.segments)

    @property
    def has_ended(self) -> bool:
        """True if the job is done or has failed."""
        return self.state in ("done", "failed")

    @property
    def result_name(self) -> str:
        """Name of the translated file: `letter.de.txt` for `letter.txt`."""
        path = PurePath(self.name)
        return f"{path.stem}.{self.model.target}{path.suffix}"

    def status(self) -> FileStatus:
        """Return the progress as sent to clients."""
        return FileStatus(
            id=self.id,
            name=self.name,
            state=self.state,
            done=self.done,
            segments=self.num_segments,
            left=self.too_long,
            untranslated=self.untranslated,
            error=self.error,
        )


class Files:
    """The file jobs of a server."""

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._max_files = settings.max_files
        # As many bytes as one client's files may have, because a file takes about three times its size.
        self._max_bytes = settings.max_files * settings.max_body
        self._jobs: dict[str, FileJob] = {}
        self._turn = asyncio.Semaphore(1)  # held by the job that translates its next segments
        self._client_turns: dict[str, asyncio.Semaphore] = {}  # held by the running job of each client
        self._being_read: list[tuple[str, int]] = []  # client and size of each file
        self._is_stopping = False
        self._reader = FileReader()

    async def add(self, name: str, content: bytes, models: Sequence[ModelInfo], client: str = "") -> FileJob:
        """Start to translate a file.

        Args:
            name: Its name, whose suffix is the format.
            content: Its content.
            models: The possible models; the one whose source language fits the text best is used.
            client: API key or address of the client.

        Raises:
            DataError: The file cannot be read.
            ServeError: With status 429 if too many files of this client or of all wait, 503 if the server is stopping,
                and as in `FileReader.parse`.
        """
        if self._is_stopping:
            raise ServeError(503, "the server is shutting down and accepts no more files", 60)
        self._check_waiting(client, len(content))
        # Only the last component: the name of an upload may contain any path.
        name = PurePath(name.replace("\\", "/")).name
        models_by_direction = {(model.source, model.target): model for model in models}
        # Counted while the file is read, so that requests in the meantime respect the limit.
        being_read = client, len(content)
        self._being_read.append(being_read)
        try:
            document = await self._reader.parse(name, content, list(models_by_direction), client)
        finally:
            self._being_read.remove(being_read)
        model = models_by_direction[document.direction]
        self._forget_old_results()
        # The id cannot be guessed, because any client that knows it may fetch the result.
        job = FileJob(secrets.token_urlsafe(16), name, model, document, client, len(content))
        self._jobs[job.id] = job
        job.task = asyncio.create_task(self._run(job))
        return job

    def _check_waiting(self, client: str, num_bytes: int) -> None:
        """Raise ServeError with status 429 if a client's next file is one too many."""
        waiting = [(job.client, job.num_bytes) for job in self._jobs.values() if not job.has_ended]
        waiting += self._being_read
        if sum(other == client for other, _ in waiting) >= self._max_files:
            raise ServeError(429, f"at most {self._max_files} files may wait; try again later", 60)
        # A client's files may have half of the bytes, unless it has only one file.
        client_bytes = sum(size for other, size in waiting if other == client)
        total_bytes = sum(size for _, size in waiting)
        is_full = len(waiting) >= CLIENTS_WITH_FILES * self._max_files or total_bytes + num_bytes > self._max_bytes
        if is_full or (client_bytes and client_bytes + num_bytes > self._max_bytes // 2):
            raise ServeError(429, "too much text in files waits; try again later", 60)

    def get(self, id: str) -> FileJob:
        """Return the job of an id.

        Raises:
            ServeError: With status 404 if there is none.
        """
        if id not in self._jobs:
            raise ServeError(404, "no file with this id was sent here recently")
        return self._jobs[id]

    def remove(self, id: str) -> None:
        """Cancel and forget a job.

        Raises:
            ServeError: With status 404 if there is none.
        """
        job = self.get(id)
        del self._jobs[id]
        job.task.cancel()

    async def finish(self) -> None:
        """Accept no more files, and wait until all have been translated and fetched or were available long enough."""
        self._is_stopping = True
        while any(map(self._is_awaited, self._jobs.values())):
            await asyncio.sleep(0.05)

    def cancel_unfinished(self) -> None:
        """Cancel jobs that have not ended."""
        for job in self._jobs.values():
            if not job.has_ended:
                job.task.cancel()

    async def close(self) -> None:
        """Cancel all jobs, and end all processes that read files."""
        self._reader.close()
        # A copy, because `remove` changes the dict.
        for id in list(self._jobs):
            self.remove(id)

    def _is_awaited(self, job: FileJob) -> bool:
        if not job.has_ended:
            return True
        return job.state == "done" and not job.is_fetched and time.monotonic() - job.changed < FETCH_SECONDS

    def _forget_old_results(self) -> None:
        """Delete jobs that ended more than `RESULT_SECONDS` ago, and the oldest ones that are too many or too large."""
        ended = sorted((job for job in self._jobs.values() if job.has_ended), key=lambda job: job.changed)
        now = time.monotonic()
        num_bytes = 0
        for index, job in enumerate(reversed(ended)):
            num_bytes += len(job.result or b"")
            is_surplus = index >= MAX_RESULTS or (index and num_bytes > MAX_RESULT_BYTES)
            if is_surplus or now - job.changed > RESULT_SECONDS:
                del self._jobs[job.id]

    async def _run(self, job: FileJob) -> None:
        try:
            # Semaphores are fair, so files of a client are translated in the order in which they were sent.
            async with self._client_turns.setdefault(job.client, asyncio.Semaphore(1)):
                document = job.document
                assert document is not None
                job.state = "running"
                async with asyncio.timeout(MAX_FILE_SECONDS):
                    translations = await self._translate_segments(job, document)
                if job.num_segments and len(job.too_long) == job.num_segments:
                    raise ServeError(TOO_LARGE, "all of its segments have a sentence that is too long")
                job.result = await self._reader.fill(document, translations, job.client)
                job.state = "done"
        except RnnsearchError as error:
            job.state = "failed"
            job.error = f"{job.name}: {error}"
        except TimeoutError:
            job.state = "failed"
            job.error = f"{job.name}: must be translated within {MAX_FILE_SECONDS / 60:g} minutes; it was not"
        # A bug ends this job only; the task has no caller that could see the exception.
        except Exception as error:
            job.state = "failed"
            job.error = log_bug(error)
        finally:
            if not job.has_ended:  # cancelled, because its client has disconnected or removed it
                job.state = "failed"
                job.error = f"{job.name}: its translation was cancelled"
            job.changed = time.monotonic()
            job.document = None  # much larger than the result
            if all(other.has_ended for other in self._jobs.values() if other.client == job.client):
                self._client_turns.pop(job.client, None)
            self._forget_old_results()
            asyncio.get_running_loop().call_later(RESULT_SECONDS + 1, self._forget_old_results)
            log_event("file", {"state": job.state, "segments": job.done})

    async def _translate_segments(self, job: FileJob, document: ParsedFile) -> PackedTexts:
        """Return the translation of each segment, empty for one that is too long."""
        translations = PackedTexts()
        previous: Pairs = []  # sentences that the model may read as context of the next ones
        for start in range(0, job.num_segments, CHUNK_SEGMENTS):
            stop = start + CHUNK_SEGMENTS
            segments = document.segments.unpack(start, stop)
            size = sum(map(len, segments)) + (markup_size(segments) if document.tags else 0)
            parsed = [ParsedText([segment], False) for segment in segments]
            if document.tags:
                parsed = await self._registry.long_texts.parse(segments, _MARKUP, size, job.client)
            search = BatchOptions(align=any(segment.has_inline_tags for segment in parsed))
            options = RequestOptions(search, patient=True, previous=previous, client=job.client)
            # A lease per chunk, so that a long file does not keep its model in memory while others need memory.
            grammars = document.segment_grammars(start, stop)
            # A turn per chunk, too, so that files of several clients alternate.
            async with self._turn, self._registry.lease(job.model) as model:
                texts = [text for segment in parsed for text in segment.texts]
                # The segments of bilingual files are in any order.
                documents = range(len(texts)) if document.is_bilingual else [0] * len(texts)
                results = await _translate_or_skip(model, texts, options, grammars, documents, job.client)
            if not document.is_bilingual:
                previous = _last_sentences(previous, results)
            placed = await self._filled(job, document, segments, parsed, results, size)
            for index, result in enumerate(results):
                if result is None:
                    job.too_long.append(start + index + 1)
                elif result.is_untranslated:
                    job.untranslated.append(start + index + 1)
                    if document.is_bilingual:
                        placed[index] = ""
            translations.extend(placed)
            job.done = len(translations)
        return translations

    async def _filled(
        self,
        job: FileJob,
        document: ParsedFile,
        segments: Sequence[str],
        parsed: Sequence[ParsedText],
        results: Sequence[TextTranslation | None],
        size: int,
    ) -> list[str]:
        """Return the translation of each segment with its tags, empty for one that is too long."""
        if not document.tags:
            return await run_in_thread(_texts, results, size=size)
        fillings = await run_in_thread(_fillings, parsed, results, size=size)
        filled = await self._registry.long_texts.fill(segments, _MARKUP, fillings, size, job.client)
        return [translation for [translation] in (texts or [""] for texts in filled)]


async def _translate_or_skip(
    model: LeasedModel,
    texts: Sequence[str],
    options: RequestOptions,
    grammars: Sequence[str | None],
    documents: Sequence[int],
    client: str,
) -> list[TextTranslation | None]:
    """Return the translation of each text, or None for a text with a sentence that is too long."""
    try:
        translated = await translate_texts(model, texts, options, grammars=grammars, documents=documents, client=client)
        return list(translated)
    except ServeError as error:
        if error.status != TOO_LARGE:
            raise
    # The chunk is translated again text by text to find the one that is too long.
    if len(texts) == 1:
        return [None]
    results: list[TextTranslation | None] = []
    for index, (text, grammar) in enumerate(zip(texts, grammars, strict=True)):
        # Only the texts of one document have sentences before them.
        previous = _last_sentences(options.previous, results) if documents[index] == documents[0] else []
        own_options = options._replace(previous=previous)
        results += await _translate_or_skip(model, [text], own_options, [grammar], [0], client)
    return results


def _last_sentences(previous: Pairs, results: Sequence[TextTranslation | None]) -> Pairs:
    """Return the last sentences of a document with their translations, given those before some of its texts."""
    sentences = list(previous)
    for result in results:
        if result is not None:
            for (start, end), n_best in zip(result.spans, result.n_best, strict=True):
                sentences.append((result.source[start:end], n_best[0].text))
    return sentences[-MAX_CONTEXT_SENTENCES:]


def _texts(results: Sequence[TextTranslation | None]) -> list[str]:
    return ["" if result is None else result.text() for result in results]


def _fillings(parsed: Sequence[ParsedText], results: Sequence[TextTranslation | None]) -> list[list[Filling]]:
    """Return the filling of each segment, none for one without a translation."""
    fillings: list[list[Filling]] = []
    for segment, result in zip(parsed, results, strict=True):
        if result is None:
            fillings.append([])
        else:
            fillings.append([[(result.text(), result.links() if segment.has_inline_tags else [])]])
    return fillings
