"""Corpora: reading, cleaning, splitting, downloading; prepared ids on disk; batches."""
