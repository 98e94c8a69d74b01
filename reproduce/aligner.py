"""The word aligner of a model folder, which sees no links, against eflomal on the same verses.

    python reproduce/aligner.py                                       the Greek and the Hebrew Bible
    python reproduce/aligner.py --corpora bible-grc-en
    python reproduce/aligner.py --corpora bible-grc-en --model runs/small     a model's own translations, too

For each corpus one table of the alignment error rate on the test verses. eflomal aligns train, dev and test verses
together. Ours is learned from the training verses alone, as a run learns it, and then given the test verses; a second
time from all verses, as eflomal. No link made by hand is used in learning. *tuned*: the least weight of a link is
chosen on the dev verses' links.
With --model, the test sources' translations by that model are aligned by its own aligner, by its attention and by
eflomal, which gets them behind the training verses; the first two are measured by eflomal's links as if these were
gold.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path

from common import eflomal, lines

from rnnsearch.align.aligner import Aligner, Pair, learn_aligner
from rnnsearch.data.catalog import CORPORA, get
from rnnsearch.data.workers import Pool, cores
from rnnsearch.files import write_text
from rnnsearch.loading import load
from rnnsearch.metrics.alignment_error import AlignmentScores, alignment_error
from rnnsearch.text.alignments import Link, Links, read_pharaoh
from rnnsearch.text.columns import as_markdown

PARTS = ("train", "dev", "test")
Texts = dict[str, tuple[list[str], list[str]]]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    aligned = [name for name, corpus in CORPORA.items() if corpus.aligned]
    parser.add_argument("--corpora", nargs="+", default=aligned, choices=aligned, metavar="NAME")
    parser.add_argument("--model", type=Path, help="a model of the one corpus named, whose translations are aligned")
    parser.add_argument("--without-eflomal", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("runs/reproduce-aligner"))
    return parser.parse_args()


def read(name: str) -> tuple[Texts, dict[str, list[Links]]]:
    """A corpus's texts and its gold links of dev and test."""
    place, corpus = get(name), CORPORA[name]
    texts = {
        part: (lines(place / f"{part}.{corpus.source}"), lines(place / f"{part}.{corpus.target}")) for part in PARTS
    }
    return texts, {part: read_pharaoh(place / f"{part}.align") for part in PARTS[1:]}


def together(texts: Texts, parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Parts one after the other."""
    return [s for part in parts for s in texts[part][0]], [t for part in parts for t in texts[part][1]]


def words(texts: tuple[Sequence[str], Sequence[str]]) -> list[Pair]:
    """Sentence pairs whose words are to be aligned."""
    return list(starmap(Pair.of_words, zip(*texts, strict=True)))


def rows(name: str, args: argparse.Namespace) -> list[list[str]]:
    """The table of one corpus."""
    texts, gold = read(name)
    found = [["Aligner", "learned from", "Links", "AER", "Precision", "Recall", "Links proposed", "Seconds"]]
    if not args.without_eflomal:
        begin = time.monotonic()
        links = eflomal(*together(texts, PARTS), args.output / name, len(gold["test"]))
        seconds = time.monotonic() - begin
        found += [row("eflomal", "all verses", how, own, gold["test"], seconds) for how, own in links.items()]
    with Pool(cores()) as pool:
        for parts in (PARTS[:1], PARTS):
            begin = time.monotonic()
            aligner = learn_aligner(*together(texts, parts), pool.map)
            seconds = time.monotonic() - begin
            for how, one in (("", aligner), (", tuned", aligner.tuned(words(texts["dev"]), gold["dev"]))):
                what = "all verses" if "test" in parts else "training verses"
                links_of = one.links(words(texts["test"]))
                found.append(row("rnnsearch", what, f"t = {one.threshold}{how}", links_of, gold["test"], seconds))
    return found


def row(
    aligner: str, learned: str, how: str, links: Sequence[set[Link]], gold: Sequence[Links], seconds: float
) -> list[str]:
    """One line of the table."""
    score = alignment_error(links, gold)
    return [aligner, learned, how, *shares(score), f"{score.links:,}", f"{seconds:.0f}"]


def shares(score: AlignmentScores) -> list[str]:
    """AER, precision and recall in per cent."""
    return [f"{100 * share:.1f}" for share in (score.aer, score.precision, score.recall)]


def generated(name: str, args: argparse.Namespace) -> list[list[str]]:
    """A model's translations of the test verses, aligned by both."""
    texts, _ = read(name)
    translator = load(args.model)
    translations = translator.translate(texts["test"][0])
    texts["test"] = (texts["test"][0], [t.text for t in translations])
    theirs = eflomal(*together(texts, ("train", "test")), args.output / f"{name}-generated", len(translations))
    table = [["Links", "against", "AER", "Precision", "Recall"]]
    given = words(texts["test"])
    attended = [set(t.attended) for t in translations]
    ours = {"rnnsearch": Aligner.load(args.model / "aligner").links(given), "attention": attended}
    for how, links in ours.items():
        for method in ("intersection", "grow-diag", "union"):
            gold = [Links(frozenset(one), frozenset(one)) for one in theirs[method]]
            table.append([how, f"eflomal {method}", *shares(alignment_error(links, gold))])
    return table


def main() -> None:
    """One table a corpus, written and printed."""
    args = arguments()
    if args.model is not None and len(args.corpora) != 1:
        sys.exit("--model needs the one corpus that it was trained on: --corpora NAME")
    for name in args.corpora:
        text = f"{name}\n\n{as_markdown(rows(name, args))}\n"
        if args.model is not None:
            text += f"\n{as_markdown(generated(name, args))}\n"
        write_text(args.output / f"{name}.md", text)
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
