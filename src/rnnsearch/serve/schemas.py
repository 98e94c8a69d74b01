"""Requests and answers of our own API (`/v1`), as its OpenAPI document describes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rnnsearch.text.tokenizer import ReplacedBy

MOST = 20
"""The widest beam and the longest n-best list."""
Text = Annotated[str, Field(description="Raw text, of any number of sentences and lines.")]
Term = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=1, le=MOST)]


class Asked(BaseModel):
    """A request; an option that there is not is refused."""

    model_config = ConfigDict(extra="forbid")


class TranslateRequest(Asked):
    """`POST /v1/translate`"""

    text: Text | list[Text]
    model: str | None = Field(None, description="A name of /v1/models; without it, the first of the direction.")
    source: str | None = Field(None, description="A language code, or auto.")
    target: str | None = None
    n_best: Count = 1
    beam: Count | None = Field(None, description="1 is greedy. Without it: the model's own.")
    prefix: str | list[str] | None = Field(
        None, description="What the translation must begin with, one for each text, each text one sentence."
    )
    glossary: dict[Term, Term] = Field(
        default_factory=dict, max_length=500, description="Terms, and what each must be in the translation."
    )
    alignment: bool = Field(True, description="Whether to give word alignments; without, an empty list.")
    attention: bool = Field(False, description="Whether to give the attention over words.")
    min_confidence: float | None = Field(
        None, ge=0, le=1, description="Sentences whose best translation is less sure are left out of the whole text's."
    )
    stream: bool = Field(False, description="One text's greedy translation as server-sent events, symbol by symbol.")

    @model_validator(mode="after")
    def _together(self) -> TranslateRequest:
        if self.prefix is not None and len(self.prefixes or ()) != len(self.texts):
            raise ValueError(f"prefix must be one for each text ({len(self.texts)}); got {len(self.prefixes or ())}")
        if self.stream and not isinstance(self.text, str):
            raise ValueError("text must be a string where stream is true; got a list")
        if self.stream and (self.n_best != 1 or self.beam not in (None, 1)):
            raise ValueError("n_best and beam must be 1 where stream is true, for its search is greedy; got more")
        if self.beam is not None and self.beam < self.n_best:
            raise ValueError(f"beam must be at least n_best ({self.n_best}); got {self.beam}")
        if self.stream and self.prefix is not None:
            raise ValueError("prefix must be left out where stream is true")
        if self.stream and self.min_confidence is not None:
            raise ValueError("min_confidence must be left out where stream is true")
        if self.stream and self.glossary:
            raise ValueError("glossary must be left out where stream is true, for its search is greedy")
        return self

    @property
    def texts(self) -> list[str]:
        """The texts as a list."""
        return [self.text] if isinstance(self.text, str) else self.text

    @property
    def prefixes(self) -> list[str] | None:
        """The prefixes as a list."""
        return [self.prefix] if isinstance(self.prefix, str) else self.prefix


class CompleteRequest(Asked):
    """`POST /v1/complete`"""

    text: str = Field(description="One sentence.")
    prefix: str = Field(description="What the translation begins with; it may end inside a word.")
    model: str | None = None
    source: str | None = None
    target: str | None = None
    n_best: Count = 5


class Completion(BaseModel):
    """A translation that begins as asked."""

    text: str
    rest: str = Field(description="What follows the prefix.")
    next: str = Field(description="The rest up to the end of its first word: what to offer.")
    score: float


class CompleteAnswer(BaseModel):
    """What `POST /v1/complete` gives, best first."""

    model: str
    completions: list[Completion]


class AlternativesRequest(Asked):
    """`POST /v1/alternatives`"""

    text: str = Field(description="One sentence.")
    translation: str = Field(description="Its translation, as it stands.")
    word: int = Field(ge=0, description="Which word of the translation to replace, from 0.")
    n_best: Count = 5
    model: str | None = None
    source: str | None = None
    target: str | None = None


class OtherWord(BaseModel):
    """Another word for a word of a translation."""

    word: str
    probability: float = Field(description="Of this word after the words before it.")
    text: str = Field(description="The whole translation with it, what follows it made anew.")


class AlternativesAnswer(BaseModel):
    """What `POST /v1/alternatives` gives, the likeliest first."""

    model: str
    alternatives: list[OtherWord]


class Word(BaseModel):
    """A word of a sentence: its text and its characters [start, end)."""

    text: str
    start: int
    end: int


class TargetWord(Word):
    """A word of a translation."""

    score: float = Field(description="Sum of its symbols' log-probabilities, in nats.")
    probability: float = Field(description="Geometric mean of its symbols' probabilities.")
    replaced: ReplacedBy | None = Field(
        None,
        description="Where it comes from, if the vocabulary has no such word: copied from the source, looked up, or "
        "spelled by the model.",
    )
    confidence: float | None = Field(
        None, description="The probability that a reference has it in its place; null for a model not calibrated."
    )


class Best(BaseModel):
    """One translation of a sentence."""

    text: str
    confidence: float | None = Field(
        description="The share of its words that a reference may be expected to have; null for a model that was not "
        "calibrated."
    )
    warnings: list[str] = Field(
        description="What looks wrong: cut, long, repeated, dropped (much of the source is not read), detached; "
        "blocked where no symbol was allowed: the text is empty."
    )
    score: float = Field(description="Log-probability, normalised by length: what translations are ranked by.")
    log_prob: float
    finished: bool = Field(description="False where it was cut at its maximal length, or blocked.")
    source_words: list[Word]
    words: list[TargetWord]
    tokens: list[str]
    token_scores: list[float]
    alignment: list[tuple[int, int]] = Field(description="Links (source word, target word), counted from 0.")
    attention: list[list[float]] | None = Field(description="A row for each target word, over the source words.")


class Sentence(BaseModel):
    """A sentence of a text and its best translations."""

    source: str
    start: int
    end: int
    best: list[Best]


class TextAnswer(BaseModel):
    """A text's translation."""

    text: str
    sentences: list[Sentence]
    target_spans: list[tuple[int, int]] = Field(description="Characters of each sentence's best translation in text.")


