"""Words of a raw sentence, and the word that each symbol lies in."""

from rnnsearch.text.alignments import NO_WORD, drop_punctuation, word_of_token, word_spans, words


def test_words_are_separated_by_white_space():
    assert word_spans("A man,  sits.") == [(0, 1), (2, 6), (8, 13)]
    assert word_spans("\ta\t🙂b ") == [(1, 2), (3, 5)]
    assert word_spans("") == word_spans("  ") == []
    assert words(" A man,  sits. ") == ["A", "man,", "sits."]


def test_only_ascii_white_space_separates():
    """Count words like fast_align, Moses and eflomal."""
    assert words("10\u00a0000 quoi\u202f? 日本\u3000語") == ["10\u00a0000", "quoi\u202f?", "日本\u3000語"]


def test_spans_select_the_words(odd):
    for text in odd:
        assert [text[a:b] for a, b in word_spans(text)] == words(text)


def test_tokens_are_assigned_to_their_words(bpe):
    (segmented,) = bpe.segment(["The women  sit… 🙂!"])
    found = word_of_token(segmented.text, segmented.offsets)
    parts: dict[int, str] = {}
    for symbol, word in zip(segmented.tokens, found, strict=True):
        parts[word] = parts.get(word, "") + symbol
    smile = "".join(f"<0x{byte:02X}>" for byte in "🙂".encode())
    assert parts == {0: "▁The", 1: "▁women", NO_WORD: "▁", 2: "▁sit…", 3: f"▁{smile}!"}


def test_every_word_has_a_token(tokenizer, odd):
    for segmented in tokenizer.segment(odd):
        found = word_of_token(segmented.text, segmented.offsets)
        assert len(found) == len(segmented.ids)
        assert set(found) - {NO_WORD} == set(range(len(words(segmented.text))))
        for (start, end), word in zip(segmented.offsets, found, strict=True):
            if word == NO_WORD:
                assert segmented.text[start:end].strip(" \t\n\r\f\v") == ""


def test_white_space_tokens_have_no_word():
    assert word_of_token("a  b ", [(0, 1), (2, 2), (3, 4), (5, 5)]) == [0, NO_WORD, 1, NO_WORD]
    assert word_of_token("a\tb", [(0, 1), (1, 2), (2, 3)]) == [0, NO_WORD, 1]
    assert word_of_token("\t?", [(0, 0), (0, 2)]) == [NO_WORD, 0]
    assert word_of_token("", []) == []


def test_punctuation_tokens_have_no_word():
    text = "(grass). ... d'eau 5%!"
    offsets = [(0, 1), (0, 6), (6, 8), (8, 12), (12, 14), (14, 15), (15, 18), (18, 20), (20, 21), (21, 22)]
    assert word_of_token(text, offsets) == [0, 0, 0, 1, 2, 2, 2, 3, 3, 3]

    def aligned(text, offsets):
        return drop_punctuation(word_of_token(text, offsets), text, offsets)

    assert aligned(text, offsets) == [NO_WORD, 0, NO_WORD, 1, 2, NO_WORD, 2, 3, NO_WORD, NO_WORD]
    assert aligned("\u0915\u093e", [(0, 1), (1, 2)]) == [0, 0], "a vowel sign is no punctuation"
    assert aligned("a b", [(0, 1), (1, 1), (2, 3)]) == word_of_token("a b", [(0, 1), (1, 1), (2, 3)])
