"""What `translate` does with lines, in whatever process: asked for once, made there, and called for portion after
portion."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer

from rnnsearch.bulk import Counts, Done, digest
from rnnsearch.cli.io import count_pairs, in_portions, joined_pairs, say, use_threads
from rnnsearch.cli.search_options import (
    REPLACED,
    GivenTerms,
    Surely,
    asked_order,
    every_one,
    finder,
    tell_replaced,
    tell_surely,
    tell_terms,
)
from rnnsearch.text.alignments import AlignedBy, Symmetrisation, Unit

if TYPE_CHECKING:
    from rnnsearch.metrics.consensus import Utility
    from rnnsearch.text.alignments import Link
    from rnnsearch.text.markup.marks import MarkedText, Protected
    from rnnsearch.text.tokenizer import Tokenizer
    from rnnsearch.translator.translation import Translation
    from rnnsearch.translator.translator import Translator


# Word alignments as the commands write them: a line each, and at the end a word where they mean nothing.

INFORMATION, ATTENDED = "information of attention", "attended"
"""Counts: what attention told of target words, summed over translations, and over how many."""


def pharaoh(links: Collection[Link]) -> str:
    """A line."""
    from rnnsearch.text.alignments import format_pharaoh

    return format_pharaoh(links) + "\n"


def count_attention_information(translation: Translation, counts: Counts) -> None:
    """Count what a translation's attention told."""
    if (told := translation.attention_information) is not None:
        counts[INFORMATION] = counts.get(INFORMATION, 0.0) + told
        counts[ATTENDED] = counts.get(ATTENDED, 0) + 1


class Links:
    """Pharaoh lines of the links of translations, and in `counts` what their attention told."""

    def __init__(self, unit: Unit, by: AlignedBy | None, counts: Counts) -> None:
        self._unit, self._attended, self._counts = unit, by == "attention", counts

    def line(self, translation: Translation, before: int | None = 0) -> str:
        """That of one; `before`: how many words stand before it in its line, None where that is empty."""
        attended = self._attended or translation.aligned is None
        if attended:
            count_attention_information(translation, self._counts)
        if before is None:
            return pharaoh(())
        if self._unit == "words":
            links = translation.attended if attended else translation.alignment
            return pharaoh([(source, before + target) for source, target in links])
        return pharaoh(translation.attended_tokens if attended else translation.token_alignment)


class BothWays:
    """The links of words by two models, one of each direction, as one alignment; in the `counts` of each what its
    attention told."""

    def __init__(self, forward: Translator, backward: Translator, by: AlignedBy, method: Symmetrisation) -> None:
        """Errors: ModelError where the second is no model of the other direction, or has no such links."""
        backward.require_reverse_of(*forward.languages)
        backward.require_alignments(by)
        self._forward, self._backward, self._by, self._method = forward, backward, by, method
        self.counts = Counts(), Counts()

    def links(self, sources: list[str], targets: list[str]) -> list[set[Link]]:
        """Of each pair."""
        from rnnsearch.text.alignments import symmetrise

        there = self._forward.score(sources, targets, self._by)
        back = self._backward.score(targets, sources, self._by)
        found = []
        for one, other in zip(there, back, strict=True):
            count_attention_information(one, self.counts[0])
            count_attention_information(other, self.counts[1])
            found.append(symmetrise(one.alignment, [(s, t) for t, s in other.alignment], self._method))
        return found


def doubt(model: Path, counts: Counts) -> None:
    """Say so where the attention behind all of them told target words hardly apart."""
    from rnnsearch.text.alignments import LEAST_INFORMATION

    information, count_attention_information = counts.get(INFORMATION, 0.0), counts.get(ATTENDED, 0)
    if count_attention_information and information < LEAST_INFORMATION * count_attention_information:
        say(
            f"{model}: its attention is nearly the same at every word ({information / count_attention_information:.0%} "
            "of what it could tell of them), so these links mean nothing; has it been trained long enough?"
        )


# Texts and their given translations, as `score` and `align` read them: side by side, a portion after the other.


class Pairs(NamedTuple):
    """Some lines of two files. refused: the pairs of which a side has too many symbols, so that both are empty here."""

    sources: list[str]
    targets: list[str]
    refused: list[tuple[str, str] | None]


def fitting_pairs(translator: Translator, source: Path, target: Path, most: int) -> Iterator[Pairs]:
    """All lines of two files; of more than `most` symbols a side, which are told of, none.

    Errors: DataError where the files have different numbers of lines.
    """
    # MOVED

    count_pairs(source, target)
    size, first = CHUNK_BATCHES * translator.config.search.batch_sentences, 1
    for portion in joined_pairs(source, target, size):
        found = Pairs([], [], [])
        for number, (text, translation) in enumerate((pair.split("\n") for pair in portion), first):
            sides = (source, text, translator.source), (target, translation, translator.target)
            long = [path for path, line, tokenizer in sides if not fits(line, most, tokenizer)]
            for path in long:
                say(too_long(path, number, most, "--max-symbols"))
            found.sources.append("" if long else text)
            found.targets.append("" if long else translation)
            found.refused.append((text, translation) if long else None)
        yield found
        first += len(portion)


