"""Translation through a third language, from Python and with `translate --pivot`; pseudo-parallel text."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rnnsearch
from rnnsearch.align.aligner import learn_aligner
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.systems.folder import save_system
from rnnsearch.translator.pivot import PivotTranslator, _route, compose_links
from rnnsearch.translator.translator import Translator
from tests.command_line import run
from tests.untrained import BAHDANAU, RNNENCDEC, TEXT, untrained_multiway, write_model

LINES = [*TEXT["en"], "", "42", "the dog sees a zebra. A cat sees the bird."]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folders of an English-German and a German-French model."""
    folder = tmp_path_factory.mktemp("pivot")
    return (
        write_model(folder / "en-de", BAHDANAU),
        write_model(folder / "de-fr", {**BAHDANAU, "embedding": 11}, languages=("de", "fr")),
    )


@pytest.fixture(scope="module")
def models(folders: tuple[Path, Path]) -> tuple[Translator, Translator]:
    first, second = folders
    return rnnsearch.load(first), rnnsearch.load(second)


def test_one_intermediate_translation_equals_two_commands(models):
    first, second = models
    through = rnnsearch.pivot(first, second)
    for x, n_best in zip(LINES, through.n_best(LINES, through.options(n_best=3)), strict=True):
        [[z]] = first.n_best([x])
        [expected] = second.n_best([z.text], second.options(n_best=3))
        assert [(y.text, y.score) for y in n_best] == [(y.text, y.score) for y in expected]
        for y, other in zip(n_best, expected, strict=True):
            assert y.log_prob == pytest.approx(z.log_prob + other.log_prob)
            assert (y.source, y.pivot, y.source_words) == (x, z.text, z.source_words)
            assert y.finished == (z.finished and other.finished)


def test_probabilities_are_summed_over_intermediate_translations(models):
    first, second = models
    through = PivotTranslator(first, second, n_best=3)
    for x, n_best in zip(TEXT["en"], through.n_best(TEXT["en"], through.options(n_best=4)), strict=True):
        [z_list] = first.n_best([x], first.options(n_best=3))
        expected: dict[str, float] = {}
        for z, y_list in zip(z_list, second.n_best([z.text for z in z_list], second.options(n_best=4)), strict=True):
            for y in y_list:
                expected[y.text] = np.logaddexp(expected.get(y.text, -math.inf), z.log_prob + y.log_prob)
        assert {y.text: y.log_prob for y in n_best}.items() <= {
            text: pytest.approx(log_prob) for text, log_prob in expected.items()
        }.items()
        assert len({y.text for y in n_best}) == len(n_best) == 4
        assert [(not y.finished, -y.score) for y in n_best] == sorted((not y.finished, -y.score) for y in n_best)
    assert through.translate(TEXT["en"][0]).text == through.n_best(TEXT["en"][:1])[0][0].text


def test_alignments_go_through_the_third_language(models):
    first, second = models
    x = TEXT["en"][0]
    y = rnnsearch.pivot(first, second).translate(x)
    z = first.translate(x)
    direct = second.translate(z.text)
    assert y.attention is None and y.aligner_links is None
    np.testing.assert_allclose(y.word_attention, direct.word_attention @ z.word_attention, rtol=1e-6)
    assert y.alignment == y.attended == compose_links(z.attended, direct.attended)
    # Each word is one token here, and links do not include EOS.
    assert y.token_alignment == compose_links(z.attended_tokens, direct.attended_tokens)
    assert y.token_words == direct.token_words
    assert y._repr_html_()


def test_links_compose():
    assert compose_links([(0, 1), (1, 1), (2, 0)], [(1, 5), (1, 4), (3, 0)]) == ((0, 4), (0, 5), (1, 4), (1, 5))
    assert compose_links([], [(0, 0)]) == ()


def test_aligners_are_preferred_to_attention(models):
    first, second = models
    aligner = learn_aligner(TEXT["en"], TEXT["de"], "none")
    aligned = Translator(first.system, first.unknown, None, aligner)
    y = rnnsearch.pivot(aligned, second).translate(TEXT["en"][1])
    z = aligned.translate(TEXT["en"][1])
    assert y.alignment == compose_links(z.alignment, second.translate(z.text).alignment)


