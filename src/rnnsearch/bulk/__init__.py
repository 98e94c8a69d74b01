"""Bulk work: the lines of a file in ranges, done by whatever maps them, in one process or on many machines.

`shards.run` cuts the lines into fixed ranges, keeps what comes of each whole in a store, and joins all in order; an
engine (`local.local`, `on_ray.OnRay`) is no more than what does the ranges that are missing.
"""

from rnnsearch.bulk.digests import digest
from rnnsearch.bulk.local import local
from rnnsearch.bulk.on_ray import OnRay
from rnnsearch.bulk.shards import Counts, Done, Engine, Job, Work, run
from rnnsearch.bulk.stores import FolderStore, Store, UrlStore, store_at

__all__ = [
    "Counts",
    "Done",
    "Engine",
    "FolderStore",
    "Job",
    "OnRay",
    "Store",
    "UrlStore",
    "Work",
    "digest",
    "local",
    "run",
    "store_at",
]
