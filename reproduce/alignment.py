"""How well attention aligns: the error rate of each kind of attention and each prior, beside an aligner of PyPI.

    python reproduce/alignment.py                                   all systems, each trained to its end
    python reproduce/alignment.py --systems additive symmetry       some of them (--list names all)
    python reproduce/alignment.py --epochs 6 --corpus bible-hbo-en  what is learned early: six epochs each

Every system is trained on the corpus's training verses; its attention to the REFERENCES of the test verses (forced
decoding) is then compared with the alignments made by hand (Och & Ney 2003). Three ways from weights to links:

    argmax     what `rnnsearch align --by attention` makes: each target word to the source word attended to most
    tuned      every link with at least a weight t, where t has the lowest error on the dev verses
    posterior  the same of some systems (--posterior), with weights given the target word itself, as
               `rnnsearch align --by posterior` makes them
    both       of systems with two directions: t again, over the mean of the two directions' weights

`eflomal` (pip install eflomal; Ostling & Tiedemann 2016) aligns train, dev and test verses together, for it needs no
labels; its two directions are shown alone and combined. Systems called supervised-* learn from the TRAINING verses'
manual links; all others see no link. Each is trained until its dev score no longer gets better, or for --epochs, and is
the best of its own run by that score: likelihood, or alignment error where it is supervised. Results go into --output:
table.md, alignment.json and attention.png, heat maps of one verse under every system.
Interrupted, it goes on where it stopped; a system with a result is not trained again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import add_aligned, add_run, eflomal, kept, lines, listed, prepared_once, resolved, trained
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rnnsearch import config as run_config
from rnnsearch.config import RunConfig
from rnnsearch.data.catalog import CORPORA, get
from rnnsearch.data.prepared import Prepared
from rnnsearch.files import write_json, write_text
from rnnsearch.loading import load
from rnnsearch.metrics.alignment_error import AlignmentScores, alignment_error
from rnnsearch.plots.figures import save
from rnnsearch.systems.card import training_facts
from rnnsearch.text.alignments import Link, Links, read_pharaoh
from rnnsearch.text.columns import as_markdown
from rnnsearch.training.tasks import reverse_folder
from rnnsearch.translate import Translator

Weights = NDArray[np.float32]
ALIGNER = "eflomal"
THRESHOLDS = tuple(np.round(np.arange(0.02, 1.0, 0.02), 2).tolist())


def attention(score: str = "additive", **options: Any) -> dict[str, Any]:
    """`[model.attention]` whole, for no option of another score may stay."""
    return {"model": {"attention": {"score": score, **options}}}


def objective(**options: Any) -> dict[str, Any]:
    """`[objective]`."""
    return {"objective": options}


def features(*names: str, **options: Any) -> dict[str, Any]:
    """Additive attention with features."""
    return attention(size=256, features=list(names), **options)


TO_THE_END = {"max_epochs": 60}
"""And as `rnnsearch-small` has it: the rate is halved where the dev score does not get better, three times without a
better one are the end."""
FALLING = {
    "schedule": {"type": "linear", "warmup": 50, "patience": "unset", "factor": "unset"},
    "patience": "unset",
}
SUPERVISED = {"type": "cross-entropy", "weight": 2.0}
READ = {**SUPERVISED, "word": "read"}
CONDITIONAL = {"model": {"decoder": {"type": "cgru", "cell": "gru", "size": 256, "readout": 128}}}
"""Its attention has read the word before, as links of read words need."""
BY_ERROR = {"training": {"metric": "aer"}}
BIASES = features("position", "markov", "fertility-local", neighbours=1)
"""Those of Cohn et al. (2016) inside the score."""
HARD = {"reinforce": {"baseline": "average", "decay": 0.9, "entropy": 0.01}}
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
    "fertility-global-after": [attention(size=256), objective(fertility={"size": 128})],
    "cohn": [BIASES],
    "cohn-again": [BIASES],
    "cohn-fertility": [BIASES, objective(fertility={"size": 128})],
    "cohn-fertility-after": [BIASES, objective(fertility={"size": 128})],
    "symmetry": [objective(symmetry=1.0)],
    "cohn-symmetry": [BIASES, objective(symmetry=1.0)],
    "supervised-cross-entropy": [objective(supervision=SUPERVISED), BY_ERROR],
    "supervised-squared-error": [objective(supervision={"type": "squared-error", "weight": 4.0}), BY_ERROR],
    "cgru": [CONDITIONAL],
    "cgru-supervised": [CONDITIONAL, objective(supervision=SUPERVISED), BY_ERROR],
    "cgru-supervised-read": [CONDITIONAL, objective(supervision=READ), BY_ERROR],
    "cgru-supervised-read-symmetry": [CONDITIONAL, objective(supervision=READ, symmetry=1.0), BY_ERROR],
    "supervised-end": [objective(supervision={**SUPERVISED, "unaligned": "end"}), BY_ERROR],
    "supervised-symmetry": [objective(supervision=SUPERVISED, symmetry=1.0), BY_ERROR],
    "supervised-cohn-symmetry": [BIASES, objective(supervision=SUPERVISED, symmetry=1.0), BY_ERROR],
}
"""Tables laid one after the other on the base, additive attention; each system changes only what it is named after."""
BEGINS = {"fertility-global-after": "additive", "cohn-again": "cohn", "cohn-fertility-after": "cohn"}
"""The system that one begins from, trained to its end: global fertility is for a model that aligns already. `again` is
the same without it, to tell what beginning anew does."""


@dataclass(frozen=True)
class Result:
    """What one system, or one way from its weights to links, scores on the test verses."""

    system: str
    links: str
    """How the links were made."""
    aer: float
    precision: float
    recall: float
    proposed: int
    epochs: float | None
    """Of training; the aligner has none."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_aligned(parser)
    parser.add_argument(
        "--systems", nargs="+", default=[ALIGNER, *SYSTEMS], choices=[ALIGNER, *SYSTEMS], metavar="NAME"
    )
    parser.add_argument("--list", action="store_true", help="name the systems")
    parser.add_argument("--epochs", type=float, help="train for so many, the rate falling to 0, not to the end")
    parser.add_argument(
        "--posterior",
        nargs="*",
        default=["additive", "symmetry", "supervised-cross-entropy"],
        choices=list(SYSTEMS),
        metavar="NAME",
        help="systems scored with posterior weights too",
    )
    parser.add_argument("--verse", type=int, default=48, help="number of the test verse in the heat maps, from 0")
    add_run(parser, output="runs/reproduce-alignment")
    return parser.parse_args()


