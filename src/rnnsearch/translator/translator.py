"""`Translator`: plain text in, translations with scores and alignments out.

The class behind `rnnsearch.load`, the commands, the server and evaluation. It connects a `System` (model and
tokenizers), a search, postprocessing, an aligner and a calibration, each independent of the others.

Before changing it: methods and their arguments are public API (docs/python.md), and server threads call `n_best`,
`stream` and `likeliest_tokens` at the same time after `prepare`, so these must not change the translator. Tests:
tests/test_translate.py, tests/test_requests.py, tests/properties/test_systems.py.

Axes: S size of the encoder states of a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray

from rnnsearch.align.aligner import Aligner
from rnnsearch.config import RunConfig
from rnnsearch.data.arrays import NamedArray
from rnnsearch.errors import ModelError, RnnsearchError, must_be_one_of
from rnnsearch.metrics.calibration import Calibration
from rnnsearch.metrics.consensus import Utility, expected_utility
from rnnsearch.search.beam import greedy_stream
from rnnsearch.search.candidates import Candidates
from rnnsearch.search.decode import decode_all, force_decode_all
from rnnsearch.search.forced import next_tokens
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.model_scorer import FastestScorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.sampling import Sampling, Variant
from rnnsearch.search.scorer import Scorer
from rnnsearch.search.unknown_words import UnknownWordReplacer
from rnnsearch.systems.card import load_scores
from rnnsearch.systems.system import System, choose_direction
from rnnsearch.text.alignment_types import ALIGNED_BY, AlignedBy, Unit
from rnnsearch.text.alignments import Link
from rnnsearch.text.markup.marks import MarkedText
from rnnsearch.text.markup.protected import PROTECTED, ProtectedType
from rnnsearch.text.prefixes import NO_PREFIX, Prefix
from rnnsearch.text.sentences import sentence_spans
from rnnsearch.text.several_sources import SourceText, require_text, sentence_list, single_texts, text_list
from rnnsearch.text.terms import Forms, Glossary, TermMatch, insert_terms
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.translator.alignment import BatchLinks, PairLinks, links_by_rank
from rnnsearch.translator.confidence import with_confidence
from rnnsearch.translator.context import DocumentOrder
from rnnsearch.translator.copies import copied_texts, make_copy, without
from rnnsearch.translator.placement import TermPlacer
from rnnsearch.translator.postprocess import Postprocessor, regroup, without_context
from rnnsearch.translator.protection import Protection, restored_target
from rnnsearch.translator.requests import ConstraintReader
from rnnsearch.translator.texts import assign_sentences, sentences_of
from rnnsearch.translator.translation import Matrix, Translation, make_translation, with_rationale, with_sources

Array = NDArray[Any]
"""An array [rows, features] in the place of a text."""
Source = SourceText | Array | Sequence[str | Array | None] | Mapping[str, str | Array | None]
"""A source sentence, whose texts may be arrays."""
NO_ALIGNER = "this needs an aligner, which the model does not have; make one with `rnnsearch aligner MODEL SRC TGT`"


class Translator:
    """A loaded model that translates, scores and aligns text. One sentence in is one translation out."""

    def __init__(
        self,
        system: System[Any],
        unknown: UnknownWordReplacer | None = None,
        candidates: Candidates | None = None,
        aligner: Aligner | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        """Create a translator from its components; `loading.load` reads them from a folder.

        Raises:
            ModelError: The system cannot translate.
        """
        system.require("translate")
        self.system = system
        self.model: Any = system.model
        """The PyTorch module; of an ensemble, the modules of its members."""
        self.config: RunConfig = system.config
        """The model's run file."""
        context_streams = system.config.data.context_streams
        self.sources = tuple(name for name in system.direction.sources if name not in context_streams)
        """Codes of all source languages."""
        self.has_several_sources = system.has_several_texts
        """True if sentences have a text in each of the source languages (`[model.sources]`)."""
        self.target: Tokenizer = system.target
        """Tokenizer of the target language."""
        self.languages = self.sources[0], self.config.data.target
        """Codes of the first source language and of the target language."""
        self.parameters = system.num_parameters
        """Number of parameters."""
        self.attends = system.can("attend")
        """True if the model has attention."""
        self.aligner = aligner
        """Source of alignments; None if they come from attention."""
        self.calibration = calibration
        """Estimates the confidence of words; None if the model is not calibrated."""
        self.unknown = unknown
        """Replaces `<unk>` in translations; None if it is kept."""
        self.postprocessor = Postprocessor(system, unknown)
        """Makes texts from the tokens that a search has found."""
        self.candidates = candidates
        """Restricts the target vocabulary of a batch; None for the whole vocabulary."""
        self.constraints = ConstraintReader(system, aligner, replaces_unknown=unknown is not None)
        """Converts terms, banned phrases and prefixes to tokens."""
        self.reads_terms = self.config.text.inline_terms is not None
        """True if the model was trained to read target terms in the source (see `with_terms`)."""
        self.protect: tuple[ProtectedType, ...] = ()
        """Types of text that translations contain unchanged; the default of `segment`. Set it before the first use."""

        self.folder: Path | None = None
        """Model folder that it was loaded from without changes; None for ensembles and other combinations."""

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """Source and target language of each direction that can be selected."""
        return (self.languages,)

    def select(self, source: str | None = None, target: str | None = None, zero_shot: bool = False) -> Translator:
        """Return the translator of a direction, given its source or target language or both.

        Args:
            source: Source language.
            target: Target language.
            zero_shot: True if a multi-way model may not have been trained on the direction, if it reads the source
                and writes the target language in other directions. Both languages must then be given.

        Raises:
            ModelError: There is no such direction, or several.
        """
        choose_direction(self.system.directions, source, target)
        return self

    @property
    def source(self) -> Tokenizer:
        """The tokenizer of the first source language; raises ModelError if that source is an array."""
        return self.system.text_tokenizer(self.sources[0])

    def __repr__(self) -> str:
        """Return the languages, the size and the last BLEU in the model's card, on one line."""
        size = f"{self.parameters / 1e6:.1f} million parameters"
        bleu = ""
        if self.folder is not None:
            # A damaged card is no reason to fail here.
            with suppress(ModelError, LookupError, TypeError, ValueError):
                last = load_scores(self.folder)[-1]
                values = {score["name"]: score["value"] for score in last["scores"]}
                bleu = f", BLEU {values['BLEU']:.1f} on {last['set']}"
        return f"<Translator {' and '.join(self.sources)} to {self.languages[1]}, {size}{bleu}>"

    @cached_property
    def search(self) -> FastestScorer:
        """The fastest scorer on this machine in the precision of `[search]`; made on first use."""
        return self.system.fast_scorer(self.config.search.precision)

    @cached_property
    def protection(self) -> Protection:
        """Preserves protected text; made on first use."""
        return Protection(
            self.source,
            self.target,
            partial(self.system.segment_sources, restores_case=True),
            is_calibrated=self.calibration is not None,
        )

    @property
    def device(self) -> torch.device:
        """The device of the search."""
        return self.search.scorer.device

    def prepare(self) -> None:
        """Make everything now that would be made at the first translation."""
        _ = self.search
        if not self.system.arrays:
            _ = self.protection

    def require_one_source(self, task: str) -> None:
        """Raise ModelError if the model has several sources, which a task does not support."""
        if self.has_several_sources:
            raise ModelError(f"{task} needs a model with one source; this one has {' and '.join(self.sources)}")

    def require_confidence(self) -> None:
        """Raise ModelError if the model is not calibrated."""
        if self.calibration is None:
            raise ModelError("this needs a calibrated model: run `rnnsearch calibrate MODEL SRC REF` on a dev set")

    def require_context(self) -> None:
        """Raise ModelError if the model reads no previous sentences of a document."""
        self.system.require_context()

    def require_reverse_of(self, source: str, target: str) -> None:
        """Raise ModelError if the model does not translate from `target` to `source`."""
        if self.languages != (target, source):
            direction = " to ".join(self.languages)
            raise ModelError(f"the reverse model must translate from {target} to {source}; got {direction}")

    def require_alignments(self, by: str | None = None) -> AlignedBy:
        """Return the source of alignments: the requested one, or else the best one that the model has.

        Raises:
            RnnsearchError: The name is unknown.
            ModelError: The model does not have it, or has none.
        """
        if by is not None and by not in ALIGNED_BY:
            raise RnnsearchError(f"by {must_be_one_of(ALIGNED_BY, by)}")
        if by is None and self.aligner is None and not self.attends:
            raise ModelError(f"{NO_ALIGNER} (it has no attention, either)")
        by = by or ("attention" if self.aligner is None else "aligner")
        if by == "aligner" and self.aligner is None:
            raise ModelError(NO_ALIGNER)
        if by != "aligner":
            self.system.require("attend" if by == "attention" else by)
        return by

    def options(
        self,
        beam: int | None = None,
        n_best: int = 1,
        *,
        max_length: int | None = None,
        ban_unknown: bool = False,
        banned: Collection[str] = (),
        variant: Variant | None = None,
        **overrides: Any,
    ) -> SearchOptions:
        """Return search options; those that are omitted default to the model's.

        Args:
            beam: Beam size. The default grows to `n_best`, and depends on the variant: one for samples, one per chain
                of noisy search.
            n_best: Number of translations per sentence.
            max_length: Maximum number of tokens of a translation; by default it depends on the source.
            ban_unknown: True if translations must not contain `<unk>`.
            banned: Words and phrases that translations must not contain (see `text.banned`).
            variant: Search other than a beam.
            overrides: Other fields of `SearchOptions` by name, such as `length_penalty`, `coverage_penalty`,
                `min_length` or `no_repeat_ngram`. None keeps the model's.

        Raises:
            TypeError: An option is unknown.
            RnnsearchError: The beam is smaller than `n_best`, a banned phrase is empty or cannot be banned because
                unknown words are replaced, or the model has no probabilities for the variant or a length penalty.
        """
        search = self.config.search
        annotation = self.system.annotation
        tokens_per_word = 1 if annotation is None else annotation.tokens_per_word
        if beam is not None and 1 <= beam < n_best:
            raise RnnsearchError(f"beam must be at least n_best ({n_best}); got {beam}")
        if beam is None:
            beam = max(search.beam, n_best) if variant is None else variant.default_beam(search.beam, n_best)
        options = SearchOptions.from_config(
            search,
            beam=beam,
            # Annotations are further tokens of each word, so the limits grow with them.
            max_ratio=tokens_per_word * search.max_ratio if max_length is None else 0.0,
            max_extra=tokens_per_word * (search.max_extra if max_length is None else max_length),
            n_best=n_best,
            banned=self.target.unknown_ids if ban_unknown else frozenset(),
            banned_phrases=self.constraints.banned_phrases(banned, ban_unknown),
            variant=variant,
            **overrides,
        )
        if not self.system.can("probabilities"):
            if variant is not None and variant.needs_probabilities:
                self.system.require("probabilities")
            if options.length_penalty > 0:
                must = "length_penalty must be 0 for a model whose scores are not normalised"
                raise RnnsearchError(f"{must}; got {options.length_penalty:g}")
        return options

    # Translation.

    @overload
    def translate(  # type: ignore[overload-overlap] # a str is a sequence of str, too
        self,
        text: str | Array | Mapping[str, str | Array | None],
        options: SearchOptions | None = None,
        *,
        source: str | None = None,
        target: str | None = None,
    ) -> Translation: ...
    @overload
    def translate(
        self,
        text: Sequence[Source],
        options: SearchOptions | None = None,
        *,
        source: str | None = None,
        target: str | None = None,
    ) -> list[Translation]: ...

    def translate(
        self,
        text: Source | Sequence[Source],
        options: SearchOptions | None = None,
        *,
        source: str | None = None,
        target: str | None = None,
    ) -> Translation | list[Translation]:
        """Return the best translation of a sentence, or of each sentence of a list.

        For a model with several sources, a sentence is its texts by source language, or a tuple of them; in a list also
        a list of them.
        A sentence may have no text (None or "") in some of the languages. A source that is an array has an array
        [rows, features] instead of a text.

        Args:
            text: The sentence or sentences.
            options: How to search.
            source: Source language, for a model with several directions.
            target: Target language, likewise.

        Raises:
            ModelError: The model does not have this direction, or has several that fit.
            RnnsearchError: A sentence is not text.
        """
        translator = self.select(source, target)
        if translator.is_sentence(text):
            return translator.n_best([cast(Source, text)], options)[0][0]
        sentences = cast(Sequence[Source], text)
        return [translations[0] for translations in translator.n_best(sentences, options)]

    def is_sentence(self, text: object) -> bool:
        """Return True if the argument of `translate` is one sentence, False if it is a list of sentences.

        Raises:
            RnnsearchError: It is neither.
        """
        if isinstance(text, str | Mapping | np.ndarray):
            return True
        if not isinstance(text, Iterable):
            raise RnnsearchError(f"text must be a sentence or a list of sentences; got {type(text).__name__}")
        # A tuple of sentences in several languages is a list of them.
        is_tuple_of_texts = isinstance(text, tuple) and all(isinstance(one, str | np.ndarray | None) for one in text)
        return self.has_several_sources and bool(text) and is_tuple_of_texts

    @overload
    def translate_text(
        self, text: str, options: SearchOptions | None = None, *, source: str | None = None, target: str | None = None
    ) -> Translation: ...
    @overload
    def translate_text(
        self,
        text: list[str],
        options: SearchOptions | None = None,
        *,
        source: str | None = None,
        target: str | None = None,
    ) -> list[Translation]: ...

    def translate_text(
        self,
        text: str | list[str],
        options: SearchOptions | None = None,
        *,
        source: str | None = None,
        target: str | None = None,
    ) -> Translation | list[Translation]:
        """Return the best translation of a text of any number of sentences, or of each text of a list.

        The sentences are translated in order, each with the context that the model reads, and joined; line breaks and
        other white space between them are kept. The translations of the sentences are `Translation.sentences`, if there
        are several.

        Args:
            text: The text or texts.
            options: How to search.
            source: Source language, for a model with several directions.
            target: Target language, likewise.

        Raises:
            ModelError: The model does not have this direction, or has several that fit.
        """
        translator = self.select(source, target)
        translator.require_one_source("translating texts of several sentences")
        texts = [text] if isinstance(text, str) else text_list(text)
        source_language, target_language = translator.languages
        spans = [sentence_spans(text, source_language) for text in texts]
        n_best_lists = translator.n_best_in_order(*sentences_of(texts, spans), options)
        results = assign_sentences(texts, spans, n_best_lists, target_language)
        translations = [result.translations()[0] for result in results]
        return translations[0] if isinstance(text, str) else translations

    def translate_documents(
        self, documents: Sequence[Sequence[str]], options: SearchOptions | None = None
    ) -> list[list[Translation]]:
        """Return the best translation of each sentence of each document, with the context that the model reads.

        Args:
            documents: The sentences of each document, in order.
            options: How to search.

        Raises:
            RnnsearchError: A document is a text, or a sentence is not text.
        """
        if any(isinstance(document, str) for document in documents):
            raise RnnsearchError("a document must be a list of sentences; got a text")
        sentences = list(chain.from_iterable(documents))
        numbers = [number for number, document in enumerate(documents) for _ in document]
        n_best_lists = self.n_best_in_order(sentences, numbers, options)
        return regroup([n_best[0] for n_best in n_best_lists], documents)

    def n_best_in_order(
        self,
        sentences: Sequence[SourceText | Segmented],
        documents: Sequence[int],
        options: SearchOptions | None = None,
    ) -> list[list[Translation]]:
        """Return the n best translations of each sentence of documents, with the context that the model reads.

        Args:
            sentences: The sentences.
            documents: Number of the document of each sentence; sentences of a document are neighbours.
            options: How to search.
        """
        return self.document_order().n_best(
            sentence_list(sentences), documents, lambda sources: self.n_best(sources, options)
        )

    def with_context(
        self,
        sentences: Sequence[SourceText | Segmented],
        documents: Sequence[int],
        targets: Sequence[str] | None = None,
    ) -> list[SourceText | Segmented]:
        """Return sentences of documents with the previous sentences that the model reads, if it reads any.

        Args:
            sentences: The sentences.
            documents: Number of the document of each sentence; sentences of a document are neighbours.
            targets: Translations of the sentences; without them, a model that reads translations of previous sentences
                gets none.
        """
        return self.document_order().with_context(sentences, documents, targets)

    def document_order(self) -> DocumentOrder:
        """Return an object that adds contexts to the sentences of documents that come in several calls."""
        return DocumentOrder(self.system, self.segment)

    def translate_marked(
        self,
        texts: Sequence[str],
        options: SearchOptions | None = None,
        tags: bool = True,
        protect: Collection[ProtectedType] = (),
    ) -> list[str]:
        """Translate sentences with inline tags, which are placed around the aligned words, or with protected text.

        Args:
            texts: The sentences.
            options: How to search.
            tags: True if the sentences contain tags.
            protect: Types of text that is copied exactly (see `text.markup.protected`).

        Raises:
            ModelError: The model has no alignments, which tags need.
            RnnsearchError: A name in `protect` is unknown.
        """
        self.require_one_source("translating markup")
        if tags:
            # Called for its check; the links are needed only after the search.
            self.require_alignments()
        for name in protect:
            if name not in PROTECTED:
                raise RnnsearchError(f"protect {must_be_one_of(PROTECTED, name)}")
        marked_texts = [MarkedText(text, tags) for text in text_list(texts)]
        # Codes of XLIFF are placeholders.
        types = (*protect, "placeholders") if tags else protect
        sources = self.segment([marked.text for marked in marked_texts], types)
        translations = [n_best[0] for n_best in self.n_best(sources, options)]
        results = []
        for marked, translation in zip(marked_texts, translations, strict=True):
            links = translation.alignment if marked.marks else ()
            results.append(marked.place(translation.text, links))
        return results

    def segment(
        self,
        texts: Sequence[Source | Segmented],
        protect: Collection[ProtectedType] | None = None,
        grammars: Sequence[str | None] | None = None,
    ) -> list[Segmented]:
        """Return sentences as source tokens; those that are segmented already are returned as they are.

        The methods of this class accept segmented sentences instead of texts, so a caller that needs their lengths
        first, such as the server, does not tokenize them twice.

        Args:
            texts: The sentences, or arrays.
            protect: Types of text that translations contain unchanged; by default, `self.protect`.
            grammars: Grammar of the placeholders of each sentence that is a text (see `text.markup.protected`).

        Raises:
            DataError: A text is not valid Unicode, or an array does not fit the model.
            RnnsearchError: The sentences are not a list, or one has texts in other languages than the model's sources,
                or text in the place of an array or the other way round.
            ModelError: The model has several sources, and text is to be protected.
        """
        types = self.protect if protect is None else tuple(protect)
        texts = sentence_list(texts)
        new_texts = self._named([text for text in texts if not isinstance(text, Segmented)])
        if types and not self.system.arrays:
            self.require_one_source("protecting text")
            new = iter(self.protection.segment(single_texts(new_texts, self.sources), types, grammars))
        else:
            new = iter(self.system.segment_sources(new_texts, restores_case=True))
        segmented = []
        for text in texts:
            segmented.append(text if isinstance(text, Segmented) else next(new))
        return segmented

    def n_best(
        self,
        texts: Sequence[Source | Segmented],
        options: SearchOptions | None = None,
        batch_sentences: int | None = None,
        progress: Callable[[int], None] | None = None,
        prefixes: Sequence[str] | None = None,
        terms: Sequence[Sequence[str | TermMatch[Forms]]] | None = None,
    ) -> list[list[Translation]]:
        """Return the n best translations of each sentence, best first; fewer if the search found fewer.

        Args:
            texts: The sentences, or arrays.
            options: How to search; `options.n_best` is the number of translations.
            batch_sentences: Maximum number of sentences per batch.
            progress: Called with the number of finished sentences after each batch.
            prefixes: For each sentence, text that its translations begin with exactly; it may end inside a word.
            terms: For each sentence, words and phrases that its translations contain: texts in any position, or matches
                of a glossary (`Glossary.matches`) in place of their source terms. A match that cannot be placed is
                left out and reported in `Translation.missing_terms`.

        A text without letters is its own only translation (see `copies`).

        Raises:
            RnnsearchError: The sentences, prefixes or terms are not a list, the number of prefixes or terms differs
                from that of the sentences, an empty sentence has a prefix, terms are of both types, or a term in any
                position has a word that is not in the vocabulary.
        """
        options = options or self.options()
        segmented = self.segment(texts)
        if isinstance(prefixes, str):
            raise RnnsearchError("prefixes must be a list with a text per sentence; got a text")
        if terms is not None and (isinstance(terms, str) or any(isinstance(sentence, str) for sentence in terms)):
            raise RnnsearchError("terms must be a list with a list per sentence; got a text")
        if prefixes is not None and len(prefixes) != len(segmented):
            raise RnnsearchError(f"prefixes must be one per sentence ({len(segmented)}); got {len(prefixes)}")
        if terms is not None and len(terms) != len(segmented):
            raise RnnsearchError(f"terms must be one list per sentence ({len(segmented)}); got {len(terms)}")
        if terms is None:
            return self._protected_n_best(segmented, options, batch_sentences, progress, prefixes)
        phrases = [[term for term in sentence_terms if isinstance(term, str)] for sentence_terms in terms]
        matches = [[term for term in sentence_terms if not isinstance(term, str)] for sentence_terms in terms]
        if not any(matches):
            return self._protected_n_best(segmented, options, batch_sentences, progress, prefixes, phrases)
        self.require_one_source("placing terms of a glossary")
        if any(phrases):
            raise RnnsearchError("terms must be either texts or matches of a glossary; got both")
        self.constraints.require_allowed(set(chain.from_iterable(match.entry for match in chain(*matches))), options)
        n_best_lists = self._protected_n_best(segmented, options, batch_sentences, progress, prefixes)
        return self.place_terms(segmented, matches, n_best_lists, options, prefixes)

    def place_terms(
        self,
        sources: Sequence[Segmented],
        terms: Sequence[Sequence[TermMatch[Forms]]],
        n_best_lists: Sequence[list[Translation]],
        options: SearchOptions,
        prefixes: Sequence[str] | None = None,
    ) -> list[list[Translation]]:
        """Return translations with terms of a glossary in place of their source terms (see `placement`).

        Args:
            sources: The source sentences.
            terms: The terms of each sentence.
            n_best_lists: The n best translations of each sentence without terms.
            options: How they were found.
            prefixes: Text that the translations begin with.
        """

        def search(
            indices: Sequence[int], options: SearchOptions, phrases: Sequence[Sequence[str]]
        ) -> list[list[Translation]]:
            their_sources = [sources[index] for index in indices]
            their_prefixes = None if prefixes is None else [prefixes[index] for index in indices]
            whole_beam = replace(options, n_best=options.beam)
            return self._protected_n_best(their_sources, whole_beam, None, None, their_prefixes, phrases)

        placer = TermPlacer(search, self._scored, self.constraints.can_write)
        return placer.place(sources, terms, prefixes or [""] * len(sources), options, n_best_lists)

    def _scored(self, sources: Sequence[Segmented], texts: Sequence[str]) -> list[Translation]:
        """Return translations of segmented sentences that are in the letter case of their sources, with scores."""
        rows = self._unprotected(sources)
        targets = [
            self.target.true_cased(text, "upper") if source.case == "upper" else text
            for source, text in zip(rows, texts, strict=True)
        ]
        target_rows = self.system.segment_targets(targets, rows, self.aligner)
        hypotheses = self._force_decode_rows(self.search.scorer, rows, target_rows)
        language = self.target.normalization.language
        target_rows = [target.in_case_of(source, language) for source, target in zip(rows, target_rows, strict=True)]
        return self._make_translations(rows, target_rows, hypotheses)

    def _protected_n_best(
        self,
        segmented: Sequence[Segmented],
        options: SearchOptions,
        batch_sentences: int | None = None,
        progress: Callable[[int], None] | None = None,
        prefixes: Sequence[str] | None = None,
        terms: Sequence[Sequence[str]] | None = None,
    ) -> list[list[Translation]]:
        """Return the n best translations of each sentence, with protected text."""
        if prefixes is not None:
            segmented = self._without_substitutes(segmented, prefixes)
        n_best_lists = self._search_n_best(segmented, options, batch_sentences, progress, prefixes, terms)
        if all(source.substituted is None for source in segmented):
            return n_best_lists

        def search(sources: Sequence[Segmented], indices: Sequence[int] | None) -> list[list[Translation]]:
            new_options = options
            new_terms = None
            if indices is not None and options.variant is None:
                new_options = replace(options, n_best=options.beam)
            if indices is not None and terms is not None:
                new_terms = [terms[index] for index in indices]
            return self._search_n_best(sources, new_options, batch_sentences, terms=new_terms)

        return self.protection.complete(segmented, n_best_lists, search)

    def _without_substitutes(self, sources: Sequence[Segmented], prefixes: Sequence[str]) -> list[Segmented]:
        """Return sources with their protected text if the translation has a prefix, which may end inside such text."""
        results = list(sources)
        for index, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
            if prefix and source.substituted is not None:
                results[index] = self._unprotected([source])[0]
        return results

    def _unprotected(self, sources: Sequence[Segmented]) -> list[Segmented]:
        """Return sources with their protected text instead of substitutes; contexts stay as they are."""
        rows = self.segment([source.text for source in sources], protect=())
        pairs = zip(rows, sources, strict=True)
        return [replace(row, context=source.context, streams=source.streams) for row, source in pairs]

    def _search_n_best(
        self,
        segmented: Sequence[Segmented],
        options: SearchOptions,
        batch_sentences: int | None = None,
        progress: Callable[[int], None] | None = None,
        prefixes: Sequence[str] | None = None,
        terms: Sequence[Sequence[str]] | None = None,
    ) -> list[list[Translation]]:
        """Return the n best translations of each sentence, with protected text as far as it came out."""
        sources = [source.translatable for source in segmented]
        copied = self._copied_texts(segmented, prefixes, terms)
        for index in copied:
            sources[index] = sources[index].without_tokens
        if terms is not None:
            terms = without(terms, copied, ())
            if any(terms):
                options = replace(options, phrases=self.constraints.required_phrases(terms, options))
        token_prefixes = [NO_PREFIX] * len(sources)
        if prefixes is not None:
            token_prefixes = self.constraints.read_prefixes(without(prefixes, copied, ""), sources, options)
            options = options.with_prefixes(token_prefixes, self.target)
        n_best_hypotheses = decode_all(
            self.search.scorer,
            [source.spelled_ids for source in sources],
            options,
            batch_sentences or self.config.search.batch_sentences,
            make_batch=self.system.make_sources,
            candidates=self.candidates,
            progress=progress,
        )
        # One row per hypothesis.
        row_sources: list[Segmented] = []
        row_prefixes: list[Prefix] = []
        row_hypotheses: list[Hypothesis] = []
        row_ranks: list[int] = []
        for source, prefix, hypotheses in zip(sources, token_prefixes, n_best_hypotheses, strict=True):
            row_sources += [source] * len(hypotheses)
            row_prefixes += [prefix] * len(hypotheses)
            row_hypotheses += [without_context(hypothesis, source) for hypothesis in hypotheses]
            row_ranks += range(len(hypotheses))
        row_hypotheses = self.postprocessor.add_copy_attention(row_sources, row_hypotheses, self.candidates)
        known_words = [prefix.unknown for prefix in row_prefixes]
        targets = self.postprocessor.target_texts(row_sources, row_hypotheses, known_words, options.beam)
        for row, (source, prefix) in enumerate(zip(row_sources, row_prefixes, strict=True)):
            targets[row] = restored_target(source, targets[row], self.target.normalization, prefix)
        translations = self._make_translations(row_sources, targets, row_hypotheses, ranks=row_ranks)
        n_best_lists = regroup(translations, n_best_hypotheses)
        for index in copied:
            n_best_lists[index] = [self._copy(segmented[index])]
        return n_best_lists

    def _named(self, texts: Sequence[Any]) -> list[Any]:
        """Return sources with each array as a `NamedArray`.

        Raises:
            RnnsearchError: The sources are not a list, or one is neither text nor array, or is an array and the model
                reads only text.
        """

        def named(source: Any, number: int) -> Any:
            if isinstance(source, np.ndarray | NamedArray) and not self.system.arrays:
                raise RnnsearchError("the model reads text, not arrays; give it sentences")
            if isinstance(source, np.ndarray):
                return NamedArray(f"array {number}", source)
            require_text(source)
            return source

        def optional(source: Any, number: int) -> Any:
            return None if source is None else named(source, number)

        results: list[Any] = []
        for number, source in enumerate(sentence_list(texts), 1):
            if isinstance(source, Mapping):
                results.append({name: optional(one, number) for name, one in source.items()})
            elif isinstance(source, Sequence) and not isinstance(source, str | bytes):
                results.append([optional(one, number) for one in source])
            else:
                results.append(named(source, number))
        return results

    def _copied_texts(
        self,
        sources: Sequence[Segmented],
        prefixes: Sequence[str] | None = None,
        terms: Sequence[Sequence[str]] | None = None,
    ) -> frozenset[int]:
        """Return the indices of the texts that are their own translation; an array is not."""
        if self.system.arrays:
            return frozenset()
        return copied_texts(sources, self.source, prefixes, terms)

    def _copy(self, source: Segmented) -> Translation:
        """Return a text as its own translation."""
        [target] = self.target.segment([source.text])
        aligns_previous_word = self.config.aligns_previous_word
        copy = make_copy(source, target, self.attends, aligns_previous_word, self.calibration is not None)
        if self.system.can("choose"):
            return replace(copy, rationale=tuple(range(len(copy.source_words))))
        return copy

    def by_consensus(
        self, translations: Sequence[Translation], options: SearchOptions, utility: Utility = "chrf"
    ) -> list[Translation]:
        """Return translations of one sentence by expected utility, best first (minimum Bayes risk decoding).

        Samples are weighted by how often they occur, results of other searches by their probabilities. If some
        translations are finished, those that were cut off come last and do not count: their probability is that of all
        translations that begin with them.

        Args:
            translations: The n best translations, or samples.
            options: Options of the search that found them.
            utility: Metric that compares translations with each other.
        """
        finished = [translation for translation in translations if translation.finished]
        ranked = finished or list(translations)
        if isinstance(options.variant, Sampling):
            # Samples occur in proportion to their probabilities already.
            weights = [1.0] * len(ranked)
        else:
            # Relative to the largest, so that exp does not underflow to 0 for all.
            max_log_prob = max((translation.log_prob for translation in ranked), default=0.0)
            weights = [math.exp(translation.log_prob - max_log_prob) for translation in ranked]
        utilities = expected_utility([translation.text for translation in ranked], weights, utility, self.languages[1])
        order = sorted(range(len(ranked)), key=lambda index: -utilities[index])
        ordered = [ranked[index] for index in order]
        if finished:
            ordered += [translation for translation in translations if not translation.finished]
        return ordered

    def stream(self, text: Source | Segmented) -> Generator[str, None, Translation]:
        """Yield the greedy translation of a sentence so far after every token; return the whole translation."""
        [source] = self.segment([text])
        if self._copied_texts([source]):
            return self._copy(source)
        source = source.translatable
        # A model would translate EOS to something; an empty sentence has an empty translation.
        if not source.spelled_ids:
            return self.n_best([source])[0][0]
        scorer = self.search.scorer
        options = self.options(beam=1)
        batch = self.system.make_sources([source.spelled_ids], scorer.device)
        steps = greedy_stream(scorer, batch, options, self.candidates)
        while True:
            try:
                ids = next(steps)
            except StopIteration as end:
                hypothesis = without_context(end.value, source)
                hypotheses = self.postprocessor.add_copy_attention([source], [hypothesis], self.candidates)
                targets = self.postprocessor.target_texts([source], hypotheses, [{}], options.beam)
                target = restored_target(source, targets[0], self.target.normalization)
                if source.substituted is not None and not source.substituted.is_complete(target.text):
                    return self.n_best([source], options)[0][0]
                return self._make_translations([source], [target], hypotheses)[0]
            # The last character may still be incomplete.
            partial = self.target.join(ids).rstrip("\N{REPLACEMENT CHARACTER}")
            if source.substituted is not None:
                partial = source.substituted.partly_restored(partial)
            yield Segmented(partial, [], [], []).in_case_of(source, self.target.normalization.language).text

    def likeliest_tokens(self, text: Source | Segmented, prefix: str, tokens: Sequence[int], count: int) -> list[int]:
        """Return the most probable tokens after a prefix of the translation, best first.

        Args:
            text: The source sentence.
            prefix: Whole words at the start of its translation.
            tokens: The tokens to choose from.
            count: Maximum number of tokens to return.
        """
        [source] = self.segment([text], protect=())
        prefix_ids: Sequence[int] = []
        if prefix.strip():
            if source.case == "upper":
                prefix = self.target.true_cased(prefix, source.case)
            [target] = self.system.segment_targets([prefix.removesuffix(" ")], [source], self.aligner)
            prefix_ids = target.ids
        scorer = self.search.scorer
        batch = self.system.make_sources([source.spelled_ids], scorer.device)
        return next_tokens(scorer, batch, prefix_ids, tokens, count, self.candidates)

    def with_terms(self, text: str, glossary: Glossary) -> str:
        """Return a text with the target terms of a glossary inline, for a model trained with `[text.inline_terms]`.

        Raises:
            ModelError: The model was trained without.
        """
        if not self.reads_terms:
            raise ModelError("inline terms need a model trained with text.inline_terms; this one was not")
        return insert_terms(text, glossary.preferred(text))

    # Existing translations.

    def align(
        self,
        sources: Sequence[Source | Segmented],
        targets: Sequence[str],
        unit: Unit = "words",
        by: AlignedBy | None = None,
    ) -> list[tuple[Link, ...]]:
        """Return the alignment links of existing translations.

        Args:
            sources: Source sentences, possibly with contexts (see `with_context`), or arrays.
            targets: Their translations.
            unit: Align words or tokens.
            by: Source of alignments; by default the best one of the model. With "aligner", the model does not run.

        Raises:
            ModelError: As in `require_alignments`.
            RnnsearchError: The sources or targets are not a list, or their numbers differ.
        """
        by = self.require_alignments(by)
        sources = sentence_list(sources)
        targets = text_list(targets)
        if len(sources) != len(targets):
            raise RnnsearchError(f"targets must be as many as the sources ({len(sources)}); got {len(targets)}")
        if by == "aligner" and self.aligner is not None:
            own = [source.text if isinstance(source, Segmented) else source for source in sources]
            texts = single_texts(self._named(own), self.sources)
            pairs = zip(self.source.segment(texts), self.target.segment(targets), strict=True)
            links = BatchLinks(self.aligner, list(pairs))
            return links.words if unit == "words" else links.tokens
        translations = self.score(sources, targets, by)
        if unit == "words":
            return [translation.alignment for translation in translations]
        return [translation.token_alignment for translation in translations]

    def score(
        self, sources: Sequence[Source | Segmented], targets: Sequence[str], by: AlignedBy | None = None
    ) -> list[Translation]:
        """Score existing translations by forced decoding in fp32.

        Scores are those of the search; of a model without probabilities (`[objective.sequence]` with type "bso"), they
        are not log-probabilities.

        Args:
            sources: Source sentences, possibly with contexts (see `with_context`), or arrays.
            targets: Their translations.
            by: Source of alignments; by default the best one that the model has. With "posterior", attention weights
                are those of source positions given the target word itself (`search.reattend`), which align better than
                the weights before the word is known. With "read", each word has the weights of the position after it
                (Luong et al. 2015, footnote 14).

        Raises:
            ModelError: As in `require_alignments`.
        """
        if by is not None:
            # Called for its check, before anything is computed.
            self.require_alignments(by)
        source_rows, target_rows, hypotheses = self._force_decode(self.system.reference_scorer(), sources, targets)
        hypotheses = self.postprocessor.add_copy_attention(source_rows, hypotheses)
        if by == "posterior":
            source_ids = [source.spelled_ids for source in source_rows]
            attention = self.system.posterior_attention(source_ids, [target.ids for target in target_rows])
            rows = zip(hypotheses, attention, source_rows, strict=True)
            hypotheses = [
                without_context(replace(hypothesis, attention=own), source) for hypothesis, own, source in rows
            ]
        use_aligner = by in (None, "aligner")
        return self._make_translations(
            source_rows, target_rows, hypotheses, use_aligner, aligns_previous_word=by == "read"
        )

    def log_probs(self, sources: Sequence[Source | Segmented], targets: Sequence[str]) -> list[float]:
        """Return log p(target | source) of existing translations in nats, by forced decoding in fp32.

        Args:
            sources: Source sentences, possibly with contexts (see `with_context`), or arrays.
            targets: Their translations.

        Raises:
            ModelError: The model has no probabilities.
        """
        self.system.require("probabilities")
        _, _, hypotheses = self._force_decode(self.system.reference_scorer(), sources, targets)
        return [hypothesis.log_prob for hypothesis in hypotheses]

    def cross_entropies(self, sources: Sequence[Source], targets: Sequence[str]) -> list[float]:
        """Return -log p(target | source) of existing translations per token, EOS included, in nats.

        This uses the fast scorer of the search, in its precision, and is several times as fast as `score`.

        Raises:
            ModelError: The model has no probabilities.
        """
        self.system.require("probabilities")
        _, _, hypotheses = self._force_decode(self.search.scorer, sources, targets)
        return [-hypothesis.log_prob / (len(hypothesis.ids) + 1) for hypothesis in hypotheses]

    def states(self, texts: Sequence[str]) -> Matrix:
        """Return the last states of the encoder's top layer, both directions concatenated, [sentences, S]."""
        ids = [source.spelled_ids for source in self.system.segment_sources(self._named(texts))]
        size = self.config.search.batch_sentences
        # At least one batch, which gives an empty array the right number of columns.
        starts = range(0, max(1, len(ids)), size)
        return np.concatenate([self.system.encoder_states(ids[start : start + size]) for start in starts])

    def has_unknown(self, sources: Sequence[SourceText], targets: Sequence[str]) -> list[bool]:
        """Return, for each sentence pair, True if either side has an unknown word."""
        pairs = zip(self.system.segment_sources(self._named(sources)), self.target.segment(targets), strict=True)
        return [source.has_unknown or target.has_unknown for source, target in pairs]

    def _force_decode(
        self, scorer: Scorer, sources: Sequence[Source | Segmented], targets: Sequence[str]
    ) -> tuple[list[Segmented], list[Segmented], list[Hypothesis]]:
        """Return sources and existing translations as tokens, and the translations as hypotheses of a scorer."""
        sources = sentence_list(sources)
        targets = text_list(targets)
        new_sources = self._named([source for source in sources if not isinstance(source, Segmented)])
        new = iter(self.system.segment_sources(new_sources))
        source_rows = [self._as_written(source) if isinstance(source, Segmented) else next(new) for source in sources]
        target_rows = self.system.segment_targets(targets, source_rows, self.aligner)
        return source_rows, target_rows, self._force_decode_rows(scorer, source_rows, target_rows)

    def _as_written(self, source: Segmented) -> Segmented:
        """Return a source in its own letter case, like the targets of forced decoding; its context stays as it is."""
        if source.case is None or source.by_source is not None:
            return source
        [row] = self.system.segment_sources([source.text])
        return replace(row, context=source.context, streams=source.streams)

    def _force_decode_rows(
        self, scorer: Scorer, sources: Sequence[Segmented], targets: Sequence[Segmented]
    ) -> list[Hypothesis]:
        """Return existing translations as hypotheses of a scorer."""
        hypotheses = force_decode_all(
            scorer,
            [source.spelled_ids for source in sources],
            [target.ids for target in targets],
            self.options().ranking,
            self.config.search.batch_sentences,
            make_batch=self.system.make_sources,
        )
        return list(map(without_context, hypotheses, sources))

    def _make_translations(
        self,
        sources: Sequence[Segmented],
        targets: Sequence[Segmented],
        hypotheses: Sequence[Hypothesis],
        use_aligner: bool = True,
        ranks: Sequence[int] | None = None,
        aligns_previous_word: bool = False,
    ) -> list[Translation]:
        """Return hypotheses as translations.

        Args:
            sources: Source of each hypothesis.
            targets: Text of each hypothesis.
            hypotheses: The hypotheses.
            use_aligner: True if alignments come from the aligner, if there is one.
            ranks: Rank of each hypothesis in its n-best list. The aligner aligns all of one rank together, or all if
                there are no ranks.
            aligns_previous_word: True if the attention of a word is that of the position after it.
        """
        links: Sequence[PairLinks | None] = [None] * len(sources)
        if self.aligner is not None and use_aligner:
            pairs = list(zip(sources, targets, strict=True))
            links = links_by_rank(self.aligner, pairs, ranks or [0] * len(sources))
        aligns_previous_word = aligns_previous_word or self.config.aligns_previous_word
        translations = []
        for source, target, hypothesis, pair_links in zip(sources, targets, hypotheses, links, strict=True):
            translations.append(make_translation(source, target, hypothesis, aligns_previous_word, pair_links))
        if self.has_several_sources:
            inputs = zip(translations, sources, targets, hypotheses, strict=True)
            translations = [with_sources(*row, self.sources, aligns_previous_word) for row in inputs]
        if self.system.can("choose"):
            selected = self.system.selected_words([source.spelled_ids for source in sources])
            rows = zip(translations, sources, selected, strict=True)
            translations = [with_rationale(translation, source, tokens) for translation, source, tokens in rows]
        if self.calibration is not None:
            translations = [with_confidence(translation, self.calibration) for translation in translations]
        return translations
