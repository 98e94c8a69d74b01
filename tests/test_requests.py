"""Constraints of requests: prefixes, banned phrases and terms."""

from dataclasses import replace

import pytest

import rnnsearch
from rnnsearch.errors import RnnsearchError
from rnnsearch.text.banned import BannedPhrases
from rnnsearch.translator.translator import Translator
from tests.untrained import BAHDANAU, TEXT, write_model

ENGLISH = TEXT["en"]


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return rnnsearch.load(write_model(tmp_path_factory.mktemp("model") / "en-de", BAHDANAU))


def test_invalid_prefixes_are_rejected(translator):
    with pytest.raises(RnnsearchError, match=r"prefixes must be one per sentence \(2\); got 1"):
        translator.n_best(ENGLISH[:2], prefixes=["die"])
    with pytest.raises(RnnsearchError, match=r'the prefix of empty sentence 1 \(from 0\) must be empty; got "die"'):
        translator.n_best([ENGLISH[0], ""], prefixes=["", "die"])
    with pytest.raises(RnnsearchError, match=r'the prefix of empty sentence 0 \(from 0\) must be empty; got "die"'):
        translator.n_best([" "], prefixes=["die"])
    assert translator.n_best([""], prefixes=[""])[0][0].text == ""


@pytest.mark.parametrize(
    ("prefix", "banned", "said"),
    [
        ("die \u00e9a", "\u00e9a", "must not contain a banned phrase"),
        ("die Qu x", "x", "must not contain a banned phrase"),
        ("die Qu e", "e", None),
        ("die Qu", "Qu Hund", "must not end with the start of a banned phrase"),
        ("Qu die", "Qu die kleine", "must not end with the start of a banned phrase"),
        ("Qu die", "die kleine", None),
        ("die kl", "kl", None),
        ("Qu", "Quagga", "must not end with the start of a banned phrase"),
    ],
)
def test_banned_phrases_are_found_in_words_outside_the_vocabulary(translator, prefix, banned, said):
    options = translator.options(banned=[banned], beam=4, n_best=4)
    if said is not None:
        with pytest.raises(RnnsearchError, match=f'^a prefix {said}.*; got "{prefix}"$'):
            translator.n_best(ENGLISH[:1], options, prefixes=[prefix])
        return
    [found] = translator.n_best(ENGLISH[:1], options, prefixes=[prefix])
    assert all(t.text.startswith(prefix) and not options.banned_phrases.banned.occurs_in(t.text) for t in found)


def test_last_banned_phrases_are_cached(translator):
    first, again = (translator.options(banned=["Hund", " Hund", "die Katze"]).banned_phrases for _ in range(2))
    assert first is again
    assert translator.options(banned=["Hund"]).banned_phrases is not first


@pytest.mark.parametrize("kind", ["words", "bpe"])
def test_terms_are_whole_words(tmp_path, kind):
    translator, longer = rnnsearch.load(write_model(tmp_path / "en-de", BAHDANAU, kind)), 0
    for term in ("Vogel", "ein", "die", "rot es", "sieh"):
        if not translator.constraints.can_write(term):
            continue
        options = translator.options(beam=6, n_best=6)
        whole, plain = BannedPhrases([term]), translator.constraints.required_phrases([[term]], options)[0]
        for text in ENGLISH:
            [found] = translator.n_best([text], options, terms=[[term]])
            assert all(whole.occurs_in(t.text) for t in found), term
            symbols = replace(options, phrases=(tuple(tuple(phrase) for phrase in plain),))
            longer += sum(not whole.occurs_in(t.text) for t in translator.n_best([text], symbols)[0])
    assert longer or kind == "words", "without word boundaries, its tokens may start a longer word"
    assert type(translator.constraints.required_phrases([["Katze!"]], options)[0][0]) is tuple, (
        "the term must not end inside a word"
    )
