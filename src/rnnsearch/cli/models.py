"""`rnnsearch export`: a model folder as one file, a page, or graphs, for translation without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rnnsearch.cli.io import both_lines, say, use_threads
from rnnsearch.cli.options import MOST_BEAM, Device, Model, NewFolder, SourceFile, TargetFile, Threads
from rnnsearch.cli.search_options import asked_weights

if TYPE_CHECKING:
    from rnnsearch.systems.pruning import Pruning


# `rnnsearch ensemble`: several models as one model folder.


def ensemble(
    models: Annotated[list[Path], typer.Argument(help="Model folders of one target vocabulary.", show_default=False)],
    output: NewFolder,
    weights: Annotated[str | None, typer.Option(help="One a model, as 2,1,1.  [default: equal]")] = None,
    mean: Annotated[
        Literal["geometric", "arithmetic"], typer.Option(help="Of the models' distributions: AND, or OR.")
    ] = "geometric",
    snapshots: Annotated[
        int | None, typer.Option(min=2, help="The last N weights that the run of one model has kept, as the models.")
    ] = None,
) -> None:
    """Make one model folder of several models, or of several checkpoints of one: every command then takes it."""
    if snapshots is None and len(models) == 1:
        raise typer.BadParameter("an ensemble needs two models, or one and --snapshots")
    if snapshots is not None and len(models) > 1:
        raise typer.BadParameter("--snapshots are of one model; got more")
    shares = asked_weights(weights)
    from rnnsearch.systems import ensemble_folder
    from rnnsearch.systems.folder import load_system

    if snapshots is None:
        systems = [load_system(folder) for folder in models]
    else:
        systems = ensemble_folder.snapshots(models[0], snapshots)
    folders = models if snapshots is None else models * snapshots
    ensemble_folder.gather(output, folders, systems, shares, mean)
    say(f"{output}: an ensemble of {len(systems)} models; `rnnsearch tune` finds their weights")


Precision = Literal["int4", "int8", "bf16", "fp32"]


def export(
    model: Model,
    output: Annotated[
        Path, typer.Argument(help="The file to write, as en-de.rnn; for web and onnx, the folder.", show_default=False)
    ],
    form: Annotated[
        Literal["engine", "web", "onnx"],
        typer.Option(
            "--format",
            help="engine: one file for `rnnsearch-runtime`; web: a page that translates in the browser; onnx: two "
            "graphs for any runtime of such.",
        ),
    ] = "engine",
    precision: Annotated[
        Precision | None,
        typer.Option(
            help="Of the weights, and of products with them; int4: embeddings and output alone. onnx: fp32.",
            show_default="int8",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            help="engine: put candidate lists of so many translations in; 0: none. Without it, as the model's search "
            "has it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a model as a file that `rnnsearch-runtime` translates with, as a web page, or as ONNX graphs."""
    if candidates and form != "engine":
        raise typer.BadParameter("goes with --format engine alone", param_hint="--candidates")
    if form == "onnx":
        _graphs(model, output, precision)
    elif form == "web":
        _page(model, output, precision or "int8")
    else:
        from rnnsearch.export.engine_file import export as write

        precision = precision or "int8"
        say(f"{output}: {write(model, output, precision, candidates) / 1e6:.1f} MB, {precision}")


def _graphs(model: Path, output: Path, precision: Precision | None) -> None:
    from rnnsearch.export.onnx import export as write

    if precision not in (None, "fp32"):
        raise typer.BadParameter("must be fp32 with --format onnx", param_hint="'--precision'")
    say(f"{output}: {write(model, output) / 1e6:.1f} MB, fp32")
    _tell_of_lists(model)


def _page(model: Path, output: Path, precision: Precision) -> None:
    from rnnsearch.export.web_page import export_page

    page, size = export_page(model, output, precision)
    say(f"{output}: a page of {page / 1e6:.2f} MB, and a model of {size / 1e6:.1f} MB, {precision}")
    _tell_of_lists(model)


def _tell_of_lists(model: Path) -> None:
    """Say that the model's candidate lists did not go along, where it searches with such."""
    from rnnsearch.config import load
    from rnnsearch.systems.folder import CONFIG

    if load(model / CONFIG).search.candidates:
        say("its candidate lists are left out: the whole vocabulary is searched there")


# `rnnsearch import`: a model of another toolkit as a model folder.


