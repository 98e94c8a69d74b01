"""`TranslationService`: texts in, translations out, for the routes of every protocol.

A protocol is a thin router: it reads a request into a `TranslationTask`, calls `Service.translate`, and writes the
`TextResult`s in its format. Which model translates which text, markup, and the detection of languages are decided here,
so that they are equal in all protocols.

`service.Service` holds the `TranslationService` and adds what concerns requests: keys, limits, time-outs and
disconnects. Texts are translated by `texts.translate_texts`. Work on long texts is done in processes (`long_texts`) and
threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from rnnsearch.serve.limits import ServeError, run_in_thread, text_size
from rnnsearch.serve.long_texts import markup_size
from rnnsearch.serve.output_size import TEXT_ONLY, OutputFields
from rnnsearch.serve.pivot import LeasedModel
from rnnsearch.serve.registry import Registry
from rnnsearch.serve.schemas import ModelInfo
from rnnsearch.serve.served_model import BatchOptions, RequestOptions
from rnnsearch.serve.texts import translate_texts
from rnnsearch.text.languages import base_language, detect
from rnnsearch.text.long_texts import Filling, Markup, MarkupFormat, ParsedText
from rnnsearch.text.markup.protected import DEFAULT_PROTECTED, ProtectedType
from rnnsearch.text.terms import Glossary
from rnnsearch.translator.texts import TextTranslation

AUTO = "auto"
DEFAULT_LANGUAGE = "en"  # reported with confidence 0 for text in none of the served languages, as by LibreTranslate
SHORT_TEXT_CHARACTERS = 40  # texts up to this length have the language of all texts of their request together
CONNECTION_TEST = ("test", "en", "de")
"""Text, source and target that Weblate translates to check the settings of a server, whatever it serves."""


@dataclass(frozen=True)
class TranslationTask:
    """Texts to translate, and how."""

    texts: Sequence[str]
    source: str | None = None
    """Code of their language; `AUTO` to detect that of each text, None for that of the model."""
    target: str | None = None
    """Code of the language to translate into; None for that of the model."""
    model: str | None = None
    """Name of the model; None for the first one of the direction."""
    format: MarkupFormat = "text"
    """Format of the texts."""
    ignored_tags: frozenset[str] = frozenset()
    """Names of elements, in lower case, whose content is not translated; for `xml` and `codes`."""
    splitting_tags: frozenset[str] = frozenset()
    """Names of elements, in lower case, that separate sentences; for `xml` and `codes`."""
    beam: int | None = None
    """Size of the beam; None for the model's setting."""
    n_best: int = 1
    """Number of translations per sentence."""
    align: bool = False
    """True if word alignments are needed."""
    prefixes: Sequence[str] | None = None
    """Text that the translations begin with, one per text; for texts of one sentence."""
    glossary: Glossary | None = None
    """Terms that the translations must contain."""
    protect: Collection[ProtectedType] = DEFAULT_PROTECTED
    """Types of text that the translations contain unchanged."""
    fields: OutputFields = TEXT_ONLY
    """Fields of the response that make it large."""

    @property
    def size(self) -> int:
        """Amount of work on the texts apart from translation, in characters."""
        size = text_size(self.texts)
        if self.format != "text":
            size += markup_size(self.texts)
        return size * self.n_best

    @property
    def markup(self) -> Markup:
        """Markup of the texts; their format must not be `text`."""
        return Markup(self.format, sorted(self.ignored_tags), sorted(self.splitting_tags))


class DetectedLanguage(NamedTuple):
    """The language of a text."""

    code: str
    """Code of a served language."""
    confidence: float
    """Probability from 0 to 1; 0 if the text is in none of the served languages."""


class Direction(NamedTuple):
    """The model for a text."""

    model: ModelInfo
    """Description of the model."""
    detected: DetectedLanguage | None
    """The detected language; None if the request names the language."""


