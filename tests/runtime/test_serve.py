"""The runtime's server: LibreTranslate's API, origin checks, methods, the page, and stopping."""

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
from rnnsearch.runtime import serve as serve_module
from rnnsearch.runtime.serve import RuntimeServer
from tests.servers import running
from tests.untrained import BAHDANAU, write_model

pytestmark = pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")
AUTO = {"language": "en", "confidence": 100.0}
NONE = {"language": "en", "confidence": 0.0}


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
    """Yield the address of a server in a thread."""
    with running(RuntimeServer(load(exported), "127.0.0.1", 0)) as address:
        yield address


@pytest.fixture(scope="module")
def best(folder):
    """Return a function that translates a sentence with the full package."""
    translator = rnnsearch.load(folder, precision="int8")
    return lambda text: translator.translate(text).text


def test_texts_and_lists_are_translated_and_invalid_requests_rejected(address, best):
    def translate(**request):
        return httpx.post(f"{address}/translate", json={"source": "en", "target": "de", **request}, timeout=60)

    dog = best("the dog.")
    red = best("Is it red?")
    assert translate(q="the dog.\n Is it red?").json() == {"translatedText": f"{dog}\n {red}"}
    assert translate(q=["the dog.", "", "Is it red?"]).json() == {"translatedText": [dog, "", red]}
    assert translate(q="", alternatives=0, format="text", api_key="not needed").json() == {"translatedText": ""}
    assert translate(q=[]).json() == {"translatedText": []}
    assert translate(q="the dog.", source="auto").json() == {"translatedText": dog, "detectedLanguage": AUTO}
    assert translate(q=["", ""], source="auto").json() == {"translatedText": ["", ""], "detectedLanguage": [NONE, NONE]}
    assert httpx.get(f"{address}/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert httpx.get(f"{address}/health").json() == {"status": "ok"}
    assert httpx.get(f"{address}/nothing").status_code == 404
    for request, status, message in (
        ({"q": 3}, 400, "q must be a text"),
        ({}, 400, "q must be a text"),
        ({"q": ["a", None]}, 400, "q must be a text"),
        ({"q": "a", "target": "fr"}, 400, "target must be de; got 'fr'"),
        ({"q": "a", "target": "auto"}, 400, "target must be de; got 'auto'"),
        ({"q": "a", "source": ["en"]}, 400, "source must be en; got ['en']"),
        ({"q": "a", "format": "html"}, 400, "format must be \"text\" (rnnsearch serve translates html); got 'html'"),
        ({"q": "a", "alternatives": 2}, 400, "alternatives must be 0 (rnnsearch serve has more); got 2"),
        ({"q": "a" * 100_001}, 413, "at most 100,000 characters"),
        ({"q": [""] * 10_001}, 413, "at most 10,000 texts; got 10,001"),
        ({"q": "the dog " * 1001}, 413, "at most 2,000 tokens"),
    ):
        response = translate(**request)
        assert response.status_code == status
        assert message in response.json()["error"]


def test_bodies_may_be_forms_or_json(address, best):
    def post(content, type="application/x-www-form-urlencoded"):
        return httpx.post(f"{address}/translate", content=content, headers={"Content-Type": type}, timeout=60)

    dog = best("the dog.")
    red = best("Is it red?")
    assert post("q=the+dog.&source=en&target=de&alternatives=0").json() == {"translatedText": dog}
    assert post("q=the+dog.&q=Is+it+red?&source=en&target=de").json() == {"translatedText": [dog, red]}
    assert post("q=&source=en").json() == {"translatedText": ""}
    assert post("q=the+dog.&source=en&format=").json() == {"translatedText": dog}
    assert post('{"q": "the dog.", "source": "en", "format": null}').json() == {"translatedText": dog}
    query = httpx.post(f"{address}/translate", params={"q": "the dog.", "source": "en"}, timeout=60)
    assert query.json() == {"translatedText": dog}
    many = httpx.post(f"{address}/translate?{'&' * 11_000}", timeout=60)
    assert (many.status_code, many.json()) == (400, {"error": "a query must have fewer fields"})
    assert post("q=a&alternatives=3").status_code == post("q=a&format=html").status_code == 400
    assert post("q=a&source=en&source=de").json() == {"error": "source must be en; got ['en', 'de']"}
    detected = {"translatedText": dog, "detectedLanguage": AUTO}
    assert post('{"q": "the dog."}').json() == detected  # `curl -d` declares JSON as a form
    for body in (b"", b"[]", b"{", b"[" * 100_000, b"\xff"):
        assert post(body, "application/json").status_code == 400
    assert "a form (application/x-www-form-urlencoded)" in post(b"--x", "multipart/form-data; boundary=x").text
    lone_surrogate = post(b'{"q": "\\ud800"}', "application/json")
    assert lone_surrogate.status_code == 400
    assert "valid Unicode" in lone_surrogate.json()["error"]
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
def test_pages_of_other_sites_can_neither_send_requests_nor_read_responses(address, headers):
    for method in ("POST", "OPTIONS", "PUT", "DELETE"):
        response = httpx.request(method, f"{address}/translate", content=b'{"q": "the dog."}', headers=headers)
        assert (response.status_code, list(response.json())) == (403, ["error"])
        assert not any(name.startswith("access-control") for name in response.headers)
    response = httpx.get(f"{address}/languages", headers=headers)
    assert response.status_code == 200 and not any(name.startswith("access-control") for name in response.headers)


def test_own_page_can_send_requests(address):
    for headers in ({"Origin": address}, {"Origin": address, "Sec-Fetch-Site": "same-origin"}):
        assert httpx.post(f"{address}/translate", json={"q": "the dog."}, headers=headers).status_code == 200


def test_only_own_host_names_are_accepted(exported, address):
    for host in ("localhost", "127.0.0.1:5000", "[::1]:5000", "192.168.1.2"):
        assert httpx.get(f"{address}/health", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "[::1", "mt.example"):
        response = httpx.get(f"{address}/health", headers={"Host": host})
        assert response.status_code == 400
        assert "--allowed-host" in response.json()["error"]
    for allowed in ("mt.example", "*"):
        with running(RuntimeServer(load(exported), "127.0.0.1", 0, None, frozenset({allowed}))) as other_address:
            assert httpx.get(f"{other_address}/health", headers={"Host": "mt.example:443"}).status_code == 200


def test_several_host_headers_are_rejected(address):
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=60) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
        response = client.recv(10_000)
        while block := client.recv(10_000):
            response += block
    assert response.split(b" ")[1] == b"400"
    assert b"a request must have one Host header; got several" in response


