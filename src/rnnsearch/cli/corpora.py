"""`rnnsearch data`, `backtranslate`, `distil`, `synthesise` and `filter`: corpora to download, generate and filter.

`data` uses `data/corpora`, `filter` uses `evaluation/filtering.py`, and the others work in shards (`bulk.py`,
`translate_lines.py`). Outputs appear only when they are complete. Tests: tests/commands/test_data.py,
tests/commands/test_backtranslate.py, tests/commands/test_distil.py, tests/commands/test_filter.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, BadParameter, Option

from rnnsearch.cli.bulk import run_in_shards, shard_progress
from rnnsearch.cli.io import (
    count_pairs,
    download_progress,
    line_pairs,
    open_output,
    pair_chunks,
    print_message,
    require_distinct_files,
    require_equal_lengths,
    rereadable,
)
from rnnsearch.cli.options import (
    AlwaysBulkGroup,
    Beam,
    DirectionGroup,
    EnsembleGroup,
    FusionGroup,
    HardwareGroup,
    LineGroup,
    MaxSource,
    Model,
    RequiredOutputFile,
    SamplingGroup,
    SearchGroup,
    SourceFile,
    TargetFile,
    TranslationHardwareGroup,
    TranslationPrecision,
)
from rnnsearch.cli.panels import PanelCommand, PanelGroup, expand_groups

if TYPE_CHECKING:
    from rnnsearch.bulk import Counts, Done
    from rnnsearch.evaluation.filtering import PairScores, Scores

# `rnnsearch data`.

data_app = typer.Typer(cls=PanelGroup, help="List and download corpora.", no_args_is_help=True)


@data_app.command("list", cls=PanelCommand)
def list_corpora() -> None:
    """List the corpora that can be downloaded."""
    from rnnsearch.data.corpora.catalog import CORPORA

    for corpus in CORPORA.values():
        aligned = "; word alignments" if corpus.aligned else ""
        typer.echo(f"{corpus.name:16} {corpus.pairs:>7,} pairs  {corpus.licence}{aligned}\n    {corpus.description}")


@data_app.command("get", cls=PanelCommand)
def get(
    name: Annotated[str, Argument(help="Name of a corpus in `rnnsearch data list`.", show_default=False)],
    output: Annotated[Path | None, Option("-o", "--output", help="Also copy its files to this folder.")] = None,
) -> None:
    """Download a corpus and print its folder.

    The download is verified by its hash and split into training, dev and test set.
    """
    import shutil

    from rnnsearch.data.corpora.catalog import find
    from rnnsearch.data.corpora.catalog import get as fetch
    from rnnsearch.errors import DataError
    from rnnsearch.utils.files import atomic_folder

    corpus = find(name)
    if output is not None and output.exists() and not _can_be_replaced(output):
        raise DataError(f"{output}: must be a new or empty folder, or a downloaded corpus; got one with other files")
    with download_progress() as show_progress:
        folder = fetch(name, progress=show_progress)
    print_message(f"{corpus.attribution}. Licence: {corpus.licence}.")
    if output is not None:
        with atomic_folder(output.resolve()) as temporary:
            shutil.copytree(folder, temporary, dirs_exist_ok=True)
        folder = output
    typer.echo(str(folder))


def _can_be_replaced(folder: Path) -> bool:
    """Return True if the folder is empty or a downloaded corpus."""
    return folder.is_dir() and ((folder / "corpus.json").is_file() or not any(folder.iterdir()))


# `rnnsearch backtranslate`, `distil` and `synthesise`.

Tag = Annotated[str | None, Option(help="Word to put before each line, such as <bt>.")]


@expand_groups
def backtranslate(
    model: Model,
    text: Annotated[
        Path, Argument(help="Text in the model's source language, one sentence per line.", show_default=False)
    ],
    output: RequiredOutputFile,
    *,
    beam: Beam = None,
    tag: Tag = None,
    max_source: MaxSource = 200,
    direction: DirectionGroup,
    sampling: SamplingGroup,
    bulk: AlwaysBulkGroup,
    hardware: TranslationHardwareGroup,
) -> None:
    """Make training pairs from target-language text.

    A model of the opposite direction translates text of the TARGET language back into the source language. Every
    input line gives exactly one output line, so `OUTPUT|TEXT` is a corpus for `data.train`. A killed run is resumed.
    """
    _check_tag(tag)
    require_distinct_files({"--output": output}, [text])
    from rnnsearch.cli.translate_lines import OUTPUT, TranslateOptions

    options = TranslateOptions(
        models=(model,),
        input_name=str(text),
        direction=direction,
        lines=LineGroup(split="lines", max_source=max_source),
        search=SearchGroup(beam=beam),
        sampling=sampling,
        hardware=hardware,
        tag=tag,
    )
    _report_empty_lines(run_in_shards(options, text, {OUTPUT: output}, bulk))


@expand_groups
def distil(
    models: Annotated[
        list[Path],
        Argument(
            help="Model folder of the teacher; give several for an ensemble.", metavar="TEACHER", show_default=False
        ),
    ],
    source: Annotated[
        Path, Argument(help="Source text of the training pairs, one sentence per line.", show_default=False)
    ],
    output: RequiredOutputFile,
    *,
    interpolate: Annotated[
        Path | None,
        Option(
            help="Target text, parallel to the source: choose the translation in the beam that is closest to it (by "
            "BLEU).",
            show_default=False,
        ),
    ] = None,
    beam: Beam = None,
    max_source: MaxSource = 200,
    direction: DirectionGroup,
    ensemble: EnsembleGroup,
    bulk: AlwaysBulkGroup,
    hardware: TranslationHardwareGroup,
) -> None:
    """Translate training text with a teacher model.

    A smaller and faster student learns from the translations (Kim & Rush 2016). Every input line gives exactly one
    output line, so `SOURCE|OUTPUT` is a corpus for `data.train`. A killed run is resumed.
    """
    require_distinct_files({"--output": output}, [source, interpolate])
    from rnnsearch.cli.translate_lines import OUTPUT, TranslateOptions

    options = TranslateOptions(
        models=tuple(models),
        input_name=str(source),
        direction=direction,
        lines=LineGroup(split="lines", max_source=max_source),
        search=SearchGroup(beam=beam),
        ensemble=FusionGroup(weights=ensemble.weights, mean=ensemble.mean),
        hardware=hardware,
        closest_to=interpolate,
    )
    _report_empty_lines(run_in_shards(options, source, {OUTPUT: output}, bulk))


@expand_groups
def synthesise(
    models: Annotated[
        list[Path],
        Argument(
            help="Model folder that translates from the language of TEXT into the new source language; give several "
            "for an ensemble.",
            metavar="MODEL",
            show_default=False,
        ),
    ],
    text: Annotated[
        Path, Argument(help="Text of the pairs in the shared language, one sentence per line.", show_default=False)
    ],
    target: Annotated[
        Path, Argument(help="The other text of the pairs, which becomes the target side.", show_default=False)
    ],
    output: Annotated[Path, Option("-o", "--output", help="TSV file to write, one pair per line.", show_default=False)],
    *,
    beam: Beam = None,
    tag: Tag = None,
    max_source: MaxSource = 200,
    direction: DirectionGroup,
    sampling: SamplingGroup,
    ensemble: EnsembleGroup,
    bulk: AlwaysBulkGroup,
    hardware: TranslationHardwareGroup,
) -> None:
    """Make training pairs through a third language.

    For two languages without parallel text: pairs of a third language and the target language become pairs of the
    source language. MODEL translates TEXT, and each line of the output is a translation, a tab and the line of TARGET.
    A killed run is resumed.
    """
    _check_tag(tag)
    require_distinct_files({"--output": output}, [text, target])
    from rnnsearch.cli.translate_lines import OUTPUT, TranslateOptions

    options = TranslateOptions(
        models=tuple(models),
        input_name=str(text),
        direction=direction,
        lines=LineGroup(split="lines", max_source=max_source),
        search=SearchGroup(beam=beam),
        sampling=sampling,
        ensemble=FusionGroup(weights=ensemble.weights, mean=ensemble.mean),
        hardware=hardware,
        tag=tag,
        second_column=target,
    )
    _report_empty_lines(run_in_shards(options, text, {OUTPUT: output}, bulk))


def _check_tag(tag: str | None) -> None:
    """Raise BadParameter if a tag is not one word."""
    if tag is not None and (not tag.strip() or len(tag.split()) != 1):
        raise BadParameter(f'--tag must be one word; got "{tag}"')


def _report_empty_lines(counts: Counts) -> None:
    from rnnsearch.cli.translate_lines import EMPTY_LINES

    empty_lines = counts.get(EMPTY_LINES, 0)
    if empty_lines:
        print_message(f"{empty_lines:,.0f} lines have no translation; `rnnsearch prepare` leaves them out")


# `rnnsearch filter`.

FilePair = tuple[Path, Path]
SCORES = "scores"  # name of the output


@expand_groups
def filter_pairs(
    source: SourceFile,
    target: TargetFile,
    *,
    scores: Annotated[
        Path,
        Option(help="File of scores, one per line: written if a model is given, else read.", show_default=False),
    ],
    forward: Annotated[Path | None, Option(help="Model that scores the pairs from source to target.")] = None,
    reverse: Annotated[Path | None, Option(help="Model that scores the pairs from target to source.")] = None,
    output: Annotated[
        FilePair | None, Option("-o", "--output", help="Two files for the selected pairs: source and target.")
    ] = None,
    share: Annotated[float | None, Option(min=0.0, max=1.0, help="Fraction of the pairs to select, the best.")] = None,
    threshold: Annotated[float | None, Option(min=0.0, max=1.0, help="Minimum score of selected pairs.")] = None,
    max_tokens: Annotated[
        int,
        Option(
            "--max-symbols",
            min=1,
            max=100_000,
            help="Maximum number of tokens per sentence; a pair with a longer one has score 0.",
        ),
    ] = 200,
    precision: TranslationPrecision = None,
    direction: DirectionGroup,
    hardware: HardwareGroup,
) -> None:
    """Score sentence pairs and select the best.

    Pairs are scored from 0 to 1 by how well their sentences translate each other, by models of both directions or of
    one. A killed run resumes scoring.
    """
    models = {name: model for name, model in (("forward", forward), ("reverse", reverse)) if model is not None}
    if not models and output is None:
        raise BadParameter(
            "needs a model (--forward, --reverse) to score pairs, files for the best pairs (-o), or both"
        )
    if output is not None and share is None and threshold is None:
        raise BadParameter("-o needs --share, --threshold or both")
    if output is None and (share is not None or threshold is not None):
        raise BadParameter("--share and --threshold have no effect without -o")
    hardware.set_threads()
    outputs: dict[str, Path | None] = {"--scores": scores}
    if output is not None:
        outputs |= {"-o": output[0], "its second file": output[1]}
    require_distinct_files(outputs, [source, target])
    with rereadable(source, target) as (source_copy, target_copy):
        texts = (source_copy, target_copy)
        num_pairs = count_pairs(*texts)
        if models:
            from rnnsearch.evaluation.filtering import PairScores
            from rnnsearch.translator.loading import load

            loaded = {}
            for name, model in models.items():
                languages = direction.languages if name == "forward" else direction.languages[::-1]
                loaded[name] = load(model, hardware.device, precision=precision).select(*languages)
            _write_scores(texts, scores, models, PairScores(**loaded), max_tokens, direction.languages)
        if output is not None:
            _write_best_pairs(texts, num_pairs, scores, output, share, threshold)


def _write_scores(
    texts: FilePair,
    path: Path,
    models: dict[str, Path],
    pair_scores: PairScores,
    max_tokens: int,
    languages: tuple[str | None, str | None],
) -> None:
    """Write the score of each pair, in shards that a killed run resumes.

    Args:
        texts: Files of the source and target sentences.
        path: File of scores to write.
        models: Folders of the models.
        pair_scores: The models.
        max_tokens: Maximum number of tokens per sentence.
        languages: Requested source and target language.
    """
    from rnnsearch.bulk import Done, digest, local, run, store_at
    from rnnsearch.cli.pairs import BATCHES_PER_CHUNK, fits_limits

    model = pair_scores.model
    tokenizers = (model.source, model.target)
    if pair_scores.forward is None:  # the model translates from target to source
        tokenizers = (model.target, model.source)

    def score(pairs: Sequence[str], _: int) -> Done:
        columns: tuple[list[str], list[str]] = ([], [])
        for pair in pairs:
            for column, sentence, tokenizer in zip(columns, pair.split("\n"), tokenizers, strict=True):
                column.append(sentence if fits_limits(sentence, max_tokens, tokenizer) else "")
        return Done({SCORES: "".join(f"{score:.6g}\n" for score in pair_scores(*columns))}, [], {})

    fingerprint = {
        "source": digest(texts[0]),
        "target": digest(texts[1]),
        **{name: digest(folder) for name, folder in models.items()},
        "precision": model.config.search.precision,
        "device": model.device.type,
        "max symbols": max_tokens,
    }
    if any(languages):
        fingerprint["languages"] = str(languages)
    chunks = pair_chunks(*texts, BATCHES_PER_CHUNK * model.config.search.batch_sentences)
    with shard_progress(path, "scoring", "pairs") as show_progress:
        store = store_at(f"{path}.partial")
        run(chunks, fingerprint, lambda: score, {SCORES: path}, store, local, progress=show_progress)


def _write_best_pairs(
    texts: FilePair, num_pairs: int, scores_path: Path, output: FilePair, share: float | None, threshold: float | None
) -> None:
    """Write the pairs with the best scores."""
    from rnnsearch.evaluation.filtering import kept

    scores = _read_scores(scores_path)
    require_equal_lengths(texts[0], num_pairs, scores_path, len(scores))
    selected = kept(scores, share, threshold or 0.0)
    with ExitStack() as stack:
        files = [stack.enter_context(open_output(path)) for path in output]
        for pair, is_selected in zip(line_pairs(*texts), selected, strict=True):
            if is_selected:
                for file, line in zip(files, pair, strict=True):
                    file.write(f"{line}\n")
    lowest = f", with scores of {scores[selected].min():.3g} or more" if selected.any() else ""
    print_message(f"{selected.sum():,} of {num_pairs:,} pairs selected{lowest}")


def _read_scores(path: Path) -> Scores:
    """Return the scores of a file; raise DataError for a line that is not a number."""
    import numpy as np

    from rnnsearch.data.corpus import read_lines
    from rnnsearch.errors import DataError

    scores: list[float] = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            scores.append(float(line))
        except ValueError:
            raise DataError(f'{path}:{number}: must be a number; got "{line}"') from None
    return np.array(scores)
