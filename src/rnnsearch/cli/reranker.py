"""`rnnsearch reranker`: what chooses among the n best translations, learned from a dev set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rnnsearch.cli.io import both_lines, say, use_threads
from rnnsearch.cli.options import MOST_BEAM, Device, Model, NewFolder, SourceFile, TargetFile, Threads


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
    from rnnsearch.loading import load
    from rnnsearch.rerank import learn, load_features, require_free

    require_free(output)
    sources, references = both_lines(source, reference)
    features = load_features(reverse, lm, device)
    found = learn(load(model, device), sources, references, features, method, metric, n_best)
    found.reranker.save(output, reverse, lm)
    typer.echo(found.table(), nl=False)
    if found.after <= found.before:
        say(f"{output}: no better on the dev set than the order of the search")
