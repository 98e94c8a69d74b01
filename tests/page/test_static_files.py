"""The page's static files as the server sends them (without a browser)."""

import re
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "rnnsearch" / "serve" / "page"


def get(address: str, **headers: str) -> tuple[int, Message, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def test_files_have_correct_content_type(server):
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
    files = sorted(SOURCE.iterdir())
    assert len(files) > 10
    for file in files:
        status, headers, body = get(f"{server.address}/static/{file.name}")
        assert (status, headers.get_content_type()) == (200, types[file.suffix]), file.name
        assert body == file.read_bytes()


def test_content_security_policy_allows_only_own_server(server):
    _, headers, body = get(f"{server.address}/")
    assert body == (SOURCE / "index.html").read_bytes()
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none';" in policy
    assert not re.search(r"unsafe|http|\*", policy)
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_unchanged_file_is_not_sent_again(server):
    _, headers, _ = get(f"{server.address}/static/main.js")
    status, _, body = get(f"{server.address}/static/main.js", **{"If-None-Match": headers["ETag"]})
    assert (status, body) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "..%2fpage.py", "%2e%2e/page.py", ""])
def test_other_paths_are_not_found(server, name):
    assert get(f"{server.address}/static/{name}")[0] in (404, 405)


def test_files_contain_no_external_urls():
    for file in sorted(SOURCE.iterdir()):
        urls = set(re.findall(r"https?://[^\s\"'`<>)]+", file.read_text(encoding="utf-8")))
        assert urls <= {"http://www.w3.org/2000/svg"}, file.name


def test_scripts_are_at_most_250_lines():
    lengths = {file.name: file.read_text(encoding="utf-8").count("\n") for file in SOURCE.glob("*.js")}
    assert max(lengths.values()) <= 250, lengths


def test_documented_shortcuts_match_page():
    script = (SOURCE / "shortcuts.js").read_text(encoding="utf-8").lower()
    page = (SOURCE.parents[3] / "docs" / "page.md").read_text(encoding="utf-8").lower()
    shortcuts = dict(re.findall(r'key[a-z]: \["([a-z])", "([^"]+)"', script))
    documented = dict(re.findall(r"^\| alt\+([a-z]) \| ([^|,]+?)(?:,.*)? \|$", page, re.MULTILINE))
    assert documented == shortcuts
    assert len(shortcuts) == 7
