"""Terms of a glossary are put in place of the words that translate their source terms."""

from dataclasses import replace

import numpy as np
import pytest
from typer import BadParameter

import rnnsearch
from rnnsearch.cli.serve import read_glossaries
from rnnsearch.errors import DataError, RnnsearchError
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.sampling import Sampling
from rnnsearch.text.terms import MAX_FORMS, Glossary, TermMatch
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.translator import glossaries
from rnnsearch.translator.confidence import warnings
from rnnsearch.translator.glossaries import read_glossary
from rnnsearch.translator.placement import MAX_PLACED_TERMS, MAX_SCORED_FORMS, TermPlacer
from rnnsearch.translator.texts import translate_texts
from rnnsearch.translator.translator import Translator
from tests.translations import translation
from tests.untrained import BAHDANAU, RNNENCDEC, TEXT, write_model

ENGLISH = TEXT["en"]
SOURCE = "il est sur un banc rouge"
TARGET = "he is on a bench."
LINKS = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4))


class WordCountModel:
    """Scores translations by their number of characters, shortest first, and returns these for searches."""

    def __init__(self, *constrained):
        self.constrained = list(constrained)
        self.scored_texts = []

    def search(self, indices, options, phrases):
        return [self.constrained for _ in indices]

    def score(self, sources, texts):
        self.scored_texts += texts
        rows = zip(sources, texts, strict=True)
        return [
            replace(translation(source.text.split(), text.split()), score=-float(len(text)), log_prob=-float(len(text)))
            for source, text in rows
        ]


def place(glossary, free=None, *constrained, prefix="", case=None, options=None):
    """Return the best translation with the terms, and the model."""
    free = free or translation(SOURCE.split(), TARGET.split(), links=LINKS)
    source = Segmented(free.source, [], [], [], case=case)
    model = WordCountModel(*constrained)
    placer = TermPlacer(model.search, model.score, can_write=bool)
    matches = list(Glossary(glossary).matches(free.source))
    options = options or SearchOptions(beam=4)
    [[best]] = placer.place([source], [matches], [prefix], options, [[free]])
    return best, model


def test_term_replaces_the_word_aligned_to_its_source_term_once():
    best, _ = place({"banc": "settee"})
    assert best.text == "he is on a settee."
    assert best.missing_terms == ()
    assert warnings(best) == ()


def test_terms_that_the_translation_contains_change_nothing():
    free = translation(SOURCE.split(), TARGET.split(), links=LINKS)
    for forms in ("bench", "settee|bench"):
        best, model = place({"banc": forms}, free)
        assert best is free
        assert not model.scored_texts


def test_several_terms_are_placed_from_left_to_right_whatever_their_lengths():
    best, _ = place({"banc": "long wooden settee", "il": "Tom", "un": "some"})
    assert best.text == "Tom is on some long wooden settee."


def test_term_that_cannot_be_placed_is_left_out_and_reported():
    free = translation(SOURCE.split(), TARGET.split(), links=LINKS)
    best, _ = place({"rouge": "crimson"}, free)
    assert best.text == free.text
    assert best.missing_terms == ("rouge",)
    assert warnings(best) == ("missing terms",)
    best, _ = place({"rouge": "crimson", "banc": "settee"}, free)
    assert (best.text, best.missing_terms) == ("he is on a settee.", ("rouge",))


def test_the_likeliest_form_is_taken():
    best, model = place({"banc": "settees|settee|setteeing"})
    assert best.text == "he is on a settee.", "the shortest is the likeliest here"
    assert set(model.scored_texts) == {"he is on a settee.", "he is on a settees.", "he is on a setteeing."}


def test_results_of_constrained_search_count_only_if_the_terms_are_in_place():
    beside = translation(SOURCE.split(), ["he", "bench", "settee"], links=((0, 0), (4, 1)))
    doubled = translation(SOURCE.split(), ["a", "bench", "settee"], links=((3, 0), (4, 1), (4, 2)))
    in_place = translation(SOURCE.split(), ["he", "settee"], links=((0, 0), (4, 1)))
    unscored = {"score": 1.0}
    best, _ = place({"banc": "settee"}, None, replace(beside, **unscored), replace(doubled, **unscored))
    assert best.text == "he is on a settee."
    lost = translation(SOURCE.split(), TARGET.split(), links=LINKS[:4])
    best, _ = place({"banc": "settee"}, lost, replace(beside, **unscored), replace(in_place, **unscored))
    assert best.text == "he settee"
    repeated = translation(SOURCE.split(), ["he", "is", "he", "is", "settee"], links=((0, 0), (4, 4)))
    best, _ = place({"banc": "settee"}, lost, repeated)
    assert (best.text, best.missing_terms) == (TARGET, ("banc",))


