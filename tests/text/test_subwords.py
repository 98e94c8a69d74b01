"""BPE: its symbols, what is never merged, and that the same text always gives the same vocabulary."""

import os
import random
import subprocess
import sys
from collections import Counter

import pytest

from rnnsearch.errors import ConfigError, DataError
from rnnsearch.text.subwords import (
    DEFAULT_VOCABULARY,
    MIN_VOCABULARY,
    SMALL_CORPUS_VOCABULARY,
    bpe_from_counts,
    bpe_of_sizes,
    default_vocabulary_size,
    scale_counts,
    train_bpe,
    train_characters,
    without_rare,
)
from rnnsearch.text.tokenizer import BYTE_TOKENS
from rnnsearch.text.vocabulary import SPECIALS
from rnnsearch.text.words import count_chunks

TIES = """
import itertools, sys
from rnnsearch.text.subwords import train_bpe
letters = "abcdefghijklmnopqrstuvwxyzäöü語"
lines = [" ".join("".join(pair) for pair in itertools.permutations(letters, 2))] * 2
lines += [chr(0x4E00 + i) for i in range(300)]
sys.stdout.write(train_bpe(lines, 450, 1).fingerprint())
"""


def test_frequent_words_become_one_token():
    tokenizer = train_bpe(["the bench", "the man"] * 20, MIN_VOCABULARY + 30, 2)
    assert tokenizer.segment(["the bench"])[0].tokens == ["▁the", "▁bench"]


def test_character_tokenizer_has_no_merges():
    lines = ["the bench – the man", "größer"] * 3
    tokenizer = train_characters(lines, MIN_VOCABULARY + 30, 2)
    assert tokenizer.segment(["the – ß"])[0].tokens == list("▁the▁–▁ß")
    assert tokenizer.merges()[1] == [] and tokenizer.type == "bpe"
    few = train_characters(lines, MIN_VOCABULARY + 2, 2)
    assert len(few) == MIN_VOCABULARY + 2 and few.join(few.ids(["größer – 日本"])[0]) == "größer – 日本"
    assert train_characters(lines[::-1], MIN_VOCABULARY + 30, 2).fingerprint() == tokenizer.fingerprint()
    with pytest.raises(ConfigError, match="at least"):
        train_characters(lines, MIN_VOCABULARY, 1)
    with pytest.raises(DataError, match="characters seen 9 times"):
        train_characters(["a b"], 400, 9)


def test_merges_follow_pair_counts():
    """Against the algorithm as the paper gives it, on one text without ties."""
    words = Counter({"abab": 8, "abc": 4, "cab": 3})
    tokenizer = train_bpe([" ".join(w for w, n in words.items() for _ in range(n))], MIN_VOCABULARY + 4, 1)
    split = {word: [" ", *word] for word in words}
    merged = []
    for _ in range(4):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, n in words.items():
            for pair in zip(split[word], split[word][1:], strict=False):
                pairs[pair] += n
        best = max(pairs, key=lambda p: pairs[p])
        assert list(pairs.values()).count(pairs[best]) == 1
        merged.append("".join(best).replace(" ", "▁"))
        for word, symbols in split.items():
            i = 0
            while i < len(symbols) - 1:
                if (symbols[i], symbols[i + 1]) == best:
                    symbols[i : i + 2] = ["".join(best)]
                i += 1
            split[word] = symbols
    assert tokenizer.tokens()[-4:] == merged


def test_merges_match_the_tutorial_example():
    """5 low, 2 lower, 6 newest, 3 widest (Luong, Cho & Manning 2016): `es` and `est` are seen 9 times and come first;
    then what makes `low`, seen 7 times, of which the tutorial shows `lo`. Here its space is a part of it."""
    words = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
    tokenizer = train_bpe([" ".join(word for word, n in words.items() for _ in range(n))], MIN_VOCABULARY + 5, 1)
    assert tokenizer.tokens()[-5:-3] == ["es", "est"]
    shown = [tokenizer.segment([word])[0].tokens for word in words]
    assert shown == [["▁low"], ["▁low", "e", "r"], ["▁", "n", "e", "w", "est"], ["▁", "w", "i", "d", "est"]]


def apart(symbol, allowed, pairs):
    """Sennrich et al.'s recursion, as subword-nmt has it."""
    if symbol in allowed or symbol not in pairs:
        return [symbol]
    return [part for side in pairs[symbol] for part in apart(side, allowed, pairs)]


@pytest.mark.parametrize("least", [1, 2, 3, 5, 100])
def test_rare_tokens_of_a_language_are_split(lines, odd, least):
    joint = train_bpe(lines, 400, 2)
    own = lines[:2] * 2 + lines[4:5]
    side = without_rare(joint, count_chunks(own), least)
    counts = Counter(symbol for one in joint.segment(own) for symbol in one.tokens)
    allowed = {symbol for symbol, n in counts.items() if n >= least}
    pairs = {}
    for pair in joint.merges()[1]:
        left, right = (part.replace(" ", "▁") for part in pair)
        pairs.setdefault(left + right, (left, right))
    for whole, found in zip(joint.segment([*own, *odd]), side.segment([*own, *odd]), strict=True):
        expected = [part for symbol in whole.tokens for part in apart(symbol, allowed, pairs)]
        assert found.tokens == expected
        assert side.ids([whole.text]) == [found.ids]
        assert side.join(found.ids) == joint.join(whole.ids)
    used = {symbol for one in side.segment(own) for symbol in one.tokens}
    assert used <= allowed | (used - pairs.keys())
    if least == 1:
        assert side.ids(own) == joint.ids(own)
    if least == 100:
        assert not used & pairs.keys(), "no symbol is left that was merged"


