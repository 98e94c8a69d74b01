"""The translation page: its few static files, and the headers that keep it from asking anyone else for anything."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from pathlib import PurePath

from fastapi import APIRouter, Header, Response

FOLDER = "page"
"""Where the page's files are, next to this one."""

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""What may be served, by suffix."""

HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' blob:",  # blob: a heat map on its way to a PNG
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # kept, but asked for again: a new version shows at once
}


def page_router() -> APIRouter:
    """`/` is the page, `/static/NAME` its files, read once. Nothing outside the page's own folder can be named."""
    router = APIRouter(include_in_schema=False)
    entries = [entry for entry in files(__package__).joinpath(FOLDER).iterdir() if PurePath(entry.name).suffix in TYPES]
    bodies = {entry.name: entry.read_bytes() for entry in entries}
    tags = {name: f'"{sha256(body).hexdigest()[:16]}"' for name, body in bodies.items()}

    def answer(name: str, asked: str | None) -> Response:
        if name not in bodies:
            return Response(status_code=404)
        headers = {**HEADERS, "ETag": tags[name]}
        if asked == tags[name]:
            return Response(status_code=304, headers=headers)
        return Response(bodies[name], media_type=TYPES[PurePath(name).suffix], headers=headers)

    @router.get("/")
    def page(if_none_match: str | None = Header(default=None)) -> Response:
        return answer("index.html", if_none_match)

    @router.get("/static/{name}")
    def static(name: str, if_none_match: str | None = Header(default=None)) -> Response:
        return answer(name, if_none_match)

    return router