CHUNK_BATCHES = 16
"""Batches of lines read and sorted by length together."""
OUTPUT, ALIGNMENTS = "output", "alignments"
"""What comes of lines, by name."""
EMPTY = "empty"
"""A count: lines of output with nothing in them."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What lines are to be translated by, and how: made in one process, it can be sent to others."""

    models: tuple[Path, ...]
    source: str
    """What the lines are of, in messages."""
    model_options: tuple[Any, ...] = ()
    """What `loading.load` takes behind the device."""
    beam: int | None = None
    n_best: int = 1
    search_options: tuple[Any, ...] = ()
    """What `Translator.options` takes behind these."""
    mbr: Utility | None = None
    reranker: Path | None = None
    closest_to: Path | None = None
    """References, line by line: of all that a beam finds what is closest to its own comes first. Each line is then two,
    with a line feed between: the text, and its reference."""
    format: Literal["text", "json", "nbest"] = "text"
    alignments: bool = False
    unit: Unit = "words"
    by: Literal["aligner", "attention", "read"] | None = None
    tags: bool = False
    protect: tuple[Protected, ...] = ()
    glossary: Path | None = None
    force_terms: bool = False
    min_confidence: float | None = None
    unsure: Literal["empty", "mark"] | None = None
    tag: str | None = None
    """A word that goes before each translation."""
    max_source: int = 2000
    batch: int | None = None
    device: str = "cpu"
    threads: int | None = None

    @property
    def marked(self) -> bool:
        """Whether lines may hold marks."""
        return self.tags or bool(self.protect)

    @property
    def by_lines(self) -> bool:
        """Whether something is asked for that a prompt at a terminal does not do."""
        own = self.glossary, self.mbr, self.reranker, self.min_confidence, self.batch
        limited = self.max_source != Asked.max_source
        return self.marked or limited or self.format != "text" or any(one is not None for one in own)

    def __call__(self) -> Translating:
        """The models, loaded. Errors: those of `load`; BadParameter for options that do not go with them."""
        return Translating(self)

    def anywhere(self) -> Asked:
        """The same, from whatever folder it is looked at."""
        return replace(self, **{name: _each_path(value, Path.absolute) for name, value in self._fields().items()})

    def about(self) -> dict[str, Any]:
        """What its results hang on, in plain values; a path by what is there."""
        every = {**self._fields(), "device": self.device.partition(":")[0]}
        told = {name: _each_path(value, digest) for name, value in every.items() if name not in ("source", "threads")}
        return {name.replace("_", " "): str(value) for name, value in told.items()}

    def _fields(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _each_path(value: Any, change: Callable[[Path], Any]) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_each_path(one, change) for one in value)
    return change(value) if isinstance(value, Path) else value


class Translating:
    """Loaded models that do with lines what is asked for (a `bulk.Work`)."""

    def __init__(self, asked: Asked) -> None:
        use_threads(asked.threads)
        from rnnsearch.translator.loading import load

        self.asked, self._counts = asked, Counts()
        self.translator = load(list(asked.models), asked.device, *asked.model_options)
        if asked.alignments or asked.marked:
            self.translator.require_alignments(asked.by)
        if asked.min_confidence is not None:
            self.translator.require_confidence()
        options = self.translator.options(asked.beam, asked.n_best, *asked.search_options)
        self.options, order = asked_order(self.translator, options, asked.mbr, asked.reranker, asked.device, asked.beam)
        if asked.force_terms and (asked.glossary is None or not self.translator.reads_terms):
            raise typer.BadParameter("--force-terms needs a --glossary, and a model with text.inline_terms")
        if asked.closest_to is not None:
            from rnnsearch.translator.rerank import Closest

            self.options, self._closest = every_one(self.options), Closest(self.translator.languages[1])
        terms = None
        if asked.glossary is not None:
            terms = GivenTerms(asked.glossary, self.translator, self.options, asked.force_terms, self._counts)
        size = asked.batch or self.translator.config.search.batch_sentences
        self.portion = CHUNK_BATCHES * size
        """Lines that are sorted by length together."""
        self._find = finder(terms or self.translator, self.options, size, order)
        self._surely = Surely(asked.min_confidence, asked.unsure, self._counts)
        by = "attention" if asked.by == "read" else asked.by
        self._write = Writer(asked.format, by, asked.marked, self._surely)
        self._links = Links(asked.unit, by, self._counts)

    def __call__(self, lines: Sequence[str], first: int) -> Done:
        """As many lines as there are, a portion after the other."""
        return Done.together(self._portions(lines, first))

    def _portions(self, lines: Sequence[str], first: int) -> Iterator[Done]:
        for portion in in_portions(lines, self.portion):
            yield self.translate(portion, first)
            first += len(portion)

    def translate(self, lines: Sequence[str], first: int) -> Done:
        """A portion, of which the first line has that number, from 0."""
        self._counts.clear()
        references: Sequence[str] = ()
        if self.asked.closest_to is not None:
            lines, references = zip(*(line.split("\n") for line in lines), strict=True)
        texts, refused, said = self._fitting(lines, first)
        found = self._find([text.text for text in texts])
        if references:
            found = list(map(self._closest, found, references))
        said += self._blocked(found, first)
        written = [self._write(*each) for each in zip(texts, found, count(first), refused)]
        if self.asked.tag is not None:
            written = [line if line == "\n" else f"{self.asked.tag} {line}" for line in written]
        outputs = {OUTPUT: "".join(written)}
        if self.asked.alignments:
            outputs[ALIGNMENTS] = "".join(self._links.line(best[0], self._surely.before(best[0])) for best in found)
        every = Counter(REPLACED + one.by for best in found for one in best[0].replaced)
        return Done(outputs, said, {**self._counts, **every, EMPTY: written.count("\n")})

    def _fitting(self, lines: Sequence[str], first: int) -> tuple[list[MarkedText], list[str | None], list[str]]:
        """The lines, empty ones in the place of those of too many symbols (markup is none); these; and what to say."""
        from rnnsearch.text.markup.marks import MarkedText

        marked, most = partial(MarkedText, tags=self.asked.tags, protect=self.asked.protect), self.asked.max_source
        kept, refused, said = list[MarkedText](), list[str | None](), list[str]()
        for number, line in enumerate(lines, first + 1):
            text = marked(line) if within(line) else None
            fine = text is not None and self.translator.source.fits(text.text, most)
            kept.append(text if text is not None and fine else marked(""))
            refused.append(None if fine else line)
            if not fine:
                said.append(too_long(self.asked.source, number, most, "--max-source"))
        return kept, refused, said

    def _blocked(self, found: Sequence[Sequence[Translation]], first: int) -> list[str]:
        """Those of which nothing that is allowed was found, which are told of."""
        return [
            f"{self.asked.source}:{number}: the search found no translation that its options allow; its line of output "
            "is empty"
            for number, best in enumerate(found, first + 1)
            if best[0].blocked
        ]


