"""Fixtures of the tests of the export to ONNX."""

from collections.abc import Iterator

import pytest
from jaxtyping import config


@pytest.fixture(autouse=True, scope="module")
def disable_shape_checks() -> Iterator[None]:
    """Disable the checks of types and shapes, because sizes are tensors instead of `int` in a trace."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
