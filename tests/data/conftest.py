"""A run whose parts are files."""

from pathlib import Path

import pytest

from rnnsearch.config import RunConfig
from tests.data.toys import PAIRS, config, write


@pytest.fixture
def given(tmp_path: Path) -> RunConfig:
    """A run whose train, dev and test are given."""
    train = write(tmp_path, "train", PAIRS[:80])
    dev = write(tmp_path, "dev", PAIRS[80:90])
    test = write(tmp_path, "test", PAIRS[90:])
    return config(tmp_path, train=[train], dev=dev, test=test)