def system_config(args: argparse.Namespace, system: str, epochs: float | None = None) -> RunConfig:
    """One system's resolved config: the small RNNsearch on subwords, with what the system changes, trained for epochs
    or, without, to its end."""
    data = {**listed(args.corpus), "cleaning": {"max_ratio": 9.0}}
    training = {
        "batch": {"tokens": 1200},
        "optimiser": {"type": "adam", "learning_rate": 2e-3},
        # A penalty's gradient beside the likelihood's: a low limit on the norm of both would slow down both.
        "clip_norm": 5.0,
        "max_length": 80,
        "dev_bleu": False,
        **({"begin_from": str(args.output / BEGINS[system])} if system in BEGINS else {}),
        **(TO_THE_END if epochs is None else FALLING | {"max_epochs": epochs}),
    }
    base = {
        "data": data,
        "text": {"type": "bpe", "vocabulary": 5000},
        # As many decoder units as numbers in an annotation, so that every score can be had.
        "model": {"embedding": 128, "encoder": {"size": 128}, "decoder": {"size": 256, "maxout": 128}},
        "training": training,
    }
    tables = run_config.merge(run_config.preset("rnnsearch-small"), base)
    for over in SYSTEMS[system]:
        tables = run_config.merge(tables, over)
        for part in over.get("model", {}):  # as a whole: another score or decoder has other options
            tables["model"][part] = over["model"][part]
    return resolved(system, tables, args.set)