@dataclass(frozen=True)
class TextResult:
    """The translation of a text."""

    source: str
    model: ModelInfo
    """Model that translated it."""
    detected: DetectedLanguage | None
    """Detected language of the text; None if the request names the language."""
    parts: Sequence[TextTranslation] = ()
    """Translations of the text or, for markup, of each stretch of it that is translated by itself."""
    filled: Sequence[str] | None = None
    """Translations of the text with its markup, by rank; None for plain text."""
    is_translated: bool = field(default=True)
    """False for a text that is returned as it is."""

    def text(self, rank: int = 0) -> str:
        """Return the translation of the text; for markup, with the tags in their places.

        Args:
            rank: Rank of the translation to use for each sentence, from 0, below `n_best` of the task; the last one if
                it has fewer.
        """
        if not self.is_translated:
            return self.source
        return self.parts[0].text(rank) if self.filled is None else self.filled[rank]

    @property
    def confidence(self) -> float | None:
        """Mean confidence of the words of the best translation; None if the model is not calibrated."""
        total = 0.0
        words = 0
        for sentence in chain.from_iterable(part.n_best for part in self.parts):
            if sentence[0].confidence is None:
                return None
            total += sentence[0].confidence * len(sentence[0].words)
            words += len(sentence[0].words)
        return total / words if words else None


