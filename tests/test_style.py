"""Docstrings start as docs/style.md requires; ruff checks other rules but not attribute docstrings."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "benchmarks", "reproduce", "scripts", "tests")
FORBIDDEN_OPENERS = frozenset(
    ["of", "that", "the-same", "those", "what", "whatever", "where", "wherever", "whether"]
) | {"which", "who", "whoever", "whom", "whose", "why"}


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring, including those below assignments."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", ())
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value.strip()


def opener(text: str) -> str:
    words = text.lower().split()[:2]
    if words == ["the", "same"]:
        return "the-same"
    return words[0].strip("`.,:;") if words else ""


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_open_with_a_verb_or_noun_phrase(folder):
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in docstrings(path)
        if opener(text) in FORBIDDEN_OPENERS
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "word"),
    [("Whether it is.", "whether"), ("The same as before.", "the-same"), ("Return it.", "return"), ("", "")],
)
def test_opener_is_the_first_word(text, word):
    assert opener(text) == word
