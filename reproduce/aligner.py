"""Compare the unsupervised word aligner of model folders with eflomal on the same sentence pairs.

    python reproduce/aligner.py                                       the Greek and the Hebrew Bible
    python reproduce/aligner.py --corpora bible-grc-en
    python reproduce/aligner.py --corpora bible-grc-en --model runs/small     also align a model's translations
    python reproduce/aligner.py --corpora pairs/en-ru pairs/ro-en     folders of your own

For each corpus a table lists the alignment error rate (AER) on the test sentences. eflomal aligns the train, dev and
test sentences together. Our aligner is trained on the training sentences only, as during a training run, and then
applied to the test sentences; a second time it is trained on all sentences, like eflomal. Neither uses manual
alignments for training. Its links are those of the rule of new aligners (*relative*, without gold links), of the rule
of earlier versions (*t = 0.15*), and of a relative threshold *tuned* on the manual dev alignments.

A folder's name ends in the codes of the source and target language (`en-ru`). It contains `train.en`, `train.ru`,
`test.en`, `test.ru`, `test.align` and optionally `dev.*`: one sentence per line, words separated by spaces, and links
in Pharaoh format (`0-0 1?2`: word 1 is possibly linked to word 2).

With --model, the model's translations of the test verses are aligned by its own aligner, by its attention, and by
eflomal, which gets them appended to the training verses. The links of the first two are evaluated against those of
eflomal as if these were gold.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap
from pathlib import Path

from common import eflomal_links, read_lines

from rnnsearch.align.aligner import THRESHOLD, Aligner, Pair, learn_aligner
from rnnsearch.data.corpora.catalog import CORPORA, get
from rnnsearch.metrics.alignment_error import AlignmentScores, alignment_error
from rnnsearch.text.alignments import Link, Links, read_pharaoh
from rnnsearch.translator.loading import load
from rnnsearch.utils.files import write_text
from rnnsearch.utils.tables import as_markdown

PARTS = ("train", "dev", "test")
TRAINED_ON = {"train": PARTS[:1], "all": PARTS}
Texts = dict[str, tuple[list[str], list[str]]]


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    aligned = [name for name, corpus in CORPORA.items() if corpus.aligned]
    parser.add_argument("--corpora", nargs="+", default=aligned, metavar="NAME", help="of the catalogue, or folders")
    parser.add_argument("--model", type=Path, help="model folder trained on the corpus; its translations are aligned")
    parser.add_argument("--without-eflomal", action="store_true")
    parser.add_argument("--trained-on", nargs="+", default=list(TRAINED_ON), choices=TRAINED_ON)
    parser.add_argument("--output", type=Path, default=Path("runs/reproduce-aligner"))
    return parser.parse_args()


def read_corpus(name: str) -> tuple[Texts, dict[str, list[Links]]]:
    """Return the texts of a corpus or a folder and the gold links of its dev and test parts."""
    if name in CORPORA and CORPORA[name].aligned:
        folder = get(name)
        languages = [CORPORA[name].source, CORPORA[name].target]
    else:
        folder = Path(name)
        if not folder.is_dir():
            sys.exit(f"{name}: must be a corpus of the catalogue with word alignments or a folder; got neither")
        languages = folder.resolve().name.split("-")[-2:]
    texts = {}
    for part in PARTS:
        paths = [folder / f"{part}.{language}" for language in languages]
        if part != "dev" or all(path.is_file() for path in paths):
            source, target = map(read_lines, paths)
            texts[part] = (source, target)
    return texts, {part: read_pharaoh(folder / f"{part}.align") for part in texts if part != "train"}


def concatenate(texts: Texts, parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the sources and the targets of several parts of a corpus, concatenated."""
    sources = [line for part in parts if part in texts for line in texts[part][0]]
    targets = [line for part in parts if part in texts for line in texts[part][1]]
    return sources, targets


