"""Directions through a third language on a server: one served model translates into it, another one out of it.

A `PivotModel` has the methods of `ServedModel` that routes for text call. Each of the two searches is a
request of its model's queue, with its cost, limits and batches, so a pivot needs no memory of its own and is cancelled
like any other request. The combination of both translations is that of `translator/pivot.py`.

Tests: tests/serve/test_pivot.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from rnnsearch.errors import ModelError
from rnnsearch.serve.limits import ServeError
from rnnsearch.serve.output_size import TEXT_ONLY
from rnnsearch.serve.schemas import ModelInfo
from rnnsearch.serve.served_model import BatchOptions, LastStep, RequestOptions, ServedModel, Translations
from rnnsearch.text.languages import language_name
from rnnsearch.text.markup.protected import ProtectedType
from rnnsearch.text.terms import Glossary
from rnnsearch.translator.pivot import Intermediate, combine, num_continuations, weighted
from rnnsearch.translator.translation import one_line

Value = TypeVar("Value")


class PivotModel:
    """Two served models that translate one after the other; both stay in memory while this is used."""

    def __init__(self, info: ModelInfo, first: ServedModel, second: ServedModel, n_best: int = 1) -> None:
        """Combine two models; `n_best` translations into the third language are translated further."""
        self.info = info
        self._first = first
        self._second = second
        self._n_best = n_best

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
            self._second.batcher.require_capacity(self._n_best * len(sentences), options.client)
        # With prefixes, the second model translates without substitutes.
        first_options = options if prefixes is None else options._replace(protect=())
        n_best_lists = await self._translate_first(sentences, first_options, self._n_best, grammars, documents)
        intermediates = [weighted(n_best) for n_best in n_best_lists]
        texts = [one_line(one.translation.text) for some in intermediates for one in some]
        search = self._second.translator.options(options.search.beam, options.search.n_best)
        count = num_continuations(search, self._n_best)
        second_options = options._replace(previous=(), search=options.search._replace(n_best=count))
        if self._n_best > 1:
            # Most of them are not in the response, whose size is compared with the limit when it is made.
            second_options = second_options._replace(fields=TEXT_ONLY)
        second_prefixes = _repeated(prefixes, intermediates)
        second_grammars = _repeated(grammars, intermediates)
        translations = await self._second.translate(texts, second_options, second_prefixes, second_grammars)
        return combine(intermediates, translations, search)

    async def split(self, texts: Sequence[str], client: str) -> list[list[tuple[int, int]]]:
        """Return the characters of each sentence of each text (see `ServedModel.split`)."""
        return await self._first.split(texts, client)

    async def last_step(
        self, sentences: Sequence[str], protect: Collection[ProtectedType] = (), align: bool = False
    ) -> LastStep:
        """Return the second model and the sentences that it reads, for `ServedModel.last_step`."""
        options = RequestOptions(BatchOptions(align=align), protect=protect)
        intermediates = [n_best[0] for n_best in await self._translate_first(sentences, options, n_best=1)]
        texts = [one_line(translation.text) for translation in intermediates]
        return LastStep(self._second, texts, intermediates)

    async def _translate_first(
        self,
        sentences: Sequence[str],
        options: RequestOptions,
        n_best: int,
        grammars: Sequence[str | None] | None = None,
        documents: Sequence[int] | None = None,
    ) -> list[Translations]:
        """Return the n best translations of each sentence into the third language."""
        search = options.search
        beam = None if search.beam is None else max(search.beam, n_best)
        # None of the other fields of these translations is in a response.
        options = options._replace(search=search._replace(n_best=n_best, beam=beam), fields=TEXT_ONLY)
        return await self._first.translate(sentences, options, None, grammars, documents)


def _repeated(values: Sequence[Value] | None, intermediates: Sequence[Sequence[Intermediate]]) -> list[Value] | None:
    """Return the value of each sentence once per intermediate translation."""
    if values is None:
        return None
    return [value for value, some in zip(values, intermediates, strict=True) for _ in some]


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
