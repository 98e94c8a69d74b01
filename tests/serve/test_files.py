"""Translation of files in the background."""

import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.testclient import TestClient

import rnnsearch
from rnnsearch.serve import admission, files, server
from rnnsearch.serve.app import create_app
from rnnsearch.serve.limits import ServeError, Settings
from rnnsearch.serve.served_model import RequestOptions, ServedModel
from rnnsearch.serve.texts import translate_texts
from rnnsearch.text.markup.substitutes import SubstitutedText
from rnnsearch.translator.texts import TextTranslation
from tests.untrained import BAHDANAU, TEXT, write_model

LINES = ["the dog sees a big bird.", "the small cat sees the dog. the cat", "a bird"] * 7


def file(name: str, text: str | bytes) -> dict[str, Any]:
    return {"files": {"file": (name, text if isinstance(text, bytes) else text.encode())}}


def final_status(http: TestClient, id: str) -> dict[str, Any]:
    """Wait until a job has ended and return its status."""
    while True:
        status: dict[str, Any] = http.get(f"/v1/files/{id}").json()
        if status["state"] in ("done", "failed"):
            return status
        time.sleep(0.01)


def test_file_is_translated(http, folders):
    text = "\n".join(LINES) + "\n"
    sent = http.post("/v1/files", data={"source": "en", "target": "de"}, **file("../etc/Ünder.txt", text))
    assert sent.status_code == 202
    assert sent.json()["segments"] == len(LINES)
    job = f"/v1/files/{sent.json()['id']}"
    status = final_status(http, sent.json()["id"])
    assert status["name"] == "Ünder.txt"
    assert (status["state"], status["done"], status["error"]) == ("done", len(LINES), None)
    result = http.get(f"{job}/result")
    assert result.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%9Cnder.de.txt"
    translator = rnnsearch.load(folders[0])
    assert result.text.split("\n")[0] == translator.translate(LINES[0]).text
    assert len(result.text.split("\n")) == len(LINES) + 1
    assert (http.delete(job).status_code, http.get(job).status_code) == (204, 404)


def test_only_segments_with_too_long_sentences_stay_empty(http):
    lines = [*LINES, "the dog " * 300, "a bird"]
    sent = http.post("/v1/files", data={"source": "en", "target": "de"}, **file("a.txt", "\n".join(lines) + "\n"))
    status = final_status(http, sent.json()["id"])
    assert (status["state"], status["error"], status["left"]) == ("done", None, [len(LINES) + 1])
    translations = http.get(f"/v1/files/{sent.json()['id']}/result").text.removesuffix("\n").split("\n")
    assert [bool(line) for line in translations] == [True] * len(LINES) + [False, True]
    assert translations[-1] == translations[2], "equal lines have equal translations"


def test_placeholders_of_po_entries_are_copied(http):
    entries = {"the %(size)s cat sees {name}.": ["%(size)s", "{name}"], "%d": ["%d"], "the dog": []}
    text = "".join(f'msgid "{entry}"\nmsgstr ""\n\n' for entry in entries)
    sent = http.post("/v1/files", data={"source": "en", "target": "de"}, **file("app.po", text))
    assert final_status(http, sent.json()["id"])["error"] is None
    result = http.get(f"/v1/files/{sent.json()['id']}/result").text
    for entry, placeholders in entries.items():
        line = result.partition(f'msgid "{entry}"\nmsgstr "')[2].partition("\n")[0]
        assert line
        assert all(line.count(placeholder) == 1 for placeholder in placeholders), line


def test_segments_whose_placeholders_are_lost_are_reported(http, monkeypatch):
    monkeypatch.setattr(SubstitutedText, "is_complete", lambda *_: False)
    for name, content, expected in (
        ("a.po", 'msgid "the dog"\nmsgstr ""\n\nmsgid "a %s cat"\nmsgstr ""\n', 'msgid "a %s cat"\nmsgstr ""\n'),
        ("a.txt", "the dog\na %s cat\n", "\na %s cat\n"),
    ):
        sent = http.post("/v1/files", data={"source": "en", "target": "de"}, **file(name, content))
        status = final_status(http, sent.json()["id"])
        assert (status["error"], status["left"], status["untranslated"]) == (None, [], [2])
        assert http.get(f"/v1/files/{sent.json()['id']}/result").text.endswith(expected)


