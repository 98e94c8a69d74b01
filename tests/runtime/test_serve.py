"""The runtime's server: LibreTranslate's API over one engine file, who is let in, and how it ends."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import httpx
import pytest

import rnnsearch
from rnnsearch.errors import RnnsearchError
from rnnsearch.export.engine_file import export
from rnnsearch.ops.native.library import library
from rnnsearch.runtime import load
from rnnsearch.runtime import serve as module
from rnnsearch.runtime.serve import Server
from tests.servers import running
from tests.untrained import BAHDANAU, write_model

pytestmark = pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")
AUTO = {"language": "en", "confidence": 100.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("served") / "model", BAHDANAU, "bpe")


@pytest.fixture(scope="module")
def exported(folder):
    path = folder.parent / "m.rnn"
    export(folder, path)
    return path


@pytest.fixture(scope="module")
def address(exported):
    """Of a server in a thread."""
    with running(Server(load(exported), "127.0.0.1", 0)) as address:
        yield address


@pytest.fixture(scope="module")
def best(folder):
    """The whole package's translation of a sentence."""
    translator = rnnsearch.load(folder, precision="int8")
    return lambda text: translator.translate(text).text


def test_libretranslate(address, best):
    def asked(**request):
        return httpx.post(f"{address}/translate", json={"source": "en", "target": "de", **request}, timeout=60)

    dog, red = best("the dog."), best("Is it red?")
    assert asked(q="the dog.\n Is it red?").json() == {"translatedText": f"{dog}\n {red}"}
    assert asked(q=["the dog.", "", "Is it red?"]).json() == {"translatedText": [dog, "", red]}
    assert asked(q="", alternatives=0, format="text", api_key="none is needed").json() == {"translatedText": ""}
    assert asked(q=[]).json() == {"translatedText": []}
    assert asked(q="the dog.", source="auto").json() == {"translatedText": dog, "detectedLanguage": AUTO}
    assert asked(q=["", ""], source="auto").json() == {"translatedText": ["", ""], "detectedLanguage": [AUTO, AUTO]}
    assert httpx.get(f"{address}/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert httpx.get(f"{address}/health").json() == {"status": "ok"}
    assert httpx.get(f"{address}/nothing").status_code == 404
    for request, status, said in (
        ({"q": 3}, 400, "q must be a text"),
        ({}, 400, "q must be a text"),
        ({"q": ["a", None]}, 400, "q must be a text"),
        ({"q": "a", "target": "fr"}, 400, "target must be de; got 'fr'"),
        ({"q": "a", "target": "auto"}, 400, "target must be de; got 'auto'"),
        ({"q": "a", "source": ["en"]}, 400, "source must be en; got ['en']"),
        ({"q": "a", "format": "html"}, 400, "format must be \"text\": rnnsearch serve translates html; got 'html'"),
        ({"q": "a", "alternatives": 2}, 400, "alternatives must be 0: rnnsearch serve has more; got 2"),
        ({"q": "a" * 100_001}, 413, "at most 100000 characters"),
        ({"q": [""] * 10_001}, 413, "at most 10,000 texts; got 10,001"),
        ({"q": "the dog " * 1001}, 413, "at most 2,000 symbols"),
    ):
        answer = asked(**request)
        assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text


def test_forms(address, best):
    def asked(content, type="application/x-www-form-urlencoded"):
        return httpx.post(f"{address}/translate", content=content, headers={"Content-Type": type}, timeout=60)

    dog, red = best("the dog."), best("Is it red?")
    assert asked("q=the+dog.&source=en&target=de&alternatives=0").json() == {"translatedText": dog}
    assert asked("q=the+dog.&q=Is+it+red?&source=en&target=de").json() == {"translatedText": [dog, red]}
    assert asked("q=&source=en").json() == {"translatedText": ""}
    assert asked("q=a&alternatives=3").status_code == asked("q=a&format=html").status_code == 400
    assert asked("q=a&source=en&source=de").json() == {"error": "source must be en; got ['en', 'de']"}
    found = {"translatedText": dog, "detectedLanguage": AUTO}
    assert asked('{"q": "the dog."}').json() == found  # what curl -d says of any body
    for body in (b"", b"[]", b"{", b"[" * 100_000, b"\xff"):
        assert asked(body, "application/json").status_code == 400
    assert "a form (application/x-www-form-urlencoded)" in asked(b"--x", "multipart/form-data; boundary=x").text
    lone = asked(b'{"q": "\\ud800"}', "application/json")
    assert (lone.status_code, "valid Unicode" in lone.json()["error"]) == (400, True)
    large = http.client.HTTPConnection(urlsplit(address).netloc)
    large.request("POST", "/translate", headers={"Content-Length": "9999999999"})
    assert large.getresponse().status == 413


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"},
    ],
)
def test_a_page_of_another_site_can_neither_send_nor_read(address, headers):
    for method in ("POST", "OPTIONS", "PUT", "DELETE"):
        answer = httpx.request(method, f"{address}/translate", content=b'{"q": "the dog."}', headers=headers)
        assert (answer.status_code, list(answer.json())) == (403, ["error"])
        assert not any(name.startswith("access-control") for name in answer.headers)
    answer = httpx.get(f"{address}/languages", headers=headers)
    assert answer.status_code == 200 and not any(name.startswith("access-control") for name in answer.headers)


