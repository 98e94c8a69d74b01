"""`rnnsearch ensemble`, `extract`, `prune`, `import`, `export` and `reranker`: commands that write models.

Each command is thin over a function: `systems/ensemble_folder.py`, `systems/extraction.py`, `systems/pruning.py`,
`importers`, `export` and `translator/rerank.py`. Tests: tests/test_ensemble.py, tests/commands/test_prune.py,
tests/commands/test_import.py, tests/commands/test_export.py, tests/test_rerank.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, BadParameter, Option

from rnnsearch.cli.io import print_message, read_parallel_lines
from rnnsearch.cli.options import (
    MAX_BEAM,
    DirectionGroup,
    HardwareGroup,
    Model,
    OutputFolder,
    SourceFile,
    TargetFile,
    ZeroShotGroup,
    parse_weights,
)
from rnnsearch.cli.panels import expand_groups

if TYPE_CHECKING:
    from rnnsearch.systems.pruning import Pruning

ExportPrecision = Literal["int4", "int8", "bf16", "fp32"]

BYTES_PER_WEIGHT = {"fp32": 4, "bf16": 2}


def ensemble(
    models: Annotated[list[Path], Argument(help="Model folders with the same target vocabulary.", show_default=False)],
    output: OutputFolder,
    weights: Annotated[str | None, Option(help="Weight of each model: 2,1,1.", show_default="equal")] = None,
    mean: Annotated[
        Literal["geometric", "arithmetic"],
        Option(help="Mean of the models' distributions: geometric (AND) or arithmetic (OR)."),
    ] = "geometric",
    snapshots: Annotated[
        int | None, Option(min=2, help="Combine the last N weights that the run of a single model has stored.")
    ] = None,
) -> None:
    """Combine several models into one folder.

    Every command accepts the folder like that of a single model.
    """
    if snapshots is None and len(models) == 1:
        raise BadParameter("an ensemble needs two models, or one model and --snapshots")
    if snapshots is not None and len(models) > 1:
        raise BadParameter("--snapshots needs a single model; got more")
    parsed_weights = parse_weights(weights)
    from rnnsearch.systems.ensemble_folder import load_checkpoints, write_ensemble
    from rnnsearch.systems.folder import load_system

    if snapshots is None:
        folders = models
        systems = [load_system(folder) for folder in models]
    else:
        folders = models * snapshots
        systems = load_checkpoints(models[0], snapshots)
    write_ensemble(output, folders, systems, parsed_weights, mean)
    print_message(f"{output}: an ensemble of {len(systems)} models; `rnnsearch tune` finds their weights")


@expand_groups
def extract(model: Model, output: OutputFolder, direction: ZeroShotGroup) -> None:
    """Write the model of one direction.

    The result is a bilingual model of one of the directions of a multi-way model. All commands accept the folder, such
    as export, calibrate, candidates and prune.
    """
    from rnnsearch.systems.extraction import extract as extract_folder

    extracted = extract_folder(model, output, *direction.languages, zero_shot=direction.zero_shot)
    print_message(f"{output}: the model of {extracted.name}")


def export(
    model: Model,
    output: Annotated[
        Path, Argument(help="File to write, such as en-de.rnn; for web and onnx, a folder.", show_default=False)
    ],
    form: Annotated[
        Literal["engine", "web", "onnx"],
        Option(
            "--format",
            help="engine: one file for `rnnsearch-runtime`; web: a page that translates in the browser; onnx: two "
            "graphs for ONNX runtimes.",
        ),
    ] = "engine",
    precision: Annotated[
        ExportPrecision | None,
        Option(
            help="Precision of weights and products; int4 applies to embeddings and output only. Always fp32 for onnx.",
            show_default="int8",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        Option(
            help="Include candidate lists with this many translations per token; 0: none. For --format engine.",
            show_default="as in the model's search options",
        ),
    ] = None,
) -> None:
    """Export a model for use without PyTorch.

    Writes a file that `rnnsearch-runtime` translates with, a web page, or ONNX graphs.
    """
    if candidates and form != "engine":
        raise BadParameter("needs --format engine", param_hint="--candidates")
    if form == "onnx":
        from rnnsearch.export.onnx import export as export_onnx

        if precision not in (None, "fp32"):
            raise BadParameter("must be fp32 with --format onnx", param_hint="'--precision'")
        print_message(f"{output}: {export_onnx(model, output) / 1e6:.1f} MB, fp32")
        _report_missing_candidates(model)
    elif form == "web":
        from rnnsearch.export.web_page import export_page

        precision = precision or "int8"
        page_bytes, model_bytes = export_page(model, output, precision)
        print_message(
            f"{output}: a page of {page_bytes / 1e6:.2f} MB, and a model of {model_bytes / 1e6:.1f} MB, {precision}"
        )
        _report_missing_candidates(model)
    else:
        from rnnsearch.export.engine_file import export as export_engine

        precision = precision or "int8"
        print_message(f"{output}: {export_engine(model, output, precision, candidates) / 1e6:.1f} MB, {precision}")


def _report_missing_candidates(model: Path) -> None:
    """Print a message if the model's search uses candidate lists, which the export does not contain."""
    from rnnsearch.config import load
    from rnnsearch.systems.folder import CONFIG

    if load(model / CONFIG).search.candidates:
        print_message("the candidate lists are not exported: the whole vocabulary is searched")