def word_weights(translator: Translator, pairs: Sequence[tuple[str, str]], posterior: bool) -> list[Weights]:
    """Attention over words [target words, source words] of each pair, forced."""
    scored = translator.score([s for s, _ in pairs], [t for _, t in pairs], "posterior" if posterior else "attention")
    return [t.word_attention for t in scored if t.word_attention is not None]


def above(weights: Weights, threshold: float) -> set[Link]:
    """Links of at least a weight."""
    return {(int(i), int(j)) for j, i in zip(*np.nonzero(weights >= threshold), strict=True)}


def tuned(dev: Sequence[Weights], gold: Sequence[Links]) -> float:
    """The threshold of lowest error on the dev verses."""
    return min(THRESHOLDS, key=lambda t: alignment_error([above(w, t) for w in dev], gold).aer)


Parts = dict[str, tuple[list[tuple[str, str]], list[Links]]]
"""Texts and manual links of dev and test."""


def ways(folder: Path, parts: Parts, posterior: bool) -> dict[str, AlignmentScores]:
    """The test scores of each way from a system's weights to links."""
    reverse, kind = reverse_folder(folder), "posterior " if posterior else ""
    forward = load(folder)
    weights = {part: word_weights(forward, pairs, posterior) for part, (pairs, _) in parts.items()}
    sources, targets = zip(*parts["test"][0], strict=True)
    argmax = map(set, forward.align(sources, targets, by="posterior" if posterior else "attention"))
    scores = {f"{kind}argmax": alignment_error(list(argmax), parts["test"][1])}
    _add_tuned(scores, f"{kind}tuned", weights, parts)
    if reverse.is_dir():
        backward, mean = load(reverse), dict[str, list[Weights]]()
        for part, (pairs, _) in parts.items():
            back = word_weights(backward, [(t, s) for s, t in pairs], posterior)
            mean[part] = [(w + b.T) / 2 for w, b in zip(weights[part], back, strict=True)]
        _add_tuned(scores, f"{kind}both", mean, parts)
    return scores


def _add_tuned(scores: dict[str, AlignmentScores], name: str, of: dict[str, list[Weights]], parts: Parts) -> None:
    """The score of all links above the threshold that is best on the dev verses."""
    threshold = tuned(of["dev"], parts["dev"][1])
    links = [above(w, threshold) for w in of["test"]]
    scores[f"{name}, t = {threshold:g}"] = alignment_error(links, parts["test"][1])


def learned(args: argparse.Namespace, system: str, prepared: Prepared, epochs: float | None = None) -> Path:
    """The folder of a system, trained, after what it begins from."""
    if system in BEGINS:
        learned(args, BEGINS[system], prepared, epochs)
    folder = args.output / system
    trained(system_config(args, system, epochs), prepared, folder, system)
    return folder


def run_system(args: argparse.Namespace, system: str) -> list[Result]:
    """Train (or go on with) one system and align the test verses."""
    config, folder = system_config(args, system, args.epochs), args.output / system

    def found(posterior: bool) -> list[dict[str, Any]]:
        prepared = prepared_once(config, args.output)
        learned(args, system, prepared, args.epochs)
        parts: Parts = {
            "dev": ([(p.source, p.target) for p in prepared.dev], prepared.links("dev") or []),
            "test": ([(p.source, p.target) for p in prepared.test], prepared.links("test") or []),
        }
        epochs = training_facts(folder)["epochs"]
        return [_row(system, *way, epochs) for way in ways(folder, parts, posterior).items()]

    rows = kept(folder / "alignment.json", lambda: found(posterior=False))
    if system in args.posterior:
        rows += kept(folder / "posterior.json", lambda: found(posterior=True))
    return [Result(**row) for row in rows]


