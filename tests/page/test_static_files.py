"""The page's files as the server gives them; no browser needed."""

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


def test_every_file_is_served_as_what_it_is(server):
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
    files = sorted(SOURCE.iterdir())
    assert len(files) > 10
    for file in files:
        status, headers, body = get(f"{server.address}/static/{file.name}")
        assert (status, headers.get_content_type()) == (200, kinds[file.suffix]), file.name
        assert body == file.read_bytes()


def test_the_page_may_ask_its_own_server_alone(server):
    _, headers, body = get(f"{server.address}/")
    assert body == (SOURCE / "index.html").read_bytes()
    rules = dict(rule.strip().split(" ", 1) for rule in headers["Content-Security-Policy"].split(";"))
    assert rules["default-src"] == "'none'"
    assert all("unsafe" not in rule and "http" not in rule and "*" not in rule for rule in rules.values())
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_what_has_not_changed_is_not_sent_again(server):
    _, headers, _ = get(f"{server.address}/static/main.js")
    status, _, body = get(f"{server.address}/static/main.js", **{"If-None-Match": headers["ETag"]})
    assert (status, body) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "..%2fpage.py", "%2e%2e/page.py", ""])
def test_nothing_else_is_served(server, name):
    assert get(f"{server.address}/static/{name}")[0] in (404, 405)


def test_no_file_names_another_server():
    for file in sorted(SOURCE.iterdir()):
        found = set(re.findall(r"https?://[^\s\"'`<>)]+", file.read_text(encoding="utf-8")))
        assert found <= {"http://www.w3.org/2000/svg"}, file.name


def test_scripts_stay_small():
    lengths = {file.name: file.read_text(encoding="utf-8").count("\n") for file in SOURCE.glob("*.js")}
    assert max(lengths.values()) <= 200, lengths


def test_the_keys_of_the_documentation_are_those_of_the_page():
    script = (SOURCE / "shortcuts.js").read_text(encoding="utf-8").lower()
    page = (SOURCE.parents[3] / "docs" / "page.md").read_text(encoding="utf-8").lower()
    real = dict(re.findall(r'key[a-z]: \["([a-z])", "([^"]+)"', script))
    said = dict(re.findall(r"^\| alt\+([a-z]) \| ([^|,]+?)(?:,.*)? \|$", page, re.MULTILINE))
    assert said == real
    assert len(real) == 7