def import_model(
    checkpoint: Annotated[
        Path, Argument(help="Checkpoint, such as model_step_5000.pt or best.ckpt.", show_default=False)
    ],
    output: OutputFolder,
    source: Annotated[str, Option(help="Code of the source language, such as en.", show_default=False)],
    target: Annotated[str, Option(help="Code of the target language, such as de.", show_default=False)],
    toolkit: Annotated[
        Literal["opennmt-py", "joeynmt"], Option("--from", help="Toolkit that has trained the model.")
    ] = "opennmt-py",
) -> None:
    """Import a model of OpenNMT-py or JoeyNMT.

    Writes a model folder of a recurrent model of OpenNMT-py 3 or JoeyNMT, with the same translations.
    """
    from rnnsearch.importers import import_joeynmt, import_opennmt_py

    importers = {"opennmt-py": import_opennmt_py, "joeynmt": import_joeynmt}
    imported = importers[toolkit](checkpoint, output, source, target)
    source_size, target_size = imported.vocabularies
    print_message(
        f"{output}: {imported.parameters:,} parameters ({imported.encoder}, {imported.decoder}), {source_size:,} "
        f"source and {target_size:,} target tokens; input must be tokenized as for {toolkit}"
    )


@expand_groups
def reranker(
    model: Model,
    source: SourceFile,
    reference: TargetFile,
    output: OutputFolder,
    *,
    reverse: Annotated[
        Path | None, Option(help="Model of the opposite direction, whose score of the source is a feature.")
    ] = None,
    lm: Annotated[
        Path | None, Option(help="Language model, whose score is a feature; it may have another vocabulary.")
    ] = None,
    method: Annotated[
        Literal["mert", "pro"], Option(help="Minimum error rate training or pairwise ranking optimisation.")
    ] = "mert",
    metric: Annotated[Literal["bleu", "chrf"], Option(help="Metric to optimise.")] = "bleu",
    n_best: Annotated[
        int, Option(min=2, max=MAX_BEAM, help="Translations to choose from; the model's beam grows to it.")
    ] = 10,
    direction: DirectionGroup,
    hardware: HardwareGroup,
) -> None:
    """Learn to rerank n-best lists.

    Learns on a dev set; `translate --reranker` uses the result.
    """
    hardware.set_threads()
    from rnnsearch.translator.loading import load
    from rnnsearch.translator.rerank import learn, load_features, require_reranker_or_new

    require_reranker_or_new(output)
    sources, references = read_parallel_lines(source, reference)
    features = load_features(reverse, lm, hardware.device)
    translator = load(model, hardware.device).select(*direction.languages)
    translator.require_one_source("reranking")
    learned = learn(translator, sources, references, features, method, metric, n_best)
    learned.reranker.save(output, reverse, lm)
    typer.echo(learned.table(), nl=False)
    if learned.after <= learned.before:
        print_message(f"{output}: not better on the dev set than the ranking of the search")


# `rnnsearch prune`.


def prune(
    model: Model,
    output: OutputFolder,
    share: Annotated[
        float, Option(help="Fraction of the weights in matrices to prune, including those already pruned; below 1.")
    ] = 0.8,
    scheme: Annotated[
        Literal["class-blind", "class-uniform", "class-distribution"],
        Option(
            help="Prune the smallest weights of all, the same fraction of each weight class, or each class by its "
            "standard deviation."
        ),
    ] = "class-uniform",
) -> None:
    """Set small weights of a model to zero.

    Writes a model folder. Training can continue from it with the pruned weights fixed at zero.
    """
    if not 0 <= share < 1:
        raise BadParameter(f"--share must be at least 0 and below 1; got {share:g}")
    from rnnsearch.systems.pruning import prune as prune_folder
    from rnnsearch.utils.tables import align_columns

    pruning = prune_folder(model, output, share, scheme)
    for line in [*align_columns(_class_rows(pruning)), "", *align_columns(_size_rows(pruning))]:
        typer.echo(line)
    bound = ""
    if pruning.bound is not None and scheme == "class-blind":
        bound = f"; absolute values up to {pruning.bound:.4g}"
    elif pruning.bound is not None and scheme == "class-distribution":
        bound = f"; up to {pruning.bound:.4g} standard deviations of each class"
    print_message(f"{output}: {pruning.all.zeros / pruning.all.weights:.1%} of the weights are zero ({scheme}{bound})")
    print_message(f'to retrain it: training.begin_from = "{output}" and training.keep_zeros = true')


def _class_rows(pruning: Pruning) -> list[list[str]]:
    rows = [["class", "weights", "zeros", "fraction"]]
    for weight_class in (*pruning.classes, pruning.all):
        zeros = f"{weight_class.zeros:,}"
        fraction = f"{weight_class.zeros / weight_class.weights:.1%}"
        rows.append([weight_class.name, f"{weight_class.weights:,}", zeros, fraction])
    rows.append(["biases, vectors", f"{pruning.unpruned:,}", "", "not pruned"])
    return rows


def _size_rows(pruning: Pruning) -> list[list[str]]:
    """Return the rows of a table of stored sizes."""
    rows = [["bytes", "dense", "bitmask and values", "fraction"]]
    for precision, size in BYTES_PER_WEIGHT.items():
        dense, sparse = pruning.weighed(size)
        rows.append([precision, f"{dense:,}", f"{sparse:,}", f"{sparse / dense:.1%}"])
    return rows
