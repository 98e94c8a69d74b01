"""Multi-way models: one attention for all languages, and separate encoders and decoders."""

from typing import Any

import pytest
import torch

from rnnsearch.data.batch import Direction
from rnnsearch.data.batches import make_batch
from rnnsearch.errors import ConfigError
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.multiway import LanguageModules, count_language_parameters
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.systems.multiway import MultiwaySystem
from rnnsearch.systems.translation import TranslationSystem
from tests.models.reference import Parameters
from tests.models.test_translation_model import PAIRS, config_of, negative_log_likelihood
from tests.untrained import BAHDANAU, OTHER_FAMILIES, untrained, untrained_multiway

EN_DE = Direction(("en",), "de")
FR_DE = Direction(("fr",), "de")
EN_FR = Direction(("en",), "fr")


def direction_parameters(p: Parameters, source: str, target: str) -> Parameters:
    """Return the parameters of a direction by their names in a bilingual model; the attention is that of all."""
    names = {
        f"source_embeddings.{source}": "source_embedding",
        f"encoders.{source}": "encoder",
        "attention": "decoder.attention",
        f"target_embeddings.{target}": "target_embedding",
        f"decoders.{target}": "decoder",
        f"outputs.{target}": "output",
    }
    result = {}
    for prefix, bilingual in names.items():
        result |= {f"{bilingual}{k.removeprefix(prefix)}": v for k, v in p.items() if k.startswith(f"{prefix}.")}
    return result


@pytest.mark.parametrize("direction", [EN_DE, FR_DE, EN_FR], ids=lambda d: d.name)
def test_nll_of_a_direction_equals_the_equations_with_the_shared_attention(direction, drawn):
    config = config_of()
    tables = config.model_dump(mode="json", exclude_none=True)
    model, p = drawn(untrained_multiway("en-de", "fr-de", "en-fr", model=tables).model)
    (source,) = direction.sources
    bilingual = direction_parameters(p, source, direction.target)
    expected = sum(negative_log_likelihood(bilingual, config, *pair) for pair in PAIRS)
    loss = Likelihood()(model.view(direction), make_batch(PAIRS, [0, 1, 2], direction), None)
    assert loss.nll.item() == pytest.approx(expected, rel=1e-10)


def test_batch_of_one_direction_gives_other_languages_no_gradient():
    system = untrained_multiway("en-de", "fr-de", "en-fr")
    loss = system.objective()(system.model, make_batch(PAIRS, [0, 1, 2], FR_DE), BatchRng(1))
    loss.total.backward()
    with_gradient = {name.rpartition(".weight")[0] for name, p in system.model.named_parameters() if p.grad is not None}
    languages = {".".join(name.split(".")[:2]) for name in with_gradient if not name.startswith("attention")}
    assert languages - {""} == {
        "source_embeddings.fr",
        "encoders.fr",
        "target_embeddings.de",
        "decoders.de",
        "outputs.de",
    }
    assert all(p.grad is not None for p in system.model.attention.parameters())


def test_model_of_one_direction_has_the_weights_and_the_loss_of_a_bilingual_model():
    multiway = untrained_multiway("en-de")
    bilingual = untrained(BAHDANAU)
    view = multiway.model.view(EN_DE)
    expected = dict(bilingual.model.named_parameters())
    assert list(expected) == [name for name, _ in view.named_parameters()]
    for name, parameter in view.named_parameters():
        assert torch.equal(parameter, expected[name]), name
    batch = make_batch(PAIRS, [0, 1, 2], EN_DE)
    loss = multiway.objective()(multiway.model, batch, BatchRng(1)).total
    assert torch.equal(loss, bilingual.objective()(bilingual.model, batch, BatchRng(1)).total)
    # Norms and other sums over parameters are the same bit for bit only in the same order.
    [group] = multiway.parameter_groups()
    assert [p.shape for p in group.parameters] == [p.shape for p in bilingual.model.parameters()]


def test_further_language_does_not_change_the_initial_weights_of_others():
    few = dict(untrained_multiway("en-de").model.named_parameters())
    many = dict(untrained_multiway("en-de", "fr-de", "de-fr").model.named_parameters())
    for name, parameter in few.items():
        assert torch.equal(parameter, many[name]), name


