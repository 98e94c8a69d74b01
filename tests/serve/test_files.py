"""Translation of whole files, in the background."""

import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.testclient import TestClient

import rnnsearch
from rnnsearch.serve import files
from rnnsearch.serve.app import create_app
from rnnsearch.serve.limits import Settings
from rnnsearch.serve.registry import Search, Served
from rnnsearch.serve.texts import TextTranslation, translate_texts
from tests.untrained import BAHDANAU, TEXT, write_model

LINES = ["the dog sees a big bird.", "the small cat sees the dog. the cat", "a bird"] * 7


def file(name: str, text: str | bytes) -> dict[str, Any]:
    return {"files": {"file": (name, text if isinstance(text, bytes) else text.encode())}}


def ended(http: TestClient, id: str) -> dict[str, Any]:
    """The report of a job when it has ended."""
    while True:
        row: dict[str, Any] = http.get(f"/v1/files/{id}").json()
        if row["state"] in ("done", "failed"):
            return row
        time.sleep(0.01)


def test_a_file_comes_back_translated(http, folders):
    text = "\n".join(LINES) + "\n"
    sent = http.post("/v1/files", data={"source": "en", "target": "de"}, **file("../etc/Ünder.txt", text))
    assert sent.status_code == 202
    assert sent.json()["segments"] == len(LINES)
    job = f"/v1/files/{sent.json()['id']}"
    row = ended(http, sent.json()["id"])
    assert row["name"] == "Ünder.txt"
    assert (row["state"], row["done"], row["error"]) == ("done", len(LINES), None)
    result = http.get(f"{job}/result")
    assert result.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%9Cnder.de.txt"
    translator = rnnsearch.load(folders[0])
    assert result.text.split("\n")[0] == translator.translate(LINES[0]).text
    assert len(result.text.split("\n")) == len(LINES) + 1
    assert (http.delete(job).status_code, http.get(job).status_code) == (204, 404)


def test_a_sentence_that_is_too_long_stays_empty_and_the_others_do_not(http):
    lines = [*LINES, "the dog " * 300, "a bird"]
    sent = http.post("/v1/files", data={"source": "en", "target": "de"}, **file("a.txt", "\n".join(lines) + "\n"))
    row = ended(http, sent.json()["id"])
    assert (row["state"], row["error"], row["left"]) == ("done", None, [len(LINES) + 1])
    found = http.get(f"/v1/files/{sent.json()['id']}/result").text.removesuffix("\n").split("\n")
    assert [bool(line) for line in found] == [True] * len(LINES) + [False, True]
    assert found[-1] == found[2], "the same line"


def test_what_a_program_fills_in_stays_in_a_catalogue(http):
    entries = {"the %(size)s cat sees {name}.": ["%(size)s", "{name}"], "%d": ["%d"], "the dog": []}
    text = "".join(f'msgid "{entry}"\nmsgstr ""\n\n' for entry in entries)
    sent = http.post("/v1/files", data={"source": "en", "target": "de"}, **file("app.po", text))
    assert ended(http, sent.json()["id"])["error"] is None
    result = http.get(f"/v1/files/{sent.json()['id']}/result").text
    for entry, kept in entries.items():
        line = result.partition(f'msgid "{entry}"\nmsgstr "')[2].partition("\n")[0]
        assert line
        assert all(line.count(one) == 1 for one in kept), line


def test_libretranslates_way(serve):
    http = serve(max_symbols=50)
    answer = http.post("/translate_file", data={"source": "auto", "target": "de"}, **file("a.tsv", "the cat\n"))
    assert answer.status_code == 200
    result = http.get(answer.json()["translatedFileUrl"])
    assert result.text.startswith("the cat\t")
    assert len(result.text) > len("the cat\t\n")
    bad = http.post("/translate_file", data={"source": "en", "target": "de"}, **file("a.txt", "x " * 90))
    assert bad.status_code == 400
    assert bad.json()["error"].startswith("a.txt: each of its segments has a sentence that is too long")


FRENCH, ENGLISH, GERMAN = "le chat est dans la maison", "the cat is in the house", "die Katze ist in dem Haus"
UNIT = '<tu><tuv xml:lang="{}"><seg>{}</seg></tuv></tu>'


def memory(*units: str) -> str:
    return f'<tmx version="1.4"><header/><body>{"".join(units)}</body></tmx>'


@pytest.mark.parametrize(
    ("name", "text", "source"),
    [
        ("a.txt", f"{ENGLISH}\n" * 3, "en"),
        ("a.txt", f"{FRENCH}\n" * 3, "fr"),
        ("a.txt", "", "fr"),
        ("a.po", f'msgid "{ENGLISH}"\nmsgstr ""\n', "en"),
        ("a.tmx", memory(UNIT.format("en", ENGLISH)), "en"),
        ("a.tmx", memory(UNIT.format("en", FRENCH)), "en"),
        ("a.tmx", memory(UNIT.format("fr", ENGLISH), UNIT.format("fr", ENGLISH)), "fr"),
    ],
)
def test_auto_looks_into_the_file(folders, tmp_path, monkeypatch, name, text, source):
    """It was the first model's language. A memory says itself which languages it has."""
    monkeypatch.setitem(TEXT, "fr", TEXT["en"])
    french = write_model(tmp_path / "fr-de", BAHDANAU, "bpe", ("fr", "de"))
    app = create_app([french, *folders], Settings())
    with TestClient(app, "http://localhost") as http:
        for target in ("de", "DE"):
            fields = {"source": "auto", "target": target}
            sent = http.post("/v1/files", data=fields, **file(name, text)).json()
            assert app.state.service.files.get(sent["id"]).about.source == source
            assert sent["segments"] == max(text.count(ENGLISH), text.count(FRENCH))
            answer = http.post("/translate_file", data=fields, **file(name, text))
            id = answer.json()["translatedFileUrl"].split("/")[-2]
            assert app.state.service.files.get(id).about.source == source


