"""Steps as native code reads them: lists of parts with ranges of numbers (`recurrence.h`). Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, addressof, c_float, c_int64, c_void_p
from enum import IntEnum

from rnnsearch.engine.packed import rounded_up


class What(IntEnum):
    """`What` of recurrence.h."""

    INPUT = 0
    READ = 1
    PRODUCT = 2
    SIGMOID = 3
    TANH = 4
    GRU = 5
    LSTM = 6
    ADDITIVE = 7
    DOT = 8
    ADD = 9
    NORM = 10
    CENTRE = 11
    MAXOUT = 12
    CLOCK = 13
    BEND = 14
    SSRU = 15


class CPart(Structure):
    """`Part` of recurrence.h."""

    _fields_ = (
        ("what", c_int64),
        ("size", c_int64),
        ("at", c_int64 * 8),
        ("before", c_int64),
        ("weight", c_void_p),
        ("mask", c_void_p),
        ("mask_row", c_int64),
        ("mask_position", c_int64),
        ("gradient", c_void_p),
    )

    def set(self, what: int, size: int, at: Sequence[int], before: int) -> None:
        """What does not depend on weights."""
        self.what, self.size, self.before = what, size, before
        for n, place in enumerate(at):
            self.at[n] = place


class CFeature(Structure):
    """`Feature` of source_features.h."""

    _fields_ = tuple((name, c_int64) for name in ("units", "neighbours", "keeps", "fixed", "kept"))


class CFeatures(Structure):
    """`Features` of source_features.h."""

    _fields_ = (("each", c_void_p), *((name, c_int64) for name in ("count", "width", "memory", "prepared")))

    @staticmethod
    def of(each: Sequence[tuple[int, ...]]) -> tuple[CFeatures, object]:
        """Those of which CFeature says this each, and what must be kept as long as they are used."""
        features, found = (CFeature * len(each))(*(CFeature(*one) for one in each)), CFeatures(count=len(each))
        for one in features:
            units = rounded_up(one.units)
            found.width += units or 2 * one.neighbours + 1
            found.memory += units or 1
            found.prepared += 3 * units or 1
        found.each = addressof(features)
        return found, features


class CDecoder(Structure):
    """`Decoder` of decoder.h."""

    _fields_ = (
        *((name, c_int64) for name in ("x_size", "sums_size", "values_size", "reads_size", "key", "annotation")),
        ("heads", c_int64),
        ("parts", c_int64),
        ("part", c_void_p),
        ("bias", c_void_p),
        ("vector", c_void_p),
        ("scale", c_float),
        ("reach", c_int64),
        ("spread", c_float),
        ("states", c_int64),
        ("state", c_void_p),
        ("state_size", c_int64),
        ("readout", c_void_p),
        ("table", c_void_p),
        ("features", CFeatures),
        *((name, c_void_p) for name in ("from_word", "embeddings", "bytes", "scales")),
    )


class CBatch(Structure):
    """`Batch` of decoder.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("keys", "annotations", "mask", "centres", "prepared")),
        ("width", c_int64),
        ("centre_count", c_int64),
    )
