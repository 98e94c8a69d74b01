"""Our own API: everything that a model knows of a translation."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from rnnsearch.serve.registry import Search
from rnnsearch.serve.schemas import (
    FAULTS,
    Best,
    ModelRow,
    ModelsAnswer,
    Sentence,
    TargetWord,
    TextAnswer,
    TranslateAnswer,
    TranslateRequest,
    Word,
)
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
        ModelRow(
            name=about.name,
            source=about.source,
            target=about.target,
            source_name=about.source_name,
            target_name=about.target_name,
            attention=about.attention,
            score=about.score,
            loaded=service.registry.is_loaded(about.name),
        )
        for about in service.registry.abouts.values()
    ]
    return ModelsAnswer(models=rows).response()


@router.post("/translate", responses={200: {"model": TranslateAnswer}, **FAULTS})
async def translate(request: Request, asked: TranslateRequest, service: Use) -> Response:
    """Translate texts, with alignments and scores."""
    about = service.choose(request, asked.texts, asked.model, asked.source, asked.target)

    def answer(found: list[TextTranslation]) -> TranslateAnswer:
        translations = [text_answer(text, asked.attention) for text in found]
        return TranslateAnswer(model=about.name, source=about.source, target=about.target, translations=translations)

    async with service.registry.lease(about) as served:
        if asked.stream:
            events = streamed(service, about, asked.texts[0], lambda text: answer([text]))
            return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        search = Search(asked.beam, asked.n_best, prefixed=asked.prefix is not None)
        found = await service.answer(request, translate_texts(served, asked.texts, search, asked.prefixes))
    return answer(found).response()


def text_answer(found: TextTranslation, attention: bool) -> TextAnswer:
    """A text's translation, as it is sent."""
    sentences = [
        Sentence(source=found.source[start:end], start=start, end=end, best=[_best(t, attention) for t in translations])
        for (start, end), translations in zip(found.spans, found.found, strict=True)
    ]
    return TextAnswer(text=found.text(), sentences=sentences, target_spans=found.target_spans())


def _best(t: Translation, attention: bool) -> Best:
    return Best(
        text=one_line(t.text),
        source_words=[Word(**place) for place in _words(t.source)],
        words=[
            TargetWord(**place, score=round(sum(scores), 6), probability=round(sure, 6))
            for place, scores, sure in zip(_words(t.text), t.word_token_scores, t.word_probabilities, strict=True)
        ],
        attention=t.plain("word_attention")["word_attention"] if attention else None,
        **t.plain("score", "log_prob", "finished", "tokens", "token_scores", "alignment"),
    )


def _words(text: str) -> list[dict[str, Any]]:
    return [{"text": text[a:b], "start": a, "end": b} for a, b in word_spans(text)]
