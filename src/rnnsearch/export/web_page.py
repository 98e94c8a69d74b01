"""Export of a model as a web page that translates on the visitor's device.

The page is a folder of static files. It works offline after the first visit and can be installed:

    index.html            the page of `rnnsearch serve`
    static/               its scripts and style sheets, with the engine as back end
    module/               a JavaScript module for other pages, with the engine
    models/, models.json  the models and their descriptions
    sw.js                 the service worker, which stores all files on the device
    manifest.webmanifest  the web app manifest

`cli/models.py` calls `export_page`. The files are those of `serve/page`, except for `SERVER_FILES`, and those in
`web/`; entries of `models.json` have the fields of `GET /v1/models` (`serve/schemas.py`), and the page reads both.
Tests: tests/runtime/test_web_folder.py, tests/page/test_offline.py, tests/page/test_module.py.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from rnnsearch.engine.file import read_header
from rnnsearch.engine.program import parse_program
from rnnsearch.engine.rnnsearch import RNNsearchModel
from rnnsearch.errors import RnnsearchError
from rnnsearch.export.engine_file import export
from rnnsearch.ops.native.building import web_engine_path
from rnnsearch.text import sentence_rules
from rnnsearch.text.languages import language_name
from rnnsearch.utils.files import JSON_ERRORS, atomic_folder, write_json

MODEL_LIST = "models.json"
SERVER_FILES = frozenset({"server-api.js", "files.js", "tabs.js"})
"""Scripts of the page that need `rnnsearch serve`."""

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self' 'wasm-unsafe-eval'",
        "style-src 'self'",
        "img-src 'self' blob:",  # blob: a heat map that is converted to PNG
        "connect-src 'self'",
        "worker-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
    )
)
CHARSET = '<meta charset="utf-8">'
HEAD = f"""{CHARSET}
<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">
<meta name="referrer" content="no-referrer">
<meta name="theme-color" content="#f6f6f3" media="(prefers-color-scheme: light)">
<meta name="theme-color" content="#14161a" media="(prefers-color-scheme: dark)">
<link rel="manifest" href="manifest.webmanifest">"""
MANIFEST = {
    "name": "rnnsearch: on-device translation",
    "short_name": "rnnsearch",
    "start_url": "./",
    "scope": "./",
    "display": "standalone",
    "background_color": "#f6f6f3",
    "theme_color": "#f6f6f3",
    "icons": [{"src": "static/icon.svg", "sizes": "any", "type": "image/svg+xml", "purpose": "any"}],
}


def export_page(model: Path, folder: Path, precision: str = "int8") -> tuple[int, int]:
    """Write a page with a model, or add the model to an exported page.

    Returns:
        The size of the page without models and the size of the model's file, in bytes.

    Raises:
        ModelError: The model cannot be exported (see `export`).
        RnnsearchError: The folder is not an exported page, the page has a model of the same name from another folder,
            or the engine for browsers cannot be built.
    """
    engine = web_engine_path()
    source = model.resolve()
    name = source.name
    origin = short_hash(str(source))
    file = f"models/{file_name(name)}"
    other_models = []
    for entry in read_model_list(folder):
        if entry["name"] == name and entry.get("origin", origin) == origin:
            continue  # replaced
        if entry["name"] == name or entry["file"] == file:
            raise RnnsearchError(
                f"{folder}: the page already has a model {entry['name']} from another folder; rename the folder {model}"
            )
        other_models.append(entry)
    with atomic_folder(folder) as new:
        (new / "models").mkdir()
        export(model, new / file, precision, candidates=0)  # the page does not read candidate lists
        for entry in other_models:
            shutil.copyfile(folder / entry["file"], new / entry["file"])
        write_page(new, engine)
        page_size = sum(path.stat().st_size for path in new.rglob("*") if path.is_file() and path.suffix != ".rnn")
        entry = {**model_entry(name, file, new / file, precision), "origin": origin}
        write_json(new / MODEL_LIST, [entry, *other_models])
        write_service_worker(new)
        return page_size, (new / file).stat().st_size


def short_hash(text: str) -> str:
    """Return a hash that identifies a text without revealing it."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def file_name(name: str) -> str:
    """Return a model's file name: unique, and in characters that every web host serves."""
    portable = re.sub(r"[^A-Za-z0-9._-]", "-", name)
    return f"{portable}.rnn" if portable == name else f"{portable}.{short_hash(name)}.rnn"


