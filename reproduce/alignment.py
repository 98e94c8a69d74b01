"""Measure how well attention aligns words: error rates of attention mechanisms and priors, compared with eflomal.

    python reproduce/alignment.py                                   all systems, each trained until convergence
    python reproduce/alignment.py --systems additive symmetry       some of them (--list prints all names)
    python reproduce/alignment.py --epochs 6 --corpus bible-hbo-en  early learning: six epochs each

Each system is trained on the training verses of the corpus. Its attention to the REFERENCES of the test verses (forced
decoding) is then compared with manual alignments (Och & Ney 2003). Weights become links in several ways:

    argmax         the links of `rnnsearch align --by attention`: each target word and the source word with the highest
                   weight
    tuned          all links with a weight of at least t, where t minimises the error on the dev verses
    posterior      the same with weights conditioned on the target word itself, as in `rnnsearch align --by posterior`;
                   for the systems of --posterior
    bidirectional  for systems with two directions: tuned, on the mean of both directions' weights

eflomal (pip install eflomal; Östling & Tiedemann 2016) aligns the train, dev and test verses together; the table has
both of its directions and their symmetrisations. Systems named supervised-* learn from the manual alignments of the
TRAINING verses; no other system sees any. Training ends when the dev score stops improving, or after --epochs, and the
weights with the best dev score are evaluated: likelihood, or alignment error for supervised systems.

Output: table.md, alignment.json, and attention.png, the heat maps of one verse under every system. An interrupted run
resumes where it stopped; systems with a stored result are not trained again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    add_aligned_corpus_option,
    add_run_options,
    cached,
    catalog_data,
    eflomal_links,
    prepare_once,
    read_lines,
    resolve_config,
    train_or_resume,
)
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rnnsearch import config as run_config
from rnnsearch.config import RunConfig
from rnnsearch.data.corpora.catalog import CORPORA, get
from rnnsearch.data.prepared import Prepared
from rnnsearch.metrics.alignment_error import AlignmentScores, alignment_error
from rnnsearch.metrics.plots.figures import save
from rnnsearch.systems.card import load_training_facts
from rnnsearch.text.alignments import Link, Links, read_pharaoh
from rnnsearch.training.tasks import reverse_folder
from rnnsearch.translator.loading import load
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.files import write_json, write_text
from rnnsearch.utils.tables import as_markdown

Weights = NDArray[np.float32]
ALIGNER = "eflomal"
THRESHOLDS = tuple(np.round(np.arange(0.02, 1.0, 0.02), 2).tolist())


def attention(score: str = "additive", **options: Any) -> dict[str, Any]:
    """Return the complete `[model.attention]` table; options of another score must not remain."""
    return {"model": {"attention": {"score": score, **options}}}


def objective(**options: Any) -> dict[str, Any]:
    """Return the `[objective]` table."""
    return {"objective": options}


def features(*names: str, **options: Any) -> dict[str, Any]:
    """Return the tables of additive attention with features."""
    return attention(size=256, features=list(names), **options)


# As in `rnnsearch-small`: the learning rate is halved when the dev score does not improve, and training ends after
# three evaluations without improvement.
UNTIL_CONVERGENCE = {"max_epochs": 60}
LINEAR_DECAY = {
    "schedule": {"type": "linear", "warmup": 50, "patience": "unset", "factor": "unset"},
    "patience": "unset",
}
SUPERVISED = {"type": "cross-entropy", "weight": 2.0}
READ_WORD = {**SUPERVISED, "word": "read"}
# The conditional GRU attends after it has read the previous word, as supervision of the read word requires.
CONDITIONAL = {"model": {"decoder": {"type": "cgru", "cell": "gru", "size": 256, "readout": 128}}}
BY_ALIGNMENT_ERROR = {"training": {"metric": "aer"}}
BIASES = features("position", "markov", "fertility-local", neighbours=1)  # in the score, Cohn et al. (2016)
HARD = {"reinforce": {"baseline": "average", "decay": 0.9, "entropy": 0.01}}
# Tables merged into the base config (additive attention), one after the other. Each system changes only what its name
# says.
SYSTEMS: dict[str, list[dict[str, Any]]] = {
    "additive": [attention(size=256)],
    "dot": [attention("dot")],
    "scaled-dot": [attention("scaled-dot")],
    "general": [attention("general")],
    "concat": [attention("concat", size=256)],
    "multi-head-additive": [attention("multi-head-additive", size=256, heads=4)],
    "location": [attention("location", max_source=200)],
    "local-m": [attention(size=256, window="local-m", width=10)],
    "local-p": [attention(size=256, window="local-p", width=10)],
    "sparsemax": [attention(size=256, normaliser="sparsemax")],
    "entmax15": [attention(size=256, normaliser="entmax15")],
    "hard": [attention(size=256, normaliser="hard"), objective(**HARD)],
    "coverage-linguistic": [features("coverage-linguistic", fertility=2.0)],
    "coverage-neural": [features("coverage-neural", coverage_size=10)],
    "coverage-embedding": [features("coverage-embedding", coverage_size=30), objective(coverage=0.1)],
    "position": [features("position")],
    "markov": [features("markov", neighbours=1)],
    "fertility-local": [features("fertility-local", neighbours=1)],
    "fertility-global": [objective(fertility={"size": 128})],
    "doubly-stochastic": [objective(doubly_stochastic=0.5)],
    "fertility-global-finetuned": [attention(size=256), objective(fertility={"size": 128})],
    "cohn": [BIASES],
    "cohn-continued": [BIASES],
    "cohn-fertility": [BIASES, objective(fertility={"size": 128})],
    "cohn-fertility-finetuned": [BIASES, objective(fertility={"size": 128})],
    "symmetry": [objective(symmetry=1.0)],
    "cohn-symmetry": [BIASES, objective(symmetry=1.0)],
    "supervised-cross-entropy": [objective(supervision=SUPERVISED), BY_ALIGNMENT_ERROR],
    "supervised-squared-error": [
        objective(supervision={"type": "squared-error", "weight": 4.0}),
        BY_ALIGNMENT_ERROR,
    ],
    "cgru": [CONDITIONAL],
    "cgru-supervised": [CONDITIONAL, objective(supervision=SUPERVISED), BY_ALIGNMENT_ERROR],
    "cgru-supervised-read": [CONDITIONAL, objective(supervision=READ_WORD), BY_ALIGNMENT_ERROR],
    "cgru-supervised-read-symmetry": [
        CONDITIONAL,
        objective(supervision=READ_WORD, symmetry=1.0),
        BY_ALIGNMENT_ERROR,
    ],
    "supervised-end": [objective(supervision={**SUPERVISED, "unaligned": "end"}), BY_ALIGNMENT_ERROR],
    "supervised-symmetry": [objective(supervision=SUPERVISED, symmetry=1.0), BY_ALIGNMENT_ERROR],
    "supervised-cohn-symmetry": [BIASES, objective(supervision=SUPERVISED, symmetry=1.0), BY_ALIGNMENT_ERROR],
}
# Converged systems from whose weights others are fine-tuned: global fertility needs a model that already aligns.
# `cohn-continued` is the control without the penalty, which shows the effect of restarting the optimiser.
INITIAL_SYSTEMS = {
    "fertility-global-finetuned": "additive",
    "cohn-continued": "cohn",
    "cohn-fertility-finetuned": "cohn",
}


@dataclass(frozen=True)
class Result:
    """Alignment scores on the test verses, for one system and one method of extracting links."""

    system: str
    links: str
    """Method of extracting links."""
    aer: float
    precision: float
    recall: float
    proposed: int
    """Number of predicted links."""
    epochs: float | None
    """Training epochs; None for eflomal."""


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_aligned_corpus_option(parser)
    parser.add_argument(
        "--systems", nargs="+", default=[ALIGNER, *SYSTEMS], choices=[ALIGNER, *SYSTEMS], metavar="NAME"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the systems and exit")
    parser.add_argument("--epochs", type=float, help="train for so many epochs with linear decay of the learning rate")
    parser.add_argument(
        "--posterior",
        nargs="*",
        default=["additive", "symmetry", "supervised-cross-entropy"],
        choices=list(SYSTEMS),
        metavar="NAME",
        help="systems that are also scored with posterior weights",
    )
    parser.add_argument("--verse", type=int, default=48, help="index of the test verse in the heat maps, from 0")
    add_run_options(parser, output="runs/reproduce-alignment")
    return parser.parse_args()


def system_config(args: argparse.Namespace, system: str, epochs: float | None = None) -> RunConfig:
    """Return the resolved config of a system: a small RNNsearch on subwords with the system's changes.

    Args:
        epochs: Number of training epochs; None trains until convergence.
    """
    data = {**catalog_data(args.corpus), "cleaning": {"max_ratio": 9.0}}
    training = {
        "batch": {"tokens": 1200},
        "optimiser": {"type": "adam", "learning_rate": 2e-3},
        # Penalties add to the gradient of the likelihood; a low limit on the norm of the sum would slow down both.
        "clip_norm": 5.0,
        "max_length": 80,
        "dev_bleu": False,
        **(UNTIL_CONVERGENCE if epochs is None else LINEAR_DECAY | {"max_epochs": epochs}),
    }
    if system in INITIAL_SYSTEMS:
        training["begin_from"] = str(args.output / INITIAL_SYSTEMS[system])
    base = {
        "data": data,
        "text": {"type": "bpe", "vocabulary": 5000},
        # Decoder states are as large as annotations, which the dot score requires.
        "model": {"embedding": 128, "encoder": {"size": 128}, "decoder": {"size": 256, "maxout": 128}},
        "training": training,
    }
    tables = run_config.merge(run_config.preset("rnnsearch-small"), base)
    for changes in SYSTEMS[system]:
        tables = run_config.merge(tables, changes)
        for component in changes.get("model", {}):  # replaced as a whole: another score or decoder has other options
            tables["model"][component] = changes["model"][component]
    return resolve_config(system, tables, args.set)


def word_weights(translator: Translator, pairs: Sequence[tuple[str, str]], posterior: bool) -> list[Weights]:
    """Return the attention weights [target words, source words] of each pair under forced decoding."""
    sources = [source for source, _ in pairs]
    targets = [target for _, target in pairs]
    scored = translator.score(sources, targets, "posterior" if posterior else "attention")
    return [translation.word_attention for translation in scored if translation.word_attention is not None]


def links_above(weights: Weights, threshold: float) -> set[Link]:
    """Return the links whose weight is at least the threshold."""
    return {(int(i), int(j)) for j, i in zip(*np.nonzero(weights >= threshold), strict=True)}


def best_threshold(dev: Sequence[Weights], gold: Sequence[Links]) -> float:
    """Return the threshold with the lowest alignment error on the dev verses."""

    def error(threshold: float) -> float:
        return alignment_error([links_above(weights, threshold) for weights in dev], gold).aer

    return min(THRESHOLDS, key=error)


Parts = dict[str, tuple[list[tuple[str, str]], list[Links]]]
"""Sentence pairs and manual links of dev and test."""


def alignment_scores(folder: Path, parts: Parts, posterior: bool) -> dict[str, AlignmentScores]:
    """Return a system's test scores by method of extracting links."""
    prefix = "posterior " if posterior else ""
    forward = load(folder)
    weights = {part: word_weights(forward, pairs, posterior) for part, (pairs, _) in parts.items()}
    sources, targets = zip(*parts["test"][0], strict=True)
    argmax = map(set, forward.align(sources, targets, by="posterior" if posterior else "attention"))
    scores = {f"{prefix}argmax": alignment_error(list(argmax), parts["test"][1])}
    scores |= tuned_score(f"{prefix}tuned", weights, parts)
    reverse = reverse_folder(folder)
    if reverse.is_dir():
        backward = load(reverse)
        mean = dict[str, list[Weights]]()
        for part, (pairs, _) in parts.items():
            backward_weights = word_weights(backward, [(target, source) for source, target in pairs], posterior)
            mean[part] = [(f + b.T) / 2 for f, b in zip(weights[part], backward_weights, strict=True)]
        scores |= tuned_score(f"{prefix}bidirectional", mean, parts)
    return scores


