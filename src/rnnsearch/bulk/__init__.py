"""Bulk work in pieces, done by whatever maps them, in one process or on many machines.

`jobs` is the ground: numbered pieces, what each is given and what came of it kept whole in a store; an engine
(`local.local`, `local.OnCores`, `on_ray.OnRay`) is no more than what does the pieces that are missing. Above it,
`shards.run` does the lines of a file in ranges and joins what came of them in order, and `corpora.prepare` the passes
over a corpus (`kept`).
"""

from rnnsearch.bulk.engines import OnCores, OnRay, local
from rnnsearch.bulk.jobs import Counts, Done, Engine, Job, Work, digest, run
from rnnsearch.bulk.prepare import Kept, prepare
from rnnsearch.bulk.stores import FolderStore, Store, UrlStore, store_at

__all__ = [
    "Counts",
    "Done",
    "Engine",
    "FolderStore",
    "Job",
    "Kept",
    "OnCores",
    "OnRay",
    "Store",
    "UrlStore",
    "Work",
    "digest",
    "local",
    "prepare",
    "run",
    "store_at",
]
