"""Measure how far back gradients reach in language models with different recurrent cells (vanishing gradients).

    python reproduce/gradients.py
    python reproduce/gradients.py --cells tanh lstm --length 60 --set training.max_updates=2000

A language model with each cell is trained on the target side of the corpus. The figure shows the norm of the gradient
of -log p(y_i) with respect to the embedding of y_{i-k}, by the distance k, averaged over dev sentences of at least
`--length` tokens and relative to the norm at distance 1: before training, and after it. Gates are meant to keep it from
vanishing (Hochreiter & Schmidhuber 1997; Cho et al. 2014).

Output: table.md (norms by distance, and the dev NLL), gradients.png, and one model folder per cell. An interrupted run
resumes where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

import torch
from common import add_run_options, prepare_once, resolve_config, train_or_resume
from matplotlib.figure import Figure

from rnnsearch.config import RunConfig, cells
from rnnsearch.data.batch import EmbeddingInput
from rnnsearch.data.corpora.catalog import CORPORA, get
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import RnnsearchError
from rnnsearch.metrics.plots.figures import LIGHT, legend, line_style, save, stacked_axes
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.systems.card import best_evaluation, load_training_facts
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.language import LanguageSystem
from rnnsearch.text.vocabulary import BOS
from rnnsearch.utils.files import write_text
from rnnsearch.utils.tables import as_markdown

STAGES = ("before training", "after training")
TABLE_DISTANCES = (1, 2, 5, 10, 20, 30, 40, 50)
Norms = Mapping[str, Sequence[float]]
"""Relative norm at the distances 1, 2, ... of each cell."""


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="bible-grc-en", choices=sorted(CORPORA))
    parser.add_argument("--cells", nargs="+", default=["tanh", "gru", "lstm"], choices=sorted(cells.CELLS))
    parser.add_argument("--length", type=int, default=31, help="number of tokens of the measured sentences")
    parser.add_argument("--size", type=int, default=256, help="size of the embeddings and of the state")
    parser.add_argument("--updates", type=int, default=1000)
    add_run_options(parser, output="runs/reproduce-gradients")
    args = parser.parse_args()
    if args.length < 2:
        parser.error("--length must be at least 2")
    return args


def cell_config(args: argparse.Namespace, cell: str) -> RunConfig:
    """Return the config of the language model with a cell."""
    folder = get(args.corpus)
    language = CORPORA[args.corpus].target
    data = {"target": language, "train": [str(folder / f"train.{language}")], "dev": str(folder / f"dev.{language}")}
    tables = {
        "preset": "lm-lstm",
        "data": data | {"test_size": 0},
        "text": {"vocabulary": 4000},
        "model": {"embedding": args.size, "network": {"type": "recurrent", "cell": cell, "size": args.size}},
        "training": {"max_updates": args.updates, "seed": 1},
    }
    return resolve_config(cell, tables, args.set)


def read_sentences(prepared: Prepared, system: LanguageSystem, length: int) -> torch.Tensor:
    """Return the first tokens of all dev sentences that are long enough, [sentences, length].

    Raises:
        RnnsearchError: There is none.
    """
    tokenizer = system.target
    lines = [row.target for row in prepared.dev]
    ids = [sentence.ids[:length] for sentence in tokenizer.segment(lines) if len(sentence.ids) >= length]
    if not ids:
        raise RnnsearchError(f"--length must be at most that of the longest dev sentence; got {length}")
    return torch.tensor(ids)


def gradient_norms(model: LanguageModel, sentences: torch.Tensor) -> list[float]:
    """Return the mean norm of the gradient of -log p(y_i) with respect to the embedding of y_{i-k}, k = 1, 2, ...

    y_i is the last token of each sentence. Norms are relative to the one at k = 1.
    """
    model.requires_grad_(False)
    previous = torch.cat([torch.full_like(sentences[:, :1], BOS), sentences[:, :-1]], dim=1)  # [N, I]
    x = model.embedding(EmbeddingInput(previous)).requires_grad_()  # [N, I, E]
    last_readout = model.network.unroll(x)[:, -1]
    log_probs = model.output.log_probs(last_readout)  # [N, V]
    log_probs.gather(1, sentences[:, -1:]).sum().neg().backward()
    assert x.grad is not None
    norms = x.grad.norm(dim=-1).mean(0)  # [I], BOS first
    by_distance = norms[1:].flip(0)
    return (by_distance / by_distance[0]).tolist()


def plot_norms(stages: Mapping[str, Norms]) -> Figure:
    """Plot the norms by distance, a panel per stage and a line per cell."""
    figure, column = stacked_axes(LIGHT, list(stages), [1] * len(stages), 5.5)
    for axes, norms in zip(column, stages.values(), strict=True):
        for index, values in enumerate(norms.values()):
            axes.plot(range(1, len(values) + 1), values, markersize=3, **line_style(LIGHT, index))
        axes.set_yscale("log")
    column[-1].set_xlabel("distance in tokens")
    legend(column[0], LIGHT, list(stages[STAGES[0]]))
    return figure


def norm_rows(stages: Mapping[str, Norms], dev_nll: Mapping[str, float]) -> list[list[str]]:
    """Return a header and a row for each cell and stage."""
    num_distances = len(next(iter(stages[STAGES[0]].values())))
    distances = [distance for distance in TABLE_DISTANCES if distance <= num_distances]
    rows = [["Cell", "Stage", *map(str, distances), "Dev NLL"]]
    for stage, norms in stages.items():
        for cell, values in norms.items():
            nll = f"{dev_nll[cell]:.1f}" if stage == STAGES[1] else ""
            rows.append([cell, stage, *(f"{values[distance - 1]:.2g}" for distance in distances), nll])
    return rows


def main() -> None:
    """Train the models, measure the gradients, and write the table and the figure."""
    args = parse_arguments()
    args.output = args.output.absolute()
    stages: dict[str, dict[str, list[float]]] = {stage: {} for stage in STAGES}
    dev_nll = {}
    for cell in args.cells:
        config = cell_config(args, cell)
        prepared = prepare_once(config, args.output)
        folder = args.output / cell
        train_or_resume(config, prepared, folder, cell)
        trained = load_system(folder)
        assert isinstance(trained, LanguageSystem)
        untrained = LanguageSystem.make(config, trained.tokenizers, config.training.seed)
        sentences = read_sentences(prepared, trained, args.length)
        for stage, system in zip(STAGES, (untrained, trained), strict=True):
            stages[stage][cell] = gradient_norms(system.model, sentences)
        dev_nll[cell] = best_evaluation(load_training_facts(folder))["dev_nll"]
    table = as_markdown(norm_rows(stages, dev_nll), left=(0, 1))
    write_text(args.output / "table.md", table)
    save(plot_norms(stages), args.output / "gradients.png")
    sys.stdout.write(table)


if __name__ == "__main__":
    main()
