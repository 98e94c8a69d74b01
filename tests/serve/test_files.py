"""Translation of whole files, in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import rnnsearch

Talk = Callable[..., Any]
LINES = ["the dog sees a big bird.", "the small cat sees the dog. the cat", "a bird"] * 7


def file(name: str, text: str | bytes) -> dict[str, Any]:
    return {"files": {"file": (name, text if isinstance(text, bytes) else text.encode())}}


async def ended(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    """The report of a job when it has ended."""
    while True:
        row: dict[str, Any] = (await http.get(f"/v1/files/{id}")).json()
        if row["state"] in ("done", "failed"):
            return row
        await asyncio.sleep(0.01)


def test_a_file_comes_back_translated(talk: Talk, folders: list[Path]) -> None:
    async def conversation(http: httpx.AsyncClient) -> tuple[Any, ...]:
        text = "\n".join(LINES) + "\n"
        sent = await http.post("/v1/files", data={"source": "en", "target": "de"}, **file("../etc/Ünder.txt", text))
        job = sent.json()
        row = await ended(http, job["id"])
        result = await http.get(f"/v1/files/{job['id']}/result")
        gone = await http.delete(f"/v1/files/{job['id']}")
        return sent, row, result, gone, await http.get(f"/v1/files/{job['id']}")

    sent, row, result, gone, after = talk(conversation)
    assert sent.status_code == 202
    assert sent.json()["segments"] == len(LINES)
    assert row["name"] == "Ünder.txt"
    assert (row["state"], row["done"], row["error"]) == ("done", len(LINES), None)
    assert result.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%9Cnder.de.txt"
    translator = rnnsearch.load(folders[0])
    assert result.text.split("\n")[0] == translator.translate(LINES[0]).text
    assert len(result.text.split("\n")) == len(LINES) + 1
    assert (gone.status_code, after.status_code) == (204, 404)


def test_libretranslates_way(talk: Talk) -> None:
    async def conversation(http: httpx.AsyncClient) -> tuple[Any, ...]:
        answer = await http.post(
            "/translate_file", data={"source": "auto", "target": "de"}, **file("a.tsv", "the cat\n")
        )
        result = await http.get(answer.json()["translatedFileUrl"])
        bad = await http.post("/translate_file", data={"source": "en", "target": "de"}, **file("a.txt", "x " * 90))
        return answer, result, bad

    answer, result, bad = talk(conversation, max_symbols=50)
    assert answer.status_code == 200
    assert result.text.startswith("the cat\t")
    assert len(result.text) > len("the cat\t\n")
    assert bad.status_code == 400
    assert bad.json()["error"].startswith("a.txt: a sentence must have at most 50 symbols")


def test_files_take_turns_and_can_be_called_off(talk: Talk) -> None:
    async def conversation(http: httpx.AsyncClient) -> None:
        ids = []
        for n in range(3):
            sent = await http.post("/v1/files", data={"model": "en-de"}, **file(f"{n}.txt", "\n".join(LINES * 20)))
            ids.append(sent.json()["id"])
        full = await http.post("/v1/files", data={"model": "en-de"}, **file("4.txt", "one"))
        assert full.status_code == 429
        assert full.headers["retry-after"] == "60"
        states = [(await http.get(f"/v1/files/{id}")).json()["state"] for id in ids]
        assert states == ["running", "queued", "queued"]
        early = await http.get(f"/v1/files/{ids[2]}/result")
        assert early.status_code == 404
        assert early.json()["error"] == "the file must be done to be fetched; it is queued"
        for id in ids[:2]:
            assert (await http.delete(f"/v1/files/{id}")).status_code == 204
        # The others' sentences are in nobody's way, and neither is a file in the way of a sentence.
        assert (await http.post("/v1/translate", json={"text": "the cat"})).status_code == 200
        assert (await http.delete(f"/v1/files/{ids[2]}")).status_code == 204

    talk(conversation, max_files=3)


def test_a_server_that_stops_finishes_its_files_first(talk: Talk) -> None:
    async def conversation(http: httpx.AsyncClient) -> None:
        sent = await http.post("/v1/files", data={"model": "en-de"}, **file("a.txt", "\n".join(LINES)))
        id = sent.json()["id"]
        files = http.app.state.service.files  # type: ignore[attr-defined]
        stopping = asyncio.create_task(files.finish())
        await asyncio.sleep(0)
        refused = await http.post("/v1/files", data={"model": "en-de"}, **file("b.txt", "one"))
        assert refused.status_code == 503
        assert (await ended(http, id))["state"] == "done"
        await asyncio.sleep(0.1)
        assert not stopping.done(), "the result has not been fetched"
        assert (await http.get(f"/v1/files/{id}/result")).status_code == 200
        await asyncio.wait_for(stopping, 20)

    talk(conversation)


@pytest.mark.parametrize(
    ("fields", "content", "status", "said"),
    [
        ({"model": "en-de"}, file("a.pdf", "x"), 400, "the file's name must end in .txt, .tsv, .tmx, .po"),
        ({"model": "en-de"}, file("a.txt", b"\xff"), 400, "a.txt:1: must be UTF-8"),
        ({"model": "fr"}, file("a.txt", "x"), 404, "model must be one of"),
        ({"target": "fr"}, file("a.txt", "x"), 400, "source and target must be a direction served here"),
        ({"model": "en-de"}, {}, 400, "file must be given"),
        ({"model": "en-de"}, file("a.txt", b"x" * 2000), 413, "the body must have at most 1,000 bytes"),
    ],
)
def test_faults(talk: Talk, fields: dict[str, str], content: dict[str, Any], status: int, said: str) -> None:
    async def conversation(http: httpx.AsyncClient) -> httpx.Response:
        return await http.post("/v1/files", data=fields, **content)

    response = talk(conversation, max_body=1000)
    assert response.status_code == status
    assert response.json()["error"].startswith(said)


def test_keys_are_asked_for(talk: Talk) -> None:
    async def conversation(http: httpx.AsyncClient) -> list[int]:
        content = file("a.txt", "the cat")
        none = await http.post("/v1/files", data={"model": "en-de"}, **content)
        wrong = await http.post("/translate_file", data={"target": "de", "api_key": "two"}, **content)
        right = await http.post("/translate_file", data={"target": "de", "api_key": "one"}, **content)
        return [none.status_code, wrong.status_code, right.status_code]

    assert talk(conversation, api_keys=frozenset({"one"})) == [403, 403, 200]
