"""Fields of requests whose clients send them in different ways: in the query, as JSON, or as a form.

The routers of other translators' protocols (`libretranslate`, `apertium`, `deepl`, `opus_cat`) read their requests with
`read_fields` or `read_body`, and describe them in the OpenAPI document with `document_body`. The size of a body is
limited by `AdmissionControl`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import BaseModel
from starlette.datastructures import UploadFile

from rnnsearch.serve.limits import ServeError

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"

Body = TypeVar("Body", bound=BaseModel)


async def read_fields(request: Request, lists: Iterable[str] = ()) -> dict[str, Any]:
    """Return the fields of the query and the body of a request; a field of the body replaces one of the query.

    Args:
        request: The request.
        lists: Names of fields that are lists; any other field that occurs several times becomes one, too.

    Raises:
        ServeError: With status 400 if the body is neither a JSON object nor a form.
    """
    query = request.scope["query_string"].decode(errors="replace")
    fields = _form_fields(parse_qsl(query, keep_blank_values=True), lists)
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == MULTIPART:
        return fields | _form_fields((await request.form()).multi_items(), lists)
    body = (await request.body()).lstrip()
    if not body:
        return fields
    # `curl -d` declares JSON as a form.
    if content_type == FORM and not body.startswith(b"{"):
        # Not Starlette's parser, which reads characters that are not escaped (by `curl -d`) as Latin-1.
        return fields | _form_fields(parse_qsl(body.decode(errors="replace"), keep_blank_values=True), lists)
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:  # among them UnicodeDecodeError
        raise ServeError(400, f"the body must be JSON or a form; got {error}") from None
    if not isinstance(content, dict):
        raise ServeError(400, f"the body must be a JSON object or a form; got {type(content).__name__}")
    return fields | content


async def read_body(request: Request, model: type[Body]) -> Body:
    """Return the fields of a request as a model; fields that are null count as missing.

    Raises:
        ServeError: As in `read_fields`.
        ValidationError: The request has other fields than the model.
    """
    return to_model(await read_fields(request), model)


def to_model(fields: Mapping[str, Any], model: type[Body]) -> Body:
    """Return fields as a model; those that are null count as missing.

    Raises:
        ValidationError: The model has other fields.
    """
    return model.model_validate({name: value for name, value in fields.items() if value is not None})


def _form_fields(pairs: Iterable[tuple[str, Any]], lists: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a query or a form without its files; repeated fields and those in `lists` are lists."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if not isinstance(value, UploadFile):
            fields.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 and name not in lists else values for name, values in fields.items()}


def document_body(model: type[BaseModel]) -> dict[str, Any]:
    """Return the entry in the OpenAPI document for a body that may be JSON or a form."""
    schema = {"schema": model.model_json_schema()}
    return {"requestBody": {"required": True, "content": dict.fromkeys((JSON, FORM), schema)}}
