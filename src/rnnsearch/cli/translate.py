"""`rnnsearch translate`, `score` and `align`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from rnnsearch.cli.io import both_lines, input_portions, output, require_distinct, say, use_threads
from rnnsearch.cli.links import Links
from rnnsearch.cli.options import MOST_BEAM, Beam, By, Device, Model, Output, SourceFile, TargetFile, Threads
from rnnsearch.cli.searching import (
    LM,
    Consensus,
    Diversity,
    Groups,
    LMWeight,
    Mean,
    MinConfidence,
    NoRepeat,
    Sample,
    Seed,
    Surely,
    Temperature,
    TopK,
    TopP,
    Unsure,
    Weights,
    asked_variant,
    asked_weights,
    finder,
)
from rnnsearch.cli.terms import GivenTerms
from rnnsearch.errors import must_be_one_of
from rnnsearch.text.spans import AlignedBy, Unit

if TYPE_CHECKING:
    from rnnsearch.text.alignments import Link
    from rnnsearch.text.marks import MarkedText, Protected
    from rnnsearch.text.tokenizer import Tokenizer
    from rnnsearch.translate import Translator
    from rnnsearch.translation import Translation

CHUNK_BATCHES = 16
"""Batches of lines read and sorted by length together."""
Format = Literal["text", "json", "nbest"]
Replace = Literal["none", "copy", "dictionary"]
Precision = Literal["auto", "fp32", "bf16", "int8"]


def translate(
    models: Annotated[
        list[Path],
        typer.Argument(
            help="A model folder; several are one model, an ensemble.", metavar="MODEL...", show_default=False
        ),
    ],
    input: Annotated[Path | None, typer.Option("-i", "--input", help="Read here, not from standard input.")] = None,
    output_file: Output = None,
    beam: Beam = None,
    n_best: Annotated[
        int, typer.Option(min=1, max=MOST_BEAM, help="Translations a sentence (formats json and nbest).")
    ] = 1,
    format: Annotated[Format, typer.Option(help="text; json (a line a sentence, with everything); nbest.")] = "text",
    alignments: Annotated[Path | None, typer.Option(help="Write Pharaoh alignments (source-target) here.")] = None,
    unit: Annotated[Unit, typer.Option(help="What the alignments count.")] = "words",
    by: Annotated[
        Literal["aligner", "attention"] | None,
        typer.Option(help="What makes the alignments.  [default: aligner, if the model has one]"),
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(min=0.0, help="Score = log-probability / length ** this.  [default: the model's]")
    ] = None,
    max_length: Annotated[int | None, typer.Option(min=1, max=100_000, help="Most symbols of a translation.")] = None,
    max_source: Annotated[
        int, typer.Option(min=1, max=100_000, help="Most symbols of a line; the output of a longer one is empty.")
    ] = 2000,
    no_repeat_ngram: NoRepeat = None,
    sample: Sample = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    groups: Groups = None,
    diversity: Diversity = None,
    mbr: Consensus = None,
    weights: Weights = None,
    mean: Mean = None,
    lm: LM = None,
    lm_weight: LMWeight = None,
    min_confidence: MinConfidence = None,
    unsure: Unsure = None,
    ban_unknown: Annotated[bool, typer.Option("--ban-unknown", help="Never produce <unk>.")] = False,
    replace_unknown: Annotated[
        Replace | None,
        typer.Option(help="Replace <unk> by the source word it attends to, or its entry.  [default: the model's]"),
    ] = None,
    dictionary: Annotated[
        Path | None, typer.Option(help="Source words and translations (TSV), for --replace-unknown dictionary.")
    ] = None,
    tags: Annotated[
        bool, typer.Option("--tags", help="Lines hold inline tags (<b>..</b>, <x/>), which go with the aligned words.")
    ] = False,
    protect: Annotated[
        str | None,
        typer.Option(help="Keep letter for letter: urls, emails, placeholders, codes, numbers (with commas), or all."),
    ] = None,
    glossary: Annotated[
        Path | None, typer.Option(help="Terms (TSV: source, target) whose translations must be there.")
    ] = None,
    force_terms: Annotated[
        bool, typer.Option("--force-terms", help="Force them letter for letter on a model that inflects terms, too.")
    ] = False,
    candidates: Annotated[
        int | None, typer.Option(min=0, max=100, help="Translations a source symbol in candidate lists; 0: no lists.")
    ] = None,
    precision: Annotated[
        Precision | None, typer.Option(help="Of products on the CPU; int8 is the roughest.  [default: the model's]")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Sentences a batch.  [default: the model's]")] = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Translate raw text: one line in is one line out. At a terminal: a prompt that shows words and alignments."""
    if n_best > 1 and format == "text":
        raise typer.BadParameter("--n-best needs --format json or nbest: text has one line a sentence")
    if unit != "words" and alignments is None:
        raise typer.BadParameter("--unit has no effect without --alignments")
    kept, marked = _protected(protect), tags or protect is not None
    if by is not None and alignments is None and not marked:
        raise typer.BadParameter("--by has no effect without --alignments, --tags and --protect")
    if ban_unknown and (replace_unknown or dictionary):
        raise typer.BadParameter("--replace-unknown and --dictionary have no effect with --ban-unknown")
    require_distinct({"--output": output_file, "--alignments": alignments})
    surely = Surely(min_confidence, unsure, format)
    variant = asked_variant(sample, temperature, top_k, top_p, seed, groups, diversity)
    shares = asked_weights(weights, mean, len(models))
    use_threads(threads)
    from rnnsearch.text.marks import MarkedText
    from rnnsearch.translate import load

    fixed = (replace_unknown, dictionary, candidates, precision, shares, mean, lm, lm_weight)
    translator = load(models, device, *fixed)
    if alignments is not None or marked:
        translator.require_alignments(by)
    if min_confidence is not None:
        translator.require_confidence()
    options = translator.options(beam, n_best, length_penalty, max_length, ban_unknown, no_repeat_ngram, variant)
    if force_terms and (glossary is None or not translator.reads_terms):
        raise typer.BadParameter("--force-terms needs a --glossary, and a model with text.inline_terms")
    terms = None if glossary is None else GivenTerms(glossary, translator, options, force_terms)
    terminal, asks = sys.stdin.isatty() and sys.stdout.isatty(), (input, output_file, alignments, terms, mbr)
    if terminal and not marked and not any(asks) and format == "text":
        from rich.console import Console

        from rnnsearch.cli.prompt import Prompt

        Prompt(translator, Console(), options).run()
        return
    size, replaced = batch or translator.config.search.batch_sentences, Counter[str]()
    write, find = Writer(format, by, marked, surely), finder(terms or translator, translator, options, size, mbr)
    with ExitStack() as stack:
        out = stack.enter_context(output(output_file))
        links = Links(stack.enter_context(output(alignments)), unit, models[0], by) if alignments else None
        for lines in portions(input, CHUNK_BATCHES * size, max_source, translator):
            texts = [MarkedText(line, tags, kept) for line in lines]
            for text, best in zip(texts, find([text.text for text in texts]), strict=True):
                out.write(write(text, best))
                replaced.update(one.by for one in best[0].replaced)
                if links:
                    links.write(best[0])
            out.flush()
    if links:
        links.doubt()
    if terms is not None:
        terms.tell()
    if replaced:
        _tell_replaced(replaced)
    surely.tell()