def read_model_list(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of an exported page's models; none for a new or empty folder.

    Raises:
        RnnsearchError: The path is a file, or a folder that is not an exported page.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return []
    try:
        entries = json.loads((folder / MODEL_LIST).read_text(encoding="utf-8"))
        if all(_is_valid_entry(entry, folder) for entry in entries):
            return list(entries)
    except JSON_ERRORS:
        pass
    raise RnnsearchError(f"{folder}: must be a new folder, or one that `rnnsearch export --format web` wrote")


def _is_valid_entry(entry: dict[str, Any], folder: Path) -> bool:
    is_model_file = re.fullmatch(r"models/[A-Za-z0-9._-]+\.rnn", entry["file"]) is not None
    return is_model_file and bool(str(entry["name"])) and (folder / entry["file"]).is_file()


def model_entry(name: str, file: str, path: Path, precision: str) -> dict[str, Any]:
    """Return a model's entry in models.json, with the fields of `GET /v1/models` and details for the about section.

    Raises:
        ModelError: The engine file cannot be read.
    """
    header = read_header(path)
    source, target = map(str, header["languages"])
    return {
        "name": name,
        "file": file,
        "source": source,
        "target": target,
        "source_name": language_name(source),
        "target_name": language_name(target),
        "attention": header["system"] == RNNsearchModel.system
        or parse_program(header["program"]).attention is not None,
        "aligner": False,
        "score": None,
        "precision": precision,
        "megabytes": round(path.stat().st_size / 1e6, 1),
        "about": header["about"],
        "scores": _score_rows(header["scores"]),
    }


def _score_rows(evaluations: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for evaluation in evaluations:
        for score in evaluation["scores"]:
            rows.append([f"{score['name']}, {evaluation['set']}", f"{score['value']:.1f}"])
    return rows


def write_page(folder: Path, engine: Path) -> None:
    """Write all files except the models, models.json and the service worker."""
    server_page = files("rnnsearch.serve").joinpath("page")
    engine_page = files("rnnsearch.export").joinpath("web", "page")
    static = {entry.name: entry for entry in server_page.iterdir() if entry.name not in SERVER_FILES}
    static |= {entry.name: entry for entry in engine_page.iterdir()}  # among them another backend.js
    index = static.pop("index.html").read_text(encoding="utf-8")
    del static["sw.js"]
    (folder / "static").mkdir()
    for name, entry in static.items():
        (folder / "static" / name).write_bytes(entry.read_bytes())
    write_sentence_rules(folder / "static")
    assert index.count(CHARSET) == 1
    (folder / "index.html").write_text(index.replace(CHARSET, HEAD), encoding="utf-8")
    (folder / "module").mkdir()
    write_module(folder / "module", engine)
    write_json(folder / "manifest.webmanifest", MANIFEST)


def write_sentence_rules(folder: Path) -> None:
    """Write the words that `sentences.js` needs, next to it."""
    script = f"// Written from rnnsearch/text/sentence_rules.py.\nexport default {sentence_rules.json_text()};\n"
    (folder / "sentence-rules.js").write_text(script, encoding="utf-8")


def write_module(folder: Path, engine: Path) -> None:
    """Write the JavaScript module and the engine into an existing folder."""
    for entry in files("rnnsearch.export").joinpath("web", "module").iterdir():
        (folder / entry.name).write_bytes(entry.read_bytes())
    shutil.copyfile(engine, folder / "engine.wasm")


def write_service_worker(folder: Path) -> None:
    """Write the service worker, with the names of all files and a version that depends on their contents."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    names = [name for name in paths if not name.endswith((".d.ts", "package.json"))]
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0".encode() + (folder / name).read_bytes())
    script = files("rnnsearch.export").joinpath("web", "page", "sw.js").read_text(encoding="utf-8")
    script = script.replace("@VERSION@", digest.hexdigest()[:16])
    script = script.replace('["@FILES@"]', json.dumps(["./", *names], indent=1))
    (folder / "sw.js").write_text(script, encoding="utf-8")