def test_translate_file_returns_address_of_result(serve):
    http = serve(max_tokens=50)
    response = http.post("/translate_file", data={"source": "auto", "target": "de"}, **file("a.tsv", "the cat\n"))
    assert response.status_code == 200
    result = http.get(response.json()["translatedFileUrl"])
    assert result.text.startswith("the cat\t")
    assert len(result.text) > len("the cat\t\n")
    bad = http.post("/translate_file", data={"source": "en", "target": "de"}, **file("a.txt", "x " * 90))
    assert bad.status_code == 400
    assert bad.json()["error"].startswith("a.txt: all of its segments have a sentence that is too long")


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        ({}, "http://localhost"),
        ({"host": "mt.example"}, "http://mt.example"),
        ({"host": "mt.example:5000", "x-forwarded-proto": "https"}, "https://mt.example:5000"),
        ({"x-forwarded-host": "mt.example", "x-forwarded-proto": "https, http"}, "https://mt.example"),
        ({"x-forwarded-host": "evil.example", "x-forwarded-proto": "javascript"}, "http://localhost"),
    ],
)
def test_address_of_result_is_that_of_the_proxy(serve, headers, address):
    http = serve(allowed_hosts=frozenset({"mt.example"}))
    response = http.post("/translate_file", data={"target": "de"}, headers=headers, **file("a.txt", "the cat"))
    assert response.json()["translatedFileUrl"].startswith(f"{address}/v1/files/")


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
def test_auto_detects_the_language_of_the_file(folders, tmp_path, monkeypatch, name, text, source):
    # A translation memory declares its languages.
    monkeypatch.setitem(TEXT, "fr", TEXT["en"])
    french = write_model(tmp_path / "fr-de", BAHDANAU, "bpe", ("fr", "de"))
    app = create_app([french, *folders], Settings())
    with TestClient(app, "http://localhost") as http:
        for target in ("de", "DE"):
            fields = {"source": "auto", "target": target}
            sent = http.post("/v1/files", data=fields, **file(name, text)).json()
            assert app.state.service.files.get(sent["id"]).model.source == source
            assert sent["segments"] == max(text.count(ENGLISH), text.count(FRENCH))
            response = http.post("/translate_file", data=fields, **file(name, text))
            id = response.json()["translatedFileUrl"].split("/")[-2]
            assert app.state.service.files.get(id).model.source == source


def test_auto_respects_target_and_model(http):
    for fields, source in (({}, "de"), ({"target": "de"}, "en"), ({"model": "en-de"}, "en")):
        id = http.post("/v1/files", data={"source": "auto", **fields}, **file("a.txt", GERMAN)).json()["id"]
        assert http.app.state.service.files.get(id).model.source == source


def test_files_are_translated_one_at_a_time_and_can_be_cancelled(serve, monkeypatch):
    # The files must not be done before their states are read.
    monkeypatch.setattr(admission, "TOO_MANY_REQUESTS_WAIT_SECONDS", 0.0)
    http = serve(max_files=3)
    ids = []
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
    assert early.json()["error"] == "the file must be done before it can be fetched; it is queued"
    for id in ids[:2]:
        assert http.delete(f"/v1/files/{id}").status_code == 204
    # Neither do cancelled files delay a sentence, nor does the file that is running.
    assert http.post("/v1/translate", json={"text": "the cat"}).status_code == 200
    assert http.delete(f"/v1/files/{ids[2]}").status_code == 204


def test_file_of_disconnected_client_does_not_count_as_waiting(listening, folders, monkeypatch):
    monkeypatch.setattr(server, "MAX_HALF_CLOSED_SECONDS", 0.1)
    app = create_app(folders, Settings(max_files=1))
    lines = "\n".join(LINES * 50).encode()
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n' + lines
    body = head + b'\r\n--x\r\nContent-Disposition: form-data; name="target"\r\n\r\nde\r\n--x--\r\n'
    request = b"POST /translate_file HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    with listening(app) as url:
        service = app.state.service
        with socket.create_connection(("127.0.0.1", int(urlsplit(url).port or 0))) as client:
            client.sendall(request + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: [job.state for job in service.files._jobs.values()] == ["running"])
        wait_until(lambda: [job.state for job in service.files._jobs.values()] == ["failed"])
        sent = httpx.post(f"{url}/v1/files", data={"model": "en-de"}, **file("b.txt", "the dog"))
        assert sent.status_code == 202