def import_model(
    checkpoint: Annotated[
        Path, typer.Argument(help="Its file, as model_step_5000.pt or best.ckpt.", show_default=False)
    ],
    output: NewFolder,
    source: Annotated[str, typer.Option(help="The source language's code, as en.", show_default=False)],
    target: Annotated[str, typer.Option(help="The target language's code, as de.", show_default=False)],
    toolkit: Annotated[
        Literal["opennmt-py", "joeynmt"], typer.Option("--from", help="Which toolkit's.")
    ] = "opennmt-py",
) -> None:
    """Make a model folder of a recurrent model that OpenNMT-py 3 or JoeyNMT has trained; it translates as it did."""
    from rnnsearch.importers import import_joeynmt, import_opennmt_py

    importers = {"opennmt-py": import_opennmt_py, "joeynmt": import_joeynmt}
    made = importers[toolkit](checkpoint, output, source, target)
    say(
        f"{output}: {made.parameters:,} parameters ({made.encoder}, {made.decoder}), {made.vocabularies[0]:,} source "
        f"and {made.vocabularies[1]:,} target symbols; text must be cut into these as for {toolkit}"
    )


# `rnnsearch prune`: a model with most of its weights zero.

SIZES = {"fp32": 4, "bf16": 2}
"""Bytes of a number."""


def prune(
    model: Model,
    output: NewFolder,
    share: Annotated[
        float,
        typer.Option(help="Of all weights in matrices, from 0 to below 1, those pruned before among them."),
    ] = 0.8,
    scheme: Annotated[
        Literal["class-blind", "class-uniform", "class-distribution"],
        typer.Option(help="Which: the smallest of all, of each class, or by each class's standard deviation."),
    ] = "class-uniform",
) -> None:
    """Make a model folder whose weights nearest to zero are zero; training goes on from it with them staying so."""
    if not 0 <= share < 1:
        raise typer.BadParameter(f"--share must be at least 0 and below 1; got {share:g}")
    from rnnsearch.systems.pruning import prune
    from rnnsearch.utils.tables import columns

    made = prune(model, output, share, scheme)
    for line in [*columns(_classes(made)), "", *columns(_bytes(made))]:
        typer.echo(line)
    bound = {
        "class-blind": "those of a size up to {:.4g}",
        "class-distribution": "those up to {:.4g} standard deviations of their class",
    }
    told = "" if made.bound is None else f"; {bound[scheme].format(made.bound)}"
    say(f"{output}: {made.all.zeros / made.all.weights:.1%} of the weights are zero ({scheme}{told})")
    say(f'to train it on as it is: training.begin_from = "{output}" and training.keep_zeros = true')


def _classes(made: Pruning) -> list[list[str]]:
    rows = [["class", "weights", "zeros", "share"]]
    for one in (*made.classes, made.all):
        rows.append([one.name, f"{one.weights:,}", f"{one.zeros:,}", f"{one.zeros / one.weights:.1%}"])
    return [*rows, ["biases, vectors", f"{made.others:,}", "", "never"]]


def _bytes(made: Pruning) -> list[list[str]]:
    """What all weights weigh."""
    rows = [["bytes", "dense", "bitmask and values", "share"]]
    for name, size in SIZES.items():
        dense, sparse = made.weighed(size)
        rows.append([name, f"{dense:,}", f"{sparse:,}", f"{sparse / dense:.1%}"])
    return rows


# `rnnsearch reranker`: what chooses among the n best translations, learned from a dev set.


def reranker(
    model: Model,
    source: SourceFile,
    reference: TargetFile,
    output: NewFolder,
    reverse: Annotated[
        Path | None, typer.Option(help="A model folder of the other direction: how well it gives the source back.")
    ] = None,
    lm: Annotated[Path | None, typer.Option(help="A language model's folder, of any symbols.")] = None,
    method: Annotated[
        Literal["mert", "pro"], typer.Option(help="Minimum error rate training, or pairwise ranking optimisation.")
    ] = "mert",
    metric: Annotated[Literal["bleu", "chrf"], typer.Option(help="What is to be best.")] = "bleu",
    n_best: Annotated[
        int, typer.Option(min=2, max=MOST_BEAM, help="Translations to choose from; the model's beam grows to it.")
    ] = 10,
    threads: Threads = None,
    device: Device = "cpu",
) -> None:
    """Learn to choose among the n best translations of a dev set, for `translate --reranker`."""
    use_threads(threads)
    from rnnsearch.translator.loading import load
    from rnnsearch.translator.rerank import learn, load_features, require_free

    require_free(output)
    sources, references = both_lines(source, reference)
    features = load_features(reverse, lm, device)
    found = learn(load(model, device), sources, references, features, method, metric, n_best)
    found.reranker.save(output, reverse, lm)
    typer.echo(found.table(), nl=False)
    if found.after <= found.before:
        say(f"{output}: no better on the dev set than the order of the search")
