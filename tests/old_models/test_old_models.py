"""Model folders that an earlier version wrote (see `make.py`): they load, and translate to the same text and scores,
with the same attention. (How words' links are made of it may get better.)"""

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
from rnnsearch.training.progress import Together
from rnnsearch.training.run import train
from rnnsearch.translator.translation import Translation
from rnnsearch.translator.translator import Translator

HERE = Path(__file__).parent
FAMILIES: dict[str, Any] = json.loads((HERE / "parameters.json").read_text(encoding="utf-8"))


def same(found: Translation, wanted: dict[str, Any]) -> None:
    assert (found.text, list(found.tokens)) == (wanted["text"], wanted["tokens"])
    assert found.score == pytest.approx(wanted["score"], abs=1e-4)
    assert found.token_scores == pytest.approx(wanted["token_scores"], abs=1e-4)
    if wanted["attention"] is not None and found.attention is not None:
        assert found.attention == pytest.approx(np.array(wanted["attention"]), abs=1e-4)


@pytest.mark.parametrize("name", ["words", "bpe"])
def test_a_folder_translates_as_it_did(name):
    expected = json.loads((HERE / name / "expected.json").read_text(encoding="utf-8"))
    searches = {"all": {}, "greedy": {"beam": 1}, "candidates": {}}
    for search, options in searches.items():
        if search not in expected:
            continue
        translator: Translator = rnnsearch.load(
            HERE / name, precision="fp32", candidates=5 if search == "candidates" else None
        )
        sources = [row["source"] for row in expected[search]]
        for found, wanted in zip(
            translator.n_best(sources, translator.options(**options)), expected[search], strict=True
        ):
            same(found[0], wanted)
    scored = translator.score([row["source"] for row in expected["score"]], [row["text"] for row in expected["score"]])
    for found, wanted in zip(scored, expected["score"], strict=True):
        same(found, wanted)


def test_data_prepared_before_sides_had_names_are_trained_on(tmp_path):
    config = load(HERE / "words" / "config.toml", ["training.max_updates=2"])
    prepared = Prepared.open(HERE / "prepared", config)
    assert (len(prepared.train), prepared.train.names) == (288, ("en", "de"))
    for (side, first), ids in zip({"en": "the ", "de": "die "}.items(), prepared.train.row(7), strict=True):
        assert prepared.tokenizers[side].join(ids.tolist()).startswith(first)
    train(config, prepared, tmp_path / "run", Together())
    assert rnnsearch.load(tmp_path / "run").translate("the cat sees the dog.").source_words[0] == "the"


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_keep_their_names_and_shapes(name):
    shapes: dict[str, list[int]] = FAMILIES[name]["shapes"]
    config = resolve(tomllib.loads(FAMILIES[name]["run"]))
    source = shapes["source_embedding.weight"][0]
    model = build(config.model, source, shapes["target_embedding.weight"][0], None, config.objective)
    assert {key: list(value.shape) for key, value in model.named_parameters()} == shapes