def test_unsupported_methods_and_paths_are_rejected(address):
    response = httpx.get(f"{address}/languages")
    head = httpx.head(f"{address}/languages")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == response.headers["content-length"]
    assert httpx.head(f"{address}/nothing").status_code == 404
    for method in ("GET", "HEAD", "OPTIONS"):
        response = httpx.request(method, f"{address}/translate?q=dog")
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.json() == {"error": "the method must be POST; got OPTIONS"}
    for method in ("POST", "DELETE"):
        response = httpx.request(method, f"{address}/health", json={"q": "the dog."})
        assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")
        assert response.json() == {"error": f"the method must be GET or HEAD; got {method}"}
        response = httpx.request(method, f"{address}/nothing", json={"q": "the dog."})
        message = "there is no /nothing; there are /translate, /languages and /health"
        assert (response.status_code, response.json()) == (404, {"error": message})
    response = httpx.request("BREW", f"{address}/translate")
    assert (response.status_code, list(response.json())) == (405, ["error"])
    for request in (b"\xff garbage\r\n\r\n", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", urlsplit(address).port), timeout=60) as client:
            client.sendall(request)
            with client.makefile("rb") as stream:
                assert stream.read().endswith(b"}")


def test_port_in_use_raises_os_error(exported, address):
    with pytest.raises(OSError):
        RuntimeServer(load(exported), "127.0.0.1", urlsplit(address).port)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_accepted_request_is_answered_after_a_signal(exported, stop):
    # SIGINT is ignored by background processes unless they set a handler.
    handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{handler}; from rnnsearch.runtime.command_line import main; main()"
    command = [sys.executable, "-c", code, "serve", str(exported), "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
    try:
        line = server.stderr.readline()
        port = urlsplit(line.split()[-1]).port
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = json.dumps({"q": "the dog."}).encode()
        client.putrequest("POST", "/translate")
        client.putheader("Content-Length", str(len(body)))
        client.endheaders(body[:5])
        time.sleep(0.3)
        server.send_signal(stop)
        time.sleep(0.3)
        client.send(body[5:])
        assert client.getresponse().status == 200
        assert server.wait(60) == (0 if stop == signal.SIGTERM else 130)
        assert server.stderr.read() == ""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    finally:
        server.kill()
        server.wait()
        server.stderr.close()


def test_stopping_server_does_not_wait_for_silent_clients(exported, monkeypatch):
    monkeypatch.setattr(serve_module, "MAX_STOP_SECONDS", 0.2)
    server = RuntimeServer(load(exported), "127.0.0.1", 0)
    with running(server) as address:
        client = socket.create_connection(("127.0.0.1", urlsplit(address).port), timeout=60)
        assert httpx.get(f"{address}/health").status_code == 200  # so the earlier connection was accepted
        start = time.monotonic()
    assert 0.2 <= time.monotonic() - start < 20
    client.close()


def test_page_option_serves_only_files_of_the_page(exported, tmp_path):
    page = tmp_path / "site"
    (page / "module").mkdir(parents=True)
    with pytest.raises(RnnsearchError, match="site: must be a folder that `rnnsearch export --format web` wrote"):
        RuntimeServer(load(exported), "127.0.0.1", 0, page)
    for name in ("index.html", "module/engine.wasm", "module/index.js", "sw.js"):
        (page / name).write_bytes(name.encode())
    with running(RuntimeServer(load(exported), "127.0.0.1", 0, page)) as address:
        for path, name, type in (
            ("/", "index.html", "text/html"),
            ("/module/engine.wasm?v=1", "module/engine.wasm", "application/wasm"),
            ("/module/index.js", "module/index.js", "text/javascript"),
        ):
            response = httpx.get(address + path)
            assert (response.status_code, response.text, response.headers["content-type"]) == (200, name, type)
        assert httpx.get(f"{address}/health").json() == {"status": "ok"}
        for path in ("/../m.rnn", "/%2e%2e/m.rnn", "//etc/passwd", "/module", "/module/../../m.rnn"):
            connection = http.client.HTTPConnection(address.removeprefix("http://"))  # sends the path unchanged
            connection.request("GET", path)
            assert connection.getresponse().status == 404