def test_default_size_is_smaller_for_small_corpora():
    small, large = Counter({"abcde": 70_000}), Counter({"abcde": 100_000})
    assert default_vocabulary_size([small]) == default_vocabulary_size([small, small]) == SMALL_CORPUS_VOCABULARY
    assert default_vocabulary_size([large]) == default_vocabulary_size([small, large]) == DEFAULT_VOCABULARY


def test_no_merge_crosses_words_or_punctuation():
    tokenizer = train_bpe(['of the end. "So," it isn\'t'] * 100, MIN_VOCABULARY + 200, 1)
    learned = [s for s in tokenizer.tokens()[len(SPECIALS) :] if s not in BYTE_TOKENS and len(s) > 1]
    assert {"▁the", "▁end", "▁isn", "'t", '▁"', "▁of"} <= set(learned)
    assert all("▁" not in s[1:] for s in learned)
    assert all(s.removeprefix("▁").isalpha() or s in ("'t", '▁"') for s in learned)


def test_no_merge_crosses_rare_characters():
    tokenizer = train_bpe(["aéb"] * 10 + ["-ä-ö-ü-ß"] * 99, MIN_VOCABULARY + 8, 1)
    symbols = tokenizer.tokens()
    assert {"ä", "ö", "ü", "ß", "▁-", "▁a"} <= set(symbols)
    assert not {"é", "ab", "▁ab", "bb"} & set(symbols)
    assert tokenizer.join(tokenizer.ids(["aéb"])[0]) == "aéb"


def test_vocabulary_has_requested_size_without_unused_bytes(lines):
    bpe = train_bpe(lines, 340, 2)
    symbols = bpe.tokens()
    assert len(bpe) == 340
    for byte in range(128):
        assert (chr(byte).replace(" ", "▁") in symbols) != (f"<0x{byte:02X}>" in symbols)
    assert not {"<0xC0>", "<0xC1>", "<0xF5>", "<0xFF>"} & set(symbols)
    assert {"<0x80>", "<0xC2>", "<0xF4>"} <= set(symbols)


def test_size_is_never_exceeded():
    lines = ["".join(chr(0x4E00 + i) for i in range(2000))]
    for size in (MIN_VOCABULARY + 2, 300, 1000):
        tokenizer = train_bpe(lines, size, 1)
        assert len(tokenizer) <= size
        assert tokenizer.join(tokenizer.ids(lines)[0]) == lines[0]


def test_rare_characters_become_bytes():
    tokenizer = train_bpe(["ä ä ö"], 400, 2)
    assert tokenizer.segment(["ä"])[0].tokens == ["▁ä"]
    assert tokenizer.segment(["ö"])[0].tokens == ["▁", "<0xC3>", "<0xB6>"]


def test_training_ignores_line_order_and_accepts_iterators(lines):
    first = train_bpe(lines, 400, 1).fingerprint()
    assert train_bpe(iter(lines[::-1]), 400, 1).fingerprint() == first


def test_training_is_deterministic_across_processes_and_threads():
    """Many ties: equally frequent pairs, more equally rare characters than there is room for."""
    found = set()
    for parallel, threads, seed in (("true", "2", "1"), ("true", "3", "2"), ("false", "1", "3")):
        settings = {"TOKENIZERS_PARALLELISM": parallel, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", TIES],
            env=os.environ | settings,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1


def test_too_small_vocabulary_raises_config_error():
    message = rf"^text\.vocabulary: must be at least {MIN_VOCABULARY + 2} \(one token per byte\); got 100$"
    with pytest.raises(ConfigError, match=message):
        train_bpe(["a"], 100, 1)


def test_text_without_frequent_characters_raises_data_error():
    with pytest.raises(DataError, match="must hold characters seen 1 times or more; got none"):
        train_bpe(["", ""], 400, 1)
    with pytest.raises(DataError, match="3 times"):
        train_bpe(["a a"], 400, 3)


@pytest.mark.parametrize("characters", ["abcde ", "abäöüßéèđ東京都大阪府 "])
def test_smaller_vocabularies_are_prefixes(characters):
    """The second text has more characters than the smaller alphabets hold."""
    rng = random.Random(4)
    words = ["".join(rng.choices(characters.strip(), k=rng.randrange(1, 5))) for _ in range(60)]
    counts = count_chunks([" ".join(rng.choices(words, k=9)) for _ in range(200)])
    sizes = (320, 345, 400, 9000)
    for size, found in zip(sizes, bpe_of_sizes(counts, sizes, 1), strict=True):
        assert found.json == bpe_from_counts(counts, size, 1).json


def test_large_text_of_rare_chunks_keeps_a_sample(monkeypatch):
    """Text without spaces has few repeated chunks; rounding alone would drop all of them."""
    monkeypatch.setattr("rnnsearch.text.subwords._MAX_TRAINING_CHUNKS", 1000)
    chunks = Counter({f"chunk {n}": 1 for n in range(5000)}) + Counter({"often": 5000})
    scaled, min_count = scale_counts(chunks, 1)
    assert scaled["often"] == 500
    assert 400 < scaled.total() - 500 < 600
    assert min_count == 1
    assert scale_counts(Counter(dict(reversed(chunks.items()))), 1) == (scaled, min_count)
