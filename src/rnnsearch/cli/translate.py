"""`rnnsearch translate`, `score` and `align`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from rnnsearch.bulk import Counts, Done
from rnnsearch.cli.bulk import Actors, Engine, Rows, Store, check_engine, check_files_given, in_shards
from rnnsearch.cli.io import input_portions, output, require_distinct, say, use_threads
from rnnsearch.cli.options import (
    MOST_BEAM,
    Batch,
    Beam,
    By,
    Device,
    Input,
    MaxSource,
    MaxSymbols,
    Model,
    Output,
    Precision,
    SourceFile,
    TargetFile,
    Threads,
)
from rnnsearch.cli.search_options import (
    LM,
    Ban,
    Chooser,
    Consensus,
    Diversity,
    Groups,
    LMWeight,
    Mean,
    MinConfidence,
    MoreWays,
    Noisy,
    NoRepeat,
    Sample,
    Seed,
    Sigma,
    Stochastic,
    Temperature,
    TopK,
    TopP,
    Unsure,
    Weights,
    asked_variant,
    asked_weights,
    check_surely,
    read_banned,
)
from rnnsearch.cli.translate_lines import BothWays, Links, doubt, fitting_pairs, pharaoh
from rnnsearch.errors import must_be_one_of
from rnnsearch.text.alignments import Symmetrisation, Unit

if TYPE_CHECKING:
    from rnnsearch.cli.translate_lines import Asked, Translating
    from rnnsearch.text.markup.marks import Protected

Format = Literal["text", "json", "nbest"]
Replace = Literal["none", "copy", "dictionary"]


def translate(
    models: Annotated[
        list[Path],
        typer.Argument(
            help="A model folder; several are one model, an ensemble.", metavar="MODEL...", show_default=False
        ),
    ],
    input: Input = None,
    output_file: Output = None,
    beam: Beam = None,
    n_best: Annotated[
        int, typer.Option(min=1, max=MOST_BEAM, help="Translations a sentence (formats json and nbest).")
    ] = 1,
    format: Annotated[Format, typer.Option(help="text; json (a line a sentence, with everything); nbest.")] = "text",
    alignments: Annotated[Path | None, typer.Option(help="Write Pharaoh alignments (source-target) here.")] = None,
    unit: Annotated[Unit, typer.Option(help="What the alignments count.")] = "words",
    by: Annotated[
        Literal["aligner", "attention", "read"] | None,
        typer.Option(
            help="What makes the alignments; read: attention after each word.  [default: aligner, if the model has one]"
        ),
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(min=0.0, max=10.0, help="Score = log-probability / length ** this.  [default: the model's]"),
    ] = None,
    max_length: Annotated[int | None, typer.Option(min=1, max=100_000, help="Most symbols of a translation.")] = None,
    max_source: MaxSource = 2000,
    no_repeat_ngram: NoRepeat = None,
    sample: Sample = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    stochastic: Stochastic = False,
    groups: Groups = None,
    diversity: Diversity = None,
    noisy: Noisy = None,
    sigma: Sigma = None,
    mbr: Consensus = None,
    reranker: Chooser = None,
    weights: Weights = None,
    mean: Mean = None,
    lm: LM = None,
    lm_weight: LMWeight = None,
    min_confidence: MinConfidence = None,
    unsure: Unsure = None,
    ban: Ban = None,
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
        list[str] | None,
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
    batch: Batch = None,
    engine: Engine = None,
    store: Store = None,
    rows: Rows = None,
    actors: Actors = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Translate raw text: one line in is one line out. At a terminal: a prompt that shows words and alignments."""
    if n_best > 1 and format == "text":
        raise typer.BadParameter("--n-best needs --format json or nbest: text has one line a sentence")
    if unit != "words" and alignments is None:
        raise typer.BadParameter("--unit has no effect without --alignments")
    kept = _protected(protect)
    if by is not None and alignments is None and format != "json" and not tags and not kept:
        raise typer.BadParameter("--by has no effect without --alignments, --format json, --tags and --protect")
    if ban_unknown and (replace_unknown or dictionary):
        raise typer.BadParameter("--replace-unknown and --dictionary have no effect with --ban-unknown")
    require_distinct({"--output": output_file, "--alignments": alignments}, [input])
    check_surely(min_confidence, unsure, format)
    check_engine(engine, store, rows, actors)
    check_files_given(engine, input, output_file)
    ways = MoreWays(groups, diversity, stochastic, noisy, sigma)
    variant = asked_variant(sample, temperature, top_k, top_p, seed, ways)
    shares, attended_word = asked_weights(weights), "read" if by == "read" else None
    from rnnsearch.cli.translate_lines import ALIGNMENTS, OUTPUT, Asked, tell

    asked = Asked(
        models=tuple(models),
        source=str(input or "<standard input>"),
        model_options=(replace_unknown, dictionary, candidates, precision, shares, mean, lm, lm_weight, attended_word),
        beam=beam,
        n_best=n_best,
        search_options=(length_penalty, max_length, ban_unknown, no_repeat_ngram, variant, tuple(read_banned(ban))),
        mbr=mbr,
        reranker=reranker,
        format=format,
        alignments=alignments is not None,
        unit=unit,
        by=by,
        tags=tags,
        protect=tuple(kept),
        glossary=glossary,
        force_terms=force_terms,
        min_confidence=min_confidence,
        unsure=unsure,
        max_source=max_source,
        batch=batch,
        device=device,
        threads=threads,
    )
    if engine is not None:
        assert input is not None and output_file is not None
        outputs = {OUTPUT: output_file} | ({} if alignments is None else {ALIGNMENTS: alignments})
        tell(asked, in_shards(asked, input, outputs, engine, store, rows, actors))
        return
    _here(asked, input, output_file, alignments)


