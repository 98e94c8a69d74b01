"""Warm starts of multi-way models from parents with other languages and tokens, multi-way or bilingual."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rnnsearch.config import resolve
from rnnsearch.data.batch import Direction
from rnnsearch.errors import ConfigError
from rnnsearch.systems.folder import save_system
from rnnsearch.systems.multiway import MultiwaySystem
from rnnsearch.systems.warm_start import load_initial_weights
from rnnsearch.text.words import train_words
from rnnsearch.training.run import check
from rnnsearch.utils.weights import named_weights
from tests.training.test_transfer import assert_rows_by_token
from tests.untrained import BAHDANAU, TEXT, untrained, untrained_multiway

OTHER_TEXT = {**TEXT, "de": [*TEXT["de"], "eine neue Zeile hat andere Wörter"]}
"""Text that gives German other tokens, in another order."""


def load_into(
    child: MultiwaySystem, parent: Path, transfer: dict[str, Any] | None = None
) -> tuple[MultiwaySystem, dict[str, Tensor], str]:
    """Load a parent into a child; return the child, its weights before, and the message."""
    tables = child.config.model_dump(mode="json", exclude_none=True)
    tables["training"] |= {"begin_from": str(parent), **({} if transfer is None else {"transfer": transfer})}
    child = replace(child, config=resolve(tables))
    assert not [problem for problem in check(child.config) if "transfer" in problem]
    fresh = {name: tensor.detach().clone() for name, tensor in named_weights(child.model).items()}
    [message] = load_initial_weights(child)
    return child, fresh, message


def with_other_tokens(*directions: str, seed: int = 3) -> MultiwaySystem:
    config = untrained_multiway(*directions).config
    tokenizers = {language: train_words(OTHER_TEXT[language], 340, 1) for language in OTHER_TEXT}
    return MultiwaySystem.make(config, tokenizers, seed)


def test_rows_of_common_languages_follow_their_tokens(tmp_path: Path):
    parent = untrained_multiway("en-de", "de-en")
    save_system(tmp_path / "parent", parent)
    transfer = {"source": "token", "target": "token"}
    child, fresh, message = load_into(with_other_tokens("en-de", "de-en", "fr-de"), tmp_path / "parent", transfer)
    old, new = named_weights(parent.model), named_weights(child.model)
    tables = ["source_embeddings.de.weight", "target_embeddings.de.weight", "outputs.de.weight", "outputs.de.bias"]
    for name in tables:
        assert_rows_by_token(child.tokenizers["de"], parent.tokenizers["de"], new[name], old[name], fresh[name])
    assert all(torch.equal(new[name], old[name]) for name in old.keys() - {*tables})
    assert all(torch.equal(new[name], fresh[name]) for name in new.keys() - old.keys())
    size = len(child.tokenizers["de"])
    common = len({*child.tokenizers["de"].names()} & {*parent.tokenizers["de"].names()})
    rows = f"{size} tokens, {common} by their characters, {size - common} new"
    num_new = sum(new[name].numel() for name in new.keys() - old.keys())
    assert message == (
        f"transfer from {tmp_path / 'parent'}; source (de): {rows}; target (de): {rows}; "
        f"{num_new:,} new parameters are initialised as usual"
    )
    for mapping in (None, {"source": "token"}):
        with pytest.raises(
            ConfigError, match=r'transfer.(source|target): must be "token" or "random", or text.tokenizers'
        ):
            load_into(with_other_tokens("en-de", "de-en"), tmp_path / "parent", mapping)


@pytest.mark.parametrize("mapping", ["token", "random"])
def test_new_language_starts_from_another_language_of_the_parent(tmp_path: Path, mapping: str):
    parent = untrained_multiway("en-de", "de-en")
    save_system(tmp_path / "parent", parent)
    transfer = {"source": mapping, "languages": {"fr": "en"}}
    child, fresh, message = load_into(untrained_multiway("en-de", "fr-de", seed=3), tmp_path / "parent", transfer)
    old, new = named_weights(parent.model), named_weights(child.model)
    for name in old:
        if name.startswith("encoders.en."):
            assert torch.equal(new[name.replace(".en.", ".fr.")], old[name])
    table = "source_embeddings.en.weight"
    # The rows of the language itself stay.
    assert torch.equal(new[table], old[table])
    french = new["source_embeddings.fr.weight"]
    if mapping == "token":
        tokenizers = child.tokenizers["fr"], parent.tokenizers["en"]
        assert_rows_by_token(*tokenizers, french, old[table], fresh["source_embeddings.fr.weight"])
    else:
        rows = {tuple(row) for row in old[table].tolist()}
        assert sum(tuple(row) in rows for row in french.tolist()) == len(french)
    assert "; source (en to fr): " in message
    assert all(torch.equal(new[name], old[name]) for name in old.keys() & new.keys())


def test_multiway_model_starts_from_a_bilingual_model(tmp_path: Path):
    parent = untrained(BAHDANAU, languages=("en", "de"))
    save_system(tmp_path / "parent", parent)
    child, fresh, message = load_into(untrained_multiway("en-de", "fr-de", seed=3), tmp_path / "parent")
    view = child.model.view(Direction(("en",), "de"))
    expected = named_weights(parent.model)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in named_weights(view).items())
    french = {name for name in fresh if ".fr." in name}
    assert french
    assert all(torch.equal(named_weights(child.model)[name], fresh[name]) for name in french)
    assert message.startswith(f"warm start from {tmp_path / 'parent'}; ")
    transfer = {"languages": {"fr": "en"}, "source": "token", "reinitialise": ["outputs.de"], "freeze": ["attention"]}
    child, fresh, _ = load_into(untrained_multiway("en-de", "fr-de", seed=3), tmp_path / "parent", transfer)
    new = named_weights(child.model)
    assert torch.equal(new["outputs.de.weight"], fresh["outputs.de.weight"])
    assert torch.equal(new["encoders.fr.forward_cell.input.weight"], expected["encoder.forward_cell.input.weight"])


def test_attention_is_that_of_the_parent_without_common_target_languages(tmp_path: Path):
    save_system(tmp_path / "parent", untrained(BAHDANAU, languages=("de", "en")))
    child, _, _ = load_into(untrained_multiway("en-de", "fr-de", seed=3), tmp_path / "parent")
    expected = named_weights(untrained(BAHDANAU, languages=("de", "en")).model)
    for name, tensor in named_weights(child.model.attention).items():
        assert torch.equal(tensor, expected[f"decoder.attention.{name}"])


def test_shared_modules_are_those_of_the_parent_for_other_languages(tmp_path: Path):
    sharing = {"encoders": "all"}
    parent = untrained_multiway("en-de", text_type="bpe", sharing=sharing)
    save_system(tmp_path / "parent", parent)
    child, _, _ = load_into(untrained_multiway("fr-de", text_type="bpe", sharing=sharing, seed=3), tmp_path / "parent")
    old, new = named_weights(parent.model), named_weights(child.model)
    assert old.keys() == new.keys()
    assert all(torch.equal(new[name], old[name]) for name in old)


def test_languages_of_the_parent_must_exist(tmp_path: Path):
    save_system(tmp_path / "parent", untrained_multiway("en-de"))
    for languages, message in {
        ("fr", "es"): r"languages.fr: must be a language of .* \(en as source; de as target\) on a side .*; got \"es\"",
        ("fr", "de"): r"languages.fr: must be a language of .* \(en as source; de as target\) on a side .*; got \"de\"",
        ("es", "en"): r"languages: must have names of languages of data.directions; got es",
    }.items():
        with pytest.raises(ConfigError, match=message):
            load_into(untrained_multiway("fr-de", seed=3), tmp_path / "parent", {"languages": dict([languages])})


def test_tags_of_a_bilingual_parent_must_be_those_of_the_child(tmp_path: Path):
    sharing = {"encoders": "all", "decoders": "all"}
    parent = untrained_multiway("en-de", "de-en", text_type="bpe", sharing=sharing)
    save_system(tmp_path / "parent", parent.select(Direction(("de",), "en")))
    child, _, _ = load_into(
        untrained_multiway("en-de", "de-en", text_type="bpe", sharing=sharing, seed=3), tmp_path / "parent"
    )
    old, new = named_weights(parent.model), named_weights(child.model)
    assert all(torch.equal(new[name], old[name]) for name in old)
    with pytest.raises(ConfigError, match=r"in an order in which en has the tag <0x05> of .*; got <0x04>"):
        load_into(untrained_multiway("de-en", text_type="bpe", sharing=sharing, seed=3), tmp_path / "parent")


def test_other_options_of_the_model_are_an_error(tmp_path: Path):
    save_system(tmp_path / "parent", untrained({**BAHDANAU, "embedding": 13}))
    with pytest.raises(ConfigError, match=r"got another model.embedding"):
        load_into(untrained_multiway("en-de", seed=3), tmp_path / "parent")