def tuned_score(name: str, weights: dict[str, list[Weights]], parts: Parts) -> dict[str, AlignmentScores]:
    """Return the test score of all links above the threshold that is best on the dev verses."""
    threshold = best_threshold(weights["dev"], parts["dev"][1])
    links = [links_above(w, threshold) for w in weights["test"]]
    return {f"{name}, t = {threshold:g}": alignment_error(links, parts["test"][1])}


def train_system(args: argparse.Namespace, system: str, prepared: Prepared, epochs: float | None = None) -> Path:
    """Train a system, after the system that it is fine-tuned from, and return its folder."""
    if system in INITIAL_SYSTEMS:
        train_system(args, INITIAL_SYSTEMS[system], prepared, epochs)
    folder = args.output / system
    train_or_resume(system_config(args, system, epochs), prepared, folder, system)
    return folder


def run_system(args: argparse.Namespace, system: str) -> list[Result]:
    """Train a system, or resume its training, and align the test verses."""
    config = system_config(args, system, args.epochs)
    folder = args.output / system

    def compute(posterior: bool) -> list[dict[str, Any]]:
        prepared = prepare_once(config, args.output)
        train_system(args, system, prepared, args.epochs)
        parts: Parts = {
            "dev": ([(p.source, p.target) for p in prepared.dev], prepared.links("dev") or []),
            "test": ([(p.source, p.target) for p in prepared.test], prepared.links("test") or []),
        }
        epochs = load_training_facts(folder)["epochs"]
        scores = alignment_scores(folder, parts, posterior)
        return [result_fields(system, method, score, epochs) for method, score in scores.items()]

    rows = cached(folder / "alignment.json", lambda: compute(posterior=False))
    if system in args.posterior:
        rows += cached(folder / "posterior.json", lambda: compute(posterior=True))
    return [Result(**row) for row in rows]


