"""Multi-way models as a user sees them: one folder, several directions, each like a bilingual model."""

from pathlib import Path

import pytest

import rnnsearch
from rnnsearch.cli.train import next_command
from rnnsearch.data.batch import Direction
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.systems.extraction import extract
from rnnsearch.systems.folder import load_system, load_translation_config, save_system
from rnnsearch.systems.multiway import MultiwaySystem, direction_config
from rnnsearch.systems.system import choose_direction
from rnnsearch.utils.weights import named_weights
from tests.command_line import run
from tests.untrained import BAHDANAU, TEXT, untrained, untrained_multiway, write_model

NAMES = "en-de, fr-de, de-fr"
SENTENCES = TEXT["fr"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("multiway") / "model"
    save_system(folder, untrained_multiway("en-de", "fr-de", "de-fr"))
    return folder


def test_saved_model_is_loaded_with_all_directions(folder: Path):
    system = load_system(folder, multiway=True)
    assert isinstance(system, MultiwaySystem)
    assert ", ".join(direction.name for direction in system.directions) == NAMES
    assert system.num_parameters == untrained_multiway("en-de", "fr-de", "de-fr").num_parameters
    original = named_weights(untrained_multiway("en-de", "fr-de", "de-fr").model)
    for name, weights in named_weights(system.model).items():
        assert weights.equal(original[name]), name


def test_translator_takes_the_direction_per_call(folder: Path):
    translator = rnnsearch.load(folder)
    assert translator.directions == (("en", "de"), ("fr", "de"), ("de", "fr"))
    assert repr(translator).startswith(f"<Translator {NAMES}, ")
    french = translator.select("fr")
    assert french.languages == ("fr", "de")
    assert translator.select(source="fr", target="de") is french
    expected = [translation.text for translation in french.translate(SENTENCES)]
    assert [translation.text for translation in translator.translate(SENTENCES, source="fr")] == expected
    assert translator.translate_text(SENTENCES[0], source="fr", target="de").text == expected[0]
    loaded = rnnsearch.load(folder, source="fr")
    assert [translation.text for translation in loaded.translate(SENTENCES)] == expected


def test_missing_or_wrong_direction_is_one_clear_error(folder: Path):
    translator = rnnsearch.load(folder)
    several = f"the model translates in several directions ({NAMES}); choose a source and a target language "
    several += "(--from and --to; source= and target= in Python)"
    for use in (
        lambda: translator.translate("le chat"),
        lambda: translator.n_best(["le chat"]),
        lambda: translator.score(["le chat"], ["die Katze"]),
        lambda: translator.languages,
        lambda: translator.search,
    ):
        with pytest.raises(ModelError) as error:
            use()
        assert str(error.value) == several
    for languages, message in {
        ("es", None): f"the model does not translate from es; it has {NAMES}",
        ("en", "fr"): f"the model does not translate from en to fr; it has {NAMES}; to try it without training, use "
        "--zero-shot (select(..., zero_shot=True) in Python)",
        (None, "de"): "the model has several directions with this language (en-de, fr-de); choose a source "
        "(--from; source= in Python), too",
    }.items():
        with pytest.raises(ModelError) as error:
            translator.translate("le chat", source=languages[0], target=languages[1])
        assert str(error.value) == message


def test_untrained_direction_consists_of_trained_modules(folder: Path):
    system = load_system(folder, multiway=True)
    names = named_weights(system.model).keys()
    assert [direction.name for direction in system.model.untrained_directions] == ["en-fr"]
    untrained_system = system.select(Direction(("en",), "fr"))
    assert untrained_system.model.encoder is system.select(Direction(("en",), "de")).model.encoder
    assert untrained_system.model.decoder is system.select(Direction(("de",), "fr")).model.decoder
    assert named_weights(system.model).keys() == names
    translator = rnnsearch.load(folder)
    zero_shot = translator.select("en", "fr", zero_shot=True)
    assert zero_shot.languages == ("en", "fr")
    assert translator.select("fr", "de", zero_shot=True) is translator.select("fr")
    with pytest.raises(ModelError, match="does not translate from en to fr; it has en-de"):
        translator.select("en", "fr")
    for languages, message in {
        ("de", "en"): "no decoder for en: the model writes de and fr",
        ("es", "de"): "no encoder for es: the model reads en, fr and de",
        ("de", "de"): "source and target language must be different; got de for both",
    }.items():
        with pytest.raises(ModelError) as error:
            translator.select(*languages, zero_shot=True)
        assert str(error.value) == message
    expected = [translation.text for translation in zero_shot.translate(TEXT["en"])]
    options = ["translate", folder, "--zero-shot", "--to", "fr"]
    stdin = "".join(f"{line}\n" for line in TEXT["en"])
    assert run(*options, "--from", "en", "--split", "lines", stdin=stdin).lines == expected
    assert "--zero-shot needs --from and --to" in run(*options, stdin=stdin).err


def test_bilingual_translator_accepts_only_its_direction(tmp_path: Path):
    translator = rnnsearch.load(write_model(tmp_path / "model", BAHDANAU))
    assert translator.directions == (("en", "de"),)
    text = translator.translate("the cat", source="en", target="de").text
    assert text == translator.translate("the cat").text
    with pytest.raises(ModelError, match="does not translate from fr; it has en-de"):
        translator.translate("the cat", source="fr")


def test_uses_that_need_a_bilingual_model_name_the_command_that_extracts_one(folder: Path):
    for load in (load_system, load_translation_config):
        with pytest.raises(ModelError, match=r"got a multi-way model .*rnnsearch extract"):
            load(folder)


def test_extracted_direction_is_an_ordinary_folder_with_the_same_translations(folder: Path, tmp_path: Path):
    assert extract(folder, tmp_path / "fr-de", source="fr") == Direction(("fr",), "de")
    extracted = rnnsearch.load(tmp_path / "fr-de")
    expected = rnnsearch.load(folder, source="fr", target="de")
    pairs = zip(extracted.translate(SENTENCES), expected.translate(SENTENCES), strict=True)
    assert all((one.text, one.score) == (other.text, other.score) for one, other in pairs)
    assert load_translation_config(tmp_path / "fr-de").model.kind == "translation"
    with pytest.raises(ModelError, match="already exists"):
        extract(folder, tmp_path / "fr-de", source="fr")
    with pytest.raises(ModelError, match="must be a multi-way model; got a translation model"):
        extract(tmp_path / "fr-de", tmp_path / "again")
    assert run("extract", folder, "-o", tmp_path / "en-fr", "--zero-shot", "--from", "en", "--to", "fr").code == 0
    assert rnnsearch.load(tmp_path / "en-fr").languages == ("en", "fr")
    with pytest.raises(ModelError, match="does not translate from en to fr"):
        extract(folder, tmp_path / "again", "en", "fr")


def test_search_options_that_no_direction_supports_are_an_error_at_load(folder: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="needs a model with several sources"):
        rnnsearch.load(folder, averaging="late")
    assert rnnsearch.load(folder, replace_unknown="copy").directions
    sharing = {"encoders": "all", "decoders": "all"}
    save_system(tmp_path / "model", untrained_multiway("en-de", "de-en", text_type="bpe", sharing=sharing))
    with pytest.raises(ConfigError, match="replace_unknown"):
        rnnsearch.load(tmp_path / "model", replace_unknown="copy")


def test_model_of_one_direction_translates_like_a_bilingual_model(tmp_path: Path):
    save_system(tmp_path / "multiway", untrained_multiway("en-de"))
    save_system(tmp_path / "bilingual", untrained(BAHDANAU))
    one, other = (rnnsearch.load(tmp_path / name) for name in ("multiway", "bilingual"))
    assert one.languages == other.languages == ("en", "de")
    pairs = zip(one.translate(TEXT["en"]), other.translate(TEXT["en"]), strict=True)
    assert all((a.text, a.score, a.alignment) == (b.text, b.score, b.alignment) for a, b in pairs)


def test_further_language_does_not_change_translations_of_others(tmp_path: Path):
    for name, directions in {"few": ("en-de",), "many": ("en-de", "fr-de", "de-fr")}.items():
        save_system(tmp_path / name, untrained_multiway(*directions))
    few = rnnsearch.load(tmp_path / "few")
    many = rnnsearch.load(tmp_path / "many", source="en")
    pairs = zip(few.translate(TEXT["en"]), many.translate(TEXT["en"]), strict=True)
    assert all((a.text, a.score) == (b.text, b.score) for a, b in pairs)


def test_directions_of_an_ensemble_are_those_of_its_first_model(folder: Path, tmp_path: Path):
    save_system(tmp_path / "other", untrained_multiway("fr-de", "en-de", seed=8))
    ensemble = rnnsearch.load([folder, tmp_path / "other"], source="fr")
    assert ensemble.languages == ("fr", "de")
    assert ensemble.translate(SENTENCES[0]).tokens


def test_tag_is_no_token_of_the_source(tmp_path: Path):
    sharing = {"encoders": "all", "decoders": "all"}
    save_system(tmp_path / "model", untrained_multiway("en-de", "de-en", text_type="bpe", sharing=sharing))
    translator = rnnsearch.load(tmp_path / "model", source="en")
    [translation] = translator.translate(["the small cat"])
    assert len(translation.source_tokens) == len(translator.source.segment(["the small cat"])[0].ids) + 1  # EOS
    assert translation.attention.shape[1] == len(translation.source_tokens)
    assert translator.translate("").text == ""
    [score] = translator.score(["the small cat"], [translation.text])
    assert score.attention.shape[1] == len(translation.source_tokens)
    extract(tmp_path / "model", tmp_path / "en-de", source="en")
    extracted = rnnsearch.load(tmp_path / "en-de")
    assert extracted.config.data.tag == "<0x04>"
    assert extracted.translate("the small cat").text == translation.text


def test_command_after_training_names_a_direction(folder: Path, tmp_path: Path):
    assert next_command(folder) == f"rnnsearch translate {folder} --from en --to de"
    save_system(tmp_path / "one", untrained_multiway("en-de"))
    assert next_command(tmp_path / "one") == f"rnnsearch translate {tmp_path / 'one'}"


def test_choice_of_a_direction_needs_no_more_languages_than_necessary():
    directions = [Direction(("de",), "en"), Direction(("fr",), "en"), Direction(("en",), "de")]
    assert choose_direction(directions, "fr") == directions[1]
    assert choose_direction(directions, target="de") == directions[2]
    assert choose_direction(directions[:1]) == directions[0]


def test_config_of_a_direction_names_its_files_and_types_of_text():
    system = untrained_multiway("de-fr", "fr-en")
    data = {
        "train": ["a.en|a.fr|a.de", "b.en||b.de", "|c.fr|c.de", "d.tsv"],
        "weights": [1.0, 2.0, 3.0, 4.0],
        "dev": "dev.en|dev.fr|dev.de",
    }
    text = {"type": "words", "target_type": "bpe", "vocabulary": 300, "target_vocabulary": 400}
    text |= {"tokenizers": {"fr": "parent", "en": "parent"}}
    training = {"begin_from": "parent", "direction_patience": 3, "save_directions": True}
    config = system.config.model_copy(
        update={
            "data": system.config.data.model_copy(update=data),
            "text": system.config.text.model_copy(update=text),
            "training": system.config.training.model_copy(update=training),
            "folder": "parent",
        }
    )
    german_french = direction_config(config, Direction(("de",), "fr"))
    assert (german_french.data.source, german_french.data.target) == ("de", "fr")
    assert german_french.data.train == ["a.de|a.fr", "c.de|c.fr"]
    assert german_french.data.weights == [1.0, 3.0]
    assert german_french.data.dev == "dev.de|dev.fr"
    assert german_french.text.types == ("bpe", "words")
    assert (german_french.text.vocabulary, german_french.text.target_vocabulary) == (400, 300)
    assert german_french.text.tokenizers == {"fr": "parent"}
    assert (
        german_french.folder is german_french.training.begin_from is german_french.training.direction_patience is None
    )
    assert not german_french.training.save_directions
    french_english = direction_config(config, Direction(("fr",), "en"))
    assert french_english.text.types == ("words", "words")
    assert (french_english.text.vocabulary, french_english.text.target_vocabulary) == (300, None)
