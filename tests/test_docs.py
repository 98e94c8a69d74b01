"""The documentation is correct: its commands, messages, Python code and tables are run at toy size.

Blocks of a page run in order, in a new folder that contains `corpus/` and a trained model `runs/en-de`:

- ```toml with the first line `# NAME.toml` is written to that file, with toy sizes merged into it;
- ```sh is run by the shell and must succeed;
- ```console is a failing command after `$ `, followed by its whole output (`...` matches any text);
- ```python is run; all blocks of a page share one namespace;
- ```text and other blocks are not run.
"""

import contextlib
import copy
import gzip
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import tomli_w

from rnnsearch import config as run_config
from scripts import commands_page
from scripts.configuration_page import regenerate
from tests.command_line import run
from tests.importers import joeynmt
from tests.importers.opennmt_py import Model
from tests.native_code import copy_native_code, copy_web_engine

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (
    "tutorial", "data", "training", "translating", "alignment", "attention", "evaluation", "objectives", "arrays",
    "language-models", "context", "bulk", "shrinking", "distillation", "shipping", "importing",
    "configuration", "python", "serving", "adding-a-component",
)  # fmt: skip

SERVED_PORT = "5000"
"""Port in the page on serving, replaced by a free one."""

FROM_TEXT = ("tutorial", "data", "training", "arrays")
"""Pages that start without a trained model."""

SUBJECTS = (
    ("A dog", "Ein Hund"), ("The child", "Das Kind"), ("Our teacher", "Unser Lehrer"), ("A friend", "Ein Freund"),
    ("The girl", "Das Mädchen"), ("My uncle", "Mein Onkel"), ("The baker", "Der Bäcker"), ("Her boss", "Ihr Chef"),
)  # fmt: skip
VERBS = (
    ("sees", "sieht"), ("finds", "findet"), ("paints", "malt"), ("buys", "kauft"), ("needs", "braucht"),
    ("loses", "verliert"), ("holds", "hält"), ("likes", "mag"),
)  # fmt: skip
OBJECTS = (
    ("a red ball.", "einen roten Ball."), ("the old house.", "das alte Haus."),
    ("two small birds.", "zwei kleine Vögel."),
    ("some fresh bread.", "etwas frisches Brot."), ("the green door.", "die grüne Tür."),
    ("an honest answer.", "eine ehrliche Antwort."), ("the last train.", "den letzten Zug."),
    ("a warm coat.", "einen warmen Mantel."),
)  # fmt: skip

TOY: dict[str, Any] = {
    "data": {"dev_size": 20, "test_size": 20},
    "text": {"vocabulary": 340},
    "model": {"embedding": 6, "encoder": {"size": 6}, "attention": {"size": 6}, "decoder": {"size": 6, "maxout": 6}},
    "training": {"max_updates": 4, "dev_bleu": False, "metric": "nll", "threads": 1},
    "search": {"beam": 2, "max_ratio": 1.0, "max_extra": 4},
}
"""Settings merged into every run file of the docs, so that a page's commands take seconds."""


class Block(NamedTuple):
    """Fenced block of a page."""

    language: str
    text: str
    line: int
    """Line number of the first line of the text."""


