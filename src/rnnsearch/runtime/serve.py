"""The server of the runtime: the main part of LibreTranslate's API over one engine file, for one user or a few.

It uses Python's own HTTP server, so it needs no packages in addition to the runtime's (see
`docs/decisions/0022-server-of-the-runtime.md`); `rnnsearch serve` is the server for many users.

- `POST /translate` (JSON, a form, or the query): `q`, a text or a list of texts; `source` and `target`, the model's
  languages. Returns `translatedText`, and `detectedLanguage` if the source is `auto`.
- `GET /languages`, `GET /health`
- `GET` of any other path: a file of the page, if there is one

An error is `{"error": sentence}` with a status of 400 or more. Requests from pages of other sites are rejected
(`utils.origin_check`).

`runtime/command_line.py` starts it. Each connection has a thread; a lock lets one request at a time translate. The
fields and status codes are those of LibreTranslate, like in `serve/libretranslate.py`. Tests:
tests/runtime/test_serve.py.
"""

from __future__ import annotations

import json
import mimetypes
import sys
import time
from collections.abc import Callable, Sequence, Set
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any, NoReturn
from urllib.parse import parse_qs, unquote

from rnnsearch.errors import RnnsearchError
from rnnsearch.runtime.translator import MAX_TOKENS, Translator
from rnnsearch.text.languages import has_script_of, language_name
from rnnsearch.text.markup.protected import DEFAULT_PROTECTED
from rnnsearch.translator.texts import translate_texts
from rnnsearch.translator.translation import Translation
from rnnsearch.utils.origin_check import SAFE_METHODS, RequestOrigin, rejection

MAX_BODY_BYTES = 1 << 20
MAX_CHARACTERS = 100_000  # of all texts of a request
MAX_TEXTS = MAX_CHARACTERS // 10  # empty texts cost work, too
MAX_CONNECTIONS = 64
MAX_SILENCE_SECONDS = 30.0  # of a client, before its connection is closed
MAX_STOP_SECONDS = 5.0  # time that a stopping server gives to requests that it has accepted
MAX_SHOWN_CHARACTERS = 50  # of an invalid value in an error message

AUTO = "auto"
TRANSLATE = "/translate"
LANGUAGES = "/languages"
HEALTH = "/health"
FORM = "application/x-www-form-urlencoded"
NO_HOSTS = frozenset[str]()