def word_pairs(texts: tuple[Sequence[str], Sequence[str]]) -> list[Pair]:
    """Return the sentence pairs in the form that the aligner reads."""
    return list(starmap(Pair.from_words, zip(*texts, strict=True)))


def corpus_rows(name: str, args: argparse.Namespace) -> list[list[str]]:
    """Return the table of one corpus."""
    texts, gold = read_corpus(name)
    rows = [["Aligner", "Trained on", "Links", "AER", "Precision", "Recall", "Predicted links", "Seconds"]]
    if not args.without_eflomal:
        start = time.monotonic()
        results = eflomal_links(*concatenate(texts, PARTS), args.output / Path(name).name, len(gold["test"]))
        seconds = time.monotonic() - start
        for method, links in results.items():
            rows.append(row("eflomal", "all", method, links, gold["test"], seconds))
    for description in args.trained_on:
        start = time.monotonic()
        aligner = learn_aligner(*concatenate(texts, TRAINED_ON[description]))
        seconds = time.monotonic() - start
        for method, variant in variants(aligner, texts, gold).items():
            links = variant.links(word_pairs(texts["test"]))
            rows.append(row("rnnsearch", description, method, links, gold["test"], seconds))
    return rows


def variants(aligner: Aligner, texts: Texts, gold: dict[str, list[Links]]) -> dict[str, Aligner]:
    """Return the aligner with the rules to compare, by description."""
    aligners = {
        f"t = {THRESHOLD}": replace(aligner, threshold=THRESHOLD, relative=False),
        f"relative, {aligner.threshold:.2f}": aligner,
    }
    if "dev" in texts:
        tuned = aligner.tuned(word_pairs(texts["dev"]), gold["dev"])
        aligners[f"relative, {tuned.threshold:.2f}, tuned"] = tuned
    return aligners


def row(
    aligner: str, trained_on: str, method: str, links: Sequence[set[Link]], gold: Sequence[Links], seconds: float
) -> list[str]:
    """Return one row of the table."""
    score = alignment_error(links, gold)
    return [aligner, trained_on, method, *percentages(score), f"{score.links:,}", f"{seconds:.0f}"]


def percentages(score: AlignmentScores) -> list[str]:
    """Return AER, precision and recall as percentages."""
    return [f"{100 * value:.1f}" for value in (score.aer, score.precision, score.recall)]


def translation_rows(name: str, args: argparse.Namespace) -> list[list[str]]:
    """Return the table of links between the test verses and a model's translations of them."""
    texts, _ = read_corpus(name)
    translations = load(args.model).translate(texts["test"][0])
    texts["test"] = (texts["test"][0], [translation.text for translation in translations])
    corpus = concatenate(texts, ("train", "test"))
    reference = eflomal_links(*corpus, args.output / f"{Path(name).name}-generated", len(translations))
    predictions = {
        "rnnsearch": Aligner.load(args.model / "aligner").links(word_pairs(texts["test"])),
        "attention": [set(translation.attended) for translation in translations],
    }
    rows = [["Links", "Evaluated against", "AER", "Precision", "Recall"]]
    for predictor, links in predictions.items():
        for method in ("intersection", "grow-diag", "union"):
            gold = [Links(frozenset(pair), frozenset(pair)) for pair in reference[method]]
            rows.append([predictor, f"eflomal {method}", *percentages(alignment_error(links, gold))])
    return rows


def main() -> None:
    """Write and print the tables of each corpus."""
    args = parse_arguments()
    if args.model is not None and len(args.corpora) != 1:
        sys.exit("--model needs exactly one corpus, the one that the model was trained on: --corpora NAME")
    for name in args.corpora:
        text = f"{name}\n\n{as_markdown(corpus_rows(name, args))}\n"
        if args.model is not None:
            text += f"\n{as_markdown(translation_rows(name, args))}\n"
        write_text(args.output / f"{Path(name).name}.md", text)
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
