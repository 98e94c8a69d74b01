"""A small regular corpus, and helpers to write and compare folders."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rnnsearch.config import RunConfig, resolve
from rnnsearch.data.prepared import Prepared

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
ZAHLEN = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]
PAIRS = [(f"The {a} and the {b}.", f"Die {c} und die {d}.") for a, c in zip(NUMBERS, ZAHLEN, strict=True)
         for b, d in zip(NUMBERS, ZAHLEN, strict=True)]  # fmt: skip


def config(base: Path, text: dict[str, Any] | None = None, **data: Any) -> RunConfig:
    """A run of `[data]` of keywords, from English to German unless they say otherwise."""
    return resolve(
        {
            "preset": "rnnsearch-small",
            "data": {"source": "en", "target": "de", **data},
            "text": text or {"type": "words", "vocabulary": 200},
        },
        base=base,
    )


def write(folder: Path, name: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Two files of text, and one of links where rows have them; returns the spec of the texts."""
    columns = list(zip(*rows, strict=True)) or [(), ()]
    for suffix, lines in zip(("en", "de", "align"), columns, strict=False):
        (folder / f"{name}.{suffix}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return f"{name}.en|{name}.de"


def texts(prepared: Prepared) -> list[tuple[str, str]]:
    """The training text that the ids give back."""
    pairs = [prepared.train.row(i) for i in range(len(prepared.train))]
    return [(prepared.source.join(s.tolist()), prepared.target.join(t.tolist())) for s, t in pairs]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def beside(folder: Path) -> list[str]:
    """Files next to a prepared folder that do not belong there."""
    return [path.name for path in folder.parent.iterdir() if path.name.startswith(".")]
