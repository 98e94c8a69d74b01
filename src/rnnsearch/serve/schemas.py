"""Requests and responses of the detailed API (`/v1`); their fields and descriptions make the OpenAPI document.

Names of fields are public: the translation page, `export/web_page.py` and clients read them, so fields may be added but
not renamed. `files.FileJob.status` and `v1.translated_text` fill them.
"""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rnnsearch.text.markup.protected import DEFAULT_PROTECTED, ProtectedType
from rnnsearch.text.several_sources import SourceText, all_texts
from rnnsearch.text.terms import MAX_FORMS, MAX_TERM_CHARACTERS
from rnnsearch.text.tokenizer import ReplacedBy

MAX_BEAM = 20  # also the longest n-best list

Text = Annotated[str, Field(description="Plain text of any number of sentences and lines.")]
SourceTexts = Annotated[
    list[Text | None] | dict[str, Text | None],
    Field(
        description="One sentence in several languages, for a model with several sources: its text in each, in their "
        "order or by language code; null or an empty text for a language that the sentence does not have."
    ),
]
Term = Annotated[str, Field(min_length=1, max_length=MAX_TERM_CHARACTERS)]
TargetForms = Annotated[str, Field(min_length=1, max_length=(MAX_TERM_CHARACTERS + 1) * MAX_FORMS)]
Count = Annotated[int, Field(ge=1, le=MAX_BEAM)]


class StrictRequest(BaseModel):
    """A request that must not have unknown fields."""

    model_config = ConfigDict(extra="forbid")


class TranslateRequest(StrictRequest):
    """`POST /v1/translate`"""

    text: Text | list[Text | SourceTexts]
    model: str | None = Field(
        None, description="Name of a model, as in /v1/models; by default, the first one for the languages."
    )
    source: str | None = Field(None, description="Language code of the source, or auto.")
    target: str | None = Field(None, description="Language code of the target.")
    n_best: Count = Field(1, description="Number of translations per sentence.")
    beam: Count | None = Field(None, description="Beam size; 1 is greedy search. By default, that of the model.")
    prefix: str | list[str] | None = Field(
        None, description="Text that the translation must begin with, one per text; each text must be one sentence."
    )
    glossary: dict[Term, TargetForms] = Field(
        default_factory=dict,
        max_length=500,
        description="Source terms and their translations; several inflected forms are separated by |. They take "
        "precedence over the glossary of the server.",
    )
    alignment: bool = Field(True, description="Return word alignments; otherwise the list of links is empty.")
    attention: bool = Field(False, description="Return the attention weights between words.")
    min_confidence: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Omit sentences from the text's translation whose best translation is less confident.",
    )
    protect: list[ProtectedType] | None = Field(
        None,
        description="Types of text that translations contain unchanged; by default urls, emails and placeholders.",
    )
    stream: bool = Field(
        False, description="Send the greedy translation of one text as server-sent events, token by token."
    )

    @model_validator(mode="after")
    def _check_combination(self) -> TranslateRequest:
        if self.prefix is not None and len(self.prefixes or ()) != len(self.texts):
            raise ValueError(f"prefix must be one for each text ({len(self.texts)}); got {len(self.prefixes or ())}")
        if self.beam is not None and self.beam < self.n_best:
            raise ValueError(f"beam must be at least n_best ({self.n_best}); got {self.beam}")
        if self.stream:
            self._check_stream()
        if self.has_several_sources:
            self._check_several_sources()
        return self

    def _check_several_sources(self) -> None:
        unsupported = {"prefix": self.prefix, "glossary": self.glossary, "protect": self.protect}
        for name, value in unsupported.items():
            if value:
                raise ValueError(f"{name} must be omitted if a text is given in several languages")

    def _check_stream(self) -> None:
        if not isinstance(self.text, str):
            raise ValueError("text must be a string if stream is true; got a list")
        if self.n_best != 1 or self.beam not in (None, 1):
            raise ValueError("n_best and beam must be 1 if stream is true, because its search is greedy")
        if self.prefix is not None:
            raise ValueError("prefix must be omitted if stream is true")
        if self.min_confidence is not None:
            raise ValueError("min_confidence must be omitted if stream is true")

    @property
    def protected_types(self) -> tuple[ProtectedType, ...]:
        """The types of protected text, or the default."""
        return DEFAULT_PROTECTED if self.protect is None else tuple(self.protect)

    @property
    def has_several_sources(self) -> bool:
        """True if a text is given in several languages."""
        return not isinstance(self.text, str) and not all(isinstance(text, str) for text in self.text)

    @property
    def source_texts(self) -> list[SourceText]:
        """The texts as a list, in all languages."""
        return [self.text] if isinstance(self.text, str) else list(self.text)

    @property
    def texts(self) -> list[str]:
        """The texts as a list; those of all languages one after the other."""
        return list(chain.from_iterable(map(all_texts, self.source_texts)))

    @property
    def prefixes(self) -> list[str] | None:
        """The prefixes as a list."""
        return [self.prefix] if isinstance(self.prefix, str) else self.prefix


