"""Import paths of earlier versions that documentation mentioned, kept as deprecated aliases.

`from rnnsearch.rerank import learn` still works: a finder for exactly these names returns a module that forwards every
attribute to the new module and warns once.

`rnnsearch/__init__.py` calls `install`. If a documented module moves, add its old path to `MOVED_MODULES`; a new path
must exist.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

MOVED_MODULES = {
    "rnnsearch.assess": "rnnsearch.evaluation.assess",
    "rnnsearch.confidence": "rnnsearch.translator.confidence",
    "rnnsearch.config.init": "rnnsearch.config.outputs",
    "rnnsearch.config.optimisers": "rnnsearch.config.training",
    "rnnsearch.config.schedules": "rnnsearch.config.training",
    "rnnsearch.config.table": "rnnsearch.config.options",
    "rnnsearch.data.formats": "rnnsearch.text.documents",
    "rnnsearch.evaluate": "rnnsearch.evaluation",
    "rnnsearch.evaluate.assess": "rnnsearch.evaluation.assess",
    "rnnsearch.evaluate.filtering": "rnnsearch.evaluation.filtering",
    "rnnsearch.evaluate.projection": "rnnsearch.evaluation.projection",
    "rnnsearch.evaluate.report": "rnnsearch.evaluation.report",
    "rnnsearch.importing": "rnnsearch.importers",
    "rnnsearch.metrics.bleu_chrf_ter": "rnnsearch.metrics.scores",
    "rnnsearch.models.initialise": "rnnsearch.models.layers",
    "rnnsearch.models.linear": "rnnsearch.models.layers",
    "rnnsearch.reporting": "rnnsearch.evaluation.report",
    "rnnsearch.rerank": "rnnsearch.translator.rerank",
    "rnnsearch.search.variants": "rnnsearch.search.sampling",
    "rnnsearch.text.protected": "rnnsearch.text.markup.protected",
    "rnnsearch.translate": "rnnsearch.translator.translator",
    "rnnsearch.translation": "rnnsearch.translator.translation",
}


class _ForwardingLoader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED_MODULES[module.__name__]
        warnings.warn(f"{module.__name__} is deprecated; import {new}", DeprecationWarning, stacklevel=2)
        target = importlib.import_module(new)

        def forward(name: str) -> Any:
            return getattr(target, name)

        vars(module)["__getattr__"] = forward


class _MovedModuleFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in MOVED_MODULES:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in MOVED_MODULES)
        return importlib.machinery.ModuleSpec(fullname, _ForwardingLoader(), is_package=is_package)


def install() -> None:
    """Make the old paths importable; real modules take precedence."""
    if not any(isinstance(finder, _MovedModuleFinder) for finder in sys.meta_path):
        sys.meta_path.append(_MovedModuleFinder())
