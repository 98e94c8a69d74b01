"""Raw text in, translations out, by the engine: what `translate.Translator` does, of one file. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from rnnsearch.engine import file
from rnnsearch.engine.recurrent import Engine, Recurrent
from rnnsearch.engine.rnnsearch import Arrays, RNNsearch
from rnnsearch.engine.structs import Array
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.metrics.calibration import Calibration
from rnnsearch.ops.native import building
from rnnsearch.ops.native.building import SWITCH, VARIANTS, Variant, best_first, built, shipped, told
from rnnsearch.runtime.search import Search, beam
from rnnsearch.search.batching import longest_first, sentences_at_once
from rnnsearch.search.candidate_lists import CandidateLists
from rnnsearch.search.hypothesis import EMPTY, Hypothesis, n_best_hypotheses
from rnnsearch.search.ranking import Ranking
from rnnsearch.text.prefixes import Prefix, Prefixes
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.translator.confidence import calibration_in, sure
from rnnsearch.translator.translation import Translation, in_words

# The native library without PyTorch: that of this processor, from among those that were built. Imports no torch.

FLAGS = {
    "avx2": "avx2",
    "fma3": "fma",
    "f16c": "f16c",
    "bmi2": "bmi2",
    "avx_vnni": "avx_vnni",
    **{f"avx512_{part}": f"avx512{part}" for part in ("f", "bw", "cd", "dq", "vl")},
    "dot": "asimddp",
    **{name: name for name in ("avx512_bf16", "avx512_vnni", "bf16", "i8mm")},
}
"""What Linux calls the things that `Variant.needs` names."""


def flags() -> frozenset[str]:
    """What the processor has, as far as can be seen (/proc/cpuinfo)."""
    return frozenset((told("flags") or told("Features")).split())


def variant() -> Variant:
    """The best that runs here, AMX aside, or the one that RNNSEARCH_NATIVE names. Errors: RnnsearchError for none."""
    has, wanted = flags(), os.environ.get(SWITCH, "1")
    able = [v for v in VARIANTS.get(building.processor(), ()) if not v.tiles and _runs(v, has)]
    chosen = [v for v in able if wanted in ("", "1", v.name)]
    if not chosen:
        among = f" among {', '.join(v.name for v in able)}" if able else ""
        raise RnnsearchError(f"there is no native code for this processor{among}, and the engine needs it")
    return best_first(chosen)[0]


def _runs(variant: Variant, has: frozenset[str]) -> bool:
    if not has and platform.system() != "Linux":  # what every machine of today has
        return variant.name in ("x86-64-v3", "armv8-a")
    return all(FLAGS.get(need) in has for need in variant.needs)


@cache
def library() -> ctypes.CDLL:
    """Errors: RnnsearchError where there is none and none can be built."""
    own = variant()
    path, command = shipped(own), building.compiler()
    if not path.is_file() and command is None:
        raise RnnsearchError("the engine's native code is not in this package, and no C++ compiler was found")
    try:
        return ctypes.CDLL(str(path if path.is_file() else built(own, command or ())))
    except (subprocess.SubprocessError, OSError) as error:
        raise RnnsearchError(f"the engine's native code: {building.what_went_wrong(error)}") from None


MOST_SYMBOLS = 2000
"""Of a sentence: what a beam keeps of its attention grows with the square."""
ATTENDED = 1 << 24
"""Weights of attention in memory at a time, at most: long sentences are searched in smaller batches."""
SOURCE = "source"


@dataclass(frozen=True)
class Translator:
    """A model that translates raw text. One line in is one translation out."""

    model: Engine
    source: Tokenizer
    target: Tokenizer
    languages: tuple[str, str]
    """The codes of source and target."""
    search: Search
    """What is done where nothing else is asked for."""
    batch_sentences: int
    about: dict[str, Any] = field(repr=False)
    """What the file says of the model: licence, attribution, scores."""
    aligns_read_words: bool = False
    """Whether a symbol's alignment is in the weights of the position after it."""
    calibration: Calibration | None = None
    lists: CandidateLists | None = field(default=None, repr=False)
    """What symbols translations are made of."""

    @overload
    def translate(self, text: str, beam: int | None = None) -> Translation: ...
    @overload
    def translate(self, text: list[str], beam: int | None = None) -> list[Translation]: ...

    def translate(self, text: str | list[str], beam: int | None = None) -> Translation | list[Translation]:
        """The best translation of a sentence, or of each sentence of a list; beam 1 is greedy search, the fastest."""
        if isinstance(text, str):
            return self.n_best([text], 1, beam)[0][0]
        return [own[0] for own in self.n_best(text, 1, beam)]

    def n_best(
        self, texts: Sequence[str], n_best: int, beam: int | None = None, prefixes: Sequence[str] | None = None
    ) -> list[list[Translation]]:
        """The n best translations of each sentence, best first (fewer if fewer were found).

        `beam`: the model's own if not given; a default grows to `n_best`. `prefixes`: for each sentence, text that its
        translations begin with, letter for letter; it may end inside a word. Errors: RnnsearchError for a beam that is
        narrower than `n_best`, for prefixes that are not as many as the sentences, for one of an empty sentence, and
        for a sentence that does not fit; DataError for text that is not valid Unicode.
        """
        if n_best < 1 or (beam is not None and beam < n_best):
            raise RnnsearchError(f"n_best must be between 1 and the beam ({beam}); got {n_best}")
        if prefixes is not None and len(prefixes) != len(texts):
            raise RnnsearchError(f"prefixes must be one a sentence ({len(texts)}); got {len(prefixes)}")
        search = replace(self.search, n_best=n_best, beam=max(self.search.beam, n_best) if beam is None else beam)
        sources = [source.to_translate for source in self.source.segment(texts)]
        if any(len(source.ids) > MOST_SYMBOLS for source in sources):
            raise RnnsearchError(f"a sentence must have at most {MOST_SYMBOLS:,} symbols")
        begins = None if prefixes is None else [self._prefixes.read(prefix) for prefix in prefixes]
        for number, (source, begin) in enumerate(zip(sources, begins or (), strict=False)):
            if not source.ids and begin.text:
                raise RnnsearchError(f"the prefix of sentence {number} (counting from 0) is of an empty sentence")
        found: list[list[Translation]] = [[self._made(source, EMPTY, None)] for source in sources]
        for batch in self._batches(sources, search.beam):
            own = None if begins is None else [begins[n] for n in batch]
            for n, hypotheses in zip(batch, self._searched([sources[n].ids for n in batch], search, own), strict=True):
                found[n] = [self._made(sources[n], h, begins[n] if begins else None) for h in hypotheses]
        return found

    def fits(self, text: str) -> bool:
        """Whether a sentence has no more than `MOST_SYMBOLS`."""
        return self.source.fits(text, MOST_SYMBOLS)

    def _batches(self, sources: Sequence[Segmented], width: int) -> Iterator[list[int]]:
        """The numbers of the sentences that are not empty, in batches for a beam of so many."""

        def most(length: int) -> int:
            steps = self.search.max_ratio * length + self.search.max_extra + 1
            return sentences_at_once(self.batch_sentences, width, length + 1, steps, ATTENDED)

        return longest_first({n: len(source.ids) for n, source in enumerate(sources)}, most)

    def _searched(
        self, ids: list[list[int]], search: Search, begins: Sequence[Prefix] | None
    ) -> list[list[Hypothesis]]:
        found = beam(self.model, ids, search, begins, None if begins is None else self._sizes, self.lists)
        ranking = Ranking(search.length_penalty, search.length_norm, search.coverage_penalty)
        return n_best_hypotheses(found, [len(own) + 1 for own in ids], ranking, SOURCE)

    def _made(self, source: Segmented, hypothesis: Hypothesis, begin: Prefix | None) -> Translation:
        target = self.target.joined(hypothesis.ids, begin.unknown if begin else {})
        made = in_words(source, target, hypothesis, self.aligns_read_words)
        return made if self.calibration is None else sure(made, self.calibration)

    @cached_property
    def _prefixes(self) -> Prefixes:
        return Prefixes(self.target)

    @cached_property
    def _sizes(self) -> Array:
        """[V], the bytes of each symbol."""
        return np.array([len(spelling) for spelling in self.target.spellings()], np.int64)


