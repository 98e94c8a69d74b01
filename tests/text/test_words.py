"""Word-level vocabularies: which words are kept, how text is cut, what is refused."""

import pytest

from rnnsearch.errors import ConfigError, DataError
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import count_chunks, pieces_in_chunks, train_words


def pieces(text: str) -> list[str]:
    tokenizer = train_words([text], 1000, 1)
    return tokenizer.segment([text])[0].tokens


@pytest.mark.parametrize(
    ("text", "symbols"),
    [
        ("A man sits.", "▁A ▁man ▁sits ."),
        ("I don't, it's Tom's.", "▁I ▁don 't , ▁it 's ▁Tom 's ."),
        ("L'homme qu'il s’est", "▁L' homme ▁qu' il ▁s’ est"),
        ("Geht's? I'LL they're", "▁Geht 's ? ▁I 'LL ▁they 're"),
        ("rock'n'roll d'un t'es", "▁rock' n' roll ▁d' un ▁t' es"),
        ('He said "No" (twice)...', '▁He ▁said ▁" No " ▁( twice ) ...'),
        ("What?! 12,50 €", "▁What ? ! ▁12 , 50 ▁€"),
        ("cafe\u0301 snake_case B2B", "▁cafe\u0301 ▁snake_case ▁B2B"),
        ("می‌خواهم ❤️❤️", "▁می‌خواهم ▁❤️ ❤️"),
        ("x-ray – so", "▁x - ray ▁– ▁so"),
    ],
)
def test_pieces_are_words_and_punctuation(text, symbols):
    assert pieces(text) == symbols.split(" ")


def test_pieces_keep_spaces():
    assert pieces("a  b") == ["▁a", "▁", "▁b"]
    assert pieces("quoi\u202f?") == ["▁quoi", "\u202f?"]
    assert pieces("a\tb ") == ["▁a", "\t", "b", "▁"]


def test_most_frequent_words_are_kept_with_ties_by_code_point():
    tokenizer = train_words(["c b a", "b a", "b d"], size=4 + 3, min_count=1)
    assert tokenizer.tokens()[4:] == ["▁b", "▁a", "▁c"]
    assert tokenizer.ids(["a b c d"])[0] == [5, 4, 6, UNK]


def test_rare_words_are_omitted():
    tokenizer = train_words(["a a a", "b b", "c"], size=100, min_count=2)
    assert tokenizer.tokens()[4:] == ["▁a", "▁b"]


def test_case_is_kept():
    assert train_words(["The the"], 10, 1).tokens()[4:] == ["▁The", "▁the"]


def test_training_ignores_line_order_and_accepts_iterators(lines):
    once = train_words(iter(lines), 60, 1)
    again = train_words(reversed(lines), 60, 1)
    assert len(once) == 60
    assert once.fingerprint() == again.fingerprint()


def test_chunk_counts_determine_piece_counts(odd):
    whole = train_words(odd, 10**6, 1)
    counted = pieces_in_chunks(count_chunks(odd))
    from_lines: dict[str, int] = {}
    for segmented in whole.segment(odd):
        for symbol in segmented.ids:
            name = whole.token(symbol)
            from_lines[name] = from_lines.get(name, 0) + 1
    assert not any(s.has_unknown for s in whole.segment(odd))
    shown: dict[str, int] = {}
    for piece, count in counted.items():
        shown[piece.replace(" ", "▁")] = shown.get(piece.replace(" ", "▁"), 0) + count
    assert from_lines == shown


def test_too_small_vocabulary_raises_config_error():
    with pytest.raises(ConfigError, match=r"^text\.vocabulary: must be more than the 4 special tokens; got 4$"):
        train_words(["a"], 4, 1)


def test_text_without_words_raises_data_error():
    with pytest.raises(DataError, match=r"must hold words that occur 1 times or more; got none"):
        train_words(["", ""], 100, 1)
    with pytest.raises(DataError, match=r"3 times"):
        train_words(["a a b"], 100, 3)
