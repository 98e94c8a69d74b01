"""The models of a server: what each translates, loaded when it is first needed, each with its own queue."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, filterfalse
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from rnnsearch.align import aligner
from rnnsearch.config import RunConfig
from rnnsearch.engine.file import header_of
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.search.workers import one_thread_each
from rnnsearch.serve.batching import Batcher, BatchReport, Job, Workers
from rnnsearch.serve.limits import ServeError, Settings, apart
from rnnsearch.serve.observability import failed
from rnnsearch.serve.schemas import About
from rnnsearch.systems.card import best_evaluation, training_facts
from rnnsearch.systems.engine_file import exported_config
from rnnsearch.systems.folder import translating_config
from rnnsearch.text.languages import base, language_name
from rnnsearch.text.terms import Glossary
from rnnsearch.translator.confidence import CONFIDENCE
from rnnsearch.translator.loading import load
from rnnsearch.translator.translation import Translation
from rnnsearch.translator.translator import Translator

T = TypeVar("T")
COMPACT_AT = 0.03
"""Share of a batch that has finished at which it leaves: here long and short sentences come together, so early."""
NICE = 10
"""How far a long sentence's thread stands back: it has a tenth of a processor that others want, all of an idle one."""
MOST_TERMS = 20
"""Terms of a glossary that a sentence may have."""
NBest = list[Translation]
"""The n best translations of a sentence."""


class Search(NamedTuple):
    """How sentences are searched for: what a batch has in common."""

    beam: int | None = None
    n_best: int = 1
    prefixed: bool = False
    """Whether the sentences have prefixes, as `Served.translate` finds."""
    termed: bool = False
    """Whether they have terms, likewise."""
    aligned: bool = False
    """Whether alignments will be asked for: an aligner then makes them in the model's thread."""


class Served:
    """A loaded model and its queue."""

    def __init__(
        self, about: About, translator: Translator, settings: Settings, on_batch: Callable[[BatchReport], None]
    ) -> None:
        self.about = about
        self.translator = translator
        self.used = time.monotonic()
        self._settings = settings
        workers = None
        if translator.device.type == "cpu":
            threads = torch.get_num_threads()
            workers = Workers(one_thread_each(threads), threads, one_thread_each(1, nice=NICE))
        self.batcher: Batcher[NBest] = Batcher(self._work, settings, on_batch, workers)

    async def translate(
        self,
        sentences: Sequence[str],
        search: Search,
        prefixes: Sequence[str] | None = None,
        patient: bool = False,
        glossary: Glossary | None = None,
    ) -> list[NBest]:
        """The n best translations of each sentence. `patient`: as in `Batcher.submit`.

        Errors: as in `lengths`, and in `Batcher.submit`; ServeError 400 for terms that cannot be had.
        """
        beam = search.beam or max(search.n_best, self.translator.config.search.beam)
        lengths = await self.lengths(sentences)
        terms: list[tuple[str, ...]] = [()] * len(sentences)
        # Always apart from the event loop: where terms are long, few characters make much work.
        if glossary and self.translator.reads_terms:
            sentences = await asyncio.to_thread(self._told, sentences, glossary)
            lengths = await self.lengths(sentences)
        elif glossary:
            terms = await asyncio.to_thread(self._terms, sentences, beam, glossary)
        await self.lengths(prefixes or (), target=True)
        starts = prefixes or [""] * len(sentences)
        jobs = [
            Job(text, length + sum(map(len, own)), start, beam, own)  # a symbol is a character at least
            for text, length, start, own in zip(sentences, lengths, starts, terms, strict=True)
        ]
        search = search._replace(prefixed=prefixes is not None, termed=any(terms))
        return await self.batcher.submit(jobs, search, patient)

    def _told(self, sentences: Sequence[str], glossary: Glossary) -> list[str]:
        """Each sentence with its terms inline."""
        return [self.translator.with_terms(text, glossary) for text in sentences]

    def _terms(self, sentences: Sequence[str], beam: int, glossary: Glossary) -> list[tuple[str, ...]]:
        """Those of each sentence."""
        found = [glossary.terms(text) for text in sentences]
        for text, terms in zip(sentences, found, strict=True):
            if len(terms) > MOST_TERMS:
                raise ServeError(400, f"a sentence must have at most {MOST_TERMS} terms; got {len(terms)}: {text[:40]}")
        for term in filterfalse(self.translator.demands.writes, dict.fromkeys(chain.from_iterable(found))):
            raise ServeError(400, f'the model has no symbol for a word of the term "{term}"')
        if any(found) and beam == 1:
            raise ServeError(400, "a glossary needs a beam of 2 or more; got 1")
        return found

    async def lengths(self, sentences: Sequence[str], target: bool = False) -> list[int]:
        """The symbols of each sentence (of the target language, if so).

        Errors: RnnsearchError for text that is not Unicode; ServeError 413 for a sentence that is too long.
        """
        tokenizer = self.translator.target if target else self.translator.source
        ids = await apart(tokenizer.ids, sentences, size=sum(map(len, sentences)))
        lengths = list(map(len, ids))
        most = self._settings.max_symbols
        for text, length in zip(sentences, lengths, strict=True):
            if length > most:
                begin = f"{text[:40]}..." if len(text) > 40 else text
                raise ServeError(413, f"a sentence must have at most {most} symbols; got {length}: {begin}")
        return lengths

    async def aside(self, work: Callable[[Translator], T], symbols: int) -> T:
        """Something else done with the model, in its turn, at the cost of a search of so many symbols.

        Errors: ServeError 429 where too much is waiting.
        """
        return await self.batcher.aside(partial(work, self.translator), symbols)

    def _work(self, search: Search, jobs: list[Job]) -> list[NBest]:
        options = replace(self.translator.options(search.beam, search.n_best), compact_at=COMPACT_AT)
        prefixes = [job.prefix for job in jobs] if search.prefixed else None
        terms = [job.terms for job in jobs] if search.termed else None
        found = self.translator.n_best([job.text for job in jobs], options, len(jobs), prefixes=prefixes, terms=terms)
        if search.aligned:
            for translation in max(found, key=len):  # the first of a rank that is asked for makes the whole batch's
                _ = translation.alignment
        return found


