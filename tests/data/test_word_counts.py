"""Files of counts of training words."""

import pytest

from rnnsearch.data.prepared import read_word_counts, write_word_counts
from rnnsearch.errors import DataError
from rnnsearch.text.words import count_words


def test_counts_exclude_punctuation_and_spaces():
    counts = count_words(["Der Hund, der Hund!", "l'homme 3 €", ""])
    assert counts == {"Der": 1, "Hund": 2, "der": 1, "l'": 1, "homme": 1, "3": 1}


def test_written_counts_are_read_back(tmp_path):
    path = tmp_path / "words.tsv"
    counts = {"b": 1, "a": 1, "Größe": 70_000}
    write_word_counts(path, counts)
    assert path.read_text(encoding="utf-8") == "Größe\t70000\na\t1\nb\t1\n"
    assert read_word_counts(path) == counts


@pytest.mark.parametrize("line", ["word", "word\tmany", "word\t-1"])
def test_malformed_counts_are_rejected(tmp_path, line):
    path = tmp_path / "words.tsv"
    path.write_text(f"a\t1\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"words\.tsv:2: must be a word, a tab and a count; got"):
        read_word_counts(path)