def test_number_of_parameters_is_linear_in_the_languages():
    sizes: list[int] = []
    for names in (["en-de"], ["en-de", "fr-de"], ["en-de", "fr-de", "en-fr"], ["en-de", "fr-de", "en-fr", "fr-en"]):
        system = untrained_multiway(*names)
        counts = count_language_parameters(system.model)
        attention = sum(parameter.numel() for parameter in system.model.attention.parameters())
        assert system.num_parameters == attention + sum(sum(by_language.values()) for by_language in counts.values())
        sizes.append(system.num_parameters)
    # A further direction between known languages only adds a decoder or nothing.
    with_all = untrained_multiway("en-de", "fr-de", "en-fr", "fr-en", "de-en", "de-fr").num_parameters
    source = count_language_parameters(untrained_multiway("de-en").model)["source"]["de"]
    assert with_all == sizes[-1] + source
    assert untrained_multiway("en-de", "en-fr", "fr-de", "fr-en").num_parameters == sizes[-1]


@pytest.mark.parametrize("family", ["luong", "cohn", "bideep", "ssru"])
def test_decoders_of_every_family_share_their_attention(family: str):
    system = untrained_multiway("en-de", "en-fr", "fr-de", model=OTHER_FAMILIES[family])
    attention = {id(parameter) for parameter in system.model.attention.parameters()}
    stored = {name for name, _ in system.model.named_parameters()}
    assert attention
    assert not any(".attention." in name for name in stored)
    for view in system.model.views:
        assert attention <= {id(parameter) for parameter in view.decoder.parameters()}
        assert Likelihood()(view, make_batch(PAIRS, [0, 1, 2]), None).nll.isfinite()


def test_views_share_their_modules():
    system = untrained_multiway("en-de", "fr-de", "en-fr")
    views = [system.model.view(direction) for direction in (EN_DE, FR_DE, EN_FR)]
    assert views[0].encoder is views[2].encoder is not views[1].encoder
    assert views[0].decoder is views[1].decoder is not views[2].decoder
    assert isinstance(system.select(EN_DE), TranslationSystem)
    assert system.select(EN_DE).model is views[0]


def test_encoder_of_all_source_languages_is_stored_once():
    system = untrained_multiway("en-de", "fr-de", "de-fr", text_type="bpe", sharing={"encoders": "all"})
    names = {name.partition(".")[0] for name, _ in system.model.named_parameters()}
    assert names == {"source_embedding", "encoder", "attention", "target_embeddings", "decoders", "outputs"}
    views = system.model.views
    assert views[0].encoder is views[1].encoder is views[2].encoder
    assert views[0].source_embedding is views[1].source_embedding
    assert views[0].decoder is views[1].decoder is not views[2].decoder


def test_encoder_of_all_source_languages_has_an_embedding_per_vocabulary():
    tokenizers = untrained_multiway("en-de", text_type="bpe").tokenizers
    config = untrained_multiway("en-de", "fr-de", text_type="bpe", sharing={"encoders": "all"}).config
    system = MultiwaySystem.make(config, tokenizers, 7)
    views = system.model.views
    assert views[0].encoder is views[1].encoder
    assert views[0].source_embedding is not views[1].source_embedding
    assert {"source_embeddings.en.weight", "source_embeddings.fr.weight"} <= dict(
        system.model.named_parameters()
    ).keys()


def test_model_that_shares_everything_has_the_size_of_a_bilingual_model():
    sharing = {"encoders": "all", "decoders": "all"}
    few, many = (
        untrained_multiway(*names, text_type="bpe", sharing=sharing)
        for names in (("en-de",), ("en-de", "fr-de", "de-fr", "en-fr"))
    )
    assert few.num_parameters == many.num_parameters
    assert count_language_parameters(many.model)["source"] == {"en": 0, "fr": 0, "de": 0}
    # Directions into different languages differ in the tag only.
    german, french = (many.select(Direction(("en",), target)) for target in ("de", "fr"))
    assert german.model.decoder is french.model.decoder
    [to_german], [to_french] = (system.segment_sources(["the cat"]) for system in (german, french))
    assert to_german.spelled_ids[1:] == to_french.spelled_ids[1:]
    assert to_german.spelled_ids[0] != to_french.spelled_ids[0]


def test_decoder_of_all_languages_needs_one_vocabulary():
    config = untrained_multiway("en-de", "de-fr", text_type="bpe", sharing={"decoders": "all"}).config
    with pytest.raises(ConfigError, match="needs target languages with the same vocabulary"):
        MultiwaySystem.make(config, untrained_multiway("en-de", text_type="bpe").tokenizers, 7)


def test_modules_of_languages_that_are_named_like_methods():
    modules: dict[str, Any] = {"pop": torch.nn.Linear(1, 1), "get": torch.nn.Linear(1, 1), "cpu": torch.nn.Linear(1, 1)}
    names = [name for name, _ in LanguageModules(modules).named_parameters()]
    assert names == ["pop.weight", "pop.bias", "get.weight", "get.bias", "cpu.weight", "cpu.bias"]
