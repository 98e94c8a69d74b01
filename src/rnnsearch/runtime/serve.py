"""LibreTranslate's API over one engine file, by Python's own HTTP server: for one user or a few. Imports no torch.

POST /translate (JSON or a form): q, a text or a list of texts; source and target, the model's languages. It gives
translatedText. GET /languages, GET /health. An error is {"error": one sentence} with a status of 400 or more. GET of
anything else is a file of the page, where there is one.
"""

from __future__ import annotations

import json
import mimetypes
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any
from urllib.parse import parse_qs, unquote

from rnnsearch.errors import RnnsearchError
from rnnsearch.runtime.translator import MOST_SYMBOLS, Translator
from rnnsearch.text.sentences import rejoin, sentence_spans
from rnnsearch.translation import one_line

MOST_BODY = 1 << 20
MOST_CHARACTERS = 100_000
"""Of all texts of a request together."""
MOST_CONNECTIONS = 64
WAITING = 30.0
"""Seconds that a sender may be silent."""


class RequestError(RnnsearchError):
    """What a request asks cannot be done; the status to answer with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def files_of(page: Path) -> dict[str, Path]:
    """The files of a page, by their addresses: nothing else of the machine is given out."""
    found = {f"/{path.relative_to(page).as_posix()}": path for path in sorted(page.rglob("*")) if path.is_file()}
    if "/index.html" not in found:
        raise RnnsearchError(
            f"{page}: must be a folder that `rnnsearch export --format web` wrote; it has no index.html"
        )
    return found | {"/": found["/index.html"]}


def type_of(path: str) -> str:
    """What a browser must know of a file."""
    known = {"js": "text/javascript", "wasm": "application/wasm", "rnn": "application/octet-stream"}
    ending = path.rpartition(".")[2] if path != "/" else "html"
    return known.get(ending) or mimetypes.guess_type(f"page.{ending}")[0] or "application/octet-stream"


class Server(ThreadingHTTPServer):
    """Requests are read side by side, and translated one after the other."""

    daemon_threads = True

    def __init__(self, translator: Translator, host: str, port: int, page: Path | None = None) -> None:
        """`page`: a folder of `rnnsearch export --format web`. Errors: RnnsearchError for another; OSError."""
        self.page = {} if page is None else files_of(page)
        super().__init__((host, port), Handler)
        self.translator, self.lock, self.open = translator, Lock(), BoundedSemaphore(MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, unless there are too many."""
        if self.open.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.open.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender who goes away is no fault of the server."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            sys.stderr.write(f"rnnsearch-runtime: {type(error).__name__}: {error}\n")

    def translated(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request. Errors: RequestError."""
        texts, own = asked.get("q"), self.translator.languages
        for name, language in zip(("source", "target"), own, strict=True):
            told = asked.get(name, language)
            if told != language and not (name == "source" and told == "auto"):
                raise RequestError(400, f"{name} must be {language}; got {told!r:.50}")
        given = texts if isinstance(texts, list) else [texts]
        many = [text for text in given if isinstance(text, str)]
        if len(many) < len(given) or asked.get("format", "text") != "text":
            raise RequestError(400, 'q must be a text or a list of texts, and format "text"')
        if sum(map(len, many)) > MOST_CHARACTERS:
            raise RequestError(413, f"q must have at most {MOST_CHARACTERS} characters")
        spans = [sentence_spans(text, own[0]) for text in many]
        sentences = [text[a:b] for text, each in zip(many, spans, strict=True) for a, b in each]
        if not all(map(self.translator.fits, sentences)):
            raise RequestError(413, f"a sentence of q must have at most {MOST_SYMBOLS:,} symbols")
        with self.lock:
            found = iter(self.translator.translate(sentences))
        made = [
            rejoin(text, each, [one_line(next(found).text) for _ in each], own[1])[0]
            for text, each in zip(many, spans, strict=True)
        ]
        return {"translatedText": made if isinstance(texts, list) else made[0]}


class Handler(BaseHTTPRequestHandler):
    """One request a connection."""

    server: Server
    server_version = "rnnsearch-runtime"
    sys_version = ""
    timeout = WAITING

    def do_GET(self) -> None:
        """What the server is."""
        source, target = self.server.translator.languages
        answers = {
            "/health": {"status": "ok"},
            "/languages": [{"code": source, "name": source, "targets": [target]}],
        }
        path = unquote(self.path.partition("?")[0])
        if path in answers:
            self._answer(200, answers[path])
        elif path in self.server.page:
            self._give(200, self.server.page[path].read_bytes(), type_of(path))
        else:
            self._answer(404, {"error": f"there is no {path[:50]}; there are /translate, /languages and /health"})

    def do_POST(self) -> None:
        """A translation."""
        try:
            if self.path.partition("?")[0] != "/translate":
                raise RequestError(404, "there is no such path; there are /translate, /languages and /health")
            self._answer(200, self.server.translated(self._asked()))
        except RequestError as error:
            self._answer(error.status, {"error": str(error)})
        except RnnsearchError as error:
            self._answer(400, {"error": str(error)})

    def _asked(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise RequestError(411, "a request must say its Content-Length")
        if len(length) > 9 or int(length) > MOST_BODY:
            raise RequestError(413, f"a request must have at most {MOST_BODY} bytes")
        body = self.rfile.read(int(length))
        try:
            form = self.headers.get_content_type() == "application/x-www-form-urlencoded"
            if form and not body.lstrip().startswith(b"{"):  # what curl -d says of JSON, too
                return {name: values[0] for name, values in parse_qs(body.decode(), max_num_fields=20).items()}
            asked = json.loads(body)
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            raise RequestError(400, "a request must be a JSON object, or a form")
        return asked

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content, ensure_ascii=False).encode("utf-8", errors="replace")
        self._give(status, body, "application/json; charset=utf-8")

    def _give(self, status: int, body: bytes, type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", type)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: texts may be confidential."""
