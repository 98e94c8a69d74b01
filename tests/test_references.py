"""Files that pages and docstrings name, and classes and members of classes that they name in `code`, exist."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "rnnsearch"
FOLDERS = ("src", "docs", "tests", "scripts", "benchmarks", "reproduce", "examples")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DESIGN_PAGES = [ROOT / "docs" / "architecture.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
"""Pages whose capitalised names are classes; on others they may be German nouns."""

OTHER_FILES = {
    "state.h",  # an attribute
    "cosine.py",  # written by the reader
    *("align/linked.py", "search/gathered.py", "utils/device.py"),  # the layout that 0021 compares with
}
OTHER_CLASSES = {"DistributedDataParallel", "ModelProto", "Ours"}
"""Classes of other libraries and of benchmarks."""
CODE_OR_PATH = re.compile(r"`([^`\n]+)`|(?<![\w/`.])((?:tests|docs|scripts|benchmarks)/[\w/-]+\.(?:py|md))\b")
"""A name in backticks, or a path of the repository outside of backticks."""


class Package:
    """Names and docstrings of the package's modules."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        """Names that modules define or use, and those of modules and native code."""
        self.members: defaultdict[str, set[str]] = defaultdict(set)
        """Names in the body of each class."""
        self.docstrings: list[tuple[Path, int, str]] = []
        """Path, line and text of each string that is a statement."""
        for path in sorted(PACKAGE.rglob("*.py")):
            self.names.update(path.relative_to(PACKAGE).with_suffix("").parts)
            self._visit(path, ast.parse(path.read_text(encoding="utf-8")), ())
        for path in PACKAGE.rglob("*"):
            if path.suffix in {".h", ".cpp", ".js"}:
                code = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
                self.names.update(re.findall(r"\w+", code))

    def _visit(self, path: Path, node: ast.AST, classes: tuple[str, ...]) -> None:
        name = None
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                self.docstrings.append((path, node.lineno, text))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=name):
                pass
            case ast.alias(name=original, asname=other):
                self.names.update((other or original).split("."))
        if name is not None:
            self.names.add(name)
            for owner in classes:
                self.members[owner].add(name)
        if isinstance(node, ast.ClassDef):
            classes = (*classes, node.name)
        for child in ast.iter_child_nodes(node):
            self._visit(path, child, classes)

    def has_member(self, owner: str, name: str) -> bool:
        """Return True if the body of a class, or of a class that it names, such as its base, contains a name."""
        related = {owner}
        while new := {other for known in related for other in self.members[known] if other in self.members} - related:
            related |= new
        return any(name in self.members[other] for other in related)


@cache
def package() -> Package:
    return Package()


@cache
def files() -> str:
    """Return the paths of all files, each between `/` and a line feed."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    return "".join(f"/{path.relative_to(ROOT).as_posix()}\n" for path in [*paths, *ROOT.glob("*.*")])


def texts(kind: str) -> Iterator[tuple[Path, int, str]]:
    """Yield the path, first line and text of each page, without its blocks of code, or of each docstring."""
    if kind == "docstrings":
        yield from package().docstrings
        return
    for path in PAGES if kind == "pages" else DESIGN_PAGES:
        text = path.read_text(encoding="utf-8")
        blocks = r"^```.*?^```$"
        yield path, 1, re.sub(blocks, lambda m: "\n" * m[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)


def exists(code: str, capitalised_are_classes: bool = False) -> bool:
    """Return False if a `code` is certainly a file, class, constant or member that does not exist."""
    code = re.sub(r"\(.*\)$", "", code)
    if re.fullmatch(r"[\w./-]+\.(py|cpp|h|js)|(docs|tests)/[\w./-]+\.md", code):
        return code in OTHER_FILES or f"/{code}\n" in files()
    if not re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", code):
        return True
    parts = code.split(".")
    known = package()
    if len(parts) > 1 or capitalised_are_classes:
        classes = {name for name in parts if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name)}
        if classes - known.names - OTHER_CLASSES:
            return False
    if len(parts) > 1 and parts[-1].isupper() and parts[-1] not in known.names:
        return False
    owners = known.members.keys() - OTHER_CLASSES
    return all(known.has_member(owner, name) for owner, name in pairwise(parts) if owner in owners)


@pytest.mark.parametrize("kind", ["pages", "design pages", "docstrings"])
def test_named_files_classes_and_members_exist(kind):
    problems = [
        f"{path.relative_to(ROOT)}:{line + text.count(chr(10), 0, match.start())}: {match[1] or match[2]}"
        for path, line, text in texts(kind)
        for match in CODE_OR_PATH.finditer(text)
        if not exists(match[1] or match[2], capitalised_are_classes=kind == "design pages")
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("search/beam.py", True),
        ("search/beams.py", False),
        ("BeamExpansion.step", True),
        ("BeamExpansion.next_step", False),
        ("BeamExpansion.step(...)", True),
        ("SearchOptions.length_penalty", True),
        ("corpus.MAX_LINE_BYTES", True),
        ("corpus.LONGEST", False),
        ("ensemble.Combined", False),
        ("model.decoder.size", True),
    ],
)
def test_missing_names_are_recognised(code, expected):
    assert exists(code) == expected
