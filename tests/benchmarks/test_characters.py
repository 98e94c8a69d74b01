"""The benchmark of characters at toy size: every model is one, and is measured."""

from argparse import Namespace

import pytest

from benchmarks import characters


@pytest.mark.parametrize("name", characters.MODELS)
def test_every_model_is_one(name):
    from rnnsearch.systems.validation import check

    assert check(characters.config_of(characters.MODELS[name])) == []


def test_models_are_measured_beside_the_first(tmp_path, monkeypatch):
    texts = [tmp_path / "t.en", tmp_path / "t.de"]
    texts[0].write_text("the cat\nthe dog sees\n" * 4, encoding="utf-8")
    texts[1].write_text("die Katze\nder Hund sieht\n" * 4, encoding="utf-8")
    monkeypatch.setattr(characters, "seconds_of", lambda work, *_: work() or 0.5)
    given = Namespace(train=texts, models=["hybrid", "words"], pairs=3, rounds=1)
    assert [*characters.rows(given)] == [["hybrid", 12, 12, 1, 1], ["words", 12, 12, 1, 1]]
