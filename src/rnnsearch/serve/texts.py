"""Requests for the translation of whole texts, which are split into sentences for the model's queue.

Used by `translation_service`, `v1` and `files`. `translator/texts.py` joins the translations of the sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

from rnnsearch.serve.limits import ServeError
from rnnsearch.serve.pivot import LeasedModel
from rnnsearch.serve.served_model import RequestOptions, Translations
from rnnsearch.translator.texts import TextTranslation, assign_sentences, sentences_of
from rnnsearch.translator.translation import one_line


async def translate_texts(
    model: LeasedModel,
    texts: Sequence[str],
    options: RequestOptions,
    prefixes: Sequence[str] | None = None,
    grammars: Sequence[str | None] | None = None,
    documents: Sequence[int] | None = None,
    client: str = "",
) -> list[TextTranslation]:
    """Translate texts; all their sentences are in the same queue.

    Args:
        model: The model.
        texts: The texts.
        options: Options of the request.
        prefixes: Text that the translations begin with, one per text; a text with a prefix must be one sentence.
        grammars: Grammar of the placeholders of each text (see `text.markup.protected`).
        documents: Number of the document that each text is a part of; by default, each is a document. A model may read
            previous sentences of the same document.
        client: Identity of the client, whose long texts are split one after the other.

    Raises:
        ServeError: With status 400 for a prefix of a text that is not one sentence, and as in `ServedModel.translate`.
    """
    spans = await model.split(texts, client)
    sentence_prefixes: list[str] | None = None
    if prefixes is not None:
        sentence_prefixes = []
        for text_spans, prefix in zip(spans, prefixes, strict=True):
            if prefix and len(text_spans) != 1:
                raise ServeError(400, f"a text with a prefix must be one sentence; got {len(text_spans)}")
            require_line("prefix", prefix)
            sentence_prefixes += [prefix] * len(text_spans)
    sentences, indices = sentences_of(texts, spans)
    sentence_grammars = [None if grammars is None else grammars[index] for index in indices]
    documents_of_sentences = indices if documents is None else [documents[index] for index in indices]
    n_best: list[Translations] = []
    if sentences:
        n_best = await model.translate(sentences, options, sentence_prefixes, sentence_grammars, documents_of_sentences)
    return assign_sentences(texts, spans, n_best, model.info.target)


async def require_one_sentence(model: LeasedModel, text: str, client: str) -> str:
    """Return the only sentence of a text, without the white space around it.

    Raises:
        ServeError: With status 400 if the text is not one sentence.
    """
    [spans] = await model.split([text], client)
    if len(spans) != 1:
        raise ServeError(400, f"text must be one sentence; got {len(spans)}")
    start, end = spans[0]
    return text[start:end]


def require_line(name: str, text: str) -> None:
    """Raise ServeError with status 400 if a field's text has several lines."""
    if one_line(text) != text:
        raise ServeError(400, f"{name} must be one line; got several")
