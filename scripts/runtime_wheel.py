"""Build the wheel `rnnsearch-runtime`: native code and the modules that `rnnsearch.runtime` needs, renamed.

    python scripts/runtime_wheel.py FOLDER

The wheel can be installed with or without rnnsearch. It depends only on NumPy and tokenizers.
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
PACKAGE = "rnnsearch"
RUNTIME_PACKAGE = "rnnsearch_runtime"
ENTRY_MODULE = "rnnsearch.runtime"
NATIVE = "ops/native"
# C++ files that the engine calls. All headers are included, too.
CPP_FILES = ("decoding.cpp", "matrix.cpp", "pool.cpp", "search.cpp")
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
"rnnsearch_runtime.ops.native" = ["*.cpp", "*.h"]
"""


def module_path(module: str) -> Path | None:
    """Return the path of a module of rnnsearch, or None for any other name."""
    base = SOURCES.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def imported_modules(path: Path) -> set[str]:
    """Return the modules of rnnsearch that a file imports, and the packages that contain them."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    modules = {name for name in names if name.split(".")[0] == PACKAGE and module_path(name)}
    packages = {name.rsplit(".", n)[0] for name in modules for n in range(1, name.count(".") + 1)}
    return (modules | packages) - {PACKAGE}


def required_modules() -> set[str]:
    """Return all modules that `rnnsearch.runtime` and its command line import, directly or indirectly."""
    required = set[str]()
    remaining = {ENTRY_MODULE, f"{ENTRY_MODULE}.command_line"}
    while remaining:
        name = remaining.pop()
        required.add(name)
        path = module_path(name)
        assert path is not None
        remaining |= imported_modules(path) - required
    return required


def rename_package(text: str) -> str:
    """Replace the package's name in imports and other dotted names."""
    return re.sub(rf"\b{PACKAGE}(?=\.[a-z_]+)", RUNTIME_PACKAGE, text)


def write_source_tree(folder: Path) -> None:
    """Write the source tree of the wheel."""
    package = folder / "src" / RUNTIME_PACKAGE
    for module in sorted(required_modules()):
        path = module_path(module)
        assert path is not None
        target = package / path.relative_to(SOURCES / PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(rename_package(path.read_text(encoding="utf-8")), encoding="utf-8")
    # The top level of the runtime package is that of `rnnsearch.runtime`.
    top_level = (SOURCES / PACKAGE / "runtime/__init__.py").read_text(encoding="utf-8")
    top_level = top_level.replace(ENTRY_MODULE, RUNTIME_PACKAGE)
    top_level = top_level.replace(f"from {RUNTIME_PACKAGE}.translator", f"from {RUNTIME_PACKAGE}.runtime.translator")
    (package / "__init__.py").write_text(rename_package(top_level), encoding="utf-8")
    native = SOURCES / PACKAGE / NATIVE
    for source in (*native.glob("*.h"), *(native / name for name in CPP_FILES)):
        shutil.copyfile(source, package / NATIVE / source.name)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    (folder / "pyproject.toml").write_text(PYPROJECT.format(version=version), encoding="utf-8")
    setup = (
        (ROOT / "setup.py").read_text(encoding="utf-8").replace(f"{PACKAGE}/{NATIVE}", f"{RUNTIME_PACKAGE}/{NATIVE}")
    )
    (folder / "setup.py").write_text(setup, encoding="utf-8")
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")


def main() -> None:
    """Build the wheel and print its path and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write the wheel")
    args = parser.parse_args()
    with TemporaryDirectory() as temporary:
        write_source_tree(Path(temporary))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--wheel-dir", str(args.folder), temporary], check=True)
    for wheel in sorted(args.folder.glob("rnnsearch_runtime-*.whl")):
        sys.stdout.write(f"{wheel} {wheel.stat().st_size / 1e6:.2f} MB\n")


if __name__ == "__main__":
    main()