def test_protected_text_is_preserved_by_both_models(models):
    first, second = models
    through = rnnsearch.pivot(first, second)
    through.protect = ("placeholders", "urls")
    try:
        texts = ["the dog sees {name} and a cat.", "see https://example.org/x for the dog."]
        for text, protected in zip(texts, ("{name}", "https://example.org/x"), strict=True):
            assert through.translate(text).text.count(protected) == 1
    finally:
        through.protect = ()


def test_texts_of_several_sentences_are_joined(models):
    through = rnnsearch.pivot(*models)
    text = "The dog sees a big bird. The small cat sees the dog."
    whole = through.translate_text(text)
    assert [one.source for one in whole.sentences] == text.replace(". T", ".|T").split("|")
    assert all(one.pivot is not None for one in whole.sentences)
    assert through.translate_text([text])[0].text == whole.text


def test_unsuitable_models_are_rejected(models, folders):
    first, second = models
    with pytest.raises(ModelError, match="must translate from fr, into which the first one translates; got en to de"):
        PivotTranslator(second, first)
    with pytest.raises(ModelError, match=r"no directions of the models lead from any .* have de-fr, en-de"):
        rnnsearch.pivot(second, first)
    with pytest.raises(ModelError, match="models lead from en to any language to es; they have en-de, de-fr"):
        rnnsearch.pivot(first, second, source="en", target="es")
    with pytest.raises(RnnsearchError, match="n_best must be at least 1; got 0"):
        rnnsearch.pivot(first, second, n_best=0)
    with pytest.raises(RnnsearchError, match=r"beam must be at least n_best \(4\); got 2"):
        rnnsearch.pivot(first, second, n_best=4, beam=2)
    assert repr(rnnsearch.pivot(*folders)).startswith("<PivotTranslator en to de to fr, 0.0 million parameters>")


def test_directions_of_one_system_lead_through_a_language():
    multi = [("de", "en"), ("en", "de"), ("en", "fr"), ("es", "en"), ("de", "es"), ("es", "fr")]
    assert _route(multi, multi, "de", "en", "fr") == (("de", "en"), ("en", "fr"))
    assert _route(multi, multi, "es", None, "de") == (("es", "en"), ("en", "de"))
    assert _route(multi, multi, "de", "en", "de") == (("de", "en"), ("en", "de"))
    two = multi[:3]
    assert _route(two, two, "de", "en", None) == (("de", "en"), ("en", "fr"))
    with pytest.raises(ModelError, match=r"only lead back into the source language \(de-en-de\); choose it as"):
        _route(two[:2], two[:2], "de", "en", None)
    assert _route(two[:2], two[:2], "de", "en", "de") == (("de", "en"), ("en", "de"))
    assert _route(two[:1], two[1:2], None, None, None) == (("de", "en"), ("en", "de"))
    with pytest.raises(ModelError, match=r"lead through a third language \(de-en-fr, de-es-fr\); choose source"):
        _route(multi, multi, "de", None, "fr")


def test_multiway_model_translates_through_one_of_its_languages(tmp_path):
    save_system(tmp_path / "multi", untrained_multiway("en-de", "fr-de", "de-fr"))
    text = "the dog sees a big bird."
    through = rnnsearch.pivot(tmp_path / "multi", source="en", target="fr")
    multi = rnnsearch.load(tmp_path / "multi")
    expected = multi.translate(multi.translate(text, source="en", target="de").text, source="de", target="fr").text
    assert through.translate(text).text == expected
    options = ["--from", "en", "--to", "fr", "--pivot-language", "de"]
    assert run("translate", tmp_path / "multi", *options, stdin=f"{text}\n").lines == [expected]


def test_blocked_and_cut_off_translations(models):
    first, second = models
    through = rnnsearch.pivot(first, second)
    through._first_options = replace(through._first_options, max_ratio=0.0, max_extra=1)
    y = through.translate(TEXT["en"][0])
    assert not y.finished and len(y.pivot.split()) <= 1