def test_file_is_finished_if_its_model_is_unloaded_meanwhile(serve, monkeypatch):
    # Only one model stays loaded, and another one is used before and after each chunk of the file.
    http = serve(max_loaded=1)
    registry = http.app.state.service.registry
    chunk_models = []

    async def use_other_model() -> None:
        async with registry.lease(registry.find("de-en")) as other:
            assert len(await other.translate(["the cat"], RequestOptions())) == 1

    async def disturbed_translate_texts(
        model: ServedModel, texts: list[str], options: RequestOptions, **settings: Any
    ) -> list[TextTranslation]:
        await use_other_model()
        chunk_models.append(model)
        return await translate_texts(model, texts, options, **settings)

    run_in_thread = files.run_in_thread

    async def disturbed_run_in_thread(*args: Any, size: int) -> Any:
        if chunk_models:
            await use_other_model()
        return await run_in_thread(*args, size=size)

    monkeypatch.setattr(files, "translate_texts", disturbed_translate_texts)
    monkeypatch.setattr(files, "run_in_thread", disturbed_run_in_thread)
    sent = http.post("/v1/files", data={"model": "en-de"}, **file("a.txt", "\n".join(LINES)))
    status = final_status(http, sent.json()["id"])
    assert (status["state"], status["done"], status["error"]) == ("done", len(LINES), None)
    assert len(chunk_models) > 1
    assert len(set(chunk_models)) == len(chunk_models), "the model was unloaded and loaded again"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_stopping_server_waits_for_files_and_their_results(http):
    id = http.post("/v1/files", data={"model": "en-de"}, **file("a.txt", "\n".join(LINES))).json()["id"]
    stopping = http.portal.start_task_soon(http.app.state.service.files.finish)
    rejected = http.post("/v1/files", data={"model": "en-de"}, **file("b.txt", "one"))
    assert rejected.status_code == 503
    assert final_status(http, id)["state"] == "done"
    time.sleep(0.1)
    assert not stopping.done(), "the result has not been fetched"
    assert http.get(f"/v1/files/{id}/result").status_code == 200
    stopping.result(20)


@pytest.mark.parametrize(
    ("fields", "content", "status", "message"),
    [
        ({"model": "en-de"}, file("a.pdf", "x"), 400, "the file name must end in .txt, .tsv, .tmx, .po"),
        ({"model": "en-de"}, file("a.txt", b"\xff"), 400, "a.txt:1: must be UTF-8"),
        ({"model": "fr"}, file("a.txt", "x"), 404, "model must be one of"),
        ({"model": "fr", "source": "auto"}, file("a.txt", "x"), 404, "model must be one of"),
        ({"target": "fr"}, file("a.txt", "x"), 400, "source and target must be a direction served here"),
        ({"target": "fr", "source": "auto"}, file("a.txt", "x"), 400, "source and target must be a direction served"),
        ({"model": "en-de"}, {}, 400, "file is required"),
        ({"model": "en-de"}, file("a.txt", b"x" * 2000), 413, "the body must have at most 1,000 bytes"),
    ],
)
def test_invalid_requests_get_errors(serve, fields, content, status, message):
    response = serve(max_body=1000).post("/v1/files", data=fields, **content)
    assert response.status_code == status
    assert response.json()["error"].startswith(message)


def test_file_of_another_client_is_translated_in_turn(http):
    # Files of two clients that differ only by their addresses.
    files_of_app = http.app.state.service.files
    models = http.app.state.service.candidate_models("en-de", None, None)

    async def add(client: str, lines: int) -> files.FileJob:
        return await files_of_app.add("a.txt", ("the dog\n" * lines).encode(), models, client)

    long = [http.portal.call(add, "a", 3000) for _ in range(2)]
    short = http.portal.call(add, "b", 20)
    assert final_status(http, short.id)["state"] == "done"
    assert [job.state for job in long] == ["running", "queued"]


def test_waiting_files_are_limited_by_client_and_bytes(serve):
    app_files = serve(max_files=2, max_body=1000).app.state.service.files
    app_files._check_waiting("a", 1000)
    app_files._being_read = [("a", 900)]
    app_files._check_waiting("a", 100)
    app_files._check_waiting("b", 1000)
    for waiting, client, size in (
        ([("a", 900)], "a", 200),
        ([("a", 1), ("a", 1)], "a", 1),
        ([("a", 900), ("b", 900)], "c", 900),
        ([(str(n), 0) for n in range(8)], "a", 1),
    ):
        app_files._being_read = waiting
        with pytest.raises(ServeError) as error:
            app_files._check_waiting(client, size)
        assert (error.value.status, error.value.retry_after) == (429, 60)


def test_file_keeps_only_its_result_and_old_results_make_room(http, monkeypatch):
    ids = []
    for _ in range(3):
        ids.append(http.post("/v1/files", data={"model": "en-de"}, **file("a.txt", "the dog\n")).json()["id"])
        assert final_status(http, ids[-1])["state"] == "done"
    job_files = http.app.state.service.files
    assert [job_files.get(id).document for id in ids] == [None] * 3
    monkeypatch.setattr(files, "MAX_RESULT_BYTES", 1)
    http.portal.call(job_files._forget_old_results)
    assert [http.get(f"/v1/files/{id}").status_code for id in ids] == [404, 404, 200]


def test_file_must_be_translated_in_time(http, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILE_SECONDS", 0.01)
    id = http.post("/v1/files", data={"model": "en-de"}, **file("a.txt", "the dog\n" * 3000)).json()["id"]
    status = final_status(http, id)
    assert status["state"] == "failed"
    assert status["error"].startswith("a.txt: must be translated within")