class CompleteRequest(StrictRequest):
    """`POST /v1/complete`"""

    text: str = Field(description="One sentence.")
    prefix: str = Field(description="Text that the translation begins with; it may end inside a word.")
    model: str | None = None
    source: str | None = None
    target: str | None = None
    n_best: Count = 5


class Completion(BaseModel):
    """A translation that begins with the requested prefix."""

    text: str
    rest: str = Field(description="Text after the prefix.")
    next: str = Field(description="The rest up to the end of its first word, to suggest to the user.")
    score: float


class CompleteResponse(BaseModel):
    """Response of `POST /v1/complete`, best completion first."""

    model: str
    completions: list[Completion]


class AlternativesRequest(StrictRequest):
    """`POST /v1/alternatives`"""

    text: str = Field(description="One sentence.")
    translation: str = Field(description="Its current translation.")
    word: int = Field(ge=0, description="Index of the translation's word to replace, from 0.")
    n_best: Count = 5
    model: str | None = None
    source: str | None = None
    target: str | None = None


class WordAlternative(BaseModel):
    """Another choice for a word of a translation."""

    word: str
    probability: float = Field(description="Probability of this word after the words before it.")
    text: str = Field(description="The whole translation with this word; what follows it is translated again.")


class AlternativesResponse(BaseModel):
    """Response of `POST /v1/alternatives`, likeliest word first."""

    model: str
    alternatives: list[WordAlternative]


class SimultaneousRequest(StrictRequest):
    """`POST /v1/simultaneous`"""

    text: Text
    complete: bool = Field(
        False,
        description="True if the text ends here. Otherwise more words may follow, and the last one may go on unless "
        "white space follows it.",
    )
    model: str | None = None
    source: str | None = None
    target: str | None = None


class SimultaneousSentence(BaseModel):
    """A sentence of a text that is being written, and its translation."""

    source: str
    start: int
    end: int
    text: str = Field(description="The translation, as far as later words cannot change it.")
    complete: bool = Field(description="False if more words of the sentence may follow.")
    delays: list[int] = Field(
        description="Number of source words that were known when each target word was complete; of a sentence that is "
        "not complete, the last word may not be either."
    )
    average_lagging: float | None = Field(
        description="Mean number of source words by which the translation is behind its source (Ma et al. 2019); null "
        "if the sentence is not complete."
    )


class SimultaneousResponse(BaseModel):
    """Response of `POST /v1/simultaneous`."""

    model: str
    source: str
    target: str
    text: str = Field(
        description="The translation of the text, as far as later words cannot change it: with more words, the "
        "response begins with the same text."
    )
    sentences: list[SimultaneousSentence] = Field(
        description="Sentences that have begun. A client may send the next request from the start of the first one "
        "that is not complete."
    )


class Word(BaseModel):
    """A word of a sentence and its characters [start, end)."""

    text: str
    start: int
    end: int


class TargetWord(Word):
    """A word of a translation."""

    score: float = Field(description="Sum of the log-probabilities of its tokens, in nats.")
    probability: float = Field(description="Geometric mean of the probabilities of its tokens.")
    replaced: ReplacedBy | None = Field(
        None,
        description="Origin of a word that is not in the vocabulary: copied from the source, from a dictionary, or "
        "spelled by the model.",
    )
    confidence: float | None = Field(
        None, description="Probability that a reference has it in this position; null if the model is not calibrated."
    )


class SourceSide(BaseModel):
    """One of several sources of a sentence."""

    text: str
    words: list[Word]
    alignment: list[tuple[int, int]] = Field(description="Links (word of this source, target word), counted from 0.")


