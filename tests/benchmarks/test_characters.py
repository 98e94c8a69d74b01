"""The benchmark of character models at toy size."""

from argparse import Namespace

import pytest

from benchmarks import characters


@pytest.mark.parametrize("name", characters.MODELS)
def test_model_config_is_valid(name):
    from rnnsearch.systems.validation import check

    assert check(characters.config_of(characters.MODELS[name])) == []


def test_speeds_are_relative_to_the_first_model(tmp_path, monkeypatch):
    texts = [tmp_path / "t.en", tmp_path / "t.de"]
    texts[0].write_text("the cat\nthe dog sees\n" * 4, encoding="utf-8")
    texts[1].write_text("die Katze\nder Hund sieht\n" * 4, encoding="utf-8")
    monkeypatch.setattr(characters, "best_seconds", lambda function, *_: function() or 0.5)
    args = Namespace(train=texts, models=["hybrid", "words"], pairs=3, rounds=1)
    assert [*characters.rows(args)] == [["hybrid", 12, 12, 1, 1], ["words", 12, 12, 1, 1]]