def _here(asked: Asked, input: Path | None, output_file: Path | None, alignments: Path | None) -> None:
    """Translate in this process: at a terminal, where nothing else is asked for, by a prompt."""
    work = asked()
    if sys.stdin.isatty() and sys.stdout.isatty() and not (asked.by_lines or input or output_file or alignments):
        from rich.console import Console

        from rnnsearch.cli.prompt import Prompt

        Prompt(work.translator, Console(), work.options).run()
        return
    _in_a_stream(work, input, output_file, alignments)


def _in_a_stream(work: Translating, input: Path | None, output_file: Path | None, alignments: Path | None) -> None:
    """Translate portions as they come."""
    from rnnsearch.cli.translate_lines import ALIGNMENTS, OUTPUT, tell

    with ExitStack() as stack:
        files = {OUTPUT: stack.enter_context(output(output_file))}
        if alignments is not None:
            files[ALIGNMENTS] = stack.enter_context(output(alignments))

        def portions() -> Iterator[Done]:
            passed = 0
            for lines in input_portions(input, work.portion):
                done = work.translate(lines, passed)
                passed += len(lines)
                for message in done.said:
                    say(message)
                for name, file in files.items():
                    file.write(done.outputs[name])
                files[OUTPUT].flush()
                yield Done({}, [], done.counts)

        counts = Done.together(portions()).counts
    tell(work.asked, counts)


def score(
    model: Model,
    source: SourceFile,
    target: TargetFile,
    output_file: Output = None,
    format: Annotated[
        Literal["text", "json"], typer.Option(help="text (log-probability, nats) or json (with everything).")
    ] = "text",
    max_symbols: MaxSymbols = 2000,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Score given translations: log p(target | source), one line a pair."""
    require_distinct({"--output": output_file}, [source, target])
    from rnnsearch.cli.translate_lines import TOO_LONG, as_json, row
    from rnnsearch.translator.loading import load

    use_threads(threads)
    translator = load(model, device)
    with output(output_file) as out:
        for pairs in fitting_pairs(translator, source, target, max_symbols):
            for pair, refused in zip(translator.score(pairs.sources, pairs.targets), pairs.refused, strict=True):
                if format == "text":
                    out.write("\n" if refused else f"{pair.log_prob:.6f}\n")
                    continue
                unknown = {"score": None, "log_prob": None, "warnings": [TOO_LONG]}
                given = {} if refused is None else {"source": refused[0], "text": refused[1], **unknown}
                out.write(as_json(row(pair) | given))


def align(
    model: Model,
    source: SourceFile,
    target: TargetFile,
    output_file: Output = None,
    unit: Annotated[Unit, typer.Option(help="What the alignments count.")] = "words",
    by: By = None,
    reverse: Annotated[
        Path | None,
        typer.Option(help="A model of the other direction: its links and the model's become one, not by an aligner."),
    ] = None,
    symmetrise: Annotated[
        Symmetrisation | None,
        typer.Option(help="How --reverse's links and the model's become one.  [default: grow-diag-final-and]"),
    ] = None,
    max_symbols: MaxSymbols = 2000,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Align given translations: Pharaoh `source-target` links, zero-based, one line a pair."""
    require_distinct({"--output": output_file}, [source, target])
    from rnnsearch.translator.loading import load

    use_threads(threads)
    translator = load(model, device)
    by = translator.require_alignments(by)
    if reverse is not None:
        if by == "aligner" or unit == "symbols":
            what = "--reverse needs --by attention, read or posterior, and --unit words"
            raise typer.BadParameter(f"{what} (an aligner is of both directions by itself)")
        both = BothWays(translator, load(reverse, device), by, symmetrise or "grow-diag-final-and")
    elif symmetrise is not None:
        raise typer.BadParameter("--symmetrise has no effect without --reverse")
    counts = Counts()
    links = Links(unit, by, counts)
    with output(output_file) as out:
        for sources, targets, _ in fitting_pairs(translator, source, target, max_symbols):
            if reverse is not None:
                out.writelines(map(pharaoh, both.links(sources, targets)))
            elif by == "aligner":
                out.writelines(map(pharaoh, translator.align(sources, targets, unit, by)))
            else:
                out.writelines(map(links.line, translator.score(sources, targets, by)))
    if reverse is None:
        doubt(model, counts)
    else:
        doubt(model, both.counts[0])
        doubt(reverse, both.counts[1])


def _protected(given: list[str] | None) -> list[Protected]:
    """The names in `--protect`, which may stand several times."""
    from rnnsearch.text.markup.marks import PROTECTED

    told = [name for one in given or () for name in one.split(",")]
    names = [name for one in told for name in ([*PROTECTED] if one == "all" else [one])]
    for name in names:
        if name not in PROTECTED:
            raise typer.BadParameter(f"--protect {must_be_one_of([*PROTECTED, 'all'], name)}")
    return cast("list[Protected]", list(dict.fromkeys(names)))
