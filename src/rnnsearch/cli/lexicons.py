"""`rnnsearch aligner`, `candidates`, `dictionary` and `calibrate`: word-level models learned from sentence pairs.

The commands write `aligner/`, `candidates.safetensors` or `confidence.json` into the model folder, which
`translator/loading.py` loads; `dictionary` writes a TSV file. Tests: tests/commands/test_candidates.py,
tests/commands/test_calibrate.py, tests/commands/test_align.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

from rnnsearch.cli.io import (
    open_output,
    print_message,
    read_parallel_lines,
    read_sources,
    require_distinct_files,
    require_equal_lengths,
)
from rnnsearch.cli.options import (
    AlignBy,
    Device,
    DirectionGroup,
    HardwareGroup,
    Model,
    OutputFile,
    SourceFile,
    TargetFile,
)
from rnnsearch.cli.panels import expand_groups

if TYPE_CHECKING:
    from rnnsearch.align.aligner import Aligner
    from rnnsearch.config import RunConfig
    from rnnsearch.text.alignments import Link

PAIRS_PER_CHUNK = 10_000


def aligner(
    model: Model,
    source: Annotated[
        Path | None, Argument(help="Source text, one sentence per line.", show_default="the run's training text")
    ] = None,
    target: Annotated[
        Path | None,
        Argument(
            help="Target text, one sentence per line, parallel to the source.", show_default="the run's training text"
        ),
    ] = None,
) -> None:
    """Learn a word aligner from sentence pairs.

    Learns from the training data, or more, and writes to the model's folder. Training does this automatically at its
    end unless `data.aligner` is false; without texts, the command does it now.
    """
    from rnnsearch.align.aligner import FOLDER, MAX_PAIRS, learn_aligner
    from rnnsearch.errors import ModelError
    from rnnsearch.systems.folder import load_translation_config
    from rnnsearch.text.tokenizer import Tokenizer, tokenizer_file
    from rnnsearch.training.tasks import reverse_folder
    from rnnsearch.utils.files import locked

    # Before the pairs are read, because it checks the model.
    config = load_translation_config(model)
    if config.data.arrays is not None:
        raise ModelError(f"{model}: reads arrays ({config.data.single_source}), which have no words to align")
    _ = config.data.single_source  # called for its check
    if source is None:
        with locked(model):
            learned = _learn_from_prepared_data(model, config)
            learned.save(model / FOLDER)
        reverse = reverse_folder(model)
        if config.objective.symmetry is not None and reverse.is_dir():
            with locked(reverse):
                learned.reversed().save(reverse / FOLDER)
        origin = "the training text"
    elif target is None:
        raise BadParameter("SOURCE needs TARGET, its translation")
    else:
        tokenizer = Tokenizer.load(model / tokenizer_file(config.data.target))
        sources, targets = read_parallel_lines(source, target)
        with locked(model):
            learned = learn_aligner(sources, targets, tokenizer.normalization.level)
            learned.save(model / FOLDER)
        origin = f"{min(len(sources), MAX_PAIRS):,} sentence pairs"
    print_message(
        f"{model / FOLDER}: learned from {origin} in {len(learned.segmentations)} segmentations; {learned.rule}"
    )


def _learn_from_prepared_data(model: Path, config: RunConfig) -> Aligner:
    """Return the aligner of a run's prepared data, and learn it if that has not been done.

    Raises:
        DataError: The model's run has no prepared data with an aligner or its text.
    """
    from rnnsearch.data.aligner_text import find_prepared, learn_pending
    from rnnsearch.data.prepared import Prepared
    from rnnsearch.errors import DataError

    folder = find_prepared(model, config)
    learned = None if folder is None else learn_pending(Prepared.open(folder))
    if learned is None:
        raise DataError(f"{model}: its run has no text for a word aligner; give the source and target text")
    return learned


def candidates(
    model: Model,
    source: SourceFile,
    target: TargetFile,
    *,
    frequent: Annotated[
        int, Option(min=1, help="Number of the most frequent target tokens, which are in every list.")
    ] = 300,
) -> None:
    """Learn candidate lists for faster search.

    Learns from sentence pairs, best those of training, and writes to the model's folder. `translate --candidates N`
    uses the lists, or `search.candidates` of the model's config.
    """
    from rnnsearch.search.candidates import CANDIDATES_FILE, learn_candidate_tables, save_candidate_tables
    from rnnsearch.systems.folder import load_system
    from rnnsearch.utils.files import locked

    system = load_system(model)
    system.require("translate")
    sources, targets = read_parallel_lines(source, target)
    tables = learn_candidate_tables(
        system.source.ids(sources), system.target.ids(targets), len(system.source), len(system.target), frequent
    )
    with locked(model):
        save_candidate_tables(model, tables)
    with_translations = int((tables["translations"][:, 0] >= 0).sum())
    print_message(
        f"{model / CANDIDATES_FILE}: translations of {with_translations:,} of {len(system.source):,} source tokens"
    )


@expand_groups
def dictionary(
    source: SourceFile,
    target: TargetFile,
    *,
    output: OutputFile = None,
    model: Annotated[
        Path | None, Option(help="Align with this model instead of an aligner learned from the text.")
    ] = None,
    by: AlignBy = None,
    alignments: Annotated[Path | None, Option(help="Existing word alignments (Pharaoh format).")] = None,
    words: Annotated[int, Option(min=1, max=10, help="Maximum number of words of an entry, per language.")] = 3,
    min_count: Annotated[int, Option(min=1, help="Minimum number of occurrences.")] = 2,
    min_probability: Annotated[float, Option(min=0.0, max=1.0, help="Minimum p(target | source).")] = 0.1,
    direction: DirectionGroup,
    device: Device = "cpu",
) -> None:
    """Learn a dictionary from sentence pairs.

    Writes source, target, p(target | source) and count (TSV), the most probable translation first, for `translate
    --dictionary` and `search.dictionary`.
    """
    if model is not None and alignments is not None:
        raise BadParameter("--model has no effect with --alignments")
    if model is None and by is not None:
        raise BadParameter("--by has no effect without --model")
    if model is None and any(direction.languages):
        raise BadParameter("--from and --to have no effect without --model")
    require_distinct_files({"--output": output}, [source, target, alignments])
    from rnnsearch.align.dictionary import Dictionary

    sources, targets = read_parallel_lines(source, target)
    links: Iterator[Collection[Link]]
    if alignments is not None:
        links = _read_links(alignments, source, sources, targets)
    elif model is not None:
        from rnnsearch.translator.loading import load

        links = iter(load(model, device).select(*direction.languages).align(sources, targets, by=by))
    else:
        from rnnsearch.align.aligner import learn_aligner

        links = _align_words(learn_aligner(sources, targets), sources, targets)
    learned = Dictionary(words)
    for source_line, target_line, pair_links in zip(sources, targets, links, strict=True):
        learned.add(source_line, target_line, pair_links)
    num_entries = 0
    with open_output(output) as file:
        for entry in learned.entries(min_count, min_probability):
            file.write(f"{entry.source}\t{entry.target}\t{entry.probability:.4f}\t{entry.occurrences}\n")
            num_entries += 1
    if not num_entries:
        print_message("no entries: the text is too small, or --min-count and --min-probability are too high")


def _align_words(aligner: Aligner, sources: Sequence[str], targets: Sequence[str]) -> Iterator[Collection[Link]]:
    from rnnsearch.align.aligner import Pair

    for start in range(0, len(sources), PAIRS_PER_CHUNK):
        chunk = slice(start, start + PAIRS_PER_CHUNK)
        pairs = [Pair.from_words(*pair) for pair in zip(sources[chunk], targets[chunk], strict=True)]
        yield from aligner.links(pairs)


def _read_links(
    path: Path, source_path: Path, sources: Sequence[str], targets: Sequence[str]
) -> Iterator[Collection[Link]]:
    """Yield the links of a Pharaoh file; raise DataError if they do not belong to these sentences."""
    from rnnsearch.errors import DataError
    from rnnsearch.text.alignments import read_pharaoh, words

    rows = read_pharaoh(path)
    require_equal_lengths(source_path, len(sources), path, len(rows))
    for number, (links, source, target) in enumerate(zip(rows, sources, targets, strict=True), 1):
        source_length = len(words(source))
        target_length = len(words(target))
        outside = [(i, j) for i, j in links.possible if i >= source_length or j >= target_length]
        if outside:
            i, j = min(outside)
            raise DataError(
                f"{path}:{number}: links must lie within {source_length} source and {target_length} target words, "
                f"counted from 0; got {i}-{j}"
            )
        yield links.sure


@expand_groups
def calibrate(model: Model, source: SourceFile, reference: TargetFile, hardware: HardwareGroup) -> None:
    """Learn confidence estimates from a dev set.

    Writes to the model's folder; every translation then has the probability that its words are correct.
    """
    hardware.set_threads()
    from rnnsearch.systems.folder import load_translation_config
    from rnnsearch.translator.confidence import CALIBRATION_FILE, learn_calibration
    from rnnsearch.translator.loading import load
    from rnnsearch.utils.files import locked

    # `load` also accepts an engine file and a multi-way model, to which nothing can be added.
    config = load_translation_config(model)
    sources, references = read_sources(source, reference, config.data.sources, config.data.arrays)
    translator = load(model, hardware.device)
    translator.system.require("probabilities")
    calibration = learn_calibration(translator.translate(sources), references)
    with locked(model):
        calibration.save(model / CALIBRATION_FILE)
    print_message(
        f"{model / CALIBRATION_FILE}: {calibration.right:.1%} of {calibration.words:,} words are correct; the expected "
        f"calibration error on held-out sentences is {calibration.error:.1%}"
    )
