"""Our own API: everything that a model knows of a translation."""

from __future__ import annotations

import math
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from rnnsearch.serve.limits import check_characters
from rnnsearch.serve.registry import About, Search
from rnnsearch.serve.schemas import FAULTS, ModelsAnswer, TranslateAnswer, TranslateRequest
from rnnsearch.serve.service import Use
from rnnsearch.serve.suggestions import streamed
from rnnsearch.serve.texts import TextTranslation, translate_texts
from rnnsearch.text.spans import word_spans
from rnnsearch.translation import Translation, one_line

router = APIRouter(prefix="/v1", tags=["v1"])


@router.get("/models", responses={200: {"model": ModelsAnswer}})
async def models(service: Use) -> Response:
    """The models served."""
    rows = [
        {
            "name": about.name,
            "source": about.source,
            "target": about.target,
            "source_name": about.source_name,
            "target_name": about.target_name,
            "attention": about.attention,
            "score": about.score,
            "loaded": service.registry.is_loaded(about.name),
        }
        for about in service.registry.abouts.values()
    ]
    return JSONResponse({"models": rows})


@router.post("/translate", responses={200: {"model": TranslateAnswer}, **FAULTS})
async def translate(request: Request, asked: TranslateRequest, service: Use) -> Response:
    """Translate texts, with alignments and scores."""
    service.check_key(request)
    check_characters(service.settings, asked.texts)
    about = service.find(asked.texts, asked.model, asked.source, asked.target)
    async with service.registry.lease(about) as served:
        if asked.stream:

            def whole(text: TextTranslation) -> dict[str, Any]:
                return _answer(about, [text], asked.attention)

            events = streamed(service, about, asked.texts[0], whole)
            return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        search = Search(asked.beam, asked.n_best, prefixed=asked.prefix is not None)
        found = await service.answer(request, translate_texts(served, asked.texts, search, asked.prefixes))
        return JSONResponse(_answer(about, found, asked.attention))


def _answer(about: About, found: list[TextTranslation], attention: bool) -> dict[str, Any]:
    """The answer to /v1/translate (`schemas.TranslateAnswer`)."""
    translations = [text_answer(text, attention) for text in found]
    return {"model": about.name, "source": about.source, "target": about.target, "translations": translations}


def text_answer(found: TextTranslation, attention: bool) -> dict[str, Any]:
    """A text's translation as JSON (`schemas.TextAnswer`)."""
    return {
        "text": found.text(),
        "sentences": [
            {
                "source": found.source[start:end],
                "start": start,
                "end": end,
                "best": [_best(translation, attention) for translation in translations],
            }
            for (start, end), translations in zip(found.spans, found.found, strict=True)
        ],
        "target_spans": found.target_spans(),
    }


def _best(t: Translation, attention: bool) -> dict[str, Any]:
    """A translation as JSON (`schemas.Best`)."""
    return {
        "text": one_line(t.text),
        **t.plain("score", "log_prob", "finished"),
        "source_words": _words(t.source),
        "words": _scored_words(t),
        **t.plain("tokens", "token_scores", "alignment"),
        "attention": t.plain("word_attention")["word_attention"] if attention else None,
    }


def _words(text: str) -> list[dict[str, Any]]:
    return [{"text": text[a:b], "start": a, "end": b} for a, b in word_spans(text)]


def _scored_words(t: Translation) -> list[dict[str, Any]]:
    rows = _words(t.text)
    for row, scores in zip(rows, t.word_token_scores, strict=True):
        row["score"] = round(sum(scores), 6)
        row["probability"] = round(math.exp(sum(scores) / len(scores)), 6) if scores else 1.0
    return rows
