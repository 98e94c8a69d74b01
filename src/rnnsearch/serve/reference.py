"""`/docs`: the API's reference as one plain page, made of the OpenAPI document; it asks nobody else for anything."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined


def reference(document: dict[str, Any]) -> str:
    """The page."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["whole"] = lambda schema: json.dumps(_whole(schema, document), indent=2, ensure_ascii=False)
    page = environment.from_string(files(__package__).joinpath("reference.html").read_text(encoding="utf-8"))
    return page.render(title=document["info"]["title"], paths=document["paths"])


def _whole(schema: Any, document: dict[str, Any]) -> Any:
    """The schema with what it refers to in its place, and without the titles that only repeat names."""
    if isinstance(schema, list):
        return [_whole(part, document) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _whole(document["components"]["schemas"][name], document)
    return {
        key: _whole(value, document) for key, value in schema.items() if not (key == "title" and isinstance(value, str))
    }