class TranslateAnswer(BaseModel):
    """What `POST /v1/translate` gives."""

    model: str
    source: str
    target: str
    translations: list[TextAnswer]


class About(BaseModel):
    """What is known of a model before it is loaded."""

    model_config = ConfigDict(frozen=True)

    name: str
    source: str
    target: str
    source_name: str
    target_name: str
    attention: bool
    aligner: bool = Field(description="Whether alignments come from an aligner, and not from attention.")
    calibrated: bool = Field(description="Whether it says how sure to be of its words.")
    score: float | None = Field(description="BLEU on its dev set, greedy, where training measured it.")


class ModelRow(About):
    """A model of `GET /v1/models`."""

    loaded: bool


class ModelsAnswer(BaseModel):
    """What `GET /v1/models` gives."""

    models: list[ModelRow]


class FileReport(BaseModel):
    """How far a file is."""

    id: str
    name: str
    state: Literal["queued", "running", "done", "failed"]
    done: int
    segments: int
    left: list[int] = Field(description="Numbers, from 1, of segments that stay empty: a sentence in them is too long.")
    error: str | None


class Fault(BaseModel):
    """What any route gives where it cannot do what was asked."""

    error: str


FAULTS: dict[int | str, dict[str, object]] = {
    status: {"model": Fault, "description": meaning}
    for status, meaning in {
        400: "The request is at fault.",
        403: "An API key is needed.",
        413: "Too much at once.",
        429: "Too much is waiting; see Retry-After.",
        503: "A model cannot be loaded, or the server is shutting down.",
        504: "Not ready in time.",
    }.items()
}
"""The faults of routes that make work."""
