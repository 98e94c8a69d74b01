"""Measure how a model translates sentences with unusual spaces, invisible characters, and in capital letters.

Run it as `python benchmarks/normalisation.py MODEL SOURCE REFERENCE`. Each variant of the source is translated greedily
with each level of normalisation. For sentences in capital letters, the reference is in capital letters, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness import argument_parser, log, machine_line, parse_arguments, publish, table
from sacrebleu import corpus_bleu

from rnnsearch.translator.loading import load


def _with_soft_hyphens(text: str) -> str:
    """Return a text with a soft hyphen in the middle of each word of more than four characters."""
    words = []
    for word in text.split():
        middle = len(word) // 2
        words.append(f"{word[:middle]}\u00ad{word[middle:]}" if len(word) > 4 else word)
    return " ".join(words)


def _in_title_case(text: str) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in text.split())


VARIANTS: dict[str, Callable[[str], str]] = {
    "clean": str,
    "a leading space": lambda text: f" {text}",
    "double spaces": lambda text: text.replace(" ", "  "),
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "soft hyphens": _with_soft_hyphens,
    "a byte-order mark": lambda text: f"\ufeff{text}",
    "CAPITAL LETTERS": str.upper,
    "Title Case": _in_title_case,
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--sentences", type=int, default=500, help="number of sentences, from the start of the files")
    parser.add_argument("--levels", nargs="+", default=["none", "standard"], help="levels of normalisation")
    arguments = parse_arguments(parser)
    sources = arguments.source.read_text(encoding="utf-8").splitlines()[: arguments.sentences]
    references = arguments.reference.read_text(encoding="utf-8").splitlines()[: arguments.sentences]
    scores: dict[str, list[object]] = {name: [name] for name in VARIANTS}
    for level in arguments.levels:
        translator = load(arguments.model, normalize=level)
        options = translator.options(beam=1)
        for name, change in VARIANTS.items():
            translations = translator.translate([change(text) for text in sources], options)
            expected = [text.upper() for text in references] if name.isupper() else references
            hypotheses = [translation.text for translation in translations]
            score = corpus_bleu(hypotheses, [expected]).score
            log(f"{level}, {name}: {score:.1f}")
            scores[name].append(f"{score:.1f}")
    lines = [
        f"BLEU of {len(sources)} sentences, greedy search. {machine_line()}",
        "",
        *table(" | ".join(["input", *arguments.levels]), scores.values()),
    ]
    publish(lines, arguments.output)


if __name__ == "__main__":
    main()
