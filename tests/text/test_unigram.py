"""Unigram subwords: Kudo's (2018) most probable segmentation, and segmentations drawn by their probability."""

import os
import subprocess
import sys
from collections import Counter
from itertools import combinations, pairwise
from math import exp, isclose, log, prod
from random import Random

import pytest
from tokenizers import models

from rnnsearch.errors import ConfigError, DataError
from rnnsearch.text.piece_patterns import PIECE_PATTERN
from rnnsearch.text.resegmentation import MAX_PIECE_LENGTH, UnigramSampling
from rnnsearch.text.subwords import MIN_VOCABULARY, without_rare
from rnnsearch.text.tokenizer import BYTE_TOKENS, UNUSED_LOG_PROB, Tokenizer
from rnnsearch.text.unigram import train_unigram
from rnnsearch.text.vocabulary import SPECIALS, UNK
from rnnsearch.text.words import count_chunks, pieces


def splits(piece, scores):
    """Every way to write a piece in symbols, with the sum of their log-probabilities."""
    for number in range(len(piece)):
        for cuts in combinations(range(1, len(piece)), number):
            edges = [0, *cuts, len(piece)]
            parts = tuple(piece[begin:end] for begin, end in pairwise(edges))
            if all(scores.get(part, UNUSED_LOG_PROB) > UNUSED_LOG_PROB for part in parts):
                yield parts, sum(scores[part] for part in parts)


@pytest.fixture(scope="module")
def rich(lines):
    """A unigram model with every part of a word that occurs as a symbol, by how often it does."""
    found = Counter(
        piece[begin:end]
        for line in lines
        for piece in pieces(f" {line}")
        for begin in range(len(piece))
        for end in range(begin + 1, min(len(piece), begin + 6) + 1)
    )
    every = [(part, log(n / found.total())) for part, n in sorted(found.items())]
    return Tokenizer.assemble(models.Unigram([*((s, 0.0) for s in SPECIALS), *every], UNK, True), PIECE_PATTERN)


WORDS = [" bench", " sitting", " isn't", " A", "…", " Bank.", " women"]


@pytest.mark.parametrize("kind", ["unigram", "parted_unigram", "rich"])
def test_segmentation_is_the_most_probable_one(kind, request):
    tokenizer = request.getfixturevalue(kind)
    scores, names = tokenizer.scores(), tokenizer.names()
    for word in WORDS:
        expected = sum(max(score for _, score in splits(piece, scores)) for piece in pieces(word))
        [ids] = tokenizer.ids([word.removeprefix(" ") if word[0] == " " else word])
        if word[0] != " ":
            ids = ids[1:]  # the space put before the text
        assert isclose(sum(scores[names[id]] for id in ids), expected, rel_tol=1e-9), word


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["unigram", "rich"])
def test_lattice_gives_exact_probabilities(kind, alpha, request):
    """The product of the lattice's conditional probabilities is P(x)^alpha over the sum of all, by enumeration."""
    tokenizer = request.getfixturevalue(kind)
    sampling, scores, names = UnigramSampling(tokenizer, alpha), tokenizer.scores(), tokenizer.names()
    for piece in (" bench", " sitting", " women", " Bank"):
        every = {parts: exp(alpha * score) for parts, score in splits(piece, scores)}
        lattice = sampling._prepare([(c, names.index(c)) for c in piece])
        for parts, weight in every.items():
            end, shares = len(piece), []
            for part in reversed(parts):
                ending = lattice[end - 1]
                place = ending.ids.index(names.index(part))
                shares.append(ending.cumulative[place] - (ending.cumulative[place - 1] if place else 0.0))
                end = ending.starts[place]
            assert end == 0
            assert isclose(prod(shares), weight / sum(every.values()), rel_tol=1e-6)


def test_sampled_frequencies_match_probabilities(rich):
    sampling, scores, n = UnigramSampling(rich, 0.3), rich.scores(), 5_000
    every = {parts: exp(0.3 * score) for parts, score in splits(" Mann", scores)}
    [ids], random = rich.ids(["Mann"]), Random(1)
    names = rich.names()
    found = Counter(tuple(names[id] for id in sampling(ids, random)) for _ in range(n))
    expected = {parts: n * weight / sum(every.values()) for parts, weight in every.items()}
    assert found.keys() <= expected.keys()
    chi_square = sum((found[parts] - share) ** 2 / share for parts, share in expected.items())
    assert len(expected) > 4 and chi_square < len(expected) + 4.5 * (2 * len(expected)) ** 0.5


