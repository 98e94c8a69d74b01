"""Requests generated from the OpenAPI document, valid or not, never cause an internal error."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from rnnsearch.serve.app import create_app
from rnnsearch.serve.limits import Settings


@pytest.fixture(scope="module")
def document(folders: list[Path], listening: Any) -> Iterator[Any]:
    """Return the OpenAPI document of a running server."""
    with listening(create_app(folders, Settings(max_characters=300))) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


def test_generated_requests_cause_no_internal_errors(document):
    operations = [result.ok() for result in document.get_all_operations()]
    assert len(operations) >= 14
    for operation in operations:

        @settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            response = case.call()
            assert response.status_code < 500, f"{case.as_curl_command()}: {response.text}"
            if response.status_code >= 400:
                assert response.json()["error"]

        check()