def test_our_own_page_can(address):
    for headers in ({"Origin": address}, {"Origin": address, "Sec-Fetch-Site": "same-origin"}):
        assert httpx.post(f"{address}/translate", json={"q": "the dog."}, headers=headers).status_code == 200


def test_names_of_the_server(exported, address):
    for host in ("localhost", "127.0.0.1:5000", "[::1]:5000", "192.168.1.2"):
        assert httpx.get(f"{address}/health", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "[::1", "mt.example"):
        answer = httpx.get(f"{address}/health", headers={"Host": host})
        assert (answer.status_code, "--allowed-host" in answer.json()["error"]) == (400, True)
    for allowed in ("mt.example", "*"):
        with running(Server(load(exported), "127.0.0.1", 0, None, frozenset({allowed}))) as at:
            assert httpx.get(f"{at}/health", headers={"Host": "mt.example:443"}).status_code == 200


def test_other_methods(address):
    whole = httpx.get(f"{address}/languages")
    head = httpx.head(f"{address}/languages")
    assert (head.status_code, head.content, dict(head.headers)["content-length"]) == (
        200,
        b"",
        whole.headers["content-length"],
    )
    assert httpx.head(f"{address}/nothing").status_code == 404
    for method in ("GET", "HEAD", "OPTIONS"):
        answer = httpx.request(method, f"{address}/translate?q=dog")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json() == {"error": "the method must be POST; got OPTIONS"}
    for method in ("POST", "DELETE"):
        answer = httpx.request(method, f"{address}/health", json={"q": "the dog."})
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
        assert answer.json() == {"error": f"the method must be GET or HEAD; got {method}"}
        answer = httpx.request(method, f"{address}/nothing", json={"q": "the dog."})
        said = "there is no /nothing; there are /translate, /languages and /health"
        assert (answer.status_code, answer.json()) == (404, {"error": said})
    answer = httpx.request("BREW", f"{address}/translate")
    assert (answer.status_code, list(answer.json())) == (405, ["error"])
    for sent in (b"\xff garbage\r\n\r\n", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", urlsplit(address).port), timeout=60) as client:
            client.sendall(sent)
            with client.makefile("rb") as answer:
                assert answer.read().endswith(b"}")


def test_a_taken_port_is_told_of(exported, address):
    with pytest.raises(OSError):
        Server(load(exported), "127.0.0.1", urlsplit(address).port)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_when_what_it_has_taken_is_answered(exported, stop):
    """A request is on its way when the signal comes; a process that has a handler ends as PID 1, too."""
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # in the background it is ignored
    code = f"{heard}; from rnnsearch.runtime.command_line import main; main()"
    command = [sys.executable, "-c", code, "serve", str(exported), "--port", "0"]
    served = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
    try:
        said = served.stderr.readline()
        port = urlsplit(said.split()[-1]).port
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = json.dumps({"q": "the dog."}).encode()
        client.putrequest("POST", "/translate")
        client.putheader("Content-Length", str(len(body)))
        client.endheaders(body[:5])
        time.sleep(0.3)
        served.send_signal(stop)
        time.sleep(0.3)
        client.send(body[5:])
        assert client.getresponse().status == 200
        assert served.wait(60) == (0 if stop == signal.SIGTERM else 130)
        assert served.stderr.read() == ""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    finally:
        served.kill()
        served.wait()
        served.stderr.close()


def test_it_does_not_wait_for_ever(exported, monkeypatch):
    """For a sender who is silent."""
    monkeypatch.setattr(module, "ENDING", 0.2)
    server = Server(load(exported), "127.0.0.1", 0)
    with running(server) as at:
        client = socket.create_connection(("127.0.0.1", urlsplit(at).port), timeout=60)
        assert httpx.get(f"{at}/health").status_code == 200  # which came after
        began = time.monotonic()
    assert 0.2 <= time.monotonic() - began < 20
    client.close()


def test_a_page_beside_the_api(exported, tmp_path):
    """Its files, and nothing above its folder."""
    page = tmp_path / "site"
    (page / "module").mkdir(parents=True)
    with pytest.raises(RnnsearchError, match="site: must be a folder that `rnnsearch export --format web` wrote"):
        Server(load(exported), "127.0.0.1", 0, page)
    for name in ("index.html", "module/engine.wasm", "module/index.js", "sw.js"):
        (page / name).write_bytes(name.encode())
    with running(Server(load(exported), "127.0.0.1", 0, page)) as at:
        for path, name, type in (
            ("/", "index.html", "text/html"),
            ("/module/engine.wasm?v=1", "module/engine.wasm", "application/wasm"),
            ("/module/index.js", "module/index.js", "text/javascript"),
        ):
            answer = httpx.get(at + path)
            assert (answer.status_code, answer.text, answer.headers["content-type"]) == (200, name, type)
        assert httpx.get(f"{at}/health").json() == {"status": "ok"}
        for path in ("/../m.rnn", "/%2e%2e/m.rnn", "//etc/passwd", "/module", "/module/../../m.rnn"):
            raw = http.client.HTTPConnection(at.removeprefix("http://"))
            raw.request("GET", path)
            assert raw.getresponse().status == 404