def score(
    model: Model,
    source: SourceFile,
    target: TargetFile,
    output_file: Output = None,
    format: Annotated[Format, typer.Option(help="text (log-probability, nats) or json (with everything).")] = "text",
    device: Device = "cpu",
) -> None:
    """Score given translations: log p(target | source), one line a pair."""
    if format == "nbest":
        raise typer.BadParameter("--format must be text or json here")
    from rnnsearch.translate import load

    translator = load(model, device)
    sources, targets = both_lines(source, target)
    with output(output_file) as out:
        for pair in translator.score(sources, targets):
            out.write(_json(_row(pair)) if format == "json" else f"{pair.log_prob:.6f}\n")


def align(
    model: Model,
    source: SourceFile,
    target: TargetFile,
    output_file: Output = None,
    unit: Annotated[Unit, typer.Option(help="What the alignments count.")] = "words",
    by: By = None,
    device: Device = "cpu",
) -> None:
    """Align given translations: Pharaoh `source-target` links, zero-based, one line a pair."""
    from rnnsearch.translate import load

    translator = load(model, device)
    by = translator.require_alignments(by)
    sources, targets = both_lines(source, target)
    with output(output_file) as out:
        links = Links(out, unit, model, by)
        if by == "aligner":
            links.write_all(translator.align(sources, targets, unit, by))
        else:
            for pair in translator.score(sources, targets, by):
                links.write(pair)
    links.doubt()


