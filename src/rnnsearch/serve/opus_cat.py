"""OPUS-CAT MT Engine's API, for its plug-ins and for OmegaT, Wordfast and others that are configured with its address.

`GET /MTRestService/TranslateJson` translates a text; `ListSupportedLanguagePairs` and `GetLanguagePairModelTags` tell
what is served. `tokenCode` may be an API key, and `modelTag` the name of a model. `inputIsSingleSentence` has no
effect: texts are always split into sentences.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from rnnsearch.serve.schemas import ERROR_RESPONSES
from rnnsearch.serve.service import UseService
from rnnsearch.serve.translation_service import TextResult, TranslationTask
from rnnsearch.text.alignments import word_spans
from rnnsearch.text.languages import base_language, two_letter_code

router = APIRouter(prefix="/MTRestService", tags=["OPUS-CAT"])


@router.get("/TranslateJson", responses=ERROR_RESPONSES)
async def translate(
    request: Request,
    service: UseService,
    input: str = Query("", description="The text."),
    srcLangCode: str = Query(description="Code of the source language."),
    trgLangCode: str = Query(description="Code of the target language."),
    tokenCode: str = Query("", description="API key."),
    modelTag: str = Query("", description="Name of the model."),
) -> Response:
    """Translate a text, with its word alignment."""
    service.check_request(request, [input], tokenCode)
    source, target = two_letter_code(srcLangCode), two_letter_code(trgLangCode)
    task = TranslationTask([input], source, target, modelTag or None, format="codes", align=True)
    [result] = await service.translate(request, task)
    return await service.build_response(request, lambda: _response(result), task.size)


def _response(result: TextResult) -> Response:
    text = result.text()
    fields: dict[str, Any] = {"translation": text, "Translation": text}
    if len(result.parts) == 1:
        [part] = result.parts
        source = part.source
        plain = part.text()
        links = part.links()
        fields["SegmentedSourceSentence"] = [source[start:end] for start, end in word_spans(source)]
        fields["SegmentedTranslation"] = [plain[start:end] for start, end in word_spans(plain)]
        fields["AlignmentString"] = " ".join(f"{i}-{j}" for i, j in links)
    if result.confidence is not None:
        fields["confidence"] = round(result.confidence, 4)
    return JSONResponse(fields)


@router.get("/ListSupportedLanguagePairs")
async def list_language_pairs(service: UseService) -> list[str]:
    """List the pairs of languages, like en-de."""
    return list(dict.fromkeys(f"{info.source}-{info.target}" for info in service.registry.models.values()))


@router.get("/GetLanguagePairModelTags")
async def list_model_tags(service: UseService, srcLangCode: str = "", trgLangCode: str = "") -> list[str]:
    """List the names of the models for a pair of languages."""
    source = base_language(two_letter_code(srcLangCode))
    target = base_language(two_letter_code(trgLangCode))
    names = []
    for name, info in service.registry.models.items():
        if (base_language(info.source), base_language(info.target)) == (source, target):
            names.append(name)
    return names
