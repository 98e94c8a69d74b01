"""Word by word is the same as text by text."""

import random

import numpy as np

from rnnsearch.text import tokenizer_cache
from rnnsearch.text.tokenizer_cache import CachedTokenizer

LINES = ["Tom's house isn't l'homme's.", "geht's?! «so» ... 100,000 %%", "ein Haus am See", "a\tb c\u00a0d e\u2028f"]
PIECES = ["Tom", "'", "’s", " ", " ", "  ", "!", "!!", "ü", "e\u0301", "\t", "\u00a0", "日本", "9", "_", "-", "l'h",
          "🙂", "\u200d"]  # fmt: skip


def texts(seed: int, count: int = 300) -> list[str]:
    rng = random.Random(seed)
    return ["", " ", "  a", *("".join(rng.choices(PIECES, k=rng.randint(0, 9))) for _ in range(count)), *LINES]


def same(found: tuple[np.ndarray, np.ndarray], rows: list[list[int]]) -> bool:
    flat, sizes = found
    return sizes.tolist() == [len(row) for row in rows] and flat.tolist() == [id for row in rows for id in row]


def test_cached_ids_equal_tokenizer_ids(tokenizer):
    fast = CachedTokenizer(tokenizer)
    for seed in range(6):
        some = texts(seed)
        assert same(fast.ids(some), tokenizer.ids(some)), "learned over several calls"
    assert same(fast.ids([]), [])
    assert same(fast.ids(["", ""]), [[], []])


def test_clearing_the_cache_changes_nothing(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer_cache, "MAX_CACHED_CHUNKS", 50)
    fast = CachedTokenizer(tokenizer)
    for seed in range(6):
        some = texts(seed, 60)
        assert same(fast.ids(some), tokenizer.ids(some))
