"""A corpus prepared by any engine, so that a killed run goes on: `data.prepare` with `Kept` workers."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnsearch.bulk.digests import digest
from rnnsearch.bulk.jobs import Engine
from rnnsearch.bulk.kept import Kept, Progress
from rnnsearch.bulk.stores import Store

if TYPE_CHECKING:
    from rnnsearch.config import RunConfig
    from rnnsearch.data import download
    from rnnsearch.data.prepared import Prepared


def prepare(
    config: RunConfig,
    folder: Path,
    store: Store,
    engine: Engine,
    rows: int = 1,
    cache: Path | None = None,
    downloading: download.Progress | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """What `data.prepare.prepare` makes, to the byte, its passes done by an engine and kept in a store until the end.

    `rows`: pairs a shard, at least; chunks of `passes.CHUNK` are never cut.
    Errors: those of `data.prepare.prepare`, of store and engine; DataError where the store holds another run.
    """
    from rnnsearch.data.passes import CHUNK
    from rnnsearch.data.prepare import prepare as prepared

    with Kept(store, _about(config, cache), engine, max(1, -(-rows // CHUNK)), progress) as workers:
        return prepared(config, folder, cache, downloading, workers=workers)


def _about(config: RunConfig, cache: Path | None) -> dict[str, Any]:
    """What the passes hang on. A listed corpus is known by its name, since its files have known hashes."""
    from rnnsearch.data.corpus import check_files
    from rnnsearch.data.prepare import files_of

    files = files_of(config.data)
    check_files([config.base / name for name in files])
    tables = {"data": config.data, "text": config.text}
    about: dict[str, Any] = {f"[{name}]": table.model_dump(mode="json") for name, table in tables.items()}
    about["files"] = {name: digest(config.base / name) for name in files}
    if config.text.tokenizers is not None:
        about["tokenizers"] = digest(config.base / config.text.tokenizers)
    return {"version": metadata.version("rnnsearch"), **about, "paths": [str(config.base), str(cache)]}