def test_sampling_and_greedy_search_only_replace():
    in_place = translation(SOURCE.split(), ["he", "settee"], links=((0, 0), (4, 1)))
    for options in (
        SearchOptions(beam=1),
        SearchOptions(beam=4, variant=Sampling()),
    ):
        best, _ = place({"banc": "settee"}, None, replace(in_place, score=1.0), options=options)
        assert best.text == "he is on a settee."


def test_prefix_is_not_replaced():
    best, _ = place({"il": "Tom", "banc": "settee"}, prefix="he is")
    assert (best.text, best.missing_terms) == ("he is on a settee.", ("il",))


def test_letter_case_is_that_of_the_place():
    free = translation(["Un", "banc"], ["Benches", "here"], links=((1, 0),))
    assert place({"banc": "settees"}, free)[0].text == "Settees here"
    assert place({"banc": "iPhone"}, free)[0].text == "iPhone here"
    again = replace(free, text="Settees here", words=("Settees", "here"))
    assert place({"banc": "settees"}, again)[0] is again
    upper = translation(["UN", "BANC"], ["A", "BENCH!"], links=((0, 0), (1, 1)))
    assert place({"banc": "settee"}, upper, case="upper")[0].text == "A SETTEE!"


def test_of_several_groups_of_aligned_words_the_one_with_most_attention_is_replaced():
    weights = np.array([[0.1, 0.4], [0.9, 0.1], [0.0, 0.9], [0.2, 0.8]], np.float32)
    free = translation(
        ["un", "banc"], ["the", "a", "wooden", "bench,"], weights, links=((1, 0), (0, 1), (1, 2), (1, 3))
    )
    assert place({"banc": "settee"}, free)[0].text == "the a settee,"


def test_only_so_many_forms_per_sentence_are_compared():
    words = [f"a{n}" for n in range(6)]
    free = translation(words, [f"b{n}" for n in range(6)], links=tuple((n, n) for n in range(6)))
    forms = "|".join(["longer", *(f"x{n}" for n in range(9))])
    best, model = place(dict.fromkeys(words, forms), free)
    assert len(model.scored_texts) == MAX_SCORED_FORMS + 1
    assert best.text == "x0 x0 x0 x0 longer longer"


def test_only_so_many_terms_per_sentence_are_placed():
    count = MAX_PLACED_TERMS + 2
    free = translation(
        [f"a{n}" for n in range(count)], [f"b{n}" for n in range(count)], links=tuple((n, n) for n in range(count))
    )
    best, _ = place({f"a{n}": f"c{n}" for n in range(count)}, free)
    assert best.text.split() == [f"c{n}" if n < MAX_PLACED_TERMS else f"b{n}" for n in range(count)]
    assert best.missing_terms == (f"a{count - 2}", f"a{count - 1}")


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return rnnsearch.load(write_model(tmp_path_factory.mktemp("model") / "en-de", BAHDANAU))


@pytest.mark.parametrize("beam", [1, 4])
def test_real_translations_contain_the_terms_or_report_them(translator, beam):
    glossary = Glossary({"cat": "Quagga|Quaggas", "bird": "Hund", "bear": "Bär"})
    matches = [list(glossary.matches(text)) for text in ENGLISH]
    options = translator.options(beam, n_best=min(beam, 2))
    free = translator.n_best(ENGLISH, options)
    placed = translator.n_best(ENGLISH, options, terms=matches)
    for sentence_matches, others, translations in zip(matches, free, placed, strict=True):
        assert 1 <= len(translations) <= len(others)
        for one in translations:
            found = [match for match in sentence_matches if any(form in one.text for form in match.entry)]
            assert len(found) == len(sentence_matches) - len(one.missing_terms)
            assert len(one.tokens) == len(one.token_scores)
    assert any(not translations[0].missing_terms for translations in placed)
    [[unchanged]] = translator.n_best(
        ENGLISH[:1], translator.options(beam), terms=[list(Glossary({"x": "y"}).matches(ENGLISH[0]))]
    )
    assert unchanged.text == translator.n_best(ENGLISH[:1], translator.options(beam))[0][0].text


def test_terms_in_protected_text_are_not_replaced(translator):
    text = "the dog sees https://a.org/dog"
    source = translator.segment([text], protect=["urls"])
    [[best]] = translator.n_best(source, terms=[list(Glossary({"dog": "Quagga"}).matches(text))])
    assert "https://a.org/dog" in best.text
    assert ("Quagga" in best.text) != (best.missing_terms == ("dog",))


def test_models_without_attention_report_what_they_cannot_place(tmp_path):
    model = rnnsearch.load(write_model(tmp_path / "blind", RNNENCDEC))
    terms = [[TermMatch(10, 13, ("Quagga",))]]
    free = model.translate(ENGLISH[0])
    [[best]] = model.n_best(ENGLISH[:1], model.options(2), terms=terms)
    assert (best.text, best.missing_terms) == (free.text, ("cat",))