def load(path: str | Path) -> Translator:
    """Read an engine file, as `rnnsearch export` writes it.

    Errors: ModelError, one sentence, for a missing, damaged or foreign file; RnnsearchError where there is no native
    code for this processor.
    """
    path = Path(path)
    with file.opened(path) as contents:
        return _translator(path, contents)


def _translator(path: Path, contents: file.Contents) -> Translator:
    header, arrays, kind, candidates = contents
    try:
        source, target = header["tokenizers"]
        languages = tuple(map(str, header["languages"]))
        settings = dict(header["search"])
        batch = int(settings.pop("batch_sentences"))
        search, about = Search(**settings), dict(header["about"]) | {"scores": header["scores"]}
        calibration = calibration_in(header, path)
        texts = [str(text) for text in (source, target)]
        read = [Tokenizer.of(text, path) for text in dict.fromkeys(texts)]
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        raise file.damaged(path) from None
    if len(languages) != 2 or batch < 1:
        raise file.damaged(path)
    search, native = search.checked(path), library()
    selects = candidates is not None
    model: Engine
    if isinstance(arrays, Arrays):
        model = RNNsearch(native, arrays, kind, selects=selects)
    else:
        model = Recurrent(native, arrays, kind, selects=selects)
    if [len(table.values) for table in (model.sources, model.targets) if table] != [len(read[0]), len(read[-1])]:
        raise file.damaged(path)
    lists, marks = None, list(read[-1].marks.values())
    if candidates is not None:
        lists = CandidateLists(*candidates, candidates[0].shape[1], len(read[-1]), marks)
    of_read = header.get("aligns_read_words") is True
    return Translator(model, read[0], read[-1], languages, search, batch, about, of_read, calibration, lists)
