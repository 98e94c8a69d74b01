"""Import paths of earlier versions still work, with a warning."""

import importlib
import sys

import pytest

from rnnsearch.moved import MOVED_MODULES


@pytest.mark.parametrize("old", MOVED_MODULES)
def test_old_module_path_forwards_to_new_module(old, monkeypatch):
    for name in MOVED_MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    parent = old.rpartition(".")[0]
    if parent in MOVED_MODULES:
        with pytest.warns(DeprecationWarning):
            importlib.import_module(parent)
    with pytest.warns(DeprecationWarning, match=MOVED_MODULES[old]):
        module = importlib.import_module(old)
    new = importlib.import_module(MOVED_MODULES[old])
    public = [name for name in vars(new) if not name.startswith("_")]
    assert public or hasattr(new, "__path__")  # a package has none before its modules are imported
    assert all(getattr(module, name) is getattr(new, name) for name in public)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its package, unless that was imported before
def test_unknown_module_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("rnnsearch.evaluate.nothing")
