"""Models whose tokenizers normalise: noisy and clean text have the same translation, in package and runtime."""

import pytest

from rnnsearch.cli.inspect import print_model
from rnnsearch.errors import ConfigError
from rnnsearch.export.engine_file import export
from rnnsearch.runtime import load as load_engine
from rnnsearch.text.normalization import Normalization
from rnnsearch.text.tokenizer import Tokenizer, tokenizer_file
from rnnsearch.translator.loading import load
from tests.engines import require_native_code
from tests.untrained import BAHDANAU, write_model

CLEAN = "the small cat sees a bird."
NOISY = [f"\ufeff {CLEAN}", CLEAN.replace(" ", "\u00a0"), "the  small ca\u00adt sees\u200b a bird. "]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("normalised") / "model", BAHDANAU, "bpe")


@pytest.fixture(scope="module")
def normalised_folder(tmp_path_factory):
    """Return a model whose target text has the spaces of French."""
    folder = write_model(tmp_path_factory.mktemp("normalised") / "french", BAHDANAU, "bpe")
    for language, rules in (("en", "en"), ("de", "fr")):
        path = folder / tokenizer_file(language)
        Tokenizer.load(path).normalizing(Normalization.of_language("standard", rules)).save(path)
    return folder


def test_noisy_text_has_the_translation_of_clean_text(folder):
    translator = load(folder, normalize="standard")
    clean, *noisy = translator.translate([CLEAN, *NOISY])
    assert [(one.text, one.score) for one in noisy] == [(clean.text, pytest.approx(clean.score))] * len(NOISY)
    assert [one.source for one in noisy] == NOISY
    old = load(folder)
    assert old.source.normalization.level == "none"
    assert len({len(text.ids) for text in old.segment([CLEAN, NOISY[1]])}) == 2


def test_sentences_in_capitals_have_the_translation_in_capitals(folder):
    translator = load(folder, normalize="standard")
    ordinary, shouted = translator.translate(["The small cat sees a bird.", "THE SMALL CAT SEES A BIRD."])
    expected = translator.source.segment(["The small cat sees a bird."])[0].tokens
    assert [token.lower() for token in shouted.source_tokens[:-1]] == [token.lower() for token in expected]
    if shouted.source_tokens == ordinary.source_tokens:
        assert shouted.text == ordinary.text.upper()
    assert shouted.text == shouted.text.upper()
    stream = translator.stream("THE SMALL CAT SEES A BIRD.")
    assert all(text == text.upper() for text in stream)


def test_prefixes_are_exact(normalised_folder):
    translator = load(normalised_folder)
    prefixes = ["the\u00a0cat !", "\ufeffthe  c", "THE CAT", ""]
    for text in (CLEAN, CLEAN.upper()):
        n_best_lists = translator.n_best([text] * 4, translator.options(max_length=20), prefixes=prefixes)
        for prefix, [translation] in zip(prefixes, n_best_lists, strict=True):
            assert translation.blocked or translation.text.startswith(prefix)


def test_runtime_equals_the_package(normalised_folder, tmp_path):
    require_native_code()
    export(normalised_folder, tmp_path / "model.rnn", "fp32")
    runtime = load_engine(tmp_path / "model.rnn")
    translator = load(normalised_folder, precision="fp32")
    texts = [CLEAN, *NOISY, CLEAN.upper(), "The Small Cat Sees It", "\u00ad"]
    for own, other in zip(runtime.translate(texts), translator.translate(texts), strict=True):
        assert (own.text, own.tokens, own.source_tokens, own.words) == (
            other.text,
            other.tokens,
            other.source_tokens,
            other.words,
        )


def test_inspect_shows_the_normalisation(normalised_folder, folder, capsys):
    print_model(normalised_folder, with_config=False)
    assert "Normalisation" in capsys.readouterr().out
    print_model(folder, with_config=False)
    assert "Normalisation" not in capsys.readouterr().out


def test_unknown_levels_are_rejected(folder):
    with pytest.raises(ConfigError, match=r'normalize must be one of .*; got "strict"'):
        load(folder, normalize="strict")
