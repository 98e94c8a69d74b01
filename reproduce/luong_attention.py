"""Reproduce table 4 of Luong, Pham & Manning (2015) on freely available data: a comparison of attention architectures.

    python reproduce/luong_attention.py                   Tatoeba English-German, laptop-sized models
    python reproduce/luong_attention.py --systems "global (dot)" "local-p (general)"    some of the systems
    python reproduce/luong_attention.py --corpus bible-grc-en                           with alignment error rates

Other options are those of luong.py. Every system has the source reversed, dropout and input feeding; only the
attention differs. table-4.md has the test perplexity, BLEU before and after unknown words are replaced by the source
words that they attend to, the difference from the first system with a paired bootstrap test, and the paper's BLEU.

For a corpus with word alignments it also has the alignment error rate (table 6) of attention at the step that predicts
a word and at the next step, which has read the word. The paper uses the former for the location score only (footnote
14). The last row is the ensemble of all systems (the paper's ensemble of eight is in table 1: 23.0 with unknown words
replaced).

If the output folder is that of luong.py, the two systems that are steps of its table are not trained again. An
interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common import (
    add_data_options,
    add_run_options,
    cached,
    prepare_once,
    require_known,
    sources_and_references,
)
from luong import (
    LOCAL,
    LOCATION,
    PRESETS,
    Step,
    run_step,
    step_config,
    translate_and_score,
    without_translations,
)

from rnnsearch.data.prepared import Prepared
from rnnsearch.metrics.alignment_error import alignment_error
from rnnsearch.metrics.scores import corpus_bleu
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.text.alignment_types import AlignedBy
from rnnsearch.translator.loading import load
from rnnsearch.utils.files import write_json, write_text
from rnnsearch.utils.tables import as_markdown


def attention_system(name: str, folder: str, attention: dict[str, Any], paper: float | None) -> Step:
    """Return a system of the table.

    Args:
        paper: BLEU in the paper without replacement of unknown words; None if it did not learn there.
    """
    return Step(name, folder, True, True, attention, "luong-input-feeding", paper)


DOT = {"score": "dot"}
GENERAL = {"score": "general"}
LOCAL_M = {"window": "local-m", "width": LOCAL["width"]}
LOCAL_P = {"window": "local-p", "width": LOCAL["width"]}
SYSTEMS = (
    attention_system("global (location)", "feeding", LOCATION, 18.1),
    attention_system("global (dot)", "global-dot", DOT, 18.6),
    attention_system("global (general)", "global-general", GENERAL, 17.3),
    attention_system("local-m (dot)", "local-m-dot", DOT | LOCAL_M, None),
    attention_system("local-m (general)", "local-m-general", GENERAL | LOCAL_M, 18.6),
    attention_system("local-p (dot)", "local-p-dot", DOT | LOCAL_P, 18.0),
    attention_system("local-p (general)", "local", LOCAL, 19.0),
)
ALIGNMENT_METHODS: tuple[AlignedBy, ...] = ("attention", "read")  # at the predicting step, and at the next one


@dataclass(frozen=True)
class Result:
    """Test scores of one system."""

    name: str
    perplexity: float
    bleu: float
    bleu_replaced: float
    """BLEU with unknown words replaced."""
    aer: list[float] | None
    """Alignment error rates of attention to the references, at the predicting step and at the next one (not available
    for an ensemble); None if the corpus has no links."""
    paper: str
    """BLEU in the paper."""
    translations: tuple[str, ...]
    """Translations with `<unk>`."""


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [system.name for system in SYSTEMS]
    add_data_options(parser, corpus="tatoeba-en-de")
    parser.add_argument("--systems", nargs="+", default=names, metavar="SYSTEM", help=", ".join(names))
    parser.add_argument("--minutes", type=float, help="maximum training time of each system")
    parser.add_argument("--size", choices=sorted(PRESETS), default="small")
    add_run_options(parser, output="runs/reproduce-luong")
    args = parser.parse_args()
    require_known(parser, "system", args.systems, names)
    return args


def run_system(args: argparse.Namespace, system: Step) -> Result:
    """Train a system, or resume its training, and score its test translations."""
    path = args.output / system.folder / "table-4.json"
    return Result(**cached(path, lambda: asdict(compute_result(args, system))))


def compute_result(args: argparse.Namespace, system: Step) -> Result:
    """Return the result of a system that has no stored one."""
    step = run_step(args, system)
    prepared = prepare_once(step_config(args, system), args.output)
    bleu_replaced, aer = score_replaced_and_aligned(prepared, args.output / system.folder, ALIGNMENT_METHODS)
    paper = "did not learn" if system.paper is None else f"{system.paper:.1f}"
    return Result(system.name, step.perplexity, step.bleu, bleu_replaced, aer, paper, tuple(step.translations))


def run_ensemble(args: argparse.Namespace, systems: Sequence[Step]) -> Result:
    """Score the ensemble of the trained systems."""
    folders = [args.output / system.folder for system in systems]
    prepared = prepare_once(step_config(args, systems[0]), args.output)
    bleu_replaced, aer = score_replaced_and_aligned(prepared, folders, ALIGNMENT_METHODS[:1])
    translations, perplexity = translate_and_score(load(folders), prepared)
    _, references = sources_and_references(prepared.test)
    bleu = corpus_bleu(list(translations), references, prepared.direction.target)
    return Result(f"ensemble of all {len(systems)}", perplexity, bleu, bleu_replaced, aer, "", translations)


def score_replaced_and_aligned(
    prepared: Prepared, model: Path | Sequence[Path], methods: Sequence[AlignedBy]
) -> tuple[float, list[float] | None]:
    """Return BLEU with unknown words replaced, and the alignment error rate of each method if the corpus has links."""
    sources, references = sources_and_references(prepared.test)
    gold = prepared.links("test")
    replaced = load(model, replace_unknown="copy").translate(sources)
    bleu = corpus_bleu([translation.text for translation in replaced], references, prepared.direction.target)
    if gold is None:
        return bleu, None
    translator = load(model)
    error_rates = []
    for method in methods:
        links = [set(pair) for pair in translator.align(sources, references, by=method)]
        error_rates.append(alignment_error(links, gold).aer)
    return bleu, error_rates


def table(results: Sequence[Result], references: Sequence[str], language: str) -> list[list[str]]:
    """Return a header and one row per system."""
    header = ["System", "Test perplexity", "BLEU", "UNK replaced", "Difference in BLEU", "p", "BLEU in the paper"]
    if any(r.aer is not None for r in results):
        header += ["AER, predicting step", "AER, next step"]
    rows = [header]
    first = results[0]
    for r in results:
        difference = p_value = ""
        if r is not first:
            bleu = paired_bootstrap(r.translations, first.translations, references, language=language)["BLEU"]
            difference = f"{r.bleu - first.bleu:+.1f}"
            p_value = f"{bleu.p_value:.3f}"
        row = [r.name, f"{r.perplexity:.2f}", f"{r.bleu:.1f}", f"{r.bleu_replaced:.1f}", difference, p_value, r.paper]
        row += [f"{100 * aer:.1f}" for aer in r.aer or ()]
        rows.append([*row, *[""] * (len(header) - len(row))])
    return rows


def main() -> None:
    """Train and score all systems; the table is rewritten after each of them."""
    args = parse_arguments()
    systems = [system for system in SYSTEMS if system.name in args.systems]
    computations = [partial(run_system, args, system) for system in systems]
    if len(systems) > 1:
        computations.append(partial(run_ensemble, args, systems))
    prepared = prepare_once(step_config(args, systems[0]), args.output)
    _, references = sources_and_references(prepared.test)
    results = list[Result]()
    text = ""
    for compute in computations:
        results.append(compute())
        text = as_markdown(table(results, references, prepared.direction.target))
        write_text(args.output / "table-4.md", text)
    write_json(args.output / "luong-attention.json", [without_translations(asdict(r)) for r in results])
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