def within(line: str) -> bool:
    """Whether a line is not so long that nobody looks into it."""
    from rnnsearch.data.corpus import LONGEST

    return len(line.encode()) <= LONGEST


def fits(line: str, most: int, tokenizer: Tokenizer) -> bool:
    """Whether a line has no more than `most` symbols."""
    return within(line) and tokenizer.fits(line, most)


def too_long(path: object, number: int, most: int, option: str) -> str:
    """What is said of a line that does not fit."""
    return f"{path}:{number}: must have at most {most:,} symbols ({option}); its line of output is empty"


def tell(asked: Asked, counts: Counts) -> None:
    """Say what the counts of all lines mean."""
    if asked.alignments:
        doubt(asked.models[0], counts)
    tell_terms(counts)
    tell_replaced(counts)
    tell_surely(asked.min_confidence, asked.unsure, counts)


class Writer:
    """What is written of each sentence."""

    def __init__(
        self, format: Literal["text", "json", "nbest"], by: AlignedBy | None, marked: bool, surely: Surely
    ) -> None:
        """`by`: what says where tags belong, if not the best there is."""
        self._format, self._by, self._marked, self._surely = format, by, marked, surely

    def __call__(self, source: MarkedText, best: list[Translation], number: int, refused: str | None = None) -> str:
        """Of the one with that number; refused: the line that an empty one stands for."""
        if self._format == "text":
            return self._surely(best[0], self._text(source, best[0])) + "\n"
        if self._format == "json":
            others = {"n_best": [self._row(source, t) for t in best]} if len(best) > 1 else {}
            long = {} if refused is None else {"source": refused, "warnings": [TOO_LONG]}
            return as_json({**self._row(source, best[0]), **others, **long})
        return "".join(
            f"{number} ||| {self._text(source, t)} ||| log_prob={t.log_prob:.6f} ||| {t.score:.6f}\n" for t in best
        )

    def _text(self, source: MarkedText, found: Translation) -> str:
        from rnnsearch.translator.translation import one_line

        links: Collection[Link] = ()
        if source.marks:
            links = found.attended if self._by == "attention" else found.alignment
        return one_line(source.placed(one_line(found.text), links))

    def _row(self, source: MarkedText, found: Translation) -> dict[str, Any]:
        marked = {"marked": self._text(source, found)} if self._marked else {}
        return row(found, attended=self._by == "attention") | marked


TOO_LONG = "too long"
"""What `--format json` says of a line of too many symbols, in its warnings."""


def row(translation: Translation, attended: bool = False) -> dict[str, Any]:
    """A translation in `--format json`; attended: its links are attention's, even where there is an aligner."""
    from rnnsearch.translator.confidence import warnings

    links = {"attended": "alignment", "attended_tokens": "token_alignment"}
    said = translation.plain(
        *("source", "text", "score", "log_prob", "finished", "tokens", "token_scores", "source_tokens"),
        *(links if attended else links.values()),
        *("attention", "confidence", "word_confidence"),
    )
    return {links.get(name, name): value for name, value in said.items()} | {
        "replaced": [asdict(one) for one in translation.replaced],
        "warnings": warnings(translation),
        **({} if translation.rationale is None else {"rationale": translation.rationale}),
    }


def as_json(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
