"""The models of a server: which languages they translate, loading and unloading.

Routes take a model with `Registry.lease` and translate sentences with `served_model.ServedModel.translate`. Directions
through a third language are leased as a `pivot.PivotModel`, which translates with two of the models.

Before changing it: the state of the registry changes only in the event loop's thread, and a model is unloaded only
without leases.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from rnnsearch.align import aligner
from rnnsearch.config import MultiwayConfig, RunConfig
from rnnsearch.data.batch import Direction
from rnnsearch.engine.file import read_header
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.ops.malloc import release_free_memory
from rnnsearch.serve.batching import BatchReport
from rnnsearch.serve.limits import ServeError, Settings
from rnnsearch.serve.long_texts import LongTexts
from rnnsearch.serve.observability import log_failure
from rnnsearch.serve.pivot import LeasedModel, PivotModel, pivot_infos
from rnnsearch.serve.schemas import ModelInfo
from rnnsearch.serve.served_model import ServedModel
from rnnsearch.systems.card import best_evaluation, load_training_facts
from rnnsearch.systems.engine_file import engine_file_config
from rnnsearch.systems.folder import load_translation_config
from rnnsearch.systems.multiway import require_one_direction
from rnnsearch.text.languages import base_language, language_name
from rnnsearch.translator.confidence import CALIBRATION_FILE
from rnnsearch.translator.loading import load
from rnnsearch.translator.multiway import MultiwayTranslator
from rnnsearch.translator.simultaneous import reads_no_later_words
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.files import complete_folder


class Registry:
    """The models of a server by name and by direction, loaded when they are first needed."""

    def __init__(
        self,
        folders: Sequence[Path],
        settings: Settings,
        on_batch: Callable[[str, BatchReport], None] = lambda _, __: None,
    ) -> None:
        """Read the descriptions of model folders and engine files.

        Args:
            folders: The models.
            settings: Settings of the server.
            on_batch: Called with the name of the model after each batch.

        Raises:
            ModelError: A folder is not a translation model, two folders have the same name, or no models lead through
                one of the languages of `settings.pivot_languages`.
        """
        self.settings = settings
        self.long_texts = LongTexts(settings.max_characters)
        """Processes for long texts, which all models share."""
        self.models: dict[str, ModelInfo] = {}
        self._folders: dict[str, Path] = {}
        self._directions: dict[str, list[ModelInfo]] = {}  # of multi-way models, by the name of the folder
        for folder in folders:
            infos = read_model_infos(folder)
            if len(infos) > 1:
                self._directions[folder_name(folder)] = infos
            for info in infos:
                if info.name in self.models:
                    other = self._folders[info.name]
                    raise ModelError(f"models must have folders of different names; got {other} and {folder}")
                self.models[info.name] = info
                self._folders[info.name] = folder
        self._steps: dict[str, tuple[ModelInfo, ModelInfo]] = {}  # of directions through a third language
        for language in settings.pivot_languages:
            self._add_pivots(language)
        self._on_batch = on_batch
        self._loaded: dict[str, ServedModel] = {}
        self._loading: dict[str, asyncio.Task[ServedModel]] = {}
        self._leases: Counter[str] = Counter()  # a model with leases stays in memory
        self._multiway: dict[Path, MultiwayTranslator] = {}  # weights that several models in memory share
        self._folder_locks: defaultdict[Path, asyncio.Lock] = defaultdict(asyncio.Lock)

    def _add_pivots(self, language: str) -> None:
        """Add the directions through a language that no model has.

        Raises:
            ModelError: There are none, or a model that would be the first reads translations of previous sentences.
        """
        for info, first, second in pivot_infos(list(self.models.values()), language):
            folder = self._folders[first.name]
            if folder.is_dir() and load_translation_config(folder, multiway=True).data.reads_translations:
                raise ModelError(
                    f"{folder}: the first model of a pivot must not read translations of previous sentences "
                    "(data.context.target)"
                )
            self.models[info.name] = info
            self._steps[info.name] = (first, second)
            if folder == self._folders[second.name]:
                self._directions[folder_name(folder)].append(info)

    def is_loaded(self, name: str) -> bool:
        """Return True if a model is in memory; with a third language, both models."""
        steps = self._steps.get(name)
        return all(info.name in self._loaded for info in steps) if steps else name in self._loaded

    @property
    def loaded(self) -> list[ServedModel]:
        """The models in memory."""
        return list(self._loaded.values())

    def named(self, name: str | None = None) -> list[ModelInfo]:
        """Return the models of a name: one, or all directions of a multi-way model; all models without a name."""
        if name is None:
            return list(self.models.values())
        return [self.models[name]] if name in self.models else self._directions.get(name, [])

    def find(self, name: str | None = None, source: str | None = None, target: str | None = None) -> ModelInfo:
        """Return the model of a name, or the first one of a direction; without arguments, the first model.

        Raises:
            ServeError: With status 404 for an unknown name, 400 for a direction that no model (or not this one) has.
        """
        candidates = self.named(name)
        if not candidates:
            raise ServeError(404, f'model must be one of {", ".join(self.models)}; got "{name}"')
        # An exact variant wins over a related one, whatever the order of the models.
        for matches in (_is_equal, _is_related):
            for info in candidates:
                if matches(source, info.source) and matches(target, info.target):
                    return info
        directions = ", ".join(dict.fromkeys(f"{info.source} to {info.target}" for info in candidates))
        requested = f"{source or 'any language'} to {target or 'any language'}"
        raise ServeError(400, f"source and target must be a direction served here ({directions}); got {requested}")

    @asynccontextmanager
    async def lease(self, info: ModelInfo) -> AsyncIterator[LeasedModel]:
        """Yield a model, loaded if necessary, which stays in memory until the context ends.

        Raises:
            ServeError: With status 503 if the model cannot be loaded.
        """
        if info.name not in self._steps:
            async with self._lease_one(info) as model:
                yield model
            return
        into, out = self._steps[info.name]
        async with self._lease_one(into) as first, self._lease_one(out) as second:
            yield PivotModel(info, first, second, self.settings.pivot_n_best)

    @asynccontextmanager
    async def _lease_one(self, info: ModelInfo) -> AsyncIterator[ServedModel]:
        """Yield a model that is no direction through a third language."""
        # Count the lease before the model is loaded: another request that gets a model meanwhile must not unload it.
        self._leases[info.name] += 1
        try:
            model = self._loaded.get(info.name)
            if model is None:
                if info.name not in self._loading:
                    self._loading[info.name] = asyncio.create_task(self._load(info))
                # Loading goes on if this request is cancelled, because others may wait for the model, too.
                model = await asyncio.shield(self._loading[info.name])
            model.last_used = time.monotonic()
            # After this model is in memory, because it counts, too.
            await self._unload_surplus()
            yield model
            model.last_used = time.monotonic()
        finally:
            self._leases[info.name] -= 1

    async def load_all(self) -> None:
        """Load all models.

        Raises:
            ServeError: A model cannot be loaded.
        """
        for info in self.models.values():
            async with self.lease(info):
                pass

    async def close(self) -> None:
        """Unload all models and end all processes."""
        self.long_texts.close()
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for model in self.loaded:
            await model.batcher.close()
        self._loaded.clear()
        self._multiway.clear()

    async def _load(self, info: ModelInfo) -> ServedModel:
        # Load in a thread that ends. OpenMP keeps a team of threads for each thread that has computed. If all teams
        # together have more threads than the machine has cores, those of the model's thread sleep and wake at every
        # parallel region instead of standing ready, which takes several times as long.
        thread = ThreadPoolExecutor(1)
        loop = asyncio.get_running_loop()
        folder = self._folders[info.name]
        try:
            # Directions of a multi-way model are loaded one after the other, because they share their weights.
            async with self._folder_locks[folder]:
                shared = self._multiway.get(folder)
                translator, shared = await loop.run_in_executor(
                    thread, _load_prepared, folder, self.settings.device, info, shared
                )
                if shared is not None:
                    self._multiway[folder] = shared
        except RnnsearchError as error:  # not sent to the client, because it contains paths of this machine
            log_failure("loading", error)
            raise ServeError(503, f"the model {info.name} cannot be loaded; see the server's log") from None
        finally:
            thread.shutdown(wait=False)
            del self._loading[info.name]
        model = ServedModel(info, translator, self.settings, partial(self._on_batch, info.name), self.long_texts)
        self._loaded[info.name] = model
        return model

    async def _unload_surplus(self) -> None:
        """Unload models above the maximum number that have no lease, those unused for the longest time first."""
        max_loaded = self.settings.max_loaded
        if max_loaded is None:
            return
        idle = [model for model in self.loaded if not self._leases[model.info.name]]
        idle.sort(key=lambda model: model.last_used)
        # Removed before the await, during which another request could otherwise lease them.
        names = [model.info.name for model in idle[: max(0, len(self._loaded) - max_loaded)]]
        del idle
        closing = [self._loaded.pop(name).batcher.close() for name in names]
        in_use = {self._folders[name] for name in (*self._loaded, *self._loading)}
        for folder in self._multiway.keys() - in_use:
            del self._multiway[folder]
        for close in closing:
            await close
        if closing:
            del close, closing
            # The event loop refers to the batchers' cancelled tasks until its next iteration.
            await asyncio.sleep(0)
            await asyncio.to_thread(_free_memory)


def _free_memory() -> None:
    """Free unloaded models, whose parts refer to each other, and return their memory to the system.

    Python would free them only after very many new objects, which a server of few large models hardly makes.
    """
    gc.collect()
    release_free_memory()


def _load_prepared(
    folder: Path, device: str, info: ModelInfo, shared: MultiwayTranslator | None
) -> tuple[Translator, MultiwayTranslator | None]:
    """Load a model and prepare its search, because several threads may begin to use it at the same time.

    Args:
        folder: Folder of the model.
        device: Device to load it on.
        info: Description of the model.
        shared: The multi-way model that it is a direction of, if that is in memory.

    Returns:
        The translator, and the multi-way model that it is a direction of, if it is one.
    """
    translator = shared or load(folder, device)
    if isinstance(translator, MultiwayTranslator):
        shared = translator
        # Not `select`, which would keep the translator in memory.
        translator = shared.load_direction(Direction((info.source,), info.target))
    translator.prepare()
    return translator, shared


def read_model_infos(folder: Path) -> list[ModelInfo]:
    """Return the descriptions of all directions of a model folder or engine file, without reading its weights.

    A direction of a multi-way model is named like `FOLDER:de-en`.

    Raises:
        ModelError: The model is incomplete or does not translate.
    """
    if not folder.is_file():
        config = load_translation_config(folder, multiway=True)
        if isinstance(config.model, MultiwayConfig) and len(config.data.pairs) > 1:
            directions = [Direction((source,), target) for source, target in config.data.pairs]
            return [_direction_info(folder, config, direction) for direction in directions]
    return [read_model_info(folder)]


def read_model_info(folder: Path) -> ModelInfo:
    """Return the description of the model of one direction in a model folder or engine file.

    Raises:
        ModelError: The model is incomplete, does not translate, or has several directions.
    """
    if folder.is_file():
        header = read_header(folder)
        config = engine_file_config(folder, header)
        calibrated = "calibration" in header
    else:
        config = load_translation_config(folder, multiway=True)
        calibrated = (folder / CALIBRATION_FILE).is_file()
    if config.data.arrays is not None:
        raise ModelError(
            f"{folder}: the server translates text; this model reads arrays ({', '.join(config.data.arrays)})"
        )
    if isinstance(config.model, MultiwayConfig):
        if len(config.data.pairs) > 1:
            require_one_direction(folder)
        [(source, target)] = config.data.pairs
    else:
        source, target = config.data.sources[0], config.data.target
    return _model_info(folder_name(folder), source, target, config, folder, calibrated, _dev_score(folder))


def _direction_info(folder: Path, config: RunConfig, direction: Direction) -> ModelInfo:
    """Return the description of a direction of a multi-way model."""
    (source,) = direction.sources
    name = f"{folder_name(folder)}:{direction.name}"
    score = _dev_score(folder, f" {direction.name}")
    return _model_info(name, source, direction.target, config, folder, calibrated=False, score=score)


def _model_info(
    name: str, source: str, target: str, config: RunConfig, folder: Path, calibrated: bool, score: float | None
) -> ModelInfo:
    return ModelInfo(
        name=name,
        source=source,
        target=target,
        source_name=language_name(source),
        target_name=language_name(target),
        sources=config.data.sources if config.has_several_texts else (),
        attention=config.translation.attention is not None,
        aligner=complete_folder(folder / aligner.FOLDER).is_dir(),
        calibrated=calibrated,
        simultaneous=reads_no_later_words(config),
        score=score,
    )


def folder_name(folder: Path) -> str:
    """Return the name of a folder or file, which is that of its model."""
    # JSON has no bytes that are not UTF-8.
    return os.fsencode(folder.resolve().name).decode("utf-8", "replace")


def _dev_score(folder: Path, suffix: str = "") -> float | None:
    """Return the dev BLEU that training measured for the model's weights, or None if it did not.

    Args:
        folder: The model folder.
        suffix: End of the score's name, for a direction of a multi-way model.
    """
    try:
        return float(best_evaluation(load_training_facts(folder))[f"dev_bleu{suffix}"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _is_equal(requested: str | None, code: str) -> bool:
    return requested is None or requested.lower() == code.lower()


def _is_related(requested: str | None, code: str) -> bool:
    """Return True if the languages are equal apart from their variants, as `en-GB` and `en` are."""
    return requested is None or base_language(requested) == base_language(code)
