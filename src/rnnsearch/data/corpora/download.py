"""Download of a single file from the user's Python package index, by name and SHA-256.

`catalog.get` uses `fetch`. The file is only downloaded, never built or installed. Indexes, proxy and certificates are
those that pip is configured with (its files and PIP_* variables), so that a download works wherever `pip install` does:
behind a company's mirror, or from a folder.

A file is used only if its SHA-256 is that of `Archive`. `pip download` is no substitute, because it runs the build
scripts of source archives (docs/decisions/0018-parallel-preparation-and-bulk-work.md).
"""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from html.parser import HTMLParser
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.response import addinfourl
from uuid import uuid4

from rnnsearch.errors import DataError
from rnnsearch.utils.files import sha256_of

Progress = Callable[[int, int | None], None]
"""Called with the bytes downloaded so far and, if it is known, the total size."""

Response = HTTPResponse | addinfourl

PYPI = "https://pypi.org/simple"
"""Default index."""
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.1"
_BLOCK_BYTES = 1 << 20
_ATTEMPTS = 4
_ABANDONED_SECONDS = 600
"""Seconds without a change after which the process that downloads to a file is considered dead."""
_MAX_PAGE_BYTES = 8 << 20
"""Limit for a page of an index; those of the listed corpora have a few thousand bytes."""
_NETWORK_ERRORS = (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError, ssl.SSLError)


@dataclass(frozen=True)
class Archive:
    """A file on the package index."""

    project: str
    """Name of the project on the index."""
    filename: str
    """Name of the file."""
    sha256: str
    """Hash of the file, in hexadecimal digits."""
    megabytes: int
    """Size of the file, for messages."""


@dataclass(frozen=True)
class PipSettings:
    """Settings of pip: where it looks for packages, and how it connects."""

    indexes: tuple[str, ...] = (PYPI,)
    """URLs of package indexes, in order."""
    find_links: tuple[str, ...] = ()
    """Folders and pages with files."""
    proxy: str | None = None
    """URL of the proxy, or None."""
    cert: str | None = None
    """File of trusted certificates, or None for the default."""
    client_cert: str | None = None
    """File of the client's certificate, or None."""
    trusted_hosts: tuple[str, ...] = ()
    """Hosts whose certificates are not checked."""
    timeout: float = 15.0
    """Seconds until a connection fails."""


