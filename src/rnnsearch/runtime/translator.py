"""`Translator` of the runtime: plain text in, translations out, from one engine file.

The counterpart of `translator.translator.Translator` without PyTorch. It also finds the variant of the native library
for this processor (`library`). This module must not import torch.

Names of variants are those of the libraries in the wheel (`ops/native/building.py`). A `Translator` is not changed by a
call, but `runtime/serve.py` still translates one request at a time, since a search uses all cores. Tests:
tests/runtime/test_runtime.py, tests/models/test_native.py, tests/stress/engine_files.py.

Axes: V tokens of the vocabulary.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from rnnsearch.engine import file
from rnnsearch.engine.recurrent import AnyEngine, RecurrentEngine
from rnnsearch.engine.rnnsearch import RNNsearchEngine, RNNsearchModel
from rnnsearch.engine.structs import Array
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.metrics.calibration import Calibration
from rnnsearch.ops.native import building
from rnnsearch.ops.native.building import SWITCH, VARIANTS, NativeVariant, best_first, build_if_missing, bundled_library
from rnnsearch.runtime.search import EngineSearchOptions, search_batch
from rnnsearch.search.batching import batches_longest_first, max_batch_sentences
from rnnsearch.search.candidate_lists import CandidateLists
from rnnsearch.search.hypothesis import EMPTY, Hypothesis, n_best_hypotheses
from rnnsearch.text.markup.protected import ProtectedType
from rnnsearch.text.prefixes import NO_PREFIX, Prefix, PrefixReader
from rnnsearch.text.several_sources import text_list
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.translator.confidence import calibration_from_header, with_confidence
from rnnsearch.translator.copies import copied_texts, make_copy, without
from rnnsearch.translator.protection import Protection, restored_target
from rnnsearch.translator.texts import translate_texts
from rnnsearch.translator.translation import Translation, make_translation

MAX_TOKENS = 2000  # per sentence; the attention weights of a beam grow with the square of the length
MAX_ATTENTION_WEIGHTS = 1 << 24  # in memory at a time; long sentences are searched in smaller batches
SOURCE = "source"

# Name in Linux's /proc/cpuinfo of each capability in `Variant.capabilities`.
LINUX_FLAGS = {
    "avx2": "avx2",
    "fma3": "fma",
    "f16c": "f16c",
    "bmi2": "bmi2",
    "avx_vnni": "avx_vnni",
    **{f"avx512_{extension}": f"avx512{extension}" for extension in ("f", "bw", "cd", "dq", "vl")},
    "dot": "asimddp",
    **{name: name for name in ("avx512_bf16", "avx512_vnni", "bf16", "i8mm")},
}
# Variants for all processors of recent years, where capabilities are unknown (not Linux).
BASE_VARIANTS = ("x86-64-v3", "armv8-a")


@dataclass(frozen=True)
class Translator:
    """A model that translates text. One sentence in is one translation out."""

    model: AnyEngine
    """Model, in the engine."""
    source: Tokenizer
    """Tokenizer of the source language."""
    target: Tokenizer
    """Tokenizer of the target language."""
    languages: tuple[str, str]
    """Codes of the source and target language."""
    search: EngineSearchOptions
    """Default options."""
    batch_sentences: int
    """Maximum number of sentences per batch."""
    about: dict[str, Any] = field(repr=False)
    """Description of the model in the file: licence, attribution, scores."""
    aligns_previous_word: bool = False
    """True if the attention of a token is that of the position after it."""
    calibration: Calibration | None = None
    """Estimates the confidence of words; None if the model is not calibrated."""
    candidates: CandidateLists | None = field(default=None, repr=False)
    """Restricts the target vocabulary of a batch; None for the whole vocabulary."""

    @overload
    def translate(self, text: str, beam: int | None = None) -> Translation: ...
    @overload
    def translate(self, text: list[str], beam: int | None = None) -> list[Translation]: ...

    def translate(self, text: str | list[str], beam: int | None = None) -> Translation | list[Translation]:
        """Return the best translation of a sentence, or of each sentence of a list.

        Args:
            text: The sentence or sentences.
            beam: Beam size; 1 is greedy search, the fastest. By default, that of the model.
        """
        if isinstance(text, str):
            return self.n_best([text], 1, beam)[0][0]
        return [translations[0] for translations in self.n_best(text, 1, beam)]

    @overload
    def translate_text(self, text: str, beam: int | None = None) -> Translation: ...
    @overload
    def translate_text(self, text: list[str], beam: int | None = None) -> list[Translation]: ...

    def translate_text(self, text: str | list[str], beam: int | None = None) -> Translation | list[Translation]:
        """Return the best translation of a text of any number of sentences, or of each text of a list.

        The sentences are translated one by one and joined; line breaks and other white space between them are kept.
        The translations of the sentences are `Translation.sentences`, if there are several.
        """
        texts = [text] if isinstance(text, str) else text_list(text)
        results = translate_texts(texts, self.languages, lambda sentences: self.n_best(sentences, 1, beam))
        translations = [result.translations()[0] for result in results]
        return translations[0] if isinstance(text, str) else translations

    def n_best(
        self,
        texts: Sequence[str],
        n_best: int,
        beam: int | None = None,
        prefixes: Sequence[str] | None = None,
        protect: Collection[ProtectedType] = (),
    ) -> list[list[Translation]]:
        """Return the n best translations of each sentence, best first; fewer if the search found fewer.

        A text without letters is its own only translation (see `translator.copies`).

        Args:
            texts: The sentences.
            n_best: Number of translations per sentence.
            beam: Beam size; by default that of the model, at least `n_best`.
            prefixes: For each sentence, text that its translations begin with exactly; it may end inside a word.
            protect: Types of text that translations without a prefix contain unchanged (see `text.markup.protected`).

        Raises:
            RnnsearchError: The texts are not a list, the beam is smaller than `n_best`, the number of prefixes differs
                from that of the sentences, an empty sentence has a prefix, or a sentence has too many tokens.
            DataError: A text is not valid Unicode.
        """
        texts = text_list(texts)
        if n_best < 1 or (beam is not None and beam < n_best):
            raise RnnsearchError(f"n_best must be between 1 and the beam ({beam}); got {n_best}")
        if prefixes is not None and len(prefixes) != len(texts):
            raise RnnsearchError(f"prefixes must be one per sentence ({len(texts)}); got {len(prefixes)}")
        beam = max(self.search.beam, n_best) if beam is None else beam
        options = replace(self.search, n_best=n_best, beam=beam)
        segmented = self._protection.segment(texts, protect) if protect else self.source.segment_sources(texts)
        if protect:
            for index, prefix in enumerate(prefixes or ()):
                if prefix and segmented[index].substituted is not None:
                    segmented[index] = self.source.segment_sources([texts[index]])[0]
        n_best_lists = self._search_n_best(segmented, options, prefixes)

        def search(sources: Sequence[Segmented], indices: Sequence[int] | None) -> list[list[Translation]]:
            whole_beam = replace(options, n_best=options.n_best if indices is None else options.beam)
            return self._search_n_best(sources, whole_beam)

        return self._protection.complete(segmented, n_best_lists, search) if protect else n_best_lists

    def _search_n_best(
        self, segmented: Sequence[Segmented], options: EngineSearchOptions, prefixes: Sequence[str] | None = None
    ) -> list[list[Translation]]:
        """Return the n best translations of each sentence, with protected text as far as it came out."""
        if any(len(source.ids) > MAX_TOKENS for source in segmented):
            raise RnnsearchError(f"a sentence must have at most {MAX_TOKENS:,} tokens")
        sources = [source.translatable for source in segmented]
        copied = copied_texts(segmented, self.source, prefixes)
        for index in copied:
            sources[index] = sources[index].without_tokens
        token_prefixes: list[Prefix] | None = None
        if prefixes is not None:
            prefixes = without(prefixes, copied, "")
            token_prefixes = []
            for source, text in zip(sources, prefixes, strict=True):
                token_prefixes.append(self._prefix_reader.read(text, upper=source.case == "upper"))
            for number, (source, text) in enumerate(zip(sources, prefixes, strict=True)):
                if not source.ids and text:
                    raise RnnsearchError(f"sentence {number} (from 0) is empty, so its prefix must be empty, too")
        # Empty sentences are in no batch.
        results = [[self._make_translation(source, EMPTY, None)] for source in sources]
        for batch in self._batches(sources, options.beam):
            batch_prefixes = None if token_prefixes is None else [token_prefixes[index] for index in batch]
            n_best_hypotheses = self._search([sources[index].ids for index in batch], options, batch_prefixes)
            for index, hypotheses in zip(batch, n_best_hypotheses, strict=True):
                prefix = None if token_prefixes is None else token_prefixes[index]
                results[index] = [self._make_translation(sources[index], h, prefix) for h in hypotheses]
        for index in copied:
            results[index] = [self._copy(segmented[index])]
        return results

    def _copy(self, source: Segmented) -> Translation:
        """Return a text without letters as its own translation."""
        [target] = self.target.segment([source.text])
        is_calibrated = self.calibration is not None
        return make_copy(source, target, self.model.attends, self.aligns_previous_word, is_calibrated)

    @cached_property
    def _protection(self) -> Protection:
        return Protection(
            self.source, self.target, self.source.segment_sources, is_calibrated=self.calibration is not None
        )

    def fits(self, text: str) -> bool:
        """Return True if a sentence has at most `MAX_TOKENS` tokens."""
        return self.source.fits(text, MAX_TOKENS)

    def _batches(self, sources: Sequence[Segmented], beam: int) -> Iterator[list[int]]:
        """Yield batches of the indices of sentences that are not empty."""

        def max_sentences(length: int) -> int:
            steps = self.search.max_ratio * length + self.search.max_extra + 1
            return max_batch_sentences(self.batch_sentences, beam, length + 1, steps, MAX_ATTENTION_WEIGHTS)

        lengths = {index: len(source.ids) for index, source in enumerate(sources)}
        return batches_longest_first(lengths, max_sentences)

    def _search(
        self, ids: list[list[int]], options: EngineSearchOptions, prefixes: Sequence[Prefix] | None
    ) -> list[list[Hypothesis]]:
        token_bytes = None if prefixes is None else self._token_bytes
        arrays = search_batch(self.model, ids, options, prefixes, token_bytes, self.candidates)
        attention = {SOURCE: arrays.attention} if arrays.attention.shape[-1] else {}
        lengths = {SOURCE: [len(sentence) + 1 for sentence in ids]}
        return n_best_hypotheses(arrays, attention, lengths, options.ranking)

    def _make_translation(self, source: Segmented, hypothesis: Hypothesis, prefix: Prefix | None) -> Translation:
        prefix = prefix or NO_PREFIX
        target = self.target.join_with_offsets(hypothesis.ids, prefix.unknown)
        target = restored_target(source, target, self.target.normalization, prefix)
        translation = make_translation(source, target, hypothesis, self.aligns_previous_word)
        return translation if self.calibration is None else with_confidence(translation, self.calibration)

    @cached_property
    def _prefix_reader(self) -> PrefixReader:
        return PrefixReader(self.target)

    @cached_property
    def _token_bytes(self) -> Array:
        """Number of bytes of each token, [V]."""
        return np.array([len(characters) for characters in self.target.token_bytes()], np.int64)


def load(path: str | Path) -> Translator:
    """Load an engine file written by `rnnsearch export`.

    Raises:
        ModelError: The file is missing, damaged or something else.
        RnnsearchError: There is no native code for this processor.
    """
    path = Path(path)
    with file.open_file(path) as contents:
        return _make_translator(path, contents)


def _make_translator(path: Path, contents: file.Contents) -> Translator:
    header, arrays, dtype, candidates = contents
    try:
        source_json, target_json = map(str, header["tokenizers"])
        languages = tuple(map(str, header["languages"]))
        settings = dict(header["search"])
        batch_sentences = int(settings.pop("batch_sentences"))
        options = EngineSearchOptions.from_settings(settings, path)
        about = {**header["about"], "scores": header["scores"]}
        calibration = calibration_from_header(header, path)
        source = Tokenizer.from_json(source_json, path)
        # A joint tokenizer is parsed and stored once.
        target = source if target_json == source_json else Tokenizer.from_json(target_json, path)
    except ModelError:
        raise
    # Any value of the header may have a wrong type.
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        raise file.damaged_error(path) from None
    if len(languages) != 2 or batch_sentences < 1:
        raise file.damaged_error(path)
    native = library()
    restricts_output = candidates is not None
    model: AnyEngine
    if isinstance(arrays, RNNsearchModel):
        model = RNNsearchEngine(native, arrays, dtype, restricts_output=restricts_output)
    else:
        model = RecurrentEngine(native, arrays, dtype, restricts_output=restricts_output)
    table_sizes = [len(table.values) for table in (model.sources, model.targets) if table]
    # Ids of a larger tokenizer would be read beyond the end of the tables.
    if table_sizes != [len(source), len(target)]:
        raise file.damaged_error(path)
    lists = None
    if candidates is not None:
        count = candidates[0].shape[1]
        lists = CandidateLists(*candidates, count, len(target), list(target.annotation_ids.values()))
    aligns_previous_word = header.get("aligns_read_words") is True
    return Translator(
        model,
        source,
        target,
        languages,
        options,
        batch_sentences,
        about,
        aligns_previous_word,
        calibration,
        lists,
    )


@cache
def library() -> ctypes.CDLL:
    """Return the native library for this processor: the bundled one, or else one that is built now.

    Raises:
        RnnsearchError: There is none, and it cannot be built.
    """
    variant = best_variant()
    path = bundled_library(variant)
    if not path.is_file() and building.find_compiler() is None:
        raise RnnsearchError("the engine's native code is not in this package, and no C++ compiler was found")
    try:
        if not path.is_file():
            path = build_if_missing(variant, building.find_compiler() or ())
        return ctypes.CDLL(str(path))
    except (subprocess.SubprocessError, OSError) as error:
        raise RnnsearchError(f"the engine's native code: {building.error_summary(error)}") from None


def best_variant() -> NativeVariant:
    """Return the best variant for this processor without AMX, or the one that RNNSEARCH_NATIVE names.

    Raises:
        RnnsearchError: There is none.
    """
    flags = cpu_flags()
    requested = os.environ.get(SWITCH, "1")
    variants = VARIANTS.get(building.processor_family(), ())
    supported = [variant for variant in variants if not variant.uses_amx_tiles and _is_supported(variant, flags)]
    matching = [variant for variant in supported if requested in ("", "1", variant.name)]
    if not matching:
        among = f" among {', '.join(variant.name for variant in supported)}" if supported else ""
        raise RnnsearchError(f"there is no native code for this processor{among}, and the engine needs it")
    return best_first(matching)[0]


def cpu_flags() -> frozenset[str]:
    """Return the capabilities of the processor as named in /proc/cpuinfo; empty on other systems than Linux."""
    return frozenset((building.cpuinfo_field("flags") or building.cpuinfo_field("Features")).split())


def _is_supported(variant: NativeVariant, flags: frozenset[str]) -> bool:
    if not flags and platform.system() != "Linux":
        return variant.name in BASE_VARIANTS
    # A capability that is not in LINUX_FLAGS is None, which is in no flags.
    return all(LINUX_FLAGS.get(capability) in flags for capability in variant.capabilities)
