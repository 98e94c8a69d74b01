"""Precision and recall of sentence boundaries on `tests/text/sentences`, by language.

    python -m benchmarks.sentences

Compares `rnnsearch.text.sentences` with pysbd and minisbd where they are installed (they are no dependencies; minisbd
downloads its models). `--errors` prints the lines that ours splits wrongly.

Each line of a fixture is a text in which `|` marks the start of a sentence, except the first. Tests:
tests/text/test_sentences.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rnnsearch.text.sentences import sentence_spans

FIXTURES = Path(__file__).parent.parent / "tests" / "text" / "sentences"
Splitter = Callable[[str], Sequence[str]]
"""Returns the sentences of a text in order."""


class Scores(NamedTuple):
    """Counts of sentence boundaries."""

    correct: int
    """Boundaries that are in the fixture."""
    found: int
    """All boundaries that were found."""
    expected: int
    """Boundaries of the fixture."""

    @property
    def precision(self) -> float:
        """Fraction of the found boundaries that are correct."""
        return self.correct / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """Fraction of the expected boundaries that were found."""
        return self.correct / self.expected if self.expected else 1.0


def read_fixture(language: str) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield each text of a language with the positions where its sentences start, except the first."""
    for line in (FIXTURES / f"{language}.txt").read_text(encoding="utf-8").splitlines():
        sentences = line.split("|")
        yield "".join(sentences), frozenset(_starts(sentences))


def languages() -> list[str]:
    """Return the languages of the fixtures."""
    return sorted(path.stem for path in FIXTURES.glob("*.txt"))


def found_starts(text: str, sentences: Sequence[str]) -> frozenset[int]:
    """Return the positions in a text where sentences start, except the first."""
    starts = []
    position = 0
    for sentence in sentences:
        start = text.find(sentence.strip(), position)
        if sentence.strip() and start >= 0:
            starts.append(start)
            position = start + len(sentence.strip())
    return frozenset(starts[1:])


def score(language: str, split: Splitter) -> Scores:
    """Return the counts of a splitter for a language."""
    correct = found = expected = 0
    for text, starts in read_fixture(language):
        result = found_starts(text, split(text))
        correct += len(result & starts)
        found += len(result)
        expected += len(starts)
    return Scores(correct, found, expected)


def ours(language: str) -> Splitter:
    """Return the splitter of rnnsearch."""
    return lambda text: [text[start:end] for start, end in sentence_spans(text, language)]


def pysbd(language: str) -> Splitter:
    """Return the splitter of pysbd."""
    splitter: Splitter = import_module("pysbd").Segmenter(language=language, clean=False).segment
    return splitter


def minisbd(language: str) -> Splitter:
    """Return the splitter of minisbd, whose model is downloaded at first use."""
    name = "zh-hans" if language == "zh" else language
    splitter: Splitter = import_module("minisbd").SBDetect(name, use_gpu=False).sentences
    return splitter


def _starts(sentences: Sequence[str]) -> list[int]:
    starts = []
    position = 0
    for sentence in sentences[:-1]:
        position += len(sentence)
        starts.append(position)
    return starts


def _print_errors(language: str) -> None:
    split = ours(language)
    for text, starts in read_fixture(language):
        if found_starts(text, split(text)) != starts:
            print(f"{language}: {' | '.join(split(text))}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--errors", action="store_true", help="Print the lines that ours splits wrongly.")
    args = parser.parse_args()
    systems: dict[str, Callable[[str], Splitter]] = {"rnnsearch": ours}
    systems |= {name: make for name, make in (("pysbd", pysbd), ("minisbd", minisbd)) if find_spec(name)}
    print("| language | " + " | ".join(f"{name}: precision | recall" for name in systems) + " |")
    print("|---|" + "---:|---:|" * len(systems))
    for language in languages():
        cells = []
        for make in systems.values():
            try:
                scores = score(language, make(language))
                cells.append(f"{scores.precision:.3f} | {scores.recall:.3f}")
            except OSError:  # no connection for a model
                cells.append("not available | not available")
        print(f"| {language} | " + " | ".join(cells) + " |")
    if args.errors:
        for language in languages():
            _print_errors(language)


if __name__ == "__main__":
    main()
