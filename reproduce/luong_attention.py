"""The attention architectures of Luong, Pham & Manning (2015), table 4, beside one another, on data anyone can have.

    python reproduce/luong_attention.py                   Tatoeba English-German, laptop sizes
    python reproduce/luong_attention.py --systems "global (dot)" "local-p (general)"    some of them
    python reproduce/luong_attention.py --corpus bible-grc-en                           with alignment error rates

and the other options of luong.py. Every system has the source reversed, dropout and input feeding; only its attention
changes. table-4.md gets perplexity and BLEU of the test set, before and after unknown words are replaced by those that
they attend to, each system's difference from the first with a paired bootstrap, and the paper's BLEU. Of a corpus with
word alignments it also gets the error rate of each system's (table 6), of attention at the position that predicts a
word and at the one after it, which has read it: the paper takes the first with the location score alone (footnote 14).
The last row is their ensemble (the paper's, of eight, is in table 1: 23.0 with unknown words replaced).
In the folder of luong.py's results the two systems that are steps of the ladder are not trained again. Interrupted, it
goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common import add_data, add_run, kept, prepared_once, require_known, sides
from luong import LOCAL, LOCATION, PRESETS, Rung, run_rung, rung_config, translated

from rnnsearch.data.prepared import Prepared
from rnnsearch.files import write_json, write_text
from rnnsearch.loading import load
from rnnsearch.metrics.alignment_error import alignment_error
from rnnsearch.metrics.bleu_chrf_ter import corpus_bleu
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.text.columns import as_markdown
from rnnsearch.text.spans import AlignedBy


def _system(name: str, folder: str, attention: dict[str, Any], paper: float | None) -> Rung:
    """paper: its BLEU there, unknown words not replaced; None where it did not learn."""
    return Rung(name, folder, True, True, attention, "luong-input-feeding", paper)


DOT, GENERAL = {"score": "dot"}, {"score": "general"}
LOCAL_M, LOCAL_P = {"window": "local-m", "width": LOCAL["width"]}, {"window": "local-p", "width": LOCAL["width"]}
SYSTEMS = (
    _system("global (location)", "feeding", LOCATION, 18.1),
    _system("global (dot)", "global-dot", DOT, 18.6),
    _system("global (general)", "global-general", GENERAL, 17.3),
    _system("local-m (dot)", "local-m-dot", DOT | LOCAL_M, None),
    _system("local-m (general)", "local-m-general", GENERAL | LOCAL_M, 18.6),
    _system("local-p (dot)", "local-p-dot", DOT | LOCAL_P, 18.0),
    _system("local-p (general)", "local", LOCAL, 19.0),
)


WAYS: tuple[AlignedBy, ...] = ("attention", "read")
"""Attention at the position that predicts a word, and at the one that has read it."""


@dataclass(frozen=True)
class Result:
    """What one architecture scores on the test set."""

    name: str
    perplexity: float
    before: float
    """BLEU."""
    after: float
    """BLEU with unknown words replaced."""
    aer: list[float] | None
    """Of its attention, given the references: where a word is predicted, and where it was read (which an ensemble does
    not tell); None where the corpus has no links."""
    paper: str
    """BLEU there."""
    translations: tuple[str, ...]
    """With <unk>."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [system.name for system in SYSTEMS]
    add_data(parser, corpus="tatoeba-en-de")
    parser.add_argument("--systems", nargs="+", default=names, metavar="SYSTEM", help=", ".join(names))
    parser.add_argument("--minutes", type=float, help="most minutes of training of each system")
    parser.add_argument("--size", choices=sorted(PRESETS), default="small")
    add_run(parser, output="runs/reproduce-luong")
    args = parser.parse_args()
    require_known(parser, "system", args.systems, names)
    return args


def run_system(args: argparse.Namespace, system: Rung) -> Result:
    """Train (or go on with) one system, and score what it makes of the test set."""
    return Result(**kept(args.output / system.folder / "table-4.json", lambda: asdict(_scored(args, system))))


def _scored(args: argparse.Namespace, system: Rung) -> Result:
    trained, prepared = run_rung(args, system), prepared_once(rung_config(args, system), args.output)
    after, aer = _with_words_replaced(prepared, args.output / system.folder, WAYS)
    paper = "did not learn" if system.paper is None else f"{system.paper:.1f}"
    return Result(system.name, trained.perplexity, trained.bleu, after, aer, paper, tuple(trained.translations))


def together(args: argparse.Namespace, systems: Sequence[Rung]) -> Result:
    """What these trained systems score as an ensemble."""
    folders = [args.output / system.folder for system in systems]
    prepared = prepared_once(rung_config(args, systems[0]), args.output)
    after, aer = _with_words_replaced(prepared, folders, WAYS[:1])
    found, perplexity = translated(load(folders), prepared)
    before = corpus_bleu(list(found), sides(prepared.test)[1], prepared.direction.target)
    return Result(f"ensemble of these {len(systems)}", perplexity, before, after, aer, "", found)


def _with_words_replaced(
    prepared: Prepared, model: Path | Sequence[Path], ways: Sequence[AlignedBy]
) -> tuple[float, list[float] | None]:
    """BLEU with unknown words replaced, and the alignment error rate of each way."""
    (sources, references), links = sides(prepared.test), prepared.links("test")
    replaced = load(model, replace_unknown="copy").translate(sources)
    aer = None
    if links is not None:
        translator = load(model)
        found = [translator.align(sources, references, by=by) for by in ways]
        aer = [alignment_error([set(own) for own in of_way], links).aer for of_way in found]
    return corpus_bleu([t.text for t in replaced], references, prepared.direction.target), aer


def table(results: Sequence[Result], references: Sequence[str], language: str) -> list[list[str]]:
    """One row a system."""
    aligned = any(r.aer is not None for r in results)
    head = ["System", "Test perplexity", "BLEU", "With UNK replaced", "Difference in BLEU", "p", "BLEU in the paper"]
    rows = [[*head, *(["AER, predicted word", "AER, word read"] if aligned else [])]]
    for r in results:
        difference = chance = ""
        if r is not results[0]:
            verdict = paired_bootstrap(r.translations, results[0].translations, references, language=language)["BLEU"]
            difference, chance = f"{r.before - results[0].before:+.1f}", f"{verdict.p_value:.3f}"
        own = [f"{r.perplexity:.2f}", f"{r.before:.1f}", f"{r.after:.1f}", difference, chance]
        errors = [f"{100 * aer:.1f}" for aer in r.aer or ()]
        rows.append([r.name, *own, r.paper, *errors, *[""] * (len(rows[0]) - len(own) - len(errors) - 2)])
    return rows


def main() -> None:
    """Train, score and write; the table is written anew after each system."""
    args = arguments()
    systems, results, text = [system for system in SYSTEMS if system.name in args.systems], list[Result](), ""
    rows = [partial(run_system, args, system) for system in systems]
    if len(systems) > 1:
        rows.append(partial(together, args, systems))
    prepared = prepared_once(rung_config(args, systems[0]), args.output)
    for row in rows:
        results.append(row())
        text = as_markdown(table(results, sides(prepared.test)[1], prepared.direction.target))
        write_text(args.output / "table-4.md", text)
    numbers = [{k: v for k, v in asdict(r).items() if k != "translations"} for r in results]
    write_json(args.output / "luong-attention.json", numbers)
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