@pytest.mark.parametrize("kind", ["unigram", "parted_unigram"])
def test_text_is_preserved(kind, request, lines, odd):
    tokenizer = request.getfixturevalue(kind)
    sampling, changed, never = UnigramSampling(tokenizer, 0.1), 0, set()
    scores = list(tokenizer.scores().values())
    for number, ids in enumerate(tokenizer.ids(lines + odd)):
        drawn = sampling(ids, Random(number))
        assert tokenizer.join(drawn) == tokenizer.join(ids)
        changed += drawn != ids
        never |= {id for id in drawn if scores[id] == UNUSED_LOG_PROB}
    assert changed > len(lines) / 2 and not never


def test_long_pieces_keep_their_tokens(unigram):
    [ids] = unigram.ids(["bench" * MAX_PIECE_LENGTH])
    assert UnigramSampling(unigram, 0.1)(ids, Random(3)) == ids


def test_vocabulary_has_requested_size_and_bytes(lines):
    spaces = ["the cat \u00a0 sat\t on \u2581 a mat"] * 9
    for size in (MIN_VOCABULARY + 2, MIN_VOCABULARY + 20, 300, 400):
        tokenizer = train_unigram(lines + spaces, size, 1)
        assert len(tokenizer) <= size
        names = tokenizer.names()
        for byte in range(128):
            assert (chr(byte) in names) != (f"<0x{byte:02X}>" in names), "an ASCII character or its byte, not both"
    assert len(train_unigram(lines, 400, 1)) > MIN_VOCABULARY + 30
    [ids] = tokenizer.ids(["日本語"])
    assert [tokenizer.token(id) for id in ids[-9:]] == [f"<0x{byte:02X}>" for byte in "日本語".encode()]


def test_consecutive_rare_characters_have_separate_offsets(unigram):
    [segmented] = unigram.segment(["a日本"])
    spans = [span for id, span in zip(segmented.tokens, segmented.offsets, strict=True) if id in BYTE_TOKENS]
    assert spans == [(1, 2)] * 3 + [(2, 3)] * 3


def test_rare_tokens_are_omitted(lines):
    often = train_unigram(lines, 400, 5)
    counts = Counter(symbol for one in often.segment(lines) for symbol in one.tokens)
    longer = [symbol for symbol in often.tokens()[len(SPECIALS) :] if len(symbol) > 1 and symbol not in BYTE_TOKENS]
    assert longer and 3 * sum(counts[symbol] >= 5 for symbol in longer) > 2 * len(longer)
    assert len(often) < len(train_unigram(lines, 400, 1))


@pytest.mark.parametrize("least", [2, 5, 100])
def test_rare_tokens_of_a_language_are_not_used(unigram, lines, odd, least):
    own = lines[:2] * 2 + lines[4:5]
    side = without_rare(unigram, count_chunks(own), least)
    counts = Counter(id for ids in unigram.ids(own) for id in ids)
    names = unigram.names()
    for text, ids in zip([*own, *odd], side.ids([*own, *odd]), strict=True):
        assert all(counts[id] >= least for id in ids if len(names[id]) > 1 and names[id] not in BYTE_TOKENS)
        assert side.join(ids) == unigram.join(unigram.ids([text])[0])


def test_training_ignores_line_order_and_process(lines):
    """The library adds in another order each time; what is kept of it is the same."""
    print_it = (
        "import sys; sys.path.insert(0, 'tests/text'); from conftest import LINES\n"
        "from rnnsearch.text.unigram import train_unigram\n"
        "print(train_unigram(reversed(LINES), 400, 2).fingerprint())"
    )
    expected = train_unigram(lines, 400, 2).fingerprint()
    for threads in ("1", "4"):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", print_it], capture_output=True, text=True, env=environment, check=False
        )
        assert done.stdout.strip() == expected, done.stderr


def test_invalid_sizes_and_texts_are_rejected(lines):
    with pytest.raises(ConfigError, match=f"text.vocabulary: must be at least {MIN_VOCABULARY + 2}"):
        train_unigram(lines, MIN_VOCABULARY + 1, 1)
    with pytest.raises(DataError, match="must hold characters seen 3 times"):
        train_unigram(["ab"], 400, 3)


@pytest.mark.parametrize("text", [["a"], ["a b"], ["aaaa"], ["日本"], ["."], ["\u0301"]])
def test_tiny_texts_can_be_learned_from(text):
    tokenizer = train_unigram(text, 300, 1)
    assert [tokenizer.join(ids) for ids in tokenizer.ids(text)] == text