def pip_settings() -> PipSettings:
    """Return the settings of this environment's pip, or only those of the PIP_* variables if it has no pip."""
    command = [sys.executable, "-m", "pip", "config", "list", "--disable-pip-version-check"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        listed = ""
    return parse_pip_settings(listed, os.environ)


def parse_pip_settings(listed: str, environment: Mapping[str, str]) -> PipSettings:
    """Return the settings in the output of `pip config list` and in PIP_* variables, which take precedence.

    Args:
        listed: Output of `pip config list`.
        environment: Environment variables.

    Raises:
        DataError: A setting is not valid.
    """
    values: dict[str, str] = {}
    for section in ("global", "install", "download"):
        for line in listed.splitlines():
            key, equals, value = line.partition("=")
            if equals and key.startswith(f"{section}."):
                values[key.removeprefix(f"{section}.")] = _parse_pip_value(key, value)
    for name, value in environment.items():
        if name.startswith("PIP_") and value:
            values[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    indexes = [values.get("index-url", PYPI), *values.get("extra-index-url", "").split()]
    if values.get("no-index", "").lower() in {"1", "true", "yes", "on", "y"}:
        indexes = []
    timeout = values.get("timeout", values.get("default-timeout", "15"))
    return PipSettings(
        indexes=tuple(indexes),
        find_links=tuple(values.get("find-links", "").split()),
        proxy=values.get("proxy"),
        cert=values.get("cert"),
        client_cert=values.get("client-cert"),
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
        timeout=_parse_seconds(timeout),
    )


def _parse_pip_value(key: str, value: str) -> str:
    """Return a setting that `pip config list` writes as a Python literal; raise DataError for something else."""
    try:
        return str(ast.literal_eval(value))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # all that it documents
        raise DataError(f'pip\'s setting {key} must be a quoted text; got "{value[:40]}"') from None


def _parse_seconds(text: str) -> float:
    """Return the value of pip's timeout; raise DataError if it is no time."""
    with suppress(ValueError):
        seconds = float(text)
        if 0 < seconds < threading.TIMEOUT_MAX:
            return seconds
    raise DataError(f'pip\'s setting timeout must be a number of seconds above 0; got "{text[:40]}"')


def fetch(
    archive: Archive, folder: Path, settings: PipSettings | None = None, progress: Progress | None = None
) -> Path:
    """Return the path of an archive in `folder`, downloaded if it is not there yet.

    Its hash is checked in either case. An interrupted download leaves a `.part` file, and the next call resumes it.
    Other processes may download the same file at the same time: each writes to a file that no other one opens.

    Args:
        archive: File to download.
        folder: Folder to store it in.
        settings: Settings of pip; by default those of this environment.
        progress: Called after each block.

    Raises:
        DataError: No index offers the file, the network fails, the disk is full, or the content has another hash (it
            is deleted then).
    """
    path = folder / archive.filename
    if path.exists() and sha256_of(path) == archive.sha256:
        return path
    settings = settings or pip_settings()
    address, problems = _find_address(archive, settings)
    if address is None:
        reasons = "; ".join(problems) or "pip is set to use no index"
        raise DataError(f"{archive.filename} cannot be found on the package index: {reasons}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _exclusive_part(path) as part:
            _download(address, part, archive, settings, progress)
            if sha256_of(part) != archive.sha256:
                part.unlink()
                raise DataError(f"{_without_login(address)}: must have SHA-256 {archive.sha256}; got other content")
            part.replace(path)
    except OSError as error:
        raise DataError(f"{archive.filename} cannot be written to {folder}: {error.strerror or error}") from None
    return path


@contextmanager
def _exclusive_part(path: Path) -> Iterator[Path]:
    """Provide a path that no other process uses, with what an earlier download of `path` has left, if there is any.

    It is kept for the next call if the download fails.
    """
    kept = path.with_name(f"{path.name}.part")
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    for candidate in (kept, *path.parent.glob(f"{escape(path.name)}.*.part")):
        with suppress(FileNotFoundError):  # another process was faster
            if candidate == kept or time.time() - candidate.stat().st_mtime > _ABANDONED_SECONDS:
                os.utime(candidate)  # first, so that no other process considers it abandoned
                candidate.rename(part)
                break
    try:
        yield part
    except BaseException:
        with suppress(FileNotFoundError):
            part.replace(kept)
        raise
    kept.unlink(missing_ok=True)  # of another download that failed


def _download(address: str, part: Path, archive: Archive, settings: PipSettings, progress: Progress | None) -> None:
    """Download to `part`, from where it ends, in a few attempts.

    Raises:
        DataError: All attempts failed.
        OSError: The file cannot be written.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        start = part.stat().st_size if part.exists() else 0
        try:
            with _open(address, settings, start=start) as response:
                _append(response, part, start, archive, progress)
            return
        except urllib.error.HTTPError as error:
            error.close()
            problem = f"the server answers {error.code} {error.reason}"
            if error.code == 416:  # the part is longer than the file: start again
                part.unlink(missing_ok=True)
                continue
        except _NETWORK_ERRORS as error:
            problem = _reason(error)
        if attempt < _ATTEMPTS:
            time.sleep(0.5 * attempt)
    advice = " (the part that was downloaded is kept; try again to resume)" if part.exists() else ""
    raise DataError(f"{_without_login(address)} cannot be downloaded: {problem}{advice}")


def _append(response: Response, part: Path, start: int, archive: Archive, progress: Progress | None) -> None:
    """Append a response to `part`, or replace it if the server does not resume at `start`."""
    is_resumed = start > 0 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
    done = start if is_resumed else 0
    length = response.headers.get("Content-Length")
    total = done + int(length) if length else None
    with part.open("ab" if is_resumed else "wb") as file:
        while block := response.read(_BLOCK_BYTES):
            file.write(block)
            done += len(block)
            if done > (archive.megabytes + 1) << 20:  # stop before it fills the disk
                raise DataError(f"{archive.filename}: must have about {archive.megabytes} MB; the server sends more")
            if progress:
                progress(done, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and done < total:
        raise ConnectionError(f"it ended after {done} of {total} bytes")


def _open(address: str, settings: PipSettings, start: int = 0, accept: str = "*/*") -> Response:
    """Send a request for an address and return the response, from byte `start`."""
    parts = urlsplit(address)
    headers = {"Accept": accept, "User-Agent": "rnnsearch"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(_without_login(address), headers=headers)
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        # Unredirected: a redirection to another host must not send the login there.
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    handlers: list[urllib.request.BaseHandler] = []
    if parts.scheme != "file":  # also for http, which may be redirected to https
        is_trusted = bool({parts.hostname, parts.netloc.rpartition("@")[2]} & set(settings.trusted_hosts))
        handlers.append(urllib.request.HTTPSHandler(context=_tls_context(settings, is_trusted)))
    if settings.proxy:
        proxy = settings.proxy if "://" in settings.proxy else f"http://{settings.proxy}"
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    response: Response = urllib.request.build_opener(*handlers).open(request, timeout=settings.timeout)
    return response


def _tls_context(settings: PipSettings, is_trusted: bool) -> ssl.SSLContext:
    """Return a context with pip's certificates, without verification for trusted hosts."""
    try:
        if settings.cert and Path(settings.cert).is_dir():
            context = ssl.create_default_context(capath=settings.cert)
        else:
            context = ssl.create_default_context(cafile=settings.cert)
        if settings.client_cert:
            context.load_cert_chain(settings.client_cert)
    except (OSError, ssl.SSLError) as error:
        raise DataError(f"pip's certificate ({settings.cert}) cannot be used: {_reason(error)}") from None
    if is_trusted:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _find_address(archive: Archive, settings: PipSettings) -> tuple[str | None, list[str]]:
    """Return the first address of the file in pip's order, and why the pages before it do not offer it."""
    project = re.sub(r"[-_.]+", "-", archive.project).lower()
    pages = [_as_address(location) for location in settings.find_links]
    pages += [f"{_as_address(index).rstrip('/')}/{project}/" for index in settings.indexes]
    problems: list[str] = []
    for page in pages:
        try:
            links = _links(page, settings)
        except urllib.error.HTTPError as error:
            error.close()
            problems.append(f"{_without_login(page)} answers {error.code} {error.reason}")
            continue
        except (OSError, ValueError, *_NETWORK_ERRORS) as error:
            problems.append(f"{_without_login(page)} cannot be read ({_reason(error)})")
            continue
        same_name = [link for link in links if _file_name(link) == archive.filename]
        for link in same_name:
            if _sha256_of_link(link) in (None, archive.sha256):
                return _with_login(urldefrag(link).url, page), problems
        difference = "different content under" if same_name else "no"
        problems.append(f"{_without_login(page)} has {difference} {archive.filename}")
    return None, problems


def _links(page: str, settings: PipSettings) -> list[str]:
    """Return the addresses of the files on a page of a simple index (PEP 503 or 691) or in a folder."""
    if page.startswith("file:"):
        folder = Path(urllib.request.url2pathname(urlsplit(page).path))
        index = folder / "index.html"
        if folder.is_dir() and not index.exists():
            return [file.as_uri() for file in sorted(folder.iterdir())]
        index = index if folder.is_dir() else folder
        return _anchors(index.read_text(encoding="utf-8"), index.as_uri())
    with _open(page, settings, accept=_ACCEPT) as response:
        body = response.read(_MAX_PAGE_BYTES + 1)
        base = response.geturl()
        content_type = response.headers.get_content_type()
    if len(body) > _MAX_PAGE_BYTES:
        raise ValueError(f"it has more than {_MAX_PAGE_BYTES:,} bytes")
    content = body.decode("utf-8", errors="replace")
    if not content_type.endswith("json"):
        return _anchors(content, base)
    try:
        links = []
        for file in json.loads(content)["files"]:
            sha256 = file.get("hashes", {}).get("sha256")
            links.append(urljoin(base, file["url"]) + (f"#sha256={sha256}" if sha256 else ""))
        return links
    except (AttributeError, KeyError, TypeError, RecursionError):
        raise ValueError("it is not a page of an index") from None


def _anchors(content: str, base: str) -> list[str]:
    """Return the addresses that an HTML page links to."""
    parser = _AnchorParser()
    parser.feed(content)
    return [urljoin(base, link) for link in parser.links]


class _AnchorParser(HTMLParser):
    """Parser that collects the targets of links."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _as_address(location: str) -> str:
    return location if "://" in location else Path(location).expanduser().absolute().as_uri()


def _file_name(address: str) -> str:
    return unquote(urlsplit(address).path.rpartition("/")[2])


def _sha256_of_link(address: str) -> str | None:
    """Return the SHA-256 in the fragment of a link, if it has one."""
    match = re.search(r"(?:^|&)sha256=([0-9a-fA-F]{64})", urlsplit(address).fragment)
    return match.group(1).lower() if match else None


def _with_login(address: str, page: str) -> str:
    """Add the login of a page to the address of a file on the same host, like pip."""
    link, origin = urlsplit(address), urlsplit(page)
    if "@" in link.netloc or "@" not in origin.netloc or link.netloc != origin.netloc.rpartition("@")[2]:
        return address
    return urlunsplit(link._replace(netloc=origin.netloc))


def _without_login(address: str) -> str:
    """Return the address without user name and password, for messages and requests."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _reason(error: BaseException) -> str:
    """Return the text of a network error."""
    cause = getattr(error, "reason", error)
    return str(getattr(cause, "strerror", None) or cause or type(error).__name__)
