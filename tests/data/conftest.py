"""Fixture: a run file whose dev and test sets are files."""

from pathlib import Path

import pytest

from rnnsearch.config import RunConfig
from tests.data.toys import PAIRS, config, write


@pytest.fixture
def file_config(tmp_path: Path) -> RunConfig:
    """A run file whose train, dev and test are files."""
    train = write(tmp_path, "train", PAIRS[:80])
    dev = write(tmp_path, "dev", PAIRS[80:90])
    test = write(tmp_path, "test", PAIRS[90:])
    return config(tmp_path, train=[train], dev=dev, test=test)
