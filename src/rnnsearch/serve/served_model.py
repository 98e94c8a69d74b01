"""`ServedModel`, a loaded model of a server with its queue, and the way from sentences to a batch.

`translate` tokenizes the sentences of a request once and submits them to the model's `Batcher`, which calls
`_translate_batch` in a worker thread. `registry.py` creates and unloads models; `pivot.py` combines two of them.

Before changing it: `_translate_batch` runs in several threads at once and must not change the translator.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import torch

from rnnsearch.errors import ModelError
from rnnsearch.search.hypothesis import SearchCancelled
from rnnsearch.search.workers import single_threaded_pool
from rnnsearch.serve.batching import Batcher, BatchReport, TranslationJob, WorkerThreads
from rnnsearch.serve.limits import ServeError, Settings, run_in_thread, text_size
from rnnsearch.serve.long_texts import LongTexts
from rnnsearch.serve.output_size import TEXT_ONLY, OutputFields, check_output
from rnnsearch.serve.schemas import ModelInfo
from rnnsearch.text.markup.protected import DEFAULT_PROTECTED, ProtectedType
from rnnsearch.text.several_sources import SourceText, all_texts
from rnnsearch.text.terms import Forms, Glossary, TermMatch
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.translator.pivot import combine, weighted
from rnnsearch.translator.placement import MAX_PLACED_TERMS
from rnnsearch.translator.simultaneous import SimultaneousTranslator
from rnnsearch.translator.translation import Translation
from rnnsearch.translator.translator import Translator

# Fraction of a batch's sentences that must have finished before they are dropped from it. It is small because a batch
# contains long and short sentences of different clients.
COMPACT_AT = 0.03
LOW_PRIORITY_NICE = 10  # a tenth of a busy processor, all of an idle one
SHOWN_CHARACTERS = 40  # of a sentence in an error message

Result = TypeVar("Result")
Translations = list[Translation]
"""The n best translations of a sentence, best first."""
Pairs = Sequence[tuple[str, str]]
"""Sentences and their translations."""
Submit = Callable[[Sequence[int], Sequence[Segmented]], Awaitable[list[Translations]]]


class BatchOptions(NamedTuple):
    """Options of a search, which all sentences of a batch share."""

    beam: int | None = None
    """Size of the beam; None for the model's setting."""
    n_best: int = 1
    """Number of translations per sentence."""
    align: bool = False
    """True if alignments will be needed; the model's thread then computes those of the aligner."""
    has_prefixes: bool = False
    """True if sentences have prefixes; set by `ServedModel.translate`."""
    has_terms: bool = False
    """True if sentences have terms; set by `ServedModel.translate`."""


class RequestOptions(NamedTuple):
    """Options of a request, which all its sentences share."""

    search: BatchOptions = BatchOptions()
    """Options of the search."""
    patient: bool = False
    """True if the sentences are accepted even if the queue is full. Their output is not limited."""
    glossary: Glossary | None = None
    """Terms of the request, in addition to those of the server. A model trained with inline terms reads them; in the
    translations of others, they replace the words aligned to their source terms."""
    protect: Collection[ProtectedType] = DEFAULT_PROTECTED
    """Types of text that translations contain unchanged."""
    fields: OutputFields = TEXT_ONLY
    """Fields of the response, whose size is checked before the search."""
    previous: Pairs = ()
    """Sentences of the first document before the first sentence, with their translations."""
    client: str = ""
    """Identity of the client, which shares the model with other clients."""


@dataclass(frozen=True)
class LastStep:
    """Sentences as the model reads them that writes the translations of a request."""

    model: ServedModel
    """The model."""
    sentences: list[str]
    """The sentences, or their translations into the third language."""
    intermediates: list[Translation] | None = None
    """Translations into the third language; None without one."""

    def translation(self, index: int, last: Translation) -> Translation:
        """Return the model's greedy translation of a sentence as a translation of the sentence of the request."""
        if self.intermediates is None:
            return last
        options = self.model.translator.options(beam=1)
        [[translation]] = combine([weighted([self.intermediates[index]])], [[last]], options)
        return translation