def blocks(page: Path, replaced: Mapping[str, str] = MappingProxyType({})) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    for old, new in replaced.items():
        text = text.replace(old, new)
    found = re.finditer(r"^```([a-z]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(m[1], m[2], text.count("\n", 0, m.start(2)) + 1) for m in found]


def toy_tables(text: str) -> dict[str, Any]:
    """Return the tables of a run file at toy size, without tables that the model does not have."""
    tables = run_config.merge(tomllib.loads(text), copy.deepcopy(TOY))
    whole = run_config.merge(run_config.preset(tables["preset"]), tables) if "preset" in tables else tables
    for part in ("dev", "test"):
        if "corpus" in tables["data"] or part in tables["data"]:
            del tables["data"][f"{part}_size"]
    if "tokenizers" in tables["text"]:
        del tables["text"]["vocabulary"]
    sequence = whole.get("objective", {}).get("sequence", {}).get("type")
    if sequence == "bso":
        tables["training"] |= {"metric": "bleu", "dev_bleu": True}
    if sequence == "read-write":
        tables["training"]["metric"] = "reward"
    if whole["model"].get("kind") == "language-model":
        del tables["search"]
        model = {"embedding": 6, "network": {**whole["model"]["network"], "size": 6}}
        if not whole["model"].get("characters", {}).get("projection", True):
            model["characters"] = {**whole["model"]["characters"], "projection": True}
        return {**tables, "model": model}
    if whole["model"]["decoder"].get("type") in ("rnnencdec", "cho", "sutskever"):
        del tables["model"]["attention"]
    if "readout" in whole["model"]["decoder"]:
        tables["model"]["decoder"] = {"size": 6, "readout": 6}
    return tables


def write_corpus(folder: Path) -> None:
    """Write a corpus of a few hundred regular sentences, with word alignments and the other files that pages use."""
    pairs = [(f"{s} {v} {o}", f"{t} {w} {p}") for (s, t), (v, w), (o, p) in product(SUBJECTS, VERBS, OBJECTS)]
    parts = {"dev": pairs[3::24], "test": pairs[11::24]}
    held_out = {pair for part in parts.values() for pair in part}
    parts["train"] = [pair for pair in pairs if pair not in held_out]
    folder.mkdir(parents=True)
    for part, chosen in parts.items():
        for side, language in enumerate(("en", "de")):
            write_lines(folder / f"{part}.{language}", [pair[side] for pair in chosen])
        write_lines(folder / f"{part}.align", [" ".join(f"{n}-{n}" for n in range(6)) for _ in chosen])
    for name, part in (("talks", "train"), ("talk", "test")):
        for side, language in enumerate(("en", "de")):
            # An empty line after every fourth sentence, which ends a document.
            lines = [pair[side] + "\n" * (n % 4 == 3) for n, pair in enumerate(parts[part][:80])]
            write_lines(folder / f"{name}.{language}", lines)
    with gzip.open(folder / "memory.tsv.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{en}\t{de}\n" for en, de in parts["train"])
    write_lines(folder / "baseline.de", [pair[1] for pair in parts["test"]])
    # A language that is almost English, to transfer to.
    dutch = {f"{en}\n".replace("the ", "de ").replace("a ", "een ")[:-1]: (en, de) for en, de in parts["train"][:150]}
    write_lines(folder / "nl-de.tsv", [f"{nl}\t{de}" for nl, (_, de) in dutch.items()])
    write_lines(folder / "lines.nl", list(dutch))
    write_lines(folder / "lines.en", [en for en, _ in dutch.values()])
    write_lines(folder / "news.de", [f"Heute: {pair[1]}" for pair in parts["train"][:100]])


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_cache(folder: Path, corpus: Path) -> None:
    """Write a corpus to the cache like `rnnsearch data get`, so that no page needs a network."""
    from rnnsearch.data.corpora import catalog

    entry = catalog.find("tatoeba-en-de")
    target = folder / "corpora" / entry.name
    target.mkdir(parents=True)
    for part, language in product(("train", "dev", "test"), ("en", "de")):
        shutil.copy(corpus / f"{part}.{language}", target)
    files = {file.name: file.stat().st_size for file in target.iterdir()}
    facts = {
        "format": catalog.CORPUS_FORMAT,
        "name": entry.name,
        "archive": {"sha256": entry.archive.sha256},
        "files": files,
    }
    (target / "corpus.json").write_text(json.dumps(facts), encoding="utf-8")


def command(line: str, stdin: str = "") -> tuple[int, str]:
    """Run a line `rnnsearch ...` in this process; return its exit status and its output."""
    result = run(*shlex.split(line)[1:], stdin=stdin)
    return result.code, result.out + result.err


def environment(cache: Path) -> dict[str, str]:
    """Return the environment variables for the commands of a page."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {"RNNSEARCH_CACHE": str(cache), "OMP_NUM_THREADS": "1", "COLUMNS": "100", "PATH": path}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with a trained model that each page copies."""
    folder = tmp_path_factory.mktemp("docs")
    write_corpus(folder / "corpus")
    write_cache(folder / "cache", folder / "corpus")
    copy_native_code(folder / "cache")
    text = next(
        b.text for b in blocks(DOCS / "training.md") if b.language == "toml" and b.text.startswith("# run.toml")
    )
    (folder / "run.toml").write_text(tomli_w.dumps(toy_tables(text)), encoding="utf-8")
    with contextlib.chdir(folder):
        status, said = command("rnnsearch train run.toml")
    assert status == 0, said
    return folder


@pytest.fixture
def place(template: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder for one page."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def tables_restored() -> Iterator[None]:
    """Unregister the components that a page adds."""
    from rnnsearch.config import attention, cells, registry, training

    tables: tuple[dict[Any, Any], ...] = (
        attention.SCORES,
        cells.CELLS,
        training.OPTIMISERS,
        registry._IMPLEMENTATIONS,
    )
    before = [dict(table) for table in tables]
    yield
    for table, rows in zip(tables, before, strict=True):
        table.clear()
        table.update(rows)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.usefixtures("tables_restored")
def test_page_as_written(name, place, monkeypatch):
    page = DOCS / f"{name}.md"
    if name == "shipping":
        copy_web_engine(place / "cache")
    for variable, value in environment(place / "cache").items():
        monkeypatch.setenv(variable, value)
    if name in FROM_TEXT:
        shutil.rmtree(place / "runs")
    if name == "importing":
        Model.random().save(place / "model_step_5000.pt")
        joeynmt.Model.random().save(place / "joey").rename(place / "joey" / "best.ckpt")
    namespace: dict[str, Any] = {"__name__": name}
    port = free_port()
    with contextlib.chdir(place), stopped_after(place):
        for block in blocks(page, {SERVED_PORT: port} if name == "serving" else {}):
            where = f"{page.name}:{block.line}"
            if block.language == "toml" and (named := re.match(r"# (\S+\.toml)\n", block.text)):
                tables = toy_tables(block.text)
                Path(named[1]).write_text(tomli_w.dumps(tables), encoding="utf-8")
            elif block.language == "sh":
                run_shell(block, where)
            elif block.language == "console":
                run_console(block, where)
            elif block.language == "python":
                code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
                exec(code, namespace)


def free_port() -> str:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return str(taken.getsockname()[1])


@contextlib.contextmanager
def stopped_after(place: Path) -> Iterator[None]:
    """Kill the server that a page has started."""
    try:
        yield
    finally:
        number = place / "serve.pid"
        if number.is_file():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(number.read_text(encoding="utf-8")), signal.SIGKILL)


def run_shell(block: Block, where: str) -> None:
    """Run a block in the shell, except `rnnsearch` commands: without a start of Python they are much faster."""
    text = block.text.replace("\\\n", " ")
    # Lines with processes in the background or variables need the same shell.
    lines = [text] if re.search("[&$]", text) or "rnnsearch " not in text else text.splitlines()
    for line in lines:
        if (match := re.fullmatch(r"(?:((?:echo|printf) .*) \| )?(rnnsearch [^|<>&;$]*)", line)) is None:
            run_in_shell(line, where)
        else:
            status, said = command(match[2], run_in_shell(match[1], where) if match[1] else "")
            assert status == 0, f"{where} failed:\n{said}"


def run_in_shell(text: str, where: str) -> str:
    """Return the output of shell commands."""
    done = subprocess.run(
        ["sh", "-e", "-u", "-c", text],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{where} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_console(block: Block, where: str) -> None:
    """Run a failing command and compare its output, from the error on: pages omit messages about progress."""
    first, *expected = block.text.splitlines()
    assert first.startswith("$ rnnsearch "), where
    status, said = command(first.removeprefix("$ "))
    assert status in (1, 2), f"{where}: must fail; ended with {status}:\n{said}"
    pattern = ".*?".join(re.escape(part) for part in "\n".join(expected).split("..."))
    error = said[max(said.find("rnnsearch: "), 0) :] if expected[0].startswith("rnnsearch: ") else said
    assert re.fullmatch(pattern, error.strip(), re.DOTALL), f"{where}: says\n{said}"


def test_configuration_page_is_up_to_date():
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert regenerate(text) == text, "run python scripts/configuration_page.py"
    for path in ("data.cleaning", "model.attention", "training.schedule", "objective.reinforce", "search"):
        assert f"### `[{path}]`" in text
    assert "| `width` | integer, at least 1 | required | D of the window" in text
    assert text.count("required for `local-m`, `local-p` |") == 1


def test_commands_page_is_up_to_date():
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert commands_page.regenerate(text) == text, "run python scripts/commands_page.py"
    assert "rnnsearch translate MODEL... [OPTIONS]" in text
    assert "| `--beam` | integer, 1 to 1000 | the model's setting | Beam width; 1 is greedy search. |" in text


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("translate", "translating"),
        ("evaluate", "evaluation"),
        ("align", "alignment"),
        ("train", "training"),
        ("serve", "serving"),
        ("import", "importing"),
    ],
)
def test_every_option_of_a_command_is_on_its_page(name, page):
    import typer

    from rnnsearch.cli.app import app

    group: Any = typer.main.get_command(app)
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    for option in group.commands[name].params:
        if option.param_type_name == "option" and option.name not in ("help", "device"):
            assert any(re.search(rf"(?<![\w-]){re.escape(word)}\b", text) for word in option.opts), option.opts


def test_links_between_pages_resolve():
    root = DOCS.parent
    pages = [*DOCS.glob("*.md")]
    for page in pages:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([\w./-]+)(?:#[^)]*)?\)", text):
            assert (page.parent / target).resolve().is_relative_to(root), f"{page.name}: {target}"
            assert (page.parent / target).exists() or target in ("architecture.md", "../README.md"), (
                f"{page.name}: {target}"
            )