def result_fields(system: str, method: str, score: AlignmentScores, epochs: float | None) -> dict[str, Any]:
    """Return a result as a dictionary."""
    return asdict(Result(system, method, score.aer, score.precision, score.recall, score.links, epochs))


def run_eflomal(args: argparse.Namespace) -> list[Result]:
    """Align the train, dev and test verses with eflomal and score the test verses."""
    folder = args.output / ALIGNER
    rows = cached(folder / "alignment.json", lambda: eflomal_results(args.corpus, folder))
    return [Result(**row) for row in rows]


def eflomal_results(name: str, folder: Path) -> list[dict[str, Any]]:
    """Return eflomal's scores by direction and symmetrisation method."""
    corpus_folder = get(name)
    texts = []
    for language in (CORPORA[name].source, CORPORA[name].target):
        parts = [read_lines(corpus_folder / f"{part}.{language}") for part in ("train", "dev", "test")]
        texts.append([line for part in parts for line in part])
    gold = read_pharaoh(corpus_folder / "test.align")
    results = eflomal_links(texts[0], texts[1], folder, last=len(gold))
    return [result_fields(ALIGNER, method, alignment_error(links, gold), None) for method, links in results.items()]


def table(results: Sequence[Result]) -> list[list[str]]:
    """Return a header and one row per result; argmax rows have the difference from the baseline."""
    base = next((r.aer for r in results if r.system == "additive" and r.links == "argmax"), None)
    rows = [["System", "Links", "AER", "vs. additive", "Precision", "Recall", "Predicted links", "Epochs"]]
    for r in results:
        difference = ""
        if base is not None and r.links == "argmax" and r.system not in ("additive", ALIGNER):
            difference = f"{100 * (r.aer - base):+.1f}"
        percentages = [f"{100 * value:.1f}" for value in (r.precision, r.recall)]
        epochs = "" if r.epochs is None else f"{r.epochs:.0f}"
        rows.append([r.system, r.links, f"{100 * r.aer:.1f}", difference, *percentages, f"{r.proposed:,}", epochs])
    return rows


