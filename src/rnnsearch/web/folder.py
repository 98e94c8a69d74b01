"""A page that translates in the browser, as a folder of static files: off-line after its first visit, and installable.

index.html            the page of `rnnsearch serve`, without what needs a server
static/               its scripts and styles; some are the off-line page's own
module/               what others can embed, the engine among it
models/, models.json  the models, and what they are
sw.js                 keeps all of it on the device
manifest.webmanifest  how it is installed
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

from rnnsearch.engine.file import header_of
from rnnsearch.engine.program import parsed
from rnnsearch.engine.rnnsearch import Arrays
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.export import export
from rnnsearch.files import atomic_folder, write_json
from rnnsearch.kernels.native.places import web_engine
from rnnsearch.text.languages import language_name

ROWS = "models.json"
RULES = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self' 'wasm-unsafe-eval'",
        "style-src 'self'",
        "img-src 'self' blob:",  # blob: a heat map on its way to a PNG
        "connect-src 'self'",
        "worker-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
    )
)
"""What the page may load and ask: nothing but its own files."""
HEAD = f"""<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{RULES}">
<meta name="referrer" content="no-referrer">
<meta name="theme-color" content="#f6f6f3" media="(prefers-color-scheme: light)">
<meta name="theme-color" content="#14161a" media="(prefers-color-scheme: dark)">
<link rel="manifest" href="manifest.webmanifest">
<link rel="stylesheet" href="static/web.css">"""
ABOUT = """  <section class="about" aria-label="About">
    <p>Translations are made on this device; nothing that you type is sent anywhere.
    <span id="kept" role="status"></span></p>
    <dl id="about-rows"></dl>
  </section>
</main>"""
WITHOUT = ("files.js", "tabs.js")
"""Of the server's page."""
MANIFEST = {
    "name": "rnnsearch: translation on this device",
    "short_name": "rnnsearch",
    "start_url": "./",
    "scope": "./",
    "display": "standalone",
    "background_color": "#f6f6f3",
    "theme_color": "#f6f6f3",
    "icons": [{"src": "static/icon.svg", "sizes": "any", "type": "image/svg+xml", "purpose": "any"}],
}


def export_page(model: Path, folder: Path, precision: str = "int8") -> tuple[int, int]:
    """Write the page with a model; the bytes of the page and of the model. A page that is there keeps its other models.

    Errors: ModelError as of `export`; RnnsearchError where a folder of something else is in the way, the page has a
    model of this name from another folder, or the engine for browsers cannot be had.
    """
    engine, place = web_engine(), model.resolve()
    name, origin = place.name, digest_of(str(place))
    file = f"models/{file_name(name)}"
    others = [row for row in kept(folder) if row["name"] != name or row.get("origin", origin) != origin]
    for row in others:
        if row["name"] == name or row["file"] == file:
            held = f"has a model {row['name']} from another folder already"
            raise RnnsearchError(f"{folder}: {held}: rename the folder {model}")
    with atomic_folder(folder) as new:
        (new / "models").mkdir()
        export(model, new / file, precision, candidates=0)  # which it would not read
        for row in others:
            shutil.copyfile(folder / row["file"], new / row["file"])
        rows = [{**about(name, file, new / file, precision), "origin": origin}, *others]
        write_page(new, engine)
        page = sum(path.stat().st_size for path in new.rglob("*") if path.is_file() and path.suffix != ".rnn")
        write_json(new / ROWS, rows)
        write_worker(new)
        return page, (new / file).stat().st_size


def digest_of(text: str) -> str:
    """It tells a text from others and does not say what it is."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def file_name(name: str) -> str:
    """A model's file: of letters that every web host knows, and of no other model."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", name)
    return f"{plain}.rnn" if plain == name else f"{plain}.{digest_of(name)}.rnn"


def kept(folder: Path) -> list[dict[str, Any]]:
    """What a page that is there says of its models. Errors: RnnsearchError for a folder or a file of something else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return []
    try:
        rows = json.loads((folder / ROWS).read_text(encoding="utf-8"))
        fine = all(re.fullmatch(r"models/[A-Za-z0-9._-]+\.rnn", row["file"]) and str(row["name"]) for row in rows)
        if fine and all((folder / row["file"]).is_file() for row in rows):
            return list(rows)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    raise RnnsearchError(f"{folder}: must be a new folder, or one that `rnnsearch export --format web` wrote")


def about(name: str, file: str, path: Path, precision: str) -> dict[str, Any]:
    """What the page says of a model. Errors: ModelError."""
    header = header_of(path)
    source, target = map(str, header["languages"])
    scores = [
        [f"{score['name']}, {row['set']}", f"{score['value']:.1f}"]
        for row in header["scores"]
        for score in row["scores"]
    ]
    return {
        "name": name,
        "file": file,
        "source": source,
        "target": target,
        "source_name": language_name(source),
        "target_name": language_name(target),
        "attention": header["system"] == Arrays.system or parsed(header["program"]).attention is not None,
        "aligner": False,
        "score": None,
        "precision": precision,
        "megabytes": round(path.stat().st_size / 1e6, 1),
        "about": header["about"],
        "scores": scores,
    }


def write_page(folder: Path, engine: Path) -> None:
    """All but the models and what names them."""
    own, server = files("rnnsearch.web"), files("rnnsearch.serve").joinpath("page")
    for part in ("static", "module"):
        (folder / part).mkdir()
    scripts = {entry.name: entry for entry in server.iterdir() if entry.name not in WITHOUT}
    scripts |= {entry.name: entry for entry in own.joinpath("page").iterdir()}
    page, _ = scripts.pop("index.html").read_text(encoding="utf-8"), scripts.pop("sw.js")
    for name, entry in scripts.items():
        (folder / "static" / name).write_bytes(entry.read_bytes())
    write_module(folder / "module", engine)
    (folder / "index.html").write_text(offline(page), encoding="utf-8")
    write_json(folder / "manifest.webmanifest", MANIFEST)


def write_module(folder: Path, engine: Path) -> None:
    """The npm-style module, its engine with it, into a folder."""
    for entry in files("rnnsearch.web").joinpath("module").iterdir():
        (folder / entry.name).write_bytes(entry.read_bytes())
    shutil.copyfile(engine, folder / "engine.wasm")


def offline(page: str) -> str:
    """The server's page without what needs a server."""
    page = re.sub(r"\s*<!-- server -->.*?<!-- /server -->", "", page, flags=re.DOTALL)
    for old, new in (
        ('<meta charset="utf-8">', HEAD),
        ("</main>", ABOUT),
        (' role="tabpanel" aria-labelledby="tab-text"', ""),
    ):
        if page.count(old) != 1:
            raise ModelError(f"the page of `rnnsearch serve` must have {old} once")
        page = page.replace(old, new)
    return page.replace('"/static/', '"static/')


def write_worker(folder: Path) -> None:
    """The service worker, which names every file and changes with each."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    names = [name for name in names if not name.endswith((".d.ts", "package.json"))]
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0".encode() + (folder / name).read_bytes())
    text = files("rnnsearch.web").joinpath("page/sw.js").read_text(encoding="utf-8")
    text = text.replace("@VERSION@", digest.hexdigest()[:16])
    text = text.replace('["@FILES@"]', json.dumps(["./", *names], indent=1))
    (folder / "sw.js").write_text(text, encoding="utf-8")
