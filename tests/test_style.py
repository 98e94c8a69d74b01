"""Docstrings start as docs/style.md requires, and no file is unpickled; ruff does not check either."""

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


UNPICKLERS = frozenset(["pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"])
MODULES_WITH_PICKLE = {
    "data/workers.py": "pipes to the worker processes that it started",
    "importers/folder.py": "the exception of torch.load(weights_only=True)",
}


def unpickling_problems(source: str) -> Iterator[str]:
    """Yield what a module does that could unpickle a file: the modules that it imports and unsafe calls."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] in UNPICKLERS)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNPICKLERS:
            yield f"import {node.module}"
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if arguments.get("allow_pickle", "False") != "False":
                yield f"{name}(allow_pickle)"
            if name == "torch.load" and arguments.get("weights_only") != "True":
                yield "torch.load without weights_only=True"
            if name.endswith(("read_pickle", "from_pickle", "unsafe_load", "jit.load", "torch.package")):
                yield name


def test_no_module_unpickles_files():
    """Files of stores, folders and downloads may come from anyone, and unpickling them runs their code."""
    package = ROOT / "src" / "rnnsearch"
    problems = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        found = [
            problem
            for problem in unpickling_problems(path.read_text(encoding="utf-8"))
            if not (problem == "import pickle" and name in MODULES_WITH_PICKLE)
        ]
        if found:
            problems[name] = found
    assert problems == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n import shelve",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=unsafe)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.jit.load(path)",
    ],
)
def test_unpickling_is_recognised(source):
    assert list(unpickling_problems(source))
