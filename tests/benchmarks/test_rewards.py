"""The benchmark of rewards at toy size."""

from argparse import Namespace

import pytest

from benchmarks import rewards
from tests.untrained import BAHDANAU, untrained


@pytest.mark.parametrize("name", ["bleu", "function"])
def test_waiting_is_a_part_of_the_update(tmp_path, name):
    texts = [tmp_path / "t.en", tmp_path / "t.de"]
    texts[0].write_text("the cat\nthe dog sees the cat\n" * 4, encoding="utf-8")
    texts[1].write_text("die Katze\nder Hund sieht die Katze\n" * 4, encoding="utf-8")
    args = Namespace(source=texts[0], reference=texts[1], rewards=[name], sentences=4, samples=3, batches=2)
    [[reward, seconds, start, wait, fraction, alone]] = rewards.reward_rows(untrained(BAHDANAU), args)
    assert reward == name
    assert fraction == pytest.approx((start + wait) / 1000 / seconds)
    assert 0 < fraction < 1
    assert alone > 0


def test_word_overlap_counts_different_words():
    assert rewards.word_overlap("a a b", "a c") == pytest.approx(1 / 3)
    assert rewards.word_overlap("", "") == 0.0
