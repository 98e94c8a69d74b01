"""Make the wheel `rnnsearch-runtime`: the modules that `rnnsearch.runtime` needs, under another name, and native code.

    python scripts/runtime_wheel.py FOLDER

It can be installed beside rnnsearch and without it: NumPy and tokenizers are all that it asks for.
"""

import argparse
import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
OLD, NEW = "rnnsearch", "rnnsearch_runtime"
BEGIN = "rnnsearch.runtime"
NATIVE = "ops/native"
CODE = ("decoding.cpp", "matrix.cpp", "pool.cpp", "search.cpp")
"""Of the C++, what the engine calls; headers go along."""
PYPROJECT = """\
[build-system]
requires = ["setuptools>=70"]
build-backend = "setuptools.build_meta"

[project]
name = "rnnsearch-runtime"
version = "{version}"
description = "Translates with models of rnnsearch, without PyTorch."
requires-python = ">=3.11"
license = "MIT"
dependencies = ["numpy>=1.26", "tokenizers>=0.20"]

[project.scripts]
rnnsearch-runtime = "rnnsearch_runtime.runtime.command_line:main"

[tool.setuptools.packages.find]
where = ["src"]

[tool.setuptools.package-data]
"rnnsearch_runtime.kernels.native" = ["*.cpp", "*.h"]
"""


def path_of(module: str) -> Path | None:
    """Where a module of ours is; None of what is none."""
    base = SOURCES.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def imported(path: Path) -> set[str]:
    """The modules of ours that a file imports, and the packages that they are in."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    ours = {name for name in found if name.split(".")[0] == OLD and path_of(name)}
    parents = {name.rsplit(".", n)[0] for name in ours for n in range(1, name.count(".") + 1)}
    return (ours | parents) - {OLD}


def needed() -> set[str]:
    """Every module that `rnnsearch.runtime` and its command line come to."""
    found, left = set[str](), {BEGIN, f"{BEGIN}.command_line"}
    while left:
        name = left.pop()
        found.add(name)
        path = path_of(name)
        assert path is not None
        left |= imported(path) - found
    return found


def lay_out(folder: Path) -> None:
    """The wheel's own source tree."""
    package = folder / "src" / NEW
    for module in sorted(needed()):
        path = path_of(module)
        assert path is not None
        to = package / path.relative_to(SOURCES / OLD)
        to.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8")
        to.write_text(re.sub(rf"\b{OLD}(?=\.[a-z_]+)", NEW, text), encoding="utf-8")
    front = (SOURCES / OLD / "runtime/__init__.py").read_text(encoding="utf-8")
    front = front.replace(BEGIN, NEW).replace(f"from {NEW}.translator", f"from {NEW}.runtime.translator")
    (package / "__init__.py").write_text(re.sub(rf"\b{OLD}(?=\.[a-z_]+)", NEW, front), encoding="utf-8")
    native = SOURCES / OLD / NATIVE
    for source in (*native.glob("*.h"), *(native / name for name in CODE)):
        shutil.copyfile(source, package / NATIVE / source.name)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    (folder / "pyproject.toml").write_text(PYPROJECT.format(version=version), encoding="utf-8")
    setup = (ROOT / "setup.py").read_text(encoding="utf-8").replace(f"{OLD}/{NATIVE}", f"{NEW}/{NATIVE}")
    (folder / "setup.py").write_text(setup, encoding="utf-8")
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")


def main() -> None:
    """Build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    with TemporaryDirectory() as temporary:
        lay_out(Path(temporary))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--wheel-dir", str(args.folder), temporary], check=True)
    for wheel in sorted(args.folder.glob("rnnsearch_runtime-*.whl")):
        sys.stdout.write(f"{wheel} {wheel.stat().st_size / 1e6:.2f} MB\n")


if __name__ == "__main__":
    main()
