"""LibreTranslate's API over one engine file, by Python's own HTTP server: for one user or a few. Imports no torch.

POST /translate (JSON or a form): q, a text or a list of texts; source and target, the model's languages. It gives
translatedText, and detectedLanguage where the source is auto. GET /languages, GET /health. An error is
{"error": one sentence} with a status of 400 or more. GET of anything else is a file of the page, where there is one.
Pages of other sites are refused (`utils/origin_check.py`).
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
from rnnsearch.runtime.translator import MOST_SYMBOLS, Translator
from rnnsearch.text.languages import language_name
from rnnsearch.text.sentences import rejoin, sentence_spans
from rnnsearch.translator.translation import one_line
from rnnsearch.utils.origin_check import READING, Caller, refused

MOST_BODY = 1 << 20
MOST_CHARACTERS = 100_000
"""Of all texts of a request together."""
MOST_TEXTS = MOST_CHARACTERS // 10
"""Empty ones are work, too."""
MOST_CONNECTIONS = 64
WAITING = 30.0
"""Seconds that a sender may be silent."""
ENDING = 5.0
"""Seconds for what is being answered when the server ends."""
AUTO = "auto"
TRANSLATE, SHOWN = "/translate", ("/languages", "/health")
"""What there is besides the page."""
NONE = frozenset[str]()


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

    def __init__(
        self, translator: Translator, host: str, port: int, page: Path | None = None, allowed_hosts: Set[str] = NONE
    ) -> None:
        """`page`: a folder of `rnnsearch export --format web`; `allowed_hosts`: as in `callers.refused`.

        Errors: RnnsearchError for another folder; OSError.
        """
        self.allowed_hosts = allowed_hosts
        self.page = {} if page is None else files_of(page)
        self.translator, self.lock, self.open = translator, Lock(), BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((host, port), Handler)

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

    def server_close(self) -> None:
        """Nothing more is accepted; answers that are being made have a few seconds."""
        super().server_close()
        until = time.monotonic() + ENDING
        for _ in range(MOST_CONNECTIONS):
            self.open.acquire(timeout=max(0.0, until - time.monotonic()))

    def translated(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request. Errors: RequestError."""
        texts, own = asked.get("q"), self.translator.languages
        given = texts if isinstance(texts, list) else [texts]
        many = [text for text in given if isinstance(text, str)]
        if len(many) < len(given):
            raise RequestError(400, "q must be a text or a list of texts")
        auto = self._checked(asked)
        if sum(map(len, many)) > MOST_CHARACTERS:
            raise RequestError(413, f"q must have at most {MOST_CHARACTERS} characters")
        if len(many) > MOST_TEXTS:
            raise RequestError(413, f"q must have at most {MOST_TEXTS:,} texts; got {len(many):,}")
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
        answer: dict[str, list[Any]] = {"translatedText": made}
        if auto:  # of one language
            answer["detectedLanguage"] = [{"language": own[0], "confidence": 100.0} for _ in many]
        return {name: each if isinstance(texts, list) else each[0] for name, each in answer.items()}

    def _checked(self, asked: dict[str, Any]) -> bool:
        """Whether the source language is to be found out. Errors: RequestError for what is not done here."""
        source, target = self.translator.languages
        told = {"source": asked.get("source", AUTO), "target": asked.get("target", target)}
        for name, language in (("source", source), ("target", target)):
            if told[name] != language and (name, told[name]) != ("source", AUTO):
                raise RequestError(400, f"{name} must be {language}; got {told[name]!r:.50}")
        if asked.get("format", "text") != "text":
            raise RequestError(
                400, f'format must be "text": rnnsearch serve translates html; got {asked["format"]!r:.50}'
            )
        if asked.get("alternatives", 0) not in (0, "0"):
            raise RequestError(
                400, f"alternatives must be 0: rnnsearch serve has more; got {asked['alternatives']!r:.50}"
            )
        return bool(told["source"] == AUTO)

    def languages(self) -> list[dict[str, Any]]:
        """Those of the model, and what each can be translated into."""
        source, target = self.translator.languages
        targets = {target: list[str](), source: [target]}
        return [
            {"code": code, "name": language_name(code), "targets": targets[code]}
            for code in dict.fromkeys((source, target))
        ]


class Handler(BaseHTTPRequestHandler):
    """One request a connection."""

    server: Server
    server_version = "rnnsearch-runtime"
    sys_version = ""
    timeout = WAITING

    def do_GET(self) -> None:
        """What the server is, and the page."""
        self._met(self._shown)

    def do_POST(self) -> None:
        """A translation."""
        self._met(self._translated)

    def do_HEAD(self) -> None:
        """The same without a body."""
        self._met(self._shown)

    def _met(self, answer: Callable[[], None]) -> None:
        """A request that is let in is answered."""
        said = [self.headers.get(name, "") for name in ("Host", "Origin", "Sec-Fetch-Site")]
        if why := refused(Caller(self.command, *said), self.server.allowed_hosts):
            self._fault(*why)
            return
        try:
            answer()
        except RequestError as error:
            self._fault(error.status, str(error))
        except RnnsearchError as error:
            self._fault(400, str(error))

    def _shown(self) -> None:
        answers = {"/health": {"status": "ok"}, "/languages": self.server.languages()}
        path = self._wanted()
        if path in answers:
            self._answer(200, answers[path])
        elif path in self.server.page:
            self._give(200, self.server.page[path].read_bytes(), type_of(path))
        else:
            self._other()

    def _translated(self) -> None:
        if self._wanted() != TRANSLATE:
            self._other()
        self._answer(200, self.server.translated(self._asked()))

    def _other(self) -> NoReturn:
        """Errors: RequestError, of what is done by other methods, or not at all."""
        path, methods = self._wanted(), self._methods()
        if not methods:
            raise RequestError(404, f"there is no {path[:50]}; there are {TRANSLATE}, {' and '.join(SHOWN)}")
        raise RequestError(405, f"the method must be {' or '.join(methods)}; got {self.command}")

    def _wanted(self) -> str:
        """The path that is asked for."""
        return unquote(self.path.partition("?")[0])

    def _methods(self) -> Sequence[str]:
        """What may be done with that path."""
        if self._wanted() == TRANSLATE:
            return ("POST",)
        return READING if self._wanted() in {*SHOWN, *self.server.page} else ()

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
                fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MOST_TEXTS + 20)
                return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}
            asked = json.loads(body)
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            raise RequestError(400, "a request must be a JSON object, or a form (application/x-www-form-urlencoded)")
        return asked

    def _fault(self, status: int, message: str) -> None:
        self._answer(status, {"error": message})

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content, ensure_ascii=False).encode("utf-8", errors="replace")
        self._give(status, body, "application/json; charset=utf-8")

    def _give(self, status: int, body: bytes, type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", type)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(body)))
        if status == 405:
            self.send_header("Allow", ", ".join(self._methods()))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What Python's server says of a request that it cannot read, and of methods that there are not, in JSON."""
        self.close_connection = True
        if code == 501:
            self._met(self._other)
        else:
            self._fault(code, message or "the request cannot be read")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: texts may be confidential."""