class SentenceTranslation(BaseModel):
    """One translation of a sentence."""

    text: str
    confidence: float | None = Field(
        description="Expected fraction of its words that a reference has; null if the model is not calibrated."
    )
    warnings: list[str] = Field(
        description="What looks wrong: cut, long, repeated, dropped (much of the source is not read), detached; "
        "blocked if no token was allowed, so that the text is empty; pieces if placeholders were lost, so that the "
        "text around them was translated piece by piece; untranslated if they were lost even so; missing terms if "
        "terms of a glossary could not be placed."
    )
    missing_terms: list[str] = Field(
        default=[], description="Source terms of the glossary whose translations could not be placed."
    )
    unknown: float = Field(
        description="Fraction of the source tokens that are not in the vocabulary; adjacent unknown characters count "
        "as one."
    )
    score: float = Field(description="Log-probability, normalised by length; translations are ranked by it.")
    log_prob: float
    finished: bool = Field(description="False if the translation was cut at its maximum length, or blocked.")
    source_words: list[Word]
    words: list[TargetWord]
    tokens: list[str]
    token_scores: list[float]
    alignment: list[tuple[int, int]] = Field(description="Links (source word, target word), counted from 0.")
    attention: list[list[float]] | None = Field(
        description="Attention weights: one row per target word, one column per source word."
    )
    pivot: str | None = Field(
        default=None,
        description="Translation into the third language, if two models translate; null for a single model.",
    )
    sources: dict[str, SourceSide] | None = Field(
        default=None,
        description="For a model with several sources: each one that the sentence has, by language code. The other "
        "fields about the source are those of the first. null for a model with one source.",
    )


class Sentence(BaseModel):
    """A sentence of a text and its best translations."""

    source: str
    start: int
    end: int
    best: list[SentenceTranslation]


class TranslatedText(BaseModel):
    """The translation of a text."""

    text: str
    sentences: list[Sentence]
    target_spans: list[tuple[int, int]] = Field(
        description="Characters [start, end) of each sentence's best translation in text."
    )
    model: str | None = Field(default=None, description="Name of the model that translated the text.")
    language: str | None = Field(default=None, description="Language code of the text: the source of its model.")
    language_confidence: float | None = Field(
        default=None,
        description="Probability of the detected language; 0 if the text is in none of the served languages, null if "
        "the request names the source.",
    )


class TranslateResponse(BaseModel):
    """Response of `POST /v1/translate`. With source `auto`, texts may have different models."""

    model: str = Field(description="Name of the model of the first text.")
    source: str = Field(description="Language code of the first text.")
    target: str
    translations: list[TranslatedText]


class ModelInfo(BaseModel):
    """Description of a model, known before it is loaded."""

    model_config = ConfigDict(frozen=True)

    name: str
    source: str
    target: str
    source_name: str
    target_name: str
    sources: tuple[str, ...] = Field(
        default=(), description="Language codes of all sources of a model with several; source is the first."
    )
    pivot: str | None = Field(
        default=None, description="Language code through which two models translate; null for a single model."
    )
    pivot_name: str | None = Field(default=None, description="Name of this language.")
    attention: bool = Field(description="True if the model has attention.")
    aligner: bool = Field(description="True if alignments come from an aligner instead of attention.")
    calibrated: bool = Field(description="True if the model was calibrated, so that translations have a confidence.")
    simultaneous: bool = Field(
        default=False, description="True if the model can translate words while later ones are typed."
    )
    score: float | None = Field(description="BLEU of greedy search on the dev set, if training measured it.")


class ModelStatus(ModelInfo):
    """A model of `GET /v1/models`."""

    loaded: bool


class ModelsResponse(BaseModel):
    """Response of `GET /v1/models`."""

    models: list[ModelStatus]


class FileStatus(BaseModel):
    """Progress of a file's translation."""

    id: str
    name: str
    state: Literal["queued", "running", "done", "failed"]
    done: int = Field(description="Number of translated segments.")
    segments: int = Field(description="Number of segments.")
    left: list[int] = Field(
        description="Numbers, from 1, of segments that are not translated because a sentence in them is too long."
    )
    untranslated: list[int] = Field(
        description="Numbers, from 1, of segments that stay as they are because their placeholders were lost in all "
        "attempts."
    )
    error: str | None


class ErrorResponse(BaseModel):
    """Response of any route with an error status."""

    error: str


ERROR_RESPONSES: dict[int | str, dict[str, object]] = {
    status: {"model": ErrorResponse, "description": meaning}
    for status, meaning in {
        400: "The request is invalid.",
        403: "An API key is required.",
        413: "A body, a text or a sentence is too large.",
        429: "Too much is waiting; see Retry-After.",
        503: "A model cannot be loaded, or the server is shutting down.",
        504: "The result was not ready in time.",
    }.items()
}
"""Errors of routes that cause work, for the OpenAPI document."""
