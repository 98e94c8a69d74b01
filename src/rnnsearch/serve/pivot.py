"""Directions through a third language on a server: one served model translates into it, another one out of it.

A `PivotModel` has the methods of `ServedModel` that routes for text call. Each of the two searches is a
request of its model's queue, with its cost, limits and batches, so a pivot needs no memory of its own and is cancelled
like any other request. The combination of both translations is that of `translator/pivot.py`.

Tests: tests/serve/test_pivot.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rnnsearch.errors import ModelError
from rnnsearch.serve.limits import ServeError
from rnnsearch.serve.schemas import ModelInfo
from rnnsearch.serve.served_model import BatchOptions, LastStep, RequestOptions, ServedModel, Translations
from rnnsearch.text.languages import language_name
from rnnsearch.text.markup.protected import ProtectedType
from rnnsearch.text.terms import Glossary
from rnnsearch.translator.pivot import translations_through
from rnnsearch.translator.translation import Translation, one_line


class PivotModel:
    """Two served models that translate one after the other; both stay in memory while this is used."""

    def __init__(self, info: ModelInfo, first: ServedModel, second: ServedModel) -> None:
        self.info = info
        self._first = first
        self._second = second

    async def translate(
        self,
        sentences: Sequence[str],
        options: RequestOptions,
        prefixes: Sequence[str] | None = None,
        grammars: Sequence[str | None] | None = None,
        documents: Sequence[int] | None = None,
    ) -> list[Translations]:
        """Return the n best translations of each sentence; the arguments are those of `ServedModel.translate`.

        The first model reads previous sentences of a document, if it does so, as in `PivotTranslator`.

        Raises:
            ServeError: With status 400 for a glossary, and as in `ServedModel.translate` of both models.
        """
        require_no_glossary(self.info, options.glossary)
        if not options.patient:
            # Before the first search, which would otherwise be in vain.
            self._second.batcher.require_capacity(len(sentences), options.client)
        # With prefixes, the second model translates without substitutes.
        first_options = options if prefixes is None else options._replace(protect=())
        intermediates = await self._translate_first(sentences, first_options, grammars, documents)
        texts = [one_line(translation.text) for translation in intermediates]
        n_best_lists = await self._second.translate(texts, options._replace(previous=()), prefixes, grammars)
        search = self._second.translator.options(options.search.beam, options.search.n_best)
        pairs = zip(intermediates, n_best_lists, strict=True)
        return [translations_through(first, n_best, search) for first, n_best in pairs]

    async def split(self, texts: Sequence[str], client: str) -> list[list[tuple[int, int]]]:
        """Return the characters of each sentence of each text (see `ServedModel.split`)."""
        return await self._first.split(texts, client)

    async def last_step(
        self, sentences: Sequence[str], protect: Collection[ProtectedType] = (), align: bool = False
    ) -> LastStep:
        """Return the second model and the sentences that it reads, for `ServedModel.last_step`."""
        options = RequestOptions(BatchOptions(align=align), protect=protect)
        intermediates = await self._translate_first(sentences, options)
        texts = [one_line(translation.text) for translation in intermediates]
        return LastStep(self._second, texts, intermediates)

    async def _translate_first(
        self,
        sentences: Sequence[str],
        options: RequestOptions,
        grammars: Sequence[str | None] | None = None,
        documents: Sequence[int] | None = None,
    ) -> list[Translation]:
        """Return the best translation of each sentence into the third language."""
        options = options._replace(search=options.search._replace(n_best=1))
        n_best_lists = await self._first.translate(sentences, options, None, grammars, documents)
        return [n_best[0] for n_best in n_best_lists]


LeasedModel = ServedModel | PivotModel
"""A model, or two that translate through a third language."""


def require_no_glossary(info: ModelInfo, glossary: Glossary | None) -> None:
    """Raise ServeError with status 400 if a request has a glossary for a direction through a third language."""
    if glossary and info.pivot is not None:
        raise ServeError(400, f"a glossary needs one model; {info.name} translates through {info.pivot}")


def pivot_infos(models: Sequence[ModelInfo], language: str) -> list[tuple[ModelInfo, ModelInfo, ModelInfo]]:
    """Return the directions through a language that no model has: their descriptions, and those of the two models.

    If several models have a direction, the first one is used.

    Raises:
        ModelError: There is no such direction.
    """
    # The models of a direction come in their order, so the first one stays.
    first: dict[str, ModelInfo] = {}
    second: dict[str, ModelInfo] = {}
    for info in models:
        if info.target == language and not info.sources and info.pivot is None:
            first.setdefault(info.source, info)
        if info.source == language and not info.sources and info.pivot is None:
            second.setdefault(info.target, info)
    served = {(info.source, info.target) for info in models}
    found = []
    for source, into in first.items():
        for target, out in second.items():
            if source != target and (source, target) not in served:
                found.append((_pivot_info(into, out), into, out))
    if not found:
        directions = ", ".join(f"{source} to {target}" for source, target in sorted(served))
        raise ModelError(
            f"no two models lead through {language} in a direction that is not served already; they have {directions}"
        )
    return found


def _pivot_info(first: ModelInfo, second: ModelInfo) -> ModelInfo:
    """Return the description of two models that translate one after the other."""
    return ModelInfo(
        name=f"{first.name}+{second.name}",
        source=first.source,
        target=second.target,
        source_name=first.source_name,
        target_name=second.target_name,
        pivot=first.target,
        pivot_name=language_name(first.target),
        attention=first.attention and second.attention,
        aligner=first.aligner and second.aligner,
        calibrated=False,
        score=None,
    )