class Registry:
    """Models by name and by direction. `on_batch(name, report)` hears of every batch."""

    def __init__(
        self,
        folders: Sequence[Path],
        settings: Settings,
        on_batch: Callable[[str, BatchReport], None] = lambda _, __: None,
    ) -> None:
        """Errors: ModelError for a folder that is no model's, or two folders of one name."""
        self.settings = settings
        self.abouts: dict[str, About] = {}
        self._folders: dict[str, Path] = {}
        for folder in folders:
            about = read_about(folder)
            other = self._folders.setdefault(about.name, folder)
            if about.name in self.abouts:
                raise ModelError(f"models must have folders of different names; got {other} and {folder}")
            self.abouts[about.name] = about
        self._on_batch = on_batch
        self._loaded: dict[str, Served] = {}
        self._loading: dict[str, asyncio.Task[Served]] = {}
        self._leases: Counter[str] = Counter()
        """How many work with a model of that name, or wait for it to be loaded: it stays in memory meanwhile."""

    @property
    def loaded(self) -> list[Served]:
        """The models in memory."""
        return list(self._loaded.values())

    def find(self, name: str | None = None, source: str | None = None, target: str | None = None) -> About:
        """The model of that name, or the first of that direction; without any, the first.

        Errors: ServeError 404 for an unknown name, 400 for a direction that no model (or not this one) has.
        """
        abouts = list(self.abouts.values())
        if name is not None:
            if name not in self.abouts:
                raise ServeError(404, f'model must be one of {", ".join(self.abouts)}; got "{name}"')
            abouts = [self.abouts[name]]
        for matches in (_equal, _related):
            for about in abouts:
                if matches(source, about.source) and matches(target, about.target):
                    return about
        known = ", ".join(dict.fromkeys(f"{about.source} to {about.target}" for about in abouts))
        wanted = f"{source or 'any language'} to {target or 'any language'}"
        raise ServeError(400, f"source and target must be a direction served here ({known}); got {wanted}")

    @asynccontextmanager
    async def lease(self, about: About) -> AsyncIterator[Served]:
        """A model to work with, which stays in memory as long; loaded now where it is not.

        Errors: ModelError, as in `loading.load`.
        """
        # Before it is there: whoever else gets a model now must not let go of the one that we wait for.
        self._leases[about.name] += 1
        try:
            served = self._loaded.get(about.name)
            if served is None:
                if about.name not in self._loading:
                    self._loading[about.name] = asyncio.create_task(self._load(about))
                # Others may wait for it too, and who gives up now may ask again.
                served = await asyncio.shield(self._loading[about.name])
            served.used = time.monotonic()
            await self._unload()
            yield served
            served.used = time.monotonic()
        finally:
            self._leases[about.name] -= 1

    async def _load(self, about: About) -> Served:
        # In a thread that ends: OpenMP keeps a team for each thread that computed, and where all teams together have
        # more threads than the machine has cores, those of the model's own thread sleep and wake at every parallel
        # region instead of standing ready, which takes several times as long.
        once = ThreadPoolExecutor(1)
        try:
            loading = asyncio.get_running_loop().run_in_executor(
                once, _ready, self._folders[about.name], self.settings.device
            )
            translator = await loading
        except RnnsearchError as error:  # it names files of this machine
            failed("loading", error)
            raise ServeError(503, f"the model {about.name} cannot be loaded; the server's log says why") from None
        finally:
            once.shutdown(wait=False)
            del self._loading[about.name]
        served = Served(about, translator, self.settings, partial(self._on_batch, about.name))
        self._loaded[about.name] = served
        return served

    async def load_all(self) -> None:
        """Load every model now. Errors: ModelError."""
        for about in self.abouts.values():
            async with self.lease(about):
                pass

    async def _unload(self) -> None:
        """Let the models go that are too many, the ones longest unused first, if nobody works with them."""
        most = self.settings.max_loaded
        idle = sorted((served for served in self.loaded if not self._leases[served.about.name]), key=lambda s: s.used)
        while most is not None and len(self._loaded) > most and idle:
            gone = idle.pop(0)
            del self._loaded[gone.about.name]
            await gone.batcher.close()

    async def close(self) -> None:
        """Let every model go."""
        loading = list(self._loading.values())
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        for served in self.loaded:
            await served.batcher.close()
        self._loaded.clear()