def heat_maps(args: argparse.Namespace, systems: Sequence[str]) -> Figure:
    """Return the heat maps of one verse under every system, with source words above and target words on the left."""
    folder = get(args.corpus)
    corpus = CORPORA[args.corpus]
    source, target = (
        (folder / f"test.{language}").read_text(encoding="utf-8").split("\n")[args.verse].split()
        for language in (corpus.source, corpus.target)
    )
    pair = [(" ".join(source), " ".join(target))]
    panels = []
    for name in systems:
        for posterior in (False, True) if name in args.posterior else (False,):
            title = f"{name}, posterior" if posterior else name
            panels.append((title, word_weights(load(args.output / name), pair, posterior)[0]))
    columns = 5
    rows = -(-len(panels) // columns)
    cell = 0.19  # inches
    size = (1.0 + columns * (len(source) * cell + 0.25), rows * (len(target) * cell + 0.4) + 1.0)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for index, axes in enumerate(grid.flat):
        if index >= len(panels):
            axes.axis("off")
            continue
        title, weights = panels[index]
        axes.imshow(weights, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest", aspect="auto")
        axes.set_title(title, fontsize=8)
        axes.tick_params(length=0, labelsize=7)
        axes.set_xticks(range(len(source)), source if index < columns else [], rotation=60, ha="left")
        axes.set_yticks(range(len(target)), target if index % columns == 0 else [])
        axes.xaxis.tick_top()
    return figure


def main() -> None:
    """Train and align with all systems; the table is rewritten after each of them."""
    args = parse_arguments()
    if args.list:
        sys.stdout.write("".join(f"{name}\n" for name in (ALIGNER, *SYSTEMS)))
        return
    results: list[Result] = []
    for system in args.systems:
        results += run_eflomal(args) if system == ALIGNER else run_system(args, system)
        write_text(args.output / "table.md", as_markdown(table(results)))
        write_json(args.output / "alignment.json", [asdict(r) for r in results])
    models = [system for system in args.systems if system != ALIGNER]
    if models:
        save(heat_maps(args, models), args.output / "attention.png")
    sys.stdout.write(f"{as_markdown(table(results))}\n")


if __name__ == "__main__":
    main()
