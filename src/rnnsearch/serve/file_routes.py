"""The routes of file translation: ours and LibreTranslate's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Form, Request, UploadFile
from fastapi.responses import Response

from rnnsearch.serve.files import FileJob
from rnnsearch.serve.limits import ServeError
from rnnsearch.serve.schemas import FAULTS, About, Fault, FileReport
from rnnsearch.serve.service import AUTO, Service, Use

router = APIRouter()
_RESULT: dict[int | str, dict[str, object]] = {200: {"content": {"application/octet-stream": {}}}}
_UNKNOWN: dict[int | str, dict[str, object]] = {404: {"model": Fault, "description": "There is no such file."}}
Optional = Annotated[str | None, Form()]


@router.post("/v1/files", status_code=202, response_model=FileReport, responses=FAULTS, tags=["v1"])
async def send(
    request: Request, service: Use, file: UploadFile, source: Optional = None, target: Optional = None,
    model: Optional = None,
) -> FileJob:  # fmt: skip
    """Translate a file (.txt, .tsv, .tmx, .po) in the background."""
    service.check_key(request)
    return await _add(service, file, service.candidates(model, source, target))


@router.get("/v1/files/{id}", response_model=FileReport, responses=_UNKNOWN, tags=["v1"])
async def report(id: str, service: Use) -> FileJob:
    """How far a file is."""
    return service.files.get(id)


@router.get("/v1/files/{id}/result", responses={**_RESULT, **_UNKNOWN}, tags=["v1"])
async def result(id: str, service: Use) -> Response:
    """The translated file."""
    job = service.files.get(id)
    if job.result is None:
        raise ServeError(404, f"the file must be done to be fetched; it is {job.state}")
    job.fetched = True
    named = f"attachment; filename*=UTF-8''{quote(job.result_name, safe='', errors='replace')}"
    headers = {"content-disposition": named, "x-content-type-options": "nosniff"}
    return Response(job.result, headers=headers, media_type="application/octet-stream")


@router.delete("/v1/files/{id}", status_code=204, responses=_UNKNOWN, tags=["v1"])
async def remove(id: str, service: Use) -> Response:
    """Stop the translation of a file, and forget it."""
    service.files.remove(id)
    return Response(status_code=204)


@router.post("/translate_file", responses=FAULTS, tags=["LibreTranslate"])
async def translate_file(
    request: Request, service: Use, file: UploadFile, target: Annotated[str, Form()],
    source: Annotated[str, Form()] = AUTO, api_key: Optional = None,
) -> dict[str, str]:  # fmt: skip
    """Translate a file and say where the translation is; the answer comes when it is done."""
    service.check_key(request, api_key)
    job = await _add(service, file, service.candidates(None, source, target))
    await service.answer(request, job.task, patient=True)
    if job.error is not None:
        raise ServeError(400, job.error)
    return {"translatedFileUrl": str(request.url_for("result", id=job.id))}


async def _add(service: Service, file: UploadFile, abouts: Sequence[About]) -> FileJob:
    return await service.files.add(file.filename or "", await file.read(), abouts)
