"""The Translator: raw text in, translations with scores and alignments out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, overload

import numpy as np
import torch

from rnnsearch.align.aligner import Aligner
from rnnsearch.config import RunConfig, SearchConfig
from rnnsearch.errors import ModelError, RnnsearchError, must_be_one_of
from rnnsearch.metrics.calibration import Calibration
from rnnsearch.metrics.consensus import Utility, expected_utility
from rnnsearch.search.beam import stream
from rnnsearch.search.candidates import Candidates
from rnnsearch.search.decode import decode_all, forced_all
from rnnsearch.search.forced import following
from rnnsearch.search.hypothesis import EMPTY, Hypothesis
from rnnsearch.search.model_scorer import Fastest
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.sampling import Sampling, Variant
from rnnsearch.search.scorer import Scorer
from rnnsearch.search.unknown_words import UnknownWords
from rnnsearch.systems.system import System
from rnnsearch.text.alignment_types import ALIGNED_BY, AlignedBy, Unit
from rnnsearch.text.alignments import Link
from rnnsearch.text.markup.marks import PROTECTED, MarkedText, Protected
from rnnsearch.text.terms import Glossary, inlined
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.translator.alignment import AlignedPairs, OneAligned, linked
from rnnsearch.translator.confidence import sure
from rnnsearch.translator.postprocess import SecondStage, grouped
from rnnsearch.translator.requests import Demands
from rnnsearch.translator.translation import Matrix, Translation, in_words, reasoned

NO_ALIGNER = "this needs an aligner, which the model has not; make it one with `rnnsearch aligner MODEL SRC TGT`"


class Translator:
    """A loaded model that translates, scores and aligns raw text. One line in is one translation out."""

    def __init__(
        self,
        system: System[Any],
        unknown: UnknownWords | None = None,
        candidates: Candidates | None = None,
        aligner: Aligner | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        """Errors: ModelError where the system cannot translate."""
        system.require("translate")
        self.system = system
        self.model: Any = system.model
        """The system's module; of an ensemble, those of its members."""
        self.config: RunConfig = system.config
        self.source: Tokenizer = system.source
        self.target: Tokenizer = system.target
        self.languages = self.config.data.single_source, self.config.data.target
        """The codes of source and target."""
        self.parameters = system.num_parameters
        """How many numbers training found."""
        self.attends = system.can("attend")
        """Whether the model has attention."""
        self.aligner = aligner
        """What alignments come from; None: from attention."""
        self.calibration = calibration
        """What says how sure to be of a word; None: nothing."""
        self.unknown = unknown
        """What takes the place of `<unk>` in what is found; None: nothing."""
        self.second = SecondStage(system, unknown)
        """What follows a search."""
        self.candidates = candidates
        """The symbols that a batch's translations are made of; None: all."""
        self.demands = Demands(system, aligner, replaces=unknown is not None)
        """What may be asked of translations beside their sources."""
        self.reads_terms = self.config.text.inline_terms is not None
        """Whether texts may hold target terms inline (`with_terms`), which the model has learned to write."""

    @cached_property
    def search(self) -> Fastest:
        """What translates, made at the first translation: the fastest here, in the precision of `[search]`."""
        return self.system.fast_scorer(self.config.search.precision)

    def require_confidence(self) -> None:
        """Errors: ModelError for a model that cannot say how sure it is."""
        if self.calibration is None:
            raise ModelError("this needs a calibrated model: `rnnsearch calibrate MODEL SRC REF`, on a dev set")

    def require_reverse_of(self, source: str, target: str) -> None:
        """Errors: ModelError for a model that does not translate back, from `target` to `source`."""
        if self.languages != (target, source):
            told = " to ".join(self.languages)
            raise ModelError(f"the reverse model must translate from {target} to {source}; it does from {told}")

    def prepare(self) -> None:
        """Make now what the first translation would make."""
        _ = self.search

    @property
    def device(self) -> torch.device:
        """Where it translates."""
        return self.search.scorer.device

    def require_alignments(self, by: str | None = None) -> AlignedBy:
        """What aligns: what is asked for, or the best there is. Errors: RnnsearchError for what there is not at all;
        ModelError for what this model has not, or where it has nothing."""
        if by is not None and by not in ALIGNED_BY:
            raise RnnsearchError(f"by {must_be_one_of(ALIGNED_BY, by)}")
        if by is None and self.aligner is None and not self.attends:
            raise ModelError(f"{NO_ALIGNER} (nor has it attention)")
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
        length_penalty: float | None = None,
        max_length: int | None = None,
        ban_unknown: bool = False,
        no_repeat_ngram: int | None = None,
        variant: Variant | None = None,
        banned: Collection[str] = (),
    ) -> SearchOptions:
        """Search options: the model's own defaults where nothing is given; a beam of one where samples are drawn, of as
        many as there are noisy chains.

        A default beam grows to `n_best`. `banned`: words and phrases that no translation holds, letter for letter (see
        `text.banned`). Errors: RnnsearchError for a given beam that is narrower than `n_best`, and for banned phrases
        that are empty, or where other text takes the place of unknown words.
        """
        search: SearchConfig = self.config.search
        each = 1 if self.system.annotation is None else self.system.annotation.symbols_a_word
        if beam is not None and 1 <= beam < n_best:
            raise RnnsearchError(f"beam must be at least n_best ({n_best}); got {beam}")
        if beam is None:
            beam = max(search.beam, n_best) if variant is None else variant.default_beam(search.beam, n_best)
        return SearchOptions.from_config(
            search,
            beam=beam,
            length_penalty=length_penalty,
            max_ratio=each * search.max_ratio if max_length is None else 0.0,
            max_extra=each * (search.max_extra if max_length is None else max_length),
            n_best=n_best,
            banned=self.target.unknown if ban_unknown else frozenset(),
            banned_phrases=self.demands.banned(banned, ban_unknown),
            no_repeat_ngram=no_repeat_ngram,
            variant=variant,
        )

    @overload
    def translate(self, text: str, options: SearchOptions | None = None) -> Translation: ...
    @overload
    def translate(self, text: list[str], options: SearchOptions | None = None) -> list[Translation]: ...

    def translate(self, text: str | list[str], options: SearchOptions | None = None) -> Translation | list[Translation]:
        """The best translation of a sentence, or of each sentence of a list."""
        if isinstance(text, str):
            return self.n_best([text], options)[0][0]
        return [best[0] for best in self.n_best(text, options)]

    def translate_marked(
        self,
        texts: Sequence[str],
        options: SearchOptions | None = None,
        tags: bool = True,
        protect: Collection[Protected] = (),
    ) -> list[str]:
        """The best translations of sentences that hold inline tags, which come out around the words that are aligned to
        theirs, or what is to stay letter for letter (see `text.marks`).

        Errors: ModelError where nothing aligns; RnnsearchError for another name in `protect`.
        """
        self.require_alignments()
        for name in protect:
            if name not in PROTECTED:
                raise RnnsearchError(f"protect {must_be_one_of(PROTECTED, name)}")
        marked = [MarkedText(text, tags, protect) for text in texts]
        found = self.translate([m.text for m in marked], options)
        return [m.placed(t.text, t.alignment if m.marks else ()) for m, t in zip(marked, found, strict=True)]

    def n_best(
        self,
        texts: Sequence[str],
        options: SearchOptions | None = None,
        batch_sentences: int | None = None,
        progress: Callable[[int], None] | None = None,
        prefixes: Sequence[str] | None = None,
        terms: Sequence[Sequence[str]] | None = None,
    ) -> list[list[Translation]]:
        """The `options.n_best` best translations of each sentence, best first (fewer if fewer were found).

        `prefixes`: for each sentence, text that its translations begin with, letter for letter. It may end inside
        a word. `terms`: for each sentence, words and phrases that its translations hold, in whatever place (see
        `search.phrases`; `text.glossary` finds them). Errors: RnnsearchError where they are not as many as the
        sentences, a prefix is of an empty sentence, or a term has a word that the model has no symbol for.
        """
        options = options or self.options()
        sources = [source.to_translate for source in self.system.segment_sources(texts)]
        if terms is not None:
            if len(terms) != len(texts):
                raise RnnsearchError(f"terms must be one list a sentence ({len(texts)}); got {len(terms)}")
            if any(terms):
                options = replace(options, phrases=self.demands.phrases(terms, options))
        begins = None if prefixes is None else self.demands.begun(prefixes, sources, options)
        if begins is not None:
            options = options.with_prefixes(begins, self.target)
        size = batch_sentences or self.config.search.batch_sentences
        found = decode_all(
            self.search.scorer,
            [s.spelled for s in sources],
            options,
            size,
            make=self.system.make_sources,
            columns=self.candidates,
            progress=progress,
        )
        known: Sequence[Mapping[int, str]] = [begin.unknown for begin in begins or ()] or [{}] * len(sources)
        of_each = [source for source, own in zip(sources, found, strict=True) for _ in own]
        given = [words for words, own in zip(known, found, strict=True) for _ in own]
        hypotheses = self.second.read(of_each, [h for own in found for h in own], self.candidates)
        targets = self.second.texts(of_each, hypotheses, given, options.beam)
        ranks = [rank for own in found for rank in range(len(own))]
        return grouped(self._translations(of_each, targets, hypotheses, ranks=ranks), found)

    def by_consensus(
        self, found: Sequence[Translation], options: SearchOptions, utility: Utility = "chrf"
    ) -> list[Translation]:
        """A sentence's n best translations in the order of least Bayes risk (`metrics.consensus`): samples count as
        often as they were drawn, others by their probabilities. Where some are finished, those that were cut off come
        behind and count for nothing: the probability of a beginning is that of all that may follow it."""
        finished = [t for t in found if t.finished]
        counted = finished or list(found)
        sampled, most = isinstance(options.variant, Sampling), max((t.log_prob for t in counted), default=0.0)
        probabilities = [1.0 if sampled else math.exp(t.log_prob - most) for t in counted]
        worth = expected_utility([t.text for t in counted], probabilities, utility, self.languages[1])
        ordered = [counted[n] for n in sorted(range(len(counted)), key=lambda n: -worth[n])]
        return ordered + [t for t in found if finished and not t.finished]

    def stream(self, text: str) -> Generator[str, None, Translation]:
        """Greedy translation of a sentence: the text so far after every symbol and, returned, the whole."""
        source = self.system.segment_sources([text])[0].to_translate
        if not source.ids:
            return self._translations([source], [self.target.joined([])], [EMPTY])[0]
        scorer = self.search.scorer
        options, sentences = self.options(beam=1), self.system.make_sources([source.spelled], scorer.device)
        steps = stream(scorer, sentences, options, self.candidates)
        while True:
            try:
                so_far = next(steps)
            except StopIteration as end:
                hypotheses = self.second.read([source], [end.value], self.candidates)
                target = self.second.texts([source], hypotheses, [{}], options.beam)
                return self._translations([source], target, hypotheses)[0]
            # The bytes of a character may not all be there yet.
            yield self.target.join(so_far).rstrip("\N{REPLACEMENT CHARACTER}")

    def likeliest(self, text: str, begin: str, symbols: Sequence[int], count: int) -> list[int]:
        """The `count` likeliest of these symbols to go on with in a translation that begins so, the best first."""
        read, scorer = self.system.segment_sources([text]), self.search.scorer
        head = self.system.segment_targets([begin.removesuffix(" ")], read, self.aligner)[0].ids if begin.strip() else []
        sources = self.system.make_sources([read[0].spelled], scorer.device)
        return following(scorer, sources, head, symbols, count, self.candidates)

    def with_terms(self, text: str, glossary: Glossary) -> str:
        """A text with a glossary's terms inline, to be translated: for a model trained with `[text.inline_terms]`.

        Errors: ModelError for another.
        """
        if not self.reads_terms:
            raise ModelError("terms inline need a model trained with text.inline_terms; this one was not")
        return inlined(text, glossary.places(text))

    def align(
        self, sources: Sequence[str], targets: Sequence[str], unit: Unit = "words", by: AlignedBy | None = None
    ) -> list[tuple[Link, ...]]:
        """The links of given translations, by the best there is where nothing is asked for. An aligner does not ask the
        model itself. Errors: ModelError as in `require_alignments`."""
        by = self.require_alignments(by)
        if len(sources) != len(targets):
            raise RnnsearchError(f"targets must be as many as the sources ({len(sources)}); got {len(targets)}")
        if by == "aligner" and self.aligner is not None:
            both = self.source.segment(sources), self.target.segment(targets)
            pairs = AlignedPairs(self.aligner, list(zip(*both, strict=True)))
            return pairs.words if unit == "words" else pairs.tokens
        found = self.score(sources, targets, by)
        return [t.alignment if unit == "words" else t.token_alignment for t in found]

    def score(self, sources: Sequence[str], targets: Sequence[str], by: AlignedBy | None = None) -> list[Translation]:
        """Given translations, scored by the plain model in fp32 (forced decoding).

        `by`: what aligns them, if not the best there is. By "posterior" the weights are of the source positions given
        the target word itself (`search.posterior`), which align better than attention's guess before the word; by
        "read" each word's are those of the position after it (Luong et al. 2015, footnote 14).
        Errors: ModelError where that cannot be had.
        """
        if by is not None:
            self.require_alignments(by)
        source_side, target_side, hypotheses = self._forced(self.system.reference_scorer(), sources, targets)
        hypotheses = self.second.read(source_side, hypotheses)
        if by == "posterior":
            weights = self.system.posterior_attention([s.spelled for s in source_side], [t.ids for t in target_side])
            hypotheses = [replace(h, attention=w) for h, w in zip(hypotheses, weights, strict=True)]
        return self._translations(source_side, target_side, hypotheses, by in (None, "aligner"), read=by == "read")

    def cross_entropies(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """-log p(target | source) of given translations, in nats a symbol, with the one that ends them: by what
        translates, in its precision, several times as fast as `score`."""
        _, _, hypotheses = self._forced(self.search.scorer, sources, targets)
        return [-h.log_prob / (len(h.ids) + 1) for h in hypotheses]

    def _forced(
        self, scorer: Scorer, sources: Sequence[str], targets: Sequence[str]
    ) -> tuple[list[Segmented], list[Segmented], list[Hypothesis]]:
        """Sources, given translations, and these as hypotheses by a Scorer."""
        source_side = self.system.segment_sources(sources)
        target_side = self.system.segment_targets(targets, source_side, self.aligner)
        ids, size = ([s.spelled for s in source_side], [t.ids for t in target_side]), self.config.search.batch_sentences
        hypotheses = forced_all(scorer, *ids, self.options().ranking, size, make=self.system.make_sources)
        return source_side, target_side, hypotheses

    def states(self, texts: Sequence[str]) -> Matrix:
        """[sentences, S]: the last states of the encoder's top layer, both directions' side by side."""
        ids, size = [s.spelled for s in self.system.segment_sources(texts)], self.config.search.batch_sentences
        return np.concatenate(
            [self.system.encoder_states(ids[begin : begin + size]) for begin in range(0, max(1, len(ids)), size)]
        )

    def _translations(
        self,
        sources: Sequence[Segmented],
        targets: Sequence[Segmented],
        hypotheses: Sequence[Hypothesis],
        aligned: bool = True,
        ranks: Sequence[int] | None = None,
        read: bool = False,
    ) -> list[Translation]:
        """Hypotheses in words; their links by the aligner, where there is one and it is wanted: those of one rank, all
        if none are given, are found together. read: a word's attention is that of the position after it."""
        links: list[OneAligned | None] = [None] * len(sources)
        if self.aligner is not None and aligned:
            links = linked(self.aligner, list(zip(sources, targets, strict=True)), ranks or [0] * len(sources))
        read, calibration = read or self.config.aligns_previous_word, self.calibration
        found = [
            in_words(source, target, hypothesis, read, own)
            for source, target, hypothesis, own in zip(sources, targets, hypotheses, links, strict=True)
        ]
        if self.system.can("choose"):
            chosen = self.system.selected_words([source.spelled for source in sources])
            found = [reasoned(*each) for each in zip(found, sources, chosen, strict=True)]
        return found if calibration is None else [sure(translation, calibration) for translation in found]

    def has_unknown(self, sources: Sequence[str], targets: Sequence[str]) -> list[bool]:
        """Whether a sentence pair has an unknown word on either side (the papers' second column)."""
        pairs = zip(self.source.segment(sources), self.target.segment(targets), strict=True)
        return [source.unknown or target.unknown for source, target in pairs]
