"""BPE-dropout: the same text in other symbols, drawn as Provilkov et al. (2020) draw them."""

from collections import Counter
from random import Random

import pytest

from rnnsearch.text.resegmentation import MAX_PIECE_LENGTH, MergeDropout, apply_merges
from rnnsearch.text.subwords import MIN_VOCABULARY, train_bpe
from rnnsearch.text.tokenizer import BYTE_TOKENS


def test_zero_dropout_equals_tokenizer(bpe, lines, odd):
    segment = MergeDropout(bpe, 0.0)
    for ids in bpe.ids(lines + odd):
        assert segment(ids, Random(0)) == ids


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.999])
def test_text_is_preserved(bpe, lines, odd, dropout):
    segment = MergeDropout(bpe, dropout)
    changed = 0
    for number, ids in enumerate(bpe.ids(lines + odd)):
        drawn = segment(ids, Random(number))
        assert bpe.join(drawn) == bpe.join(ids)
        changed += drawn != ids
    assert changed > len(lines) / 2


def test_rare_tokens_are_never_produced(bpe, parted, lines):
    drawn = MergeDropout(parted, 0.1)
    kept = {id for ids in parted.ids(lines) for id in ids}
    rare = {id for ids in bpe.ids(lines) for id in ids} - kept
    assert rare
    for number, ids in enumerate(parted.ids(lines)):
        found = drawn(ids, Random(number))
        assert parted.join(found) == parted.join(ids) and not rare & set(found)
    assert [MergeDropout(parted, 0.0)(ids, Random(1)) for ids in parted.ids(lines)] == parted.ids(lines)


def test_full_dropout_gives_characters_and_bytes(bpe):
    [ids] = bpe.ids(["A man sits on a bench 🙂"])
    drawn = MergeDropout(bpe, 1.0)(ids, Random(0))
    assert [bpe.token(id) for id in drawn[:5]] == ["▁", "A", "▁", "m", "a"]
    assert all(len(bpe.token(id)) == 1 or bpe.token(id) in BYTE_TOKENS for id in drawn)


def test_segmentations_have_the_expected_frequencies():
    """Distribution of `abc` (merges ab, bc, ab+c): each merge that stays possible is applied with probability 1 - p."""
    merges = {(0, 1): (0, 3), (1, 2): (1, 4), (3, 2): (2, 5)}
    random, p, n = Random(1), 0.3, 20_000
    found = Counter(tuple(apply_merges([0, 1, 2], merges, p, random)) for _ in range(n))
    expected = {(5,): (1 - p) ** 2, (3, 2): (1 - p) * p, (0, 4): p * (1 - p), (0, 1, 2): p * p}
    assert found.keys() == expected.keys()
    chi_square = sum((found[split] - n * share) ** 2 / (n * share) for split, share in expected.items())
    assert chi_square < 16.3  # p = 0.001 at three degrees of freedom


def test_no_merge_crosses_a_piece():
    """`b.` is a merge inside no piece of training, and `.b` neither, whatever is dropped."""
    tokenizer = train_bpe(["ab. ab"] * 30 + ["a's"] * 30, MIN_VOCABULARY + 20, 1)
    [ids] = tokenizer.ids(["ab.'s ab"])
    segment = MergeDropout(tokenizer, 0.3)
    for seed in range(50):
        symbols = [tokenizer.token(id) for id in segment(ids, Random(seed))]
        assert not any("." in symbol and len(symbol) > 1 for symbol in symbols), symbols


def test_long_pieces_keep_their_tokens(bpe):
    [ids] = bpe.ids(["man " + "bench" * MAX_PIECE_LENGTH + " man"])
    drawn = MergeDropout(bpe, 0.9)(ids, Random(3))
    assert bpe.join(drawn) == bpe.join(ids)
    assert len(drawn) < len(ids) + 10