def _row(system: str, how: str, score: AlignmentScores, epochs: float | None) -> dict[str, Any]:
    return asdict(Result(system, how, score.aer, score.precision, score.recall, score.links, epochs))


def run_aligner(args: argparse.Namespace) -> list[Result]:
    """eflomal on train, dev and test verses together, scored on the test verses."""
    folder = args.output / ALIGNER
    return [Result(**row) for row in kept(folder / "alignment.json", lambda: _aligner(args.corpus, folder))]


def _aligner(name: str, folder: Path) -> list[dict[str, Any]]:
    place, corpus = get(name), CORPORA[name]
    sides = [
        [line for part in ("train", "dev", "test") for line in lines(place / f"{part}.{language}")]
        for language in (corpus.source, corpus.target)
    ]
    gold = read_pharaoh(place / "test.align")
    links = eflomal(sides[0], sides[1], folder, last=len(gold))
    return [_row(ALIGNER, method, alignment_error(found, gold), None) for method, found in links.items()]


def table(results: Sequence[Result]) -> list[list[str]]:
    """One row a system and way, the baseline's difference beside each neural system's argmax."""
    base = next((r.aer for r in results if r.system == "additive" and r.links == "argmax"), None)
    rows = [["System", "Links", "AER", "against additive", "Precision", "Recall", "Links proposed", "Epochs"]]
    for r in results:
        compared = base is not None and r.links == "argmax" and r.system not in ("additive", ALIGNER)
        difference = f"{100 * (r.aer - base):+.1f}" if compared and base is not None else ""
        shares = [f"{100 * share:.1f}" for share in (r.precision, r.recall)]
        epochs = "" if r.epochs is None else f"{r.epochs:.0f}"
        rows.append([r.system, r.links, f"{100 * r.aer:.1f}", difference, *shares, f"{r.proposed:,}", epochs])
    return rows


def heat_maps(args: argparse.Namespace, systems: Sequence[str]) -> Figure:
    """One verse under every system, side by side; the target's words stand left of each row, the source's above."""
    place, corpus = get(args.corpus), CORPORA[args.corpus]
    source, target = (
        (place / f"test.{language}").read_text(encoding="utf-8").split("\n")[args.verse].split()
        for language in (corpus.source, corpus.target)
    )
    pair = [(" ".join(source), " ".join(target))]
    panels = [
        (f"{name}, posterior" if posterior else name, word_weights(load(args.output / name), pair, posterior)[0])
        for name in systems
        for posterior in ((False, True) if name in args.posterior else (False,))
    ]
    columns = 5
    rows = -(-len(panels) // columns)
    cell = 0.19
    size = (1.0 + columns * (len(source) * cell + 0.25), rows * (len(target) * cell + 0.4) + 1.0)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.axis("off")
            continue
        title, weights = panels[number]
        axes.imshow(weights, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest", aspect="auto")
        axes.set_title(title, fontsize=8)
        axes.tick_params(length=0, labelsize=7)
        axes.set_xticks(range(len(source)), source if number < columns else [], rotation=60, ha="left")
        axes.set_yticks(range(len(target)), target if number % columns == 0 else [])
        axes.xaxis.tick_top()
    return figure


def main() -> None:
    """Train, align and write; the table is written anew after each system."""
    args = arguments()
    if args.list:
        sys.stdout.write("".join(f"{name}\n" for name in (ALIGNER, *SYSTEMS)))
        return
    results: list[Result] = []
    networks = [system for system in args.systems if system != ALIGNER]
    for system in args.systems:
        results += run_aligner(args) if system == ALIGNER else run_system(args, system)
        write_text(args.output / "table.md", as_markdown(table(results)))
        write_json(args.output / "alignment.json", [asdict(r) for r in results])
    if networks:
        save(heat_maps(args, networks), args.output / "attention.png")
    sys.stdout.write(f"{as_markdown(table(results))}\n")


if __name__ == "__main__":
    main()
