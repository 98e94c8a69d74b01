"""What stands around a trace."""

from collections.abc import Iterator

import pytest
from jaxtyping import config


@pytest.fixture(autouse=True, scope="module")
def unchecked() -> Iterator[None]:
    """Without the checks of types and shapes: in a trace, sizes are tensors, and no `int`."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