@pytest.fixture
def command(folders, tmp_path):
    """Return a function that translates `LINES` through German."""
    source = tmp_path / "in.en"
    source.write_text("".join(f"{line}\n" for line in LINES))

    def translate(*options: object):
        return run("translate", folders[0], "--pivot", folders[1], "-i", source, *options)

    return translate


def test_command_translates_line_by_line(command, models, tmp_path):
    result = command("--alignments", tmp_path / "links")
    assert result.code == 0, result.err
    through = rnnsearch.pivot(*models)
    assert result.lines == [through.translate_text(line).text if line else "" for line in LINES]
    assert len((tmp_path / "links").read_text().splitlines()) == len(LINES)


def test_command_writes_the_intermediate_translation(command):
    rows = [json.loads(line) for line in command("--format", "json", "--n-best", 2, "--pivot-n-best", 3).lines]
    assert len(rows) == len(LINES)
    assert rows[0]["pivot"] and len(rows[0]["n_best"]) == 2
    assert rows[-1]["sentences"][1]["pivot"]


def test_command_in_shards_equals_a_stream(command, tmp_path):
    result = command("--engine", "local", "-o", tmp_path / "out.fr")
    assert result.code == 0, result.err
    assert (tmp_path / "out.fr").read_text().splitlines() == command().lines


def test_command_translates_documents(folders, tmp_path):
    (tmp_path / "in.html").write_text("<p>the <b>dog</b> sees a bird.</p>\n")
    result = run("translate", folders[0], "--pivot", folders[1], "-i", tmp_path / "in.html")
    assert result.code == 0, result.err
    assert result.out.startswith("<p>") and "</b>" in result.out


def test_command_rejects_options_of_single_models(command, folders, tmp_path):
    (tmp_path / "terms.tsv").write_text("dog\tchien\n")
    result = command("--glossary", tmp_path / "terms.tsv")
    assert result.code == 2 and "--glossary cannot be combined with --pivot" in result.err
    result = run("translate", folders[0], "--pivot-n-best", 3, stdin="x\n")
    assert result.code == 2 and "--pivot-n-best has no effect without --pivot or" in result.err
    result = run("translate", folders[1], "--pivot", folders[1], stdin="x\n")
    assert result.code == 1 and "no directions of the models lead" in result.err


def test_model_without_attention_needs_no_alignments(folders, tmp_path):
    second = write_model(tmp_path / "de-fr", RNNENCDEC, languages=("de", "fr"))
    result = run("translate", folders[0], "--pivot", second, stdin="the dog sees a bird.\n")
    assert result.code == 0 and len(result.lines) == 1
    result = run("translate", folders[0], "--pivot", second, "--alignments", tmp_path / "links", stdin="the dog\n")
    assert result.code == 1 and "it has no attention, either" in result.err


def test_pseudo_parallel_text_is_translated_text_beside_its_target(models, folders, tmp_path):
    """English-French pairs become German-French ones."""
    english, french = tmp_path / "train.en", tmp_path / "train.fr"
    rows = [*zip(LINES, [*TEXT["fr"], "", "42", "le chien\tvoit."], strict=True)]
    english.write_text("".join(f"{en}\n" for en, _ in rows))
    french.write_text("".join(f"{fr}\n" for _, fr in rows))
    result = run("synthesise", folders[0], english, french, "-o", tmp_path / "de-fr.tsv", "--tag", "<s1>")
    assert result.code == 0, result.err
    assert "1 lines have no translation" in result.err
    expected = []
    for en, fr in rows:
        german = models[0].translate(en).text
        expected.append((f"<s1> {german}" if german else "", fr.replace("\t", " ")))
    lines = (tmp_path / "de-fr.tsv").read_text().splitlines()
    assert [tuple(line.split("\t")) for line in lines] == expected
    french.write_text("une ligne\n")
    result = run("synthesise", folders[0], english, french, "-o", tmp_path / "other.tsv")
    assert result.code == 1 and "train.fr" in result.err and not (tmp_path / "other.tsv").exists()
    result = run("synthesise", folders[0], english, french, "-o", french)
    assert result.code == 2