class ServedModel:
    """A loaded model and its queue."""

    def __init__(
        self,
        info: ModelInfo,
        translator: Translator,
        settings: Settings,
        on_batch: Callable[[BatchReport], None],
        long_texts: LongTexts,
    ) -> None:
        self.info = info
        self.translator = translator
        self.last_used = time.monotonic()
        self._settings = settings
        self._long_texts = long_texts
        self._simultaneous: SimultaneousTranslator | ModelError | None = None
        workers = None
        # On a GPU, one thread launches all kernels anyway.
        if translator.device.type == "cpu":
            threads = torch.get_num_threads()
            low_priority = single_threaded_pool(1, nice=LOW_PRIORITY_NICE)
            # Each thread of the pool computes on one core: together they use all cores without waiting for each
            # other.
            workers = WorkerThreads(single_threaded_pool(threads), threads, low_priority)
        self.batcher: Batcher[Translations] = Batcher(self._translate_batch, settings, on_batch, workers)

    async def translate(
        self,
        sentences: Sequence[str],
        options: RequestOptions,
        prefixes: Sequence[str] | None = None,
        grammars: Sequence[str | None] | None = None,
        documents: Sequence[int] | None = None,
    ) -> list[Translations]:
        """Return the n best translations of each sentence.

        Args:
            sentences: The sentences.
            options: Options of the request.
            prefixes: Text that the translations begin with, one per sentence.
            grammars: Grammar of the placeholders of each sentence (see `text.markup.protected`).
            documents: Number of the document of each sentence, for a model that reads previous sentences of the same
                document; sentences of a document are neighbours. By default, each is its own document.

        Raises:
            ServeError: With status 400 for terms that are not possible, and as in `segment`, `check_output` and
                `Batcher.submit`.
        """
        search, patient = options.search, options.patient
        beam = search.beam or max(search.n_best, self.translator.config.search.beam)
        if self.translator.reads_terms:
            model_texts, terms = await self.find_terms(sentences, options.glossary)
            sources = await self.segment(model_texts, options.protect, grammars)
        else:
            # Terms are not looked up in sentences that are too long.
            sources = await self.segment(sentences, options.protect, grammars)
            _, terms = await self.find_terms(sentences, options.glossary)
        prefix_lengths = [0] * len(sentences)
        if prefixes is not None:
            # A prefix makes the search as long as itself, so it has the same limit as a sentence.
            prefix_lengths = await self.count_target_tokens(prefixes)
        # Files are translated a few segments at a time, so their output needs no limit.
        if not patient:
            lengths = [len(source.spelled_ids) for source in sources]
            search_options = self.translator.options(search.beam, search.n_best)
            check_output(lengths, prefix_lengths, search_options, options.fields)
        aligned = search.n_best if search.align and self.translator.aligner is not None else 0
        # Sentences with and without constraints use different searches, so they share no batch.
        key = search._replace(has_prefixes=prefixes is not None, has_terms=any(terms))

        async def submit(indices: Sequence[int], sources: Sequence[Segmented]) -> list[Translations]:
            jobs = []
            for index, source in zip(indices, sources, strict=True):
                # An upper bound, because a token has at least one character.
                term_tokens = sum(max(map(len, match.entry)) for match in terms[index][:MAX_PLACED_TERMS])
                prefix = prefixes[index] if prefixes is not None else ""
                num_tokens = max(len(source.spelled_ids), prefix_lengths[index]) + term_tokens
                jobs.append(TranslationJob(source, num_tokens, prefix, beam, aligned, tuple(terms[index])))
            return await self.batcher.submit(jobs, key, patient, options.client)

        if not sources or documents is None or not self.translator.system.reads_context:
            return await submit(range(len(sources)), sources)
        return await self._translate_in_order(sources, documents, options.previous, submit)

    async def _translate_in_order(
        self,
        sources: Sequence[Segmented],
        documents: Sequence[int],
        previous: Pairs,
        submit: Submit,
    ) -> list[Translations]:
        """Return the n best translations of sentences with their contexts.

        Args:
            sources: The sentences; at least one.
            documents: Number of the document of each sentence.
            previous: Sentences of the first document before the first sentence, with their translations.
            submit: Translates some of the sentences, given their indices and the sentences with their contexts.
        """
        order = self.translator.document_order()
        size = sum(len(source) + len(target) for source, target in previous)
        await run_in_thread(order.start_after, documents[0], previous, size=size)
        waves = order.waves(sources, documents)
        results: dict[int, Translations] = {}
        indices, in_context = next(waves)
        try:
            while True:
                n_best_lists = await submit(indices, in_context)
                results |= dict(zip(indices, n_best_lists, strict=True))
                indices, in_context = waves.send([n_best[0].text for n_best in n_best_lists])
        except StopIteration:
            return [results[index] for index in range(len(sources))]

    async def translate_several(
        self, sentences: Sequence[SourceText], options: BatchOptions, fields: OutputFields, client: str
    ) -> list[Translations]:
        """Return the n best translations of sentences that are given in several languages.

        Args:
            sentences: The sentences.
            options: Options of the search.
            fields: Fields of the response, whose size is checked before the search.
            client: Identity of the client.

        Raises:
            RnnsearchError: A sentence has other sources than the model.
            ServeError: As in `translate`.
        """
        beam = options.beam or max(options.n_best, self.translator.config.search.beam)
        size = sum(map(text_size, map(all_texts, sentences)))
        sources = await run_in_thread(self.translator.segment, sentences, (), size=size)
        jobs = []
        num_tokens = []
        for source in sources:
            tokens_of_sources = [len(text.ids) for text in (source.by_source or {}).values()]
            self._check_length(source.text, max(tokens_of_sources, default=0))
            num_tokens.append(sum(tokens_of_sources))
            jobs.append(TranslationJob(source, num_tokens[-1], "", beam, 0, ()))
        check_output(num_tokens, [0] * len(jobs), self.translator.options(options.beam, options.n_best), fields)
        return await self.batcher.submit(jobs, options, client=client)

    async def split(self, texts: Sequence[str], client: str) -> list[list[tuple[int, int]]]:
        """Return the characters [start, end) of each sentence of each text.

        Args:
            texts: The texts.
            client: Identity of the client, whose long texts are split one after the other.

        Raises:
            ServeError: As in `LongTexts`.
        """
        return await self._long_texts.split(texts, self.info.source, text_size(texts), client)

    async def find_terms(
        self, sentences: Sequence[str], glossary: Glossary | None
    ) -> tuple[list[str], list[Sequence[TermMatch[Forms]]]]:
        """Return the sentences and the terms to be placed in the translation of each.

        For a model trained with inline terms, the sentences contain the terms, and none have to be placed.

        Args:
            sentences: The sentences.
            glossary: Terms of the request, in addition to those of the server.
        """
        server_glossary = self._settings.glossaries.get(self.info.name)
        if server_glossary is not None:
            glossary = server_glossary if glossary is None else glossary.with_defaults(server_glossary)
        no_terms: list[Sequence[TermMatch[Forms]]] = [()] * len(sentences)
        if not glossary or self.translator.has_several_sources:
            return list(sentences), no_terms
        # Always in another thread: if terms are long, a short text causes much work.
        if self.translator.reads_terms:
            return await asyncio.to_thread(_insert_terms, self.translator, sentences, glossary), no_terms
        return list(sentences), await asyncio.to_thread(_matches, sentences, glossary)

    async def segment(
        self,
        sentences: Sequence[str],
        protect: Collection[ProtectedType] = (),
        grammars: Sequence[str | None] | None = None,
    ) -> list[Segmented]:
        """Return sentences as source tokens.

        Args:
            sentences: The sentences.
            protect: Types of text that translations contain unchanged.
            grammars: Grammar of the placeholders of each sentence.

        Raises:
            DataError: For text that is not valid Unicode.
            ServeError: With status 413 for a sentence with too many tokens.
        """
        if self.translator.has_several_sources:
            protect = ()
        size = text_size(sentences)
        sources = await run_in_thread(self.translator.segment, sentences, protect, grammars, size=size)
        for source in sources:
            self._check_length(source.text, len(source.ids))
        return sources

    async def count_target_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of target tokens of each text.

        Raises:
            DataError: For text that is not valid Unicode.
            ServeError: With status 413 for a text with too many tokens.
        """
        ids = await run_in_thread(self.translator.target.ids, texts, size=text_size(texts))
        lengths = list(map(len, ids))
        for text, length in zip(texts, lengths, strict=True):
            self._check_length(text, length)
        return lengths

    async def last_step(
        self, sentences: Sequence[str], protect: Collection[ProtectedType] = (), align: bool = False
    ) -> LastStep:
        """Return the model that writes the translations, this one, and the sentences that it reads.

        Args:
            sentences: Sentences of a request.
            protect: Types of text that translations into a third language contain unchanged.
            align: True if alignments will be needed.
        """
        return LastStep(self, list(sentences))

    async def call(self, function: Callable[[Translator], Result], num_tokens: int, client: str = "") -> Result:
        """Call a function with the translator in one of the model's threads, and return its result.

        Args:
            function: The function.
            num_tokens: Its cost, as that of a greedy search for a sentence of this length.
            client: Identity of the client.

        Raises:
            ServeError: As in `Batcher.submit`.
        """
        return await self.batcher.call(partial(function, self.translator), num_tokens, client)

    async def simultaneous(self, client: str) -> SimultaneousTranslator:
        """Return the simultaneous translation of the model, which the first call prepares.

        Args:
            client: Identity of the client.

        Raises:
            ServeError: With status 400 if the model reads whole sentences, and as in `Batcher.submit`.
        """
        if self._simultaneous is None:
            try:
                self._simultaneous = await self.call(SimultaneousTranslator, num_tokens=0, client=client)
            except ModelError as error:
                self._simultaneous = error
        if isinstance(self._simultaneous, ModelError):
            raise ServeError(400, str(self._simultaneous))
        return self._simultaneous

    def _check_length(self, text: str, num_tokens: int) -> None:
        max_tokens = self._settings.max_tokens
        if num_tokens > max_tokens:
            start = f"{text[:SHOWN_CHARACTERS]}..." if len(text) > SHOWN_CHARACTERS else text
            raise ServeError(413, f"a sentence must have at most {max_tokens} tokens; got {num_tokens}: {start}")

    def _translate_batch(
        self, options: BatchOptions, jobs: list[TranslationJob], is_cancelled: Callable[[], bool]
    ) -> list[Translations]:
        """Translate a batch; called by the batcher in a worker thread."""
        search = self.translator.options(options.beam, options.n_best)
        n_best_lists = self.translator.n_best(
            [job.source for job in jobs],
            replace(search, compact_at=COMPACT_AT, is_cancelled=is_cancelled),
            batch_sentences=len(jobs),
            prefixes=[job.prefix for job in jobs] if options.has_prefixes else None,
            terms=[job.terms for job in jobs] if options.has_terms else None,
        )
        if options.align:
            # The first access at each rank aligns all translations of that rank; those of later attempts are apart.
            for translations in n_best_lists:
                for translation in translations:
                    if is_cancelled():
                        raise SearchCancelled
                    _ = translation.alignment
        return n_best_lists


def _insert_terms(translator: Translator, sentences: Sequence[str], glossary: Glossary) -> list[str]:
    return [translator.with_terms(sentence, glossary) for sentence in sentences]


def _matches(sentences: Sequence[str], glossary: Glossary) -> list[Sequence[TermMatch[Forms]]]:
    return [tuple(glossary.matches(sentence)) for sentence in sentences]
