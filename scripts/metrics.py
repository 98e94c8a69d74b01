"""Print metrics of the code's size, granularity and style, to compare versions of the package.

    python scripts/metrics.py [CHECKOUT] [--json]

CHECKOUT is the root of a checkout, by default this one. Only its files are read; the package is not imported.
"""

import argparse
import ast
import json
import re
import statistics
import sys
from collections import Counter
from pathlib import Path

import grimp

PACKAGE = "rnnsearch"
CORE = ("config", "text", "data", "models", "search", "objectives", "systems", "training")
LOOP = ("loop.py", "gradients.py")  # the modules of `training` that hold the training loop
SMALL_MODULE_LINES = 80
RELATIVE = {"what", "whether", "of", "that", "those", "where", "who", "whom", "whose", "how", "which", "why", "when"}
PREPOSITIONS = {"as", "at", "by", "for", "from", "in", "into", "on", "out", "over", "to", "under", "with", "without"}
TARGETS = {
    "docstrings opening with a relative word or preposition, %": "< 2",
    "Python files": "<= 275",
    "Python lines": "<= 40,000",
    "core lines": "<= 22,000",
    f"modules with one importer under {SMALL_MODULE_LINES} lines": "< 15",
    "import lines, %": "< 6",
    "comment lines, %": ">= 2",
    "median function length, lines": "8 to 10",
    "parallel assignments per 1,000 lines": "< 3",
    "declarations of length_penalty": "2",
    "tables of names in config and elsewhere": "0",
    "calls from the training loop to the model": "4",
    "class names used more than once": "< 8",
}


def docstrings(tree: ast.AST) -> list[str]:
    """Return all docstrings, including the strings below attributes."""
    bodies = [getattr(node, "body", None) for node in ast.walk(tree)]
    statements = [statement for body in bodies if isinstance(body, list) for statement in body]
    values = [statement.value for statement in statements if isinstance(statement, ast.Expr)]
    return [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]


def opens_badly(docstring: str) -> bool:
    """Return True if the first word is a relative word or a preposition."""
    first_word = re.match(r"\s*([A-Za-z]+)\b", docstring)
    return first_word is not None and first_word[1].lower() in RELATIVE | PREPOSITIONS


def declares(node: ast.AST, option: str) -> bool:
    """Return True if a node declares the option as a field, as a parameter or as a field of a ctypes structure."""
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.target.id == option
    if isinstance(node, ast.Tuple) and len(node.elts) == 2:
        name, field_type = node.elts
        is_ctypes_field = isinstance(field_type, ast.Name) and field_type.id.startswith("c_")
        return is_ctypes_field and isinstance(name, ast.Constant) and name.value == option
    return isinstance(node, ast.arg) and node.arg == option


def tables(tree: ast.Module) -> set[str]:
    """Return the names of a module's constants that are dictionaries."""
    names = set[str]()
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        is_table = isinstance(getattr(node, "value", None), ast.Dict | ast.DictComp)
        if is_table and isinstance(target, ast.Name) and target.id.isupper() and not target.id.startswith("_"):
            names.add(target.id)
    return names


def model_calls(tree: ast.Module) -> set[str]:
    """Return the functions called on the model or the task, or with them, except for constructors and checkpoints."""
    functions = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            is_other = function[0].isupper() or function.startswith(("load_", "save_"))
            expressions = [function, *(ast.unparse(argument) for argument in node.args)]
            if not is_other and any(re.match(r"self\.(task|model)\b", text) for text in expressions):
                functions.add(function)
    return functions


def is_parallel_assignment(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def single_importers(source: Path, lines: dict[Path, list[str]]) -> int:
    """Count the small modules (not packages) that exactly one other module imports."""
    sys.path.insert(0, str(source))  # grimp finds the package there
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    count = 0
    for module in graph.modules:
        path = source.joinpath(*module.split(".")).with_suffix(".py")
        if path in lines and len(lines[path]) < SMALL_MODULE_LINES:
            count += len(graph.find_modules_that_directly_import(module)) == 1
    return count


def measure(checkout: Path) -> dict[str, float]:
    """Return the metrics by name."""
    source = (checkout / "src").resolve()
    package = source / PACKAGE
    lines = {path: path.read_text(encoding="utf-8").splitlines() for path in sorted(package.rglob("*.py"))}
    trees = {path: ast.parse("\n".join(text)) for path, text in lines.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    num_lines = sum(map(len, lines.values()))
    texts = [text for tree in trees.values() for text in docstrings(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    comments = [line for text in lines.values() for line in text if line.lstrip().startswith("#")]
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    folders = {path: path.relative_to(package).parts[0] for path in lines}
    config_tables = set[str]().union(*(tables(tree) for path, tree in trees.items() if folders[path] == "config"))
    other_tables = set[str]().union(*(tables(tree) for path, tree in trees.items() if folders[path] in CORE[3:]))
    loop = [trees[path] for path in lines if folders[path] == "training" and path.name in LOOP]
    values = [
        100 * sum(map(opens_badly, texts)) / len(texts),
        len(lines),
        num_lines,
        sum(len(text) for path, text in lines.items() if folders[path] in CORE),
        single_importers(source, lines),
        100 * sum((node.end_lineno or 0) - node.lineno + 1 for node in imports) / num_lines,
        100 * len(comments) / num_lines,
        statistics.median((node.end_lineno or 0) - node.lineno + 1 for node in functions),
        1000 * sum(map(is_parallel_assignment, nodes)) / num_lines,
        sum(declares(node, "length_penalty") for node in nodes),
        len(config_tables & other_tables),
        len(set[str]().union(*map(model_calls, loop))),
        sum(count > 1 for count in classes.values()),
    ]
    return {name: round(value, 1) for name, value in zip(TARGETS, values, strict=True)}


def main() -> None:
    """Print the metrics as a table or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", default=Path(__file__).parents[1])
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    metrics = measure(args.checkout)
    if args.json:
        sys.stdout.write(json.dumps(metrics, indent=1) + "\n")
        return
    sys.stdout.write("| metric | value | target |\n|---|---:|---:|\n")
    for name, value in metrics.items():
        sys.stdout.write(f"| {name} | {value:,g} | {TARGETS[name]} |\n")


if __name__ == "__main__":
    main()