class TranslationService:
    """Translation of texts by the models of a server."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._long_texts = registry.long_texts

    async def detect(
        self, texts: Sequence[str], target: str | None = None, model: str | None = None
    ) -> list[DetectedLanguage]:
        """Return the language of each text, among the served source languages.

        Short texts have the language of all texts together, because they contain little evidence.

        Args:
            texts: The texts.
            target: Restrict the languages to those of models into this language, if there are any.
            model: Restrict the languages to that of this model.
        """
        candidates = self.source_languages(target, model)
        # A thread even for short texts, because the first call loads a file.
        return await asyncio.to_thread(_detect_each, texts, candidates)

    async def choose_models(self, task: TranslationTask, client: str) -> list[Direction]:
        """Return the model for each text.

        Args:
            task: The texts, and how to translate them.
            client: Identity of the client, whose long texts are parsed one after the other.

        Raises:
            ServeError: As in `Registry.find` and `LongTexts`.
        """
        if task.source != AUTO:
            direction = Direction(self._registry.find(task.model, task.source, task.target), None)
            return [direction] * len(task.texts)
        texts = task.texts
        if task.format != "text":
            parsed = await self._long_texts.parse(task.texts, task.markup, task.size, client)
            texts = [" ".join(text.texts) for text in parsed]
        detected = await self.detect(texts, task.target, task.model)
        model_by_code: dict[str, ModelInfo] = {}
        # At least one search, for its error if a request without texts names a direction that is not served.
        for code in dict.fromkeys(language.code for language in detected) or [None]:
            model_by_code[code or ""] = self._registry.find(task.model, code, task.target)
        return [Direction(model_by_code[language.code], language) for language in detected]

    async def translate(
        self, task: TranslationTask, directions: Sequence[Direction], models: Mapping[str, LeasedModel], client: str
    ) -> list[TextResult]:
        """Translate texts.

        Args:
            task: The texts, and how to translate them.
            directions: The model for each text.
            models: The models by name.
            client: Identity of the client, whose long texts are parsed and split one after the other.

        Raises:
            ServeError: As in `texts.translate_texts` and `LongTexts`.
        """
        if task.format == "text":
            parsed = [ParsedText([text], False) for text in task.texts]
        else:
            parsed = await self._long_texts.parse(task.texts, task.markup, task.size, client)
        parts: dict[int, list[TextTranslation]] = {}
        for name, model in models.items():
            indices = [index for index, direction in enumerate(directions) if direction.model.name == name]
            translated = await self._translate_with(model, task, [parsed[index] for index in indices], indices, client)
            parts |= zip(indices, translated, strict=True)
        ordered = [parts[index] for index in range(len(task.texts))]
        filled: Sequence[Sequence[str] | None] = [None] * len(task.texts)
        if task.format != "text":
            fillings = await run_in_thread(_fillings, task.n_best, ordered, parsed, size=task.size)
            filled = await self._long_texts.fill(task.texts, task.markup, fillings, task.size, client)
        results = []
        for text, direction, text_parts, text_filled in zip(task.texts, directions, ordered, filled, strict=True):
            results.append(TextResult(text, direction.model, direction.detected, text_parts, text_filled))
        return results

    async def _translate_with(
        self,
        model: LeasedModel,
        task: TranslationTask,
        texts: Sequence[ParsedText],
        indices: Sequence[int],
        client: str,
    ) -> list[list[TextTranslation]]:
        """Return the translated parts of some of the texts, all by the same model."""
        parts = [text.texts for text in texts]
        needs_links = any(text.has_inline_tags for text in texts)
        search = BatchOptions(task.beam, task.n_best, align=task.align or needs_links)
        prefixes = None if task.prefixes is None else [task.prefixes[index] for index in indices]
        translations = await translate_texts(
            model,
            list(chain.from_iterable(parts)),
            RequestOptions(search, glossary=task.glossary, protect=task.protect, fields=task.fields, client=client),
            prefixes,
            documents=[number for number, text_parts in enumerate(parts) for _ in text_parts],
            client=client,
        )
        remaining = iter(translations)
        return [[next(remaining) for _ in text_parts] for text_parts in parts]

    def source_languages(self, target: str | None = None, model: str | None = None) -> list[str]:
        """Return the served source languages.

        Args:
            target: Restrict them to those of models into this language, if there are any.
            model: Restrict them to that of this model.
        """
        models = self._registry.named(model)
        if target is not None:
            models = [info for info in models if base_language(target) == base_language(info.target)] or models
        return list(dict.fromkeys(info.source for info in models))

    def answers_unchanged(self, task: TranslationTask) -> bool:
        """Return True for the request by which Weblate checks a server, if its direction is not served here."""
        text, source, target = CONNECTION_TEST
        if list(task.texts) != [text] or (task.source or "").lower() != source:
            return False
        if base_language(task.target or "") != target:
            return False
        try:
            self._registry.find(task.model, task.source, task.target)
        except ServeError:
            return True
        return False

    def unchanged(self, task: TranslationTask) -> list[TextResult]:
        """Return the texts as they are."""
        info = self._registry.find()
        return [TextResult(text, info, None, is_translated=False) for text in task.texts]


def default_language(codes: Sequence[str]) -> str:
    """Return the language that is reported for text in none of some languages: English, or else the first one."""
    english = (code for code in codes if base_language(code) == DEFAULT_LANGUAGE)
    return next(english, codes[0] if codes else DEFAULT_LANGUAGE)


def _detect_each(texts: Sequence[str], candidates: Sequence[str]) -> list[DetectedLanguage]:
    """Return the language of each text, or that of all texts for short ones."""
    none = DetectedLanguage(default_language(candidates), 0.0)
    by_text: dict[str, DetectedLanguage] = {}
    for text in dict.fromkeys((*texts, " ".join(texts))):
        ranked = detect(text, candidates) if candidates else []
        by_text[text] = DetectedLanguage(*ranked[0]) if ranked else none
    of_all = by_text[" ".join(texts)]
    return [by_text[text] if len(text) > SHORT_TEXT_CHARACTERS else of_all for text in texts]


def _fillings(
    n_best: int, parts: Sequence[Sequence[TextTranslation]], texts: Sequence[ParsedText]
) -> list[list[Filling]]:
    """Return the translations of each text's parts, by rank."""
    fillings = []
    for text, text_parts in zip(texts, parts, strict=True):
        by_rank: list[Filling] = []
        for rank in range(n_best):
            by_rank.append([(part.text(rank), part.links(rank) if text.has_inline_tags else []) for part in text_parts])
        fillings.append(by_rank)
    return fillings