class RequestError(RnnsearchError):
    """A request that cannot be answered, with the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RuntimeServer(ThreadingHTTPServer):
    """Reads requests in one thread per connection, and translates one request at a time."""

    # A connection without an end must not keep the process alive; `server_close` waits for a limited time.
    daemon_threads = True

    def __init__(
        self, translator: Translator, host: str, port: int, page: Path | None = None, allowed_hosts: Set[str] = NO_HOSTS
    ) -> None:
        """Start to listen.

        Args:
            translator: The model.
            host: Address to listen on.
            port: Port to listen on; 0 for a free one.
            page: A folder written by `rnnsearch export --format web`.
            allowed_hosts: See `origin_check.rejection`.

        Raises:
            RnnsearchError: The folder is something else.
            OSError: The address is not available.
        """
        self.allowed_hosts = allowed_hosts
        self.page = {} if page is None else page_files(page)
        self.translator = translator
        self._translator_lock = Lock()
        self._connections = BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a new thread, or close it if there are too many."""
        # Never wait here: this is the only thread that accepts connections.
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report bugs on standard error; a client that disconnects is not an error."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            sys.stderr.write(f"rnnsearch-runtime: {type(error).__name__}: {error}\n")

    def server_close(self) -> None:
        """Stop to listen, and wait a few seconds for open connections."""
        super().server_close()
        deadline = time.monotonic() + MAX_STOP_SECONDS
        # Each slot is free when its connection has ended.
        for _ in range(MAX_CONNECTIONS):
            self._connections.acquire(timeout=max(0.0, deadline - time.monotonic()))

    def translate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the response to a translation request.

        Raises:
            RequestError: The request is invalid or too large.
        """
        q = request.get("q")
        texts: list[Any] = q if isinstance(q, list) else [q]
        if not all(isinstance(text, str) for text in texts):
            raise RequestError(400, "q must be a text or a list of texts")
        self._check_fields(request)
        if sum(map(len, texts)) > MAX_CHARACTERS:
            raise RequestError(413, f"q must have at most {MAX_CHARACTERS:,} characters")
        if len(texts) > MAX_TEXTS:
            raise RequestError(413, f"q must have at most {MAX_TEXTS:,} texts; got {len(texts):,}")
        results = translate_texts(texts, self.translator.languages, self._n_best)
        translated_texts = [result.text() for result in results]
        columns: dict[str, list[Any]] = {"translatedText": translated_texts}
        if request.get("source", AUTO) == AUTO:
            source = self.translator.languages[0]
            # There is only one language, so nothing is detected but text that is in none.
            confidences = [100.0 if has_script_of(text, source) else 0.0 for text in texts]
            columns["detectedLanguage"] = [{"language": source, "confidence": number} for number in confidences]
        if isinstance(q, list):
            return columns
        return {name: values[0] for name, values in columns.items()}

    def _n_best(self, sentences: list[str]) -> list[list[Translation]]:
        """Return the best translation of each sentence, in a list.

        Raises:
            RequestError: A sentence is too long.
        """
        if not all(map(self.translator.fits, sentences)):
            raise RequestError(413, f"a sentence of q must have at most {MAX_TOKENS:,} tokens")
        # One search uses the whole processor; tokenizing other requests goes on in their threads.
        with self._translator_lock:
            return self.translator.n_best(sentences, 1, protect=DEFAULT_PROTECTED)

    def _check_fields(self, request: dict[str, Any]) -> None:
        """Raise RequestError if a request needs another model or another server."""
        model_source, model_target = self.translator.languages
        source = request.get("source", AUTO)
        target = request.get("target", model_target)
        if source not in (AUTO, model_source):
            raise RequestError(400, f"source must be {model_source}; got {_shown(source)}")
        if target != model_target:
            raise RequestError(400, f"target must be {model_target}; got {_shown(target)}")
        format = request.get("format", "text")
        if format != "text":
            raise RequestError(400, f'format must be "text" (rnnsearch serve translates html); got {_shown(format)}')
        alternatives = request.get("alternatives", 0)
        if alternatives not in (0, "0"):
            raise RequestError(400, f"alternatives must be 0 (rnnsearch serve has more); got {_shown(alternatives)}")

    def languages(self) -> list[dict[str, Any]]:
        """Return the response to a request for the languages."""
        source, target = self.translator.languages
        targets_by_code = {target: list[str](), source: [target]}
        codes = dict.fromkeys((source, target))
        return [{"code": code, "name": language_name(code), "targets": targets_by_code[code]} for code in codes]


def _shown(value: object) -> str:
    return repr(value)[:MAX_SHOWN_CHARACTERS]


class Handler(BaseHTTPRequestHandler):
    """Handles one request per connection."""

    server: RuntimeServer
    server_version = "rnnsearch-runtime"
    sys_version = ""
    timeout = MAX_SILENCE_SECONDS

    def do_GET(self) -> None:
        """Answer a GET request."""
        self._answer(self._get)

    def do_HEAD(self) -> None:
        """Answer a HEAD request: like GET, without the body."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Answer a POST request."""
        self._answer(self._post)

    def _answer(self, respond: Callable[[], None]) -> None:
        """Check the origin of a request, respond, and send errors."""
        origin = RequestOrigin(
            self.command,
            host=self.headers.get("Host", ""),
            origin=self.headers.get("Origin", ""),
            fetch_site=self.headers.get("Sec-Fetch-Site", ""),
        )
        if len(self.headers.get_all("Host", [])) > 1:
            self._send_error(400, "a request must have one Host header; got several")
            return
        if status_and_message := rejection(origin, self.server.allowed_hosts):
            self._send_error(*status_and_message)
            return
        try:
            respond()
        except RequestError as error:
            self._send_error(error.status, str(error))
        except RnnsearchError as error:
            self._send_error(400, str(error))

    def _get(self) -> None:
        path = self._decoded_path()
        if path == HEALTH:
            self._send_json(200, {"status": "ok"})
        elif path == LANGUAGES:
            self._send_json(200, self.server.languages())
        elif path in self.server.page:
            self._send(200, self.server.page[path].read_bytes(), content_type(path))
        else:
            self._reject_path()

    def _post(self) -> None:
        if self._decoded_path() != TRANSLATE:
            self._reject_path()
        fields = {**self._read_query(), **self._read_request()}
        # Clients send fields without a value, too.
        given = {name: value for name, value in fields.items() if value is not None and (value != "" or name == "q")}
        self._send_json(200, self.server.translate(given))

    def _reject_path(self) -> NoReturn:
        """Raise RequestError for a path that does not exist, or not with this method."""
        methods = self._allowed_methods()
        if methods:
            raise RequestError(405, f"the method must be {' or '.join(methods)}; got {self.command}")
        path = self._decoded_path()[:MAX_SHOWN_CHARACTERS]
        raise RequestError(404, f"there is no {path}; there are {TRANSLATE}, {LANGUAGES} and {HEALTH}")

    def _decoded_path(self) -> str:
        return unquote(self.path.partition("?")[0])

    def _allowed_methods(self) -> Sequence[str]:
        """Return the methods of the requested path; none if it does not exist."""
        path = self._decoded_path()
        if path == TRANSLATE:
            return ("POST",)
        return SAFE_METHODS if path in {LANGUAGES, HEALTH, *self.server.page} else ()

    def _read_query(self) -> dict[str, Any]:
        """Return the fields of the query.

        Raises:
            RequestError: There are too many.
        """
        try:
            # The path has a character for each byte.
            return _parse_form(self.path.partition("?")[2].encode("latin-1").decode(errors="replace"))
        except ValueError:
            raise RequestError(400, "a query must have fewer fields") from None

    def _read_request(self) -> dict[str, Any]:
        """Return the fields of the body.

        Raises:
            RequestError: The body is too large, or neither a JSON object nor a form.
        """
        # A request whose fields are in the query has no body.
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            raise RequestError(411, "a request must have a Content-Length")
        # `int` takes quadratic time for long numbers.
        if len(length) > 9 or int(length) > MAX_BODY_BYTES:
            raise RequestError(413, f"a request must have at most {MAX_BODY_BYTES:,} bytes")
        body = self.rfile.read(int(length))
        if not body.strip():
            return {}
        # `curl -d` declares JSON as a form.
        is_form = self.headers.get_content_type() == FORM and not body.lstrip().startswith(b"{")
        try:
            if is_form:
                return _parse_form(body.decode())
            fields = json.loads(body)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise RequestError(400, f"a request must be a JSON object, or a form ({FORM})")
        return fields

    def _send_error(self, status: int, message: str) -> None:
        self._send_json(status, {"error": message})

    def _send_json(self, status: int, content: Any) -> None:
        # Text of users may contain lone surrogates.
        body = json.dumps(content, ensure_ascii=False).encode("utf-8", errors="replace")
        self._send(status, body, "application/json; charset=utf-8")

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(body)))
        if status == 405:
            self.send_header("Allow", ", ".join(self._allowed_methods()))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send errors of Python's server as JSON: malformed requests, and methods without a handler (501)."""
        self.close_connection = True
        if code == 501:
            self._answer(self._reject_path)
        else:
            self._send_error(code, message or "the request is malformed")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because texts may be confidential."""


def _parse_form(body: str) -> dict[str, Any]:
    """Return the fields of a form; a field that occurs several times is a list."""
    fields = parse_qs(body, keep_blank_values=True, max_num_fields=MAX_TEXTS + 20)
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


def page_files(page: Path) -> dict[str, Path]:
    """Return the files of a page by their URL paths; no other files can be requested.

    Raises:
        RnnsearchError: The folder is not a page.
    """
    files = {}
    for path in sorted(page.rglob("*")):
        if path.is_file():
            files[f"/{path.relative_to(page).as_posix()}"] = path
    if "/index.html" not in files:
        raise RnnsearchError(
            f"{page}: must be a folder that `rnnsearch export --format web` wrote; it has no index.html"
        )
    return {**files, "/": files["/index.html"]}


def content_type(path: str) -> str:
    """Return the content type of a page's file."""
    suffix = path.rpartition(".")[2] if path != "/" else "html"
    types = {"js": "text/javascript", "wasm": "application/wasm", "rnn": "application/octet-stream"}
    return types.get(suffix) or mimetypes.guess_type(f"page.{suffix}")[0] or "application/octet-stream"
