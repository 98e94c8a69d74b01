"""The package at the end of docs/adding-a-component.md: commands accept the component of an installed package."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from rnnsearch.config import attention, registry
from rnnsearch.config.options import load_installed_components

PAGE = (Path(__file__).parents[2] / "docs" / "adding-a-component.md").read_text(encoding="utf-8")
MODULE = "cosine_of_tests"
NEEDS = (
    'needs the score "cosine", which neither rnnsearch nor an installed package has; install the package that it was '
    "trained with (or update rnnsearch)"
)


def forget():
    """Unregister the score, as in a process that has not loaded the package."""
    sys.modules.pop(MODULE, None)
    if options := attention.SCORES.pop("cosine", None):
        del registry._IMPLEMENTATIONS[options]
    load_installed_components.cache_clear()


@pytest.fixture
def site_packages(tmp_path, monkeypatch):
    """Return a folder in which packages are installed."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    forget()
    yield folder
    forget()


@pytest.fixture
def package(site_packages):
    """Install the package of the page, and return its folder."""
    code = re.search(r"```python\n(from typing import Literal.*?)```", PAGE, re.DOTALL)[1]
    project = re.search(r"```text\n(\[project\].*?)```", PAGE, re.DOTALL)[1]
    [entry_point] = re.findall(r'entry-points."rnnsearch.components"\]\n(\w+) = "cosine"', project)
    (site_packages / f"{MODULE}.py").write_text(code, encoding="utf-8")
    info = site_packages / "rnnsearch_cosine-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rnnsearch-cosine\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[rnnsearch.components]\n{entry_point} = {MODULE}\n")
    return site_packages


def test_commands_accept_the_component_of_an_installed_package(package, corpus, cli, tmp_path, user_error):
    folder = tmp_path / "cosine"
    settings = ("model.attention.score=cosine", "training.max_updates=2", f"folder={folder}")
    trained = cli("train", corpus / "run.toml", "--set", *settings)
    assert trained.code == 0, trained.err
    # Each command starts without the component, as a new process does.
    forget()
    inspected = cli("inspect", folder)
    assert re.search(r"Attention +cosine", inspected.out), inspected
    forget()
    translated = cli("translate", folder, stdin="the small cat sees the dog.\n")
    assert (translated.code, len(translated.lines)) == (0, 1)
    forget()
    shutil.rmtree(package)
    assert user_error("translate", folder) == f"{folder}: {NEEDS}"
    assert user_error("serve", folder) == f"{folder}: {NEEDS}"


def test_broken_package_is_skipped_with_a_warning(package, corpus, user_error, caplog):
    (package / f"{MODULE}.py").write_text("import no_such_module\n")
    message = user_error("train", corpus / "run.toml", "--set", "model.attention.score=cosine")
    assert "model.attention.score: must be one of additive, " in message
    assert "the components cosine of rnnsearch-cosine cannot be loaded: ModuleNotFoundError" in caplog.text


@pytest.mark.usefixtures("package")
def test_packages_are_not_loaded_for_known_names(cli, model):
    assert cli("inspect", model).code == 0
    assert MODULE not in sys.modules
