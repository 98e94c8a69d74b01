"""`/docs`: the API's reference as one plain page, made of the OpenAPI document; it asks nobody else for anything."""

from __future__ import annotations

import json
from html import escape
from typing import Any

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; font: 600 1.1rem ui-monospace, monospace; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8888; border-radius: .25rem; font-size: .85rem; }
summary { cursor: pointer; }
:root { color-scheme: light dark; }
"""


def reference(document: dict[str, Any]) -> str:
    """The page."""
    operations = [
        _operation(method.upper(), path, operation, document)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    title = escape(document["info"]["title"])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}: API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f'<h1>{title}: API</h1><p>For machines: <a href="openapi.json">openapi.json</a>.</p>'
        f"{''.join(operations)}</html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    parts = [f"<h2>{method} {escape(path)}</h2><p>{escape(operation.get('description', ''))}</p>"]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(_details(f"Request, {kind}", content["schema"], document))
    for status, response in operation["responses"].items():
        schema = response.get("content", {}).get("application/json", {}).get("schema")
        meaning = f"{status}: {response['description']}"
        parts.append(_details(meaning, schema, document) if schema else f"<p>{escape(meaning)}</p>")
    return "".join(parts)


def _details(name: str, schema: dict[str, Any], document: dict[str, Any]) -> str:
    shown = json.dumps(_whole(schema, document), indent=2, ensure_ascii=False)
    return f"<details><summary>{escape(name)}</summary><pre>{escape(shown)}</pre></details>"


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