def portions(path: Path | None, size: int, most: int, translator: Translator) -> Iterator[list[str]]:
    """As `input_portions`, but empty ones in the place of lines of more than `most` symbols, which is said."""
    done = 0
    for lines in input_portions(path, size):
        kept = [line if fits(line, most, translator.source) else "" for line in lines]
        for number, (line, given) in enumerate(zip(kept, lines, strict=True), done + 1):
            if given and not line:
                where = path or "<standard input>"
                say(f"{where}:{number}: must have at most {most:,} symbols (--max-source); its line of output is empty")
        done += len(lines)
        yield kept


def fits(line: str, most: int, tokenizer: Tokenizer) -> bool:
    """Whether a line has no more than `most` symbols."""
    from rnnsearch.data.corpus import LONGEST

    # A character is four symbols at the most, and a symbol that a vocabulary holds seldom fifty characters.
    if len(line) > 50 * most or len(line.encode()) > LONGEST:
        return False
    return 4 * len(line) <= most or len(tokenizer.ids([line])[0]) <= most


def _tell_replaced(replaced: Counter[str]) -> None:
    """Say how many unknown words were replaced, and by what."""
    told = {"dictionary": "by the dictionary", "copy": "copied", "spelled": "spelled"}
    each = ", ".join(f"{replaced[by]:,} {how}" for by, how in told.items() if replaced[by])
    say(f"{replaced.total():,} unknown words replaced: {each}")


def _protected(given: str | None) -> list[Protected]:
    """The names in `--protect`."""
    from rnnsearch.text.marks import PROTECTED

    names = [] if given is None else [*PROTECTED] if given == "all" else given.split(",")
    for name in names:
        if name not in PROTECTED:
            raise typer.BadParameter(f"--protect {must_be_one_of([*PROTECTED, 'all'], name)}")
    return cast("list[Protected]", names)


class Writer:
    """What is written of each sentence in turn."""

    def __init__(self, format: Format, by: AlignedBy | None, marked: bool, surely: Surely) -> None:
        """`by`: what says where tags belong, if not the best there is."""
        self._format, self._by, self._marked, self._surely = format, by, marked, surely
        self._numbers = count()

    def __call__(self, source: MarkedText, best: list[Translation]) -> str:
        """Of the next one."""
        number = next(self._numbers)
        if self._format == "text":
            return self._surely(best[0], self._text(source, best[0])) + "\n"
        if self._format == "json":
            others = {"n_best": [self._row(source, t) for t in best]} if len(best) > 1 else {}
            return _json({**self._row(source, best[0]), **others})
        return "".join(
            f"{number} ||| {self._text(source, t)} ||| log_prob={t.log_prob:.6f} ||| {t.score:.6f}\n" for t in best
        )

    def _text(self, source: MarkedText, found: Translation) -> str:
        from rnnsearch.translation import one_line

        links: Collection[Link] = ()
        if source.marks:
            links = found.attended if self._by == "attention" else found.alignment
        return one_line(source.placed(one_line(found.text), links))

    def _row(self, source: MarkedText, found: Translation) -> dict[str, Any]:
        return _row(found) | ({"marked": self._text(source, found)} if self._marked else {})


def _row(translation: Translation) -> dict[str, Any]:
    from rnnsearch.confidence import warnings

    return translation.plain(
        *("source", "text", "score", "log_prob", "finished", "tokens", "token_scores", "source_tokens"),
        *("alignment", "token_alignment", "attention", "confidence", "word_confidence"),
    ) | {"replaced": [asdict(one) for one in translation.replaced], "warnings": warnings(translation)}


def _json(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
