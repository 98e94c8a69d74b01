"""Inline terms, from the run file to translations that contain the terms of a glossary."""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import rnnsearch
from rnnsearch.errors import ModelError
from rnnsearch.text.terms import Glossary

pytestmark = pytest.mark.xdist_group("inline_terms")
"""The models are trained once, by one test process."""

RUN = """
folder = "model"
[data]
source = "en"
target = "de"
train = ["train.en|train.de"]
dev = "dev.en|dev.de"
test_size = 0
[data.cleaning]
drop_duplicates = false
[text]
type = "bpe"
vocabulary = 300
inline_terms = { dictionary = "words.tsv", share = 1.0 }
[model]
embedding = 32
encoder = { type = "bidirectional", cell = "gru", size = 32 }
attention = { score = "additive", size = 32 }
decoder = { type = "bahdanau", cell = "gru", size = 48, maxout = 32 }
[training]
batch = { sentences = 24 }
optimiser = { type = "adam", learning_rate = 1e-2 }
max_updates = 300
evaluate_every = 150
[search]
beam = 2
"""
ENGLISH = ["dog", "cat", "bird", "horse"]
GERMAN = ["Hund", "Katze", "Vogel", "Pferd"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a corpus in which every animal is translated by every other, so that only a term determines which."""
    folder = tmp_path_factory.mktemp("animals")
    pairs = list(product(ENGLISH, GERMAN))
    rows = [(f"we see a {e}.", f"wir sehen {g}.") for e, g in pairs] + [(f"a {e} here", f"hier {g}") for e, g in pairs]
    for side, language in enumerate(("en", "de")):
        lines = "".join(f"{row[side]}\n" for row in rows)
        (folder / f"train.{language}").write_text(lines * 6, encoding="utf-8")
        (folder / f"dev.{language}").write_text(lines, encoding="utf-8")
    (folder / "words.tsv").write_text("".join(f"{e}\t{g}\n" for e, g in pairs), encoding="utf-8")
    (folder / "run.toml").write_text(RUN)
    return folder


@pytest.fixture(scope="module")
def model(cli: Any, corpus: Path) -> Path:
    result = cli("train", corpus / "run.toml")
    assert result.code == 0, result.err
    return corpus / "model"


def test_glossary_terms_are_used_in_translations(cli, model, tmp_path):
    terms = tmp_path / "terms.tsv"
    terms.write_text("dog\tPferd\ncat\tVogel\nmouse\tMaus\n", encoding="utf-8")
    lines = "we see a dog.\n\na cat here\nwe see a bird.\n"
    for beam in ("1", "2"):
        result = cli("translate", model, "--glossary", terms, "--beam", beam, stdin=lines)
        assert result.code == 0, result.err
        assert result.lines[:3] == ["wir sehen Pferd.", "", "hier Vogel"] and len(result.lines) == 4
        assert "2 glossary terms, 2 unchanged in the translations" in result.err
    [row, *_] = cli("translate", model, "--glossary", terms, "--format", "json", stdin=lines).rows
    assert row["source"] == "we see a dog." and "<0x02>" in row["source_tokens"]
    assert [3, 2] in row["alignment"], "an inline term is aligned with the word that it replaces"
    forced = cli("translate", model, "--glossary", terms, "--force-terms", "--beam", "4", stdin=lines)
    assert forced.lines[0] == "wir sehen Pferd." and "glossary terms" not in forced.err
    [tagged] = cli("translate", model, "--glossary", terms, "--tags", stdin="a <b>cat</b> here\n").lines
    assert re.sub("</?b>", "", tagged) == "hier Vogel" and tagged.count("<b>") == tagged.count("</b>") == 1


def test_inline_terms_in_python(model):
    translator = rnnsearch.load(model)
    text = translator.with_terms("we see a dog.", Glossary({"dog": "Katze"}))
    translation = translator.translate(text)
    assert (translation.source, translation.text) == ("we see a dog.", "wir sehen Katze.")
    assert translation.attention.shape == (len(translation.tokens), len(translation.source_tokens))


def test_errors(cli, model, corpus, tmp_path):
    terms = tmp_path / "terms.tsv"
    terms.write_text("dog\tPferd\n")
    error = cli("translate", model, "--force-terms", stdin="x\n")
    assert error.code == 2 and "--force-terms needs a --glossary" in error.err
    settings = ["folder=other", "text.inline_terms=unset", "training.max_updates=2", "training.evaluate_every=2"]
    assert cli("train", corpus / "run.toml", "--set", *settings).code == 0
    with pytest.raises(ModelError, match="need a model trained with"):
        rnnsearch.load(corpus / "other").with_terms("a dog", Glossary({}))
    settings_without_dictionary = ["folder=missing", "text.inline_terms.dictionary=nowhere.tsv"]
    result = cli("train", corpus / "run.toml", "--set", *settings_without_dictionary)
    assert result.code == 1 and "nowhere.tsv" in result.err


def test_prepared_data_do_not_depend_on_inline_terms(model):
    facts = json.loads((model / "data" / "prepared.json").read_text())
    assert "inline_terms" not in facts["settings"]["text"]
