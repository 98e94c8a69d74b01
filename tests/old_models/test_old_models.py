"""Model folders written by an earlier version (see `make.py`) load and give the same texts, scores and attention.

How word alignments are derived from attention may change.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rnnsearch
from rnnsearch.config import load, resolve
from rnnsearch.data.prepared import Prepared
from rnnsearch.systems.translation import build
from rnnsearch.training.progress import ReporterGroup
from rnnsearch.training.run import train
from rnnsearch.translator.translation import Translation
from rnnsearch.translator.translator import Translator

HERE = Path(__file__).parent
FAMILIES: dict[str, Any] = json.loads((HERE / "parameters.json").read_text(encoding="utf-8"))


def assert_equal(translation: Translation, expected: dict[str, Any]) -> None:
    assert (translation.text, list(translation.tokens)) == (expected["text"], expected["tokens"])
    assert translation.score == pytest.approx(expected["score"], abs=1e-4)
    assert translation.token_scores == pytest.approx(expected["token_scores"], abs=1e-4)
    if expected["attention"] is not None and translation.attention is not None:
        assert translation.attention == pytest.approx(np.array(expected["attention"]), abs=1e-4)


@pytest.mark.parametrize("name", ["words", "bpe"])
def test_old_folder_gives_the_same_translations(name):
    expected = json.loads((HERE / name / "expected.json").read_text(encoding="utf-8"))
    searches = {"all": {}, "greedy": {"beam": 1}, "candidates": {}}
    for search, options in searches.items():
        if search not in expected:
            continue
        translator: Translator = rnnsearch.load(
            HERE / name, precision="fp32", candidates=5 if search == "candidates" else None
        )
        sources = [row["source"] for row in expected[search]]
        n_best_lists = translator.n_best(sources, translator.options(**options))
        for n_best, row in zip(n_best_lists, expected[search], strict=True):
            assert_equal(n_best[0], row)
    scored = translator.score([row["source"] for row in expected["score"]], [row["text"] for row in expected["score"]])
    for translation, row in zip(scored, expected["score"], strict=True):
        assert_equal(translation, row)


def test_data_with_streams_named_source_and_target_can_be_used(tmp_path):
    config = load(HERE / "words" / "config.toml", ["training.max_updates=2"])
    prepared = Prepared.open(HERE / "prepared", config)
    assert (len(prepared.train), prepared.train.names) == (288, ("en", "de"))
    for (language, start), ids in zip({"en": "the ", "de": "die "}.items(), prepared.train.row(7), strict=True):
        assert prepared.tokenizers[language].join(ids.tolist()).startswith(start)
    train(config, prepared, tmp_path / "run", ReporterGroup())
    assert rnnsearch.load(tmp_path / "run").translate("the cat sees the dog.").source_words[0] == "the"


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_keep_their_names_and_shapes(name):
    shapes: dict[str, list[int]] = FAMILIES[name]["shapes"]
    config = resolve(tomllib.loads(FAMILIES[name]["run"]))
    source = shapes["source_embedding.weight"][0]
    model = build(config.model, source, shapes["target_embedding.weight"][0], None, config.objective)
    assert {key: list(value.shape) for key, value in model.named_parameters()} == shapes