def _ready(folder: Path, device: str) -> Translator:
    """A model that need not be made ready by its first sentences, which several threads may begin at once."""
    translator = load(folder, device)
    translator.prepare()
    return translator


def read_about(folder: Path) -> About:
    """What a model folder, or an engine file, says of itself, its weights unread. Errors: ModelError for one that is
    not whole, or does not translate."""
    config, calibrated = _exported(folder) if folder.is_file() else _kept(folder)
    return About(
        name=folder.resolve().name,
        source=config.data.single_source,
        target=config.data.target,
        source_name=language_name(config.data.single_source),
        target_name=language_name(config.data.target),
        attention=config.translation.attention is not None,
        aligner=(folder / aligner.FOLDER).is_dir(),
        calibrated=calibrated,
        score=_score(folder),
    )


def _exported(path: Path) -> tuple[RunConfig, bool]:
    """The config, and whether there is a calibration."""
    header = header_of(path)
    return exported_config(path, header), "calibration" in header


def _kept(folder: Path) -> tuple[RunConfig, bool]:
    """The same, of a model folder."""
    return translating_config(folder), (folder / CONFIDENCE).is_file()


def _score(folder: Path) -> float | None:
    """The dev BLEU of the evaluation that the weights are of, where training measured it."""
    try:
        return float(best_evaluation(training_facts(folder))["dev_bleu"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _equal(wanted: str | None, code: str) -> bool:
    return wanted is None or wanted.lower() == code.lower()


def _related(wanted: str | None, code: str) -> bool:
    """Whether the languages agree without their variants (`en-GB`, `en`)."""
    return wanted is None or base(wanted) == base(code)
