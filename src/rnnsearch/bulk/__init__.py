"""Bulk work in shards that a killed run resumes, on one machine or a cluster.

- `jobs`: numbered shards whose inputs and outputs are files in a store, and `run`, which processes the lines of a file
- `stores`: folders and URLs as stores
- `engines`: functions that process the missing shards of a job: `local`, `OnCores` and `OnRay`
- `prepare`: preparation of corpora in shards

See docs/bulk.md.

The names above are public API. Tests: tests/commands/test_bulk.py.
"""

from rnnsearch.bulk.engines import OnCores, OnRay, local
from rnnsearch.bulk.jobs import Counts, Done, Engine, Job, Work, digest, run
from rnnsearch.bulk.prepare import StoredWorkers, prepare
from rnnsearch.bulk.stores import FolderStore, Store, UrlStore, store_at

__all__ = [
    "Counts",
    "Done",
    "Engine",
    "FolderStore",
    "Job",
    "OnCores",
    "OnRay",
    "Store",
    "StoredWorkers",
    "UrlStore",
    "Work",
    "digest",
    "local",
    "prepare",
    "run",
    "store_at",
]
