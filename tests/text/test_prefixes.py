"""The beginning of a text as forced symbols and as bytes to be spelled."""

import random

import pytest

from rnnsearch.errors import DataError
from rnnsearch.text.prefixes import MAX_OPEN_TOKENS, Prefix, PrefixReader
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import UNK


def spellings_of(tokenizer: Tokenizer, prefix: Prefix, draw: random.Random) -> list[int]:
    """Symbols that spell the rest, drawn at random among those that the prefix allows."""
    spelled, ids = 0, []
    sizes = [len(spelling) for spelling in tokenizer.token_bytes()]
    while spelled < len(prefix.continuations):
        assert prefix.continuations[spelled], "no way leads to a dead end"
        ids.append(draw.choice(prefix.continuations[spelled]))
        spelled += sizes[ids[-1]]
    return ids


def test_continuations_start_with_the_prefix(tokenizer, odd):
    """Any way through the symbols allowed, whatever the text: an unknown word stands as the user wrote it."""
    draw = random.Random(3)
    prefixes = PrefixReader(tokenizer)
    for text in odd:
        for cut in {len(text), draw.randrange(len(text) + 1), draw.randrange(len(text) + 1)}:
            prefix = prefixes.read(text[:cut])
            for _ in range(3):
                ids = [*prefix.ids, *spellings_of(tokenizer, prefix, draw)]
                assert tokenizer.join_with_offsets(ids, prefix.unknown).text.startswith(text[:cut]), text[:cut]


def test_last_word_may_be_completed_differently(bpe):
    prefix = PrefixReader(bpe).read("Ein Mann si")
    assert bpe.join_with_offsets(prefix.ids).text == "Ein Mann"
    assert len(prefix.continuations) == len(" si")
    spellings = bpe.token_bytes()
    allowed = {spellings[id] for id in prefix.continuations[0]}
    assert bpe.ids(["sitzt"])[0][0] in prefix.continuations[0]
    assert all(s.startswith(b" si") or b" si".startswith(s) for s in allowed)
    assert {spellings[id][:1] for id in prefix.continuations[1]} == {b"s"}
    assert prefix.unknown == {}


def test_trailing_space_ends_the_word(bpe):
    prefix = PrefixReader(bpe).read("Ein Mann ")
    assert bpe.join_with_offsets(prefix.ids).text == "Ein Mann"
    assert all(bpe.token_bytes()[id].startswith(b" ") for id in prefix.continuations[0])


def test_unknown_words_keep_their_text(words):
    prefix = PrefixReader(words).read("Ein Zebra sitz")
    assert prefix.ids[1] == UNK
    assert prefix.unknown == {1: " Zebra"}
    assert {words.token_bytes()[id] for id in prefix.continuations[0]} == {b" sitzt"}, "the one word that begins so"
    whole = PrefixReader(words).read("Ein Zebr")
    assert (whole.ids[1:], whole.continuations, whole.unknown) == ((UNK,), (), {1: " Zebr"})
    assert words.join_with_offsets(whole.ids, whole.unknown).text == "Ein Zebr"


def test_only_the_end_of_a_long_word_is_open(bpe):
    text = "日本語の文です。これは" * 10
    prefix = PrefixReader(bpe).read(text)
    assert len(prefix.ids) == len(bpe.ids([text])[0]) - MAX_OPEN_TOKENS


def test_empty_prefix_and_invalid_unicode(tokenizer):
    assert PrefixReader(tokenizer).read("")[:4] == ("", (), (), {})
    with pytest.raises(DataError, match="must be valid Unicode"):
        PrefixReader(tokenizer).read("a \ud800")


def test_unknown_word_may_follow_a_space(words):
    told = PrefixReader(words).read("Ein Mann ")
    assert (
        told.continuations[-1][-1] == UNK
        and UNK not in PrefixReader(words, char_decoding=True).read("Ein Mann ").continuations[-1]
    )
    assert all(UNK not in some for some in PrefixReader(words).read("Ein Mann s").continuations)