def test_terms_are_texts_or_matches_that_contain_no_banned_phrase(translator):
    match = TermMatch(10, 13, ("Vogel", "Hund"))
    with pytest.raises(RnnsearchError, match="terms must be either texts or matches of a glossary; got both"):
        translator.n_best(ENGLISH[:1], terms=[["Hund", match]])
    options = translator.options(banned=["Hund"], ban_unknown=True)
    with pytest.raises(RnnsearchError, match='a term must not contain a banned phrase; got "Hund"'):
        translator.n_best(ENGLISH[:1], options, terms=[[match]])


def test_texts_report_the_missing_terms_of_all_sentences(translator):
    def n_best(sentences):
        results = translator.n_best(sentences)
        return [[replace(one, missing_terms=(one.source,)) for one in n_best] for n_best in results]

    [text] = translate_texts(["A cat. A dog."], ("en", "de"), n_best)
    [joined] = text.translations()
    assert joined.missing_terms == ("A cat.", "A dog.")
    assert "missing terms" in warnings(joined)


def test_entries_of_a_request_take_precedence_over_defaults():
    defaults = Glossary({"dog": "Hund", "red ball": "roter Ball", "cat": "Katze"})
    glossary = Glossary({"dog": "Köter", "ball": "Kugel"}).with_defaults(defaults)
    assert glossary.terms("A dog, a red ball, a cat, a ball") == ("Köter", "roter Ball", "Katze", "Kugel")
    assert len(glossary) == 5
    assert Glossary({}).with_defaults(None).terms("A dog") == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bench", "must be a source term, a tab and its target term"),
        ("\tbanc", "must be a source term, a tab and its target term"),
        ("bench\t", "must be a source term, a tab and its target term"),
        ("bench\t|", 'must be separated by one "|" each; got "|" for "bench"'),
        ("bench\tbanc||bancs", 'must be separated by one "|" each'),
        (
            "bench\t" + "|".join(f"form{n}" for n in range(MAX_FORMS + 1)),
            f"must have at most {MAX_FORMS} forms; got 11",
        ),
        ("bench\t" + "x" * 201, "a form must have at most 200 characters"),
        ("bench\t" + "x" * 1_000_000, "must have at most 2010 characters together"),
        ("b" * 201 + "\tbanc", "a source term must have at most 200 characters"),
    ],
)
def test_invalid_entries_are_named_with_their_line(tmp_path, line, message):
    path = tmp_path / "terms.tsv"
    path.write_text(f"dog\tHund\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError) as error:
        read_glossary(path)
    assert str(error.value).startswith(f"{path}:2: ")
    assert message in str(error.value)
    assert len(str(error.value)) < 400


def test_server_glossary_names_its_model_if_several_directions_are_served(tmp_path):
    models = [write_model(tmp_path / "en-de", BAHDANAU), write_model(tmp_path / "other", BAHDANAU)]
    first = tmp_path / "first.tsv"
    first.write_text("dog\tHund\n", encoding="utf-8")
    second = tmp_path / "a=b.tsv"
    second.write_text("dog\tKöter\n", encoding="utf-8")
    assert read_glossaries([], models) == {}
    for arguments, terms in (
        ([str(first)], {"en-de": "Hund", "other": "Hund"}),
        ([f"other={first}"], {"other": "Hund"}),
        ([f"en-de={first}", f"other={second}"], {"en-de": "Hund", "other": "Köter"}),
        ([str(second)], {"en-de": "Köter", "other": "Köter"}),
    ):
        found = read_glossaries(arguments, models)
        assert {name: glossary.terms("dog") for name, glossary in found.items()} == {
            name: (term,) for name, term in terms.items()
        }
    with pytest.raises(BadParameter, match='must name one of the models en-de, other; got "fr"'):
        read_glossaries([f"fr={first}"], models)
    with pytest.raises(BadParameter, match="must be given once per model; got several for en-de"):
        read_glossaries([str(first), f"en-de={second}"], models)
    config = (models[1] / "config.toml").read_text(encoding="utf-8")
    (models[1] / "config.toml").write_text(config.replace('target = "de"', 'target = "fr"'), encoding="utf-8")
    with pytest.raises(BadParameter, match="needs a model if several directions are served: en-de="):
        read_glossaries([str(first)], models)


def test_long_glossaries_are_read_up_to_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "terms.tsv"
    path.write_text(
        "\n" + "".join(f"word {n % 10_000}\tWort {n}|Wörter {n}\n" for n in range(10_001)), encoding="utf-8"
    )
    glossary = read_glossary(path)
    assert len(glossary) == 10_000
    assert glossary.terms("word 0 and word 7") == ("Wort 0", "Wort 7"), "the first of several entries counts"
    monkeypatch.setattr(glossaries, "MAX_ENTRIES", 100)
    with pytest.raises(DataError, match="a glossary must have at most 100 entries"):
        read_glossary(path)