def test_auto_keeps_to_the_direction_and_the_model(http):
    for fields, source in (({}, "de"), ({"target": "de"}, "en"), ({"model": "en-de"}, "en")):
        id = http.post("/v1/files", data={"source": "auto", **fields}, **file("a.txt", GERMAN)).json()["id"]
        assert http.app.state.service.files.get(id).about.source == source


def test_files_take_turns_and_can_be_called_off(serve):
    http, ids = serve(max_files=3), []
    for n in range(3):
        sent = http.post("/v1/files", data={"model": "en-de"}, **file(f"{n}.txt", "\n".join(LINES * 20)))
        ids.append(sent.json()["id"])
    full = http.post("/v1/files", data={"model": "en-de"}, **file("4.txt", "one"))
    assert full.status_code == 429
    assert full.headers["retry-after"] == "60"
    states = [http.get(f"/v1/files/{id}").json()["state"] for id in ids]
    assert states == ["running", "queued", "queued"]
    early = http.get(f"/v1/files/{ids[2]}/result")
    assert early.status_code == 404
    assert early.json()["error"] == "the file must be done to be fetched; it is queued"
    for id in ids[:2]:
        assert http.delete(f"/v1/files/{id}").status_code == 204
    # The others' sentences are in nobody's way, and neither is a file in the way of a sentence.
    assert http.post("/v1/translate", json={"text": "the cat"}).status_code == 200
    assert http.delete(f"/v1/files/{ids[2]}").status_code == 204


def test_a_file_whose_sender_has_left_is_in_nobodys_way(listening, folders):
    """It counted as waiting for ever: no other was taken in, and the server never stopped."""
    app = create_app(folders, Settings(max_files=1))
    lines = "\n".join(LINES * 50).encode()
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n' + lines
    body = head + b'\r\n--x\r\nContent-Disposition: form-data; name="target"\r\n\r\nde\r\n--x--\r\n'
    asked = b"POST /translate_file HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    with listening(app) as url:
        service = app.state.service
        with socket.create_connection(("127.0.0.1", int(urlsplit(url).port or 0))) as client:
            client.sendall(asked + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            until(lambda: [job.state for job in service.files._jobs.values()] == ["running"])
        until(lambda: [job.state for job in service.files._jobs.values()] == ["failed"])
        sent = httpx.post(f"{url}/v1/files", data={"model": "en-de"}, **file("b.txt", "the dog"))
        assert sent.status_code == 202


def test_a_file_is_finished_though_its_model_is_let_go(serve, monkeypatch):
    """Where one model is kept, and another is asked for just before each portion and after it."""
    http = serve(max_loaded=1)
    registry, portions = http.app.state.service.registry, []

    async def another() -> None:
        async with registry.lease(registry.find("de-en")) as other:
            assert len(await other.translate(["the cat"], Search())) == 1

    async def disturbed(served: Served, texts: list[str], search: Search, patient: bool) -> list[TextTranslation]:
        await another()
        portions.append(served)
        return await translate_texts(served, texts, search, patient=patient)

    read = files.apart

    async def between(*given: Any, size: int) -> Any:
        if portions:
            await another()
        return await read(*given, size=size)

    monkeypatch.setattr(files, "translate_texts", disturbed)
    monkeypatch.setattr(files, "apart", between)
    sent = http.post("/v1/files", data={"model": "en-de"}, **file("a.txt", "\n".join(LINES)))
    row = ended(http, sent.json()["id"])
    assert (row["state"], row["done"], row["error"]) == ("done", len(LINES), None)
    assert len(portions) > 1
    assert len(set(portions)) == len(portions), "it was let go, and loaded again"


def until(true: Callable[[], bool]) -> None:
    """Wait until something is true."""
    ends = time.monotonic() + 30
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_a_server_that_stops_finishes_its_files_first(http):
    id = http.post("/v1/files", data={"model": "en-de"}, **file("a.txt", "\n".join(LINES))).json()["id"]
    stopping = http.portal.start_task_soon(http.app.state.service.files.finish)
    refused = http.post("/v1/files", data={"model": "en-de"}, **file("b.txt", "one"))
    assert refused.status_code == 503
    assert ended(http, id)["state"] == "done"
    time.sleep(0.1)
    assert not stopping.done(), "the result has not been fetched"
    assert http.get(f"/v1/files/{id}/result").status_code == 200
    stopping.result(20)


@pytest.mark.parametrize(
    ("fields", "content", "status", "said"),
    [
        ({"model": "en-de"}, file("a.pdf", "x"), 400, "the file's name must end in .txt, .tsv, .tmx, .po"),
        ({"model": "en-de"}, file("a.txt", b"\xff"), 400, "a.txt:1: must be UTF-8"),
        ({"model": "fr"}, file("a.txt", "x"), 404, "model must be one of"),
        ({"model": "fr", "source": "auto"}, file("a.txt", "x"), 404, "model must be one of"),
        ({"target": "fr"}, file("a.txt", "x"), 400, "source and target must be a direction served here"),
        ({"target": "fr", "source": "auto"}, file("a.txt", "x"), 400, "source and target must be a direction served"),
        ({"model": "en-de"}, {}, 400, "file must be given"),
        ({"model": "en-de"}, file("a.txt", b"x" * 2000), 413, "the body must have at most 1,000 bytes"),
    ],
)
def test_faults(serve, fields, content, status, said):
    response = serve(max_body=1000).post("/v1/files", data=fields, **content)
    assert response.status_code == status
    assert response.json()["error"].startswith(said)
