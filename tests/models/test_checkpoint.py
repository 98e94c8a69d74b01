"""A loaded model folder equals the saved model, and an invalid folder raises an error of one sentence."""

import resource
import shutil

import pytest
import torch
from safetensors.torch import save_file

from rnnsearch.config import resolve
from rnnsearch.data.batches import make_batch
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.systems.folder import CONFIG, WEIGHTS, load_system, save_system
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.tokenizer import TOKENIZERS, tokenizer_file
from rnnsearch.text.words import train_words
from rnnsearch.utils.weights import FORMAT, load_weights, named_weights, read_weights, save_weights

BATCH = make_batch([([5, 6, 7], [4, 8]), ([8], [9, 4, 5, 6])], [0, 1])


def config_of(*settings):
    sizes = ["model.embedding=6", "model.encoder.size=4", "model.attention.size=5"]
    sizes += ["model.decoder.size=7", "model.decoder.maxout=6"]
    tables = {"preset": "small", "data": {"source": "en", "target": "de", "corpus": "x"}}
    return resolve(tables, [*sizes, *settings])


def system_of(config, words):
    return TranslationSystem.make(config, dict(zip(("en", "de"), words, strict=True)), seed=3)


@pytest.fixture
def saved(tmp_path):
    """Save a system; return the folder and the system."""
    words = train_words(["one two three four five six seven eight"], 12, 1), train_words(["eins zwei drei " * 2], 7, 1)
    system = system_of(config_of("text.type=words"), words)
    save_system(tmp_path / "model", system)
    return tmp_path / "model", system


def refused(folder):
    """Return the error message for an invalid model folder, which must be one line."""
    with pytest.raises(ModelError) as error:
        load_system(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_loaded_model_equals_saved_model(saved):
    folder, system = saved
    loaded = load_system(folder)
    assert loaded.config.model_dump() == system.config.model_dump()
    assert loaded.config.base == folder
    assert loaded.source.fingerprint() == system.source.fingerprint()
    assert loaded.target.fingerprint() == system.target.fingerprint()
    assert not loaded.model.training
    own, again = named_weights(system.model), named_weights(loaded.model)
    assert own.keys() == again.keys()
    assert all(torch.equal(own[name], again[name]) for name in own)
    assert sorted(path.name for path in folder.iterdir()) == sorted([CONFIG, WEIGHTS, TOKENIZERS])


@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_tied_embeddings_stay_tied_after_loading(tie, tmp_path):
    tokenizer = train_bpe(["one two three four five"], 270, 1)
    config = config_of(f"model.tie={tie}")
    system = system_of(config, [tokenizer, tokenizer])
    model = system.model.eval()
    save_system(tmp_path, system)
    loaded = load_system(tmp_path).model
    assert (loaded.output.weight is loaded.target_embedding.weight) == (tie != "none")
    assert (loaded.source_embedding is loaded.target_embedding) == (tie == "all")
    assert Likelihood()(loaded, BATCH, None).nll == Likelihood()(model, BATCH, None).nll
    size = len(tokenizer) * 6 * 4
    tables = {"none": 3, "target": 2, "all": 1}[tie]
    assert (tmp_path / WEIGHTS).stat().st_size < tables * size + 20000
    assert read_weights(tmp_path / WEIGHTS).keys() == named_weights(model).keys()


def test_saving_again_overwrites_the_folder(saved):
    folder, system = saved
    with torch.no_grad():
        system.model.output.bias.fill_(2)
    save_system(folder, system)
    assert load_system(folder).model.output.bias.eq(2).all()


def test_missing_folder_is_reported(tmp_path):
    assert refused(tmp_path / "runs") == f"{tmp_path / 'runs'}: there is no such model folder"
    (tmp_path / "file").touch()
    assert refused(tmp_path / "file") == f"{tmp_path / 'file'}: must be a model folder; got a file"


def test_missing_files_are_reported(saved):
    folder, _ = saved
    (folder / WEIGHTS).unlink()
    assert refused(folder) == f"{folder}: is not a complete model folder: missing model.safetensors"
    shutil.rmtree(folder / TOKENIZERS)
    assert refused(folder) == f"{folder}: is not a complete model folder: missing model.safetensors, tokenizers"


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_truncated_weights_are_reported(kept, saved):
    path = saved[0] / WEIGHTS
    path.write_bytes(path.read_bytes()[:kept])
    message = refused(saved[0])
    assert message.startswith(f"{path}: is truncated or damaged (")
    assert message.endswith("; copy or train the model again")


def test_weights_of_another_format_are_reported(saved):
    path = saved[0] / WEIGHTS
    for metadata in (None, {"format": "pt"}):
        save_file({"a": torch.ones(3)}, path, metadata=metadata)
        assert refused(saved[0]) == f"{path}: was not written by rnnsearch (its format is not {FORMAT})"
    path.write_bytes(b"PK\x03\x04" * 50)
    assert refused(saved[0]).startswith(f"{path}: is truncated or damaged (")


def test_weights_of_another_model_are_reported(saved):
    folder, system = saved
    path, model = folder / WEIGHTS, system.model
    own = named_weights(model)
    save_weights(path, own | {"output.bias": torch.ones(5)})
    fits_not = f"{path}: does not fit the model of its config: "
    assert refused(folder) == f"{fits_not}output.bias is (5,), must be (7,)"
    save_weights(path, own | {"extra": torch.ones(2)})
    assert refused(folder) == f"{fits_not}extra is (2,), must be no such parameter"
    save_weights(path, {name: tensor for name, tensor in own.items() if name != "output.bias"})
    assert refused(folder) == f"{fits_not}output.bias is no such tensor, must be (7,)"
    save_weights(path, own | {"output.bias": torch.ones(7, dtype=torch.int32)})
    assert refused(folder) == f"{fits_not}output.bias is of I32, must be of floats"
    other = system_of(config_of("text.type=words", "model.decoder.size=8"), system.tokenizers.values())
    save_system(folder, other, own)
    assert refused(folder).startswith(fits_not)
    before = {name: p.clone() for name, p in own.items()}
    with pytest.raises(ModelError):
        load_weights(path, other.model)
    with pytest.raises(ModelError):
        save_weights(path, own | {"output.bias": torch.ones(5)})
        load_weights(path, model)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


def test_broken_config_is_reported(saved):
    path = saved[0] / CONFIG
    whole = path.read_text()
    old = f"{saved[0]}: its config.toml is not valid in this version of rnnsearch: "
    path.write_text(whole.replace("[model]", "[model"))
    assert refused(saved[0]).startswith(f"{old}{path}: is not TOML: ")
    path.write_text(whole.replace("[model]", "[model]\nnovelty = 1"))
    assert refused(saved[0]) == f"{old}{path}: model.novelty: unknown option"
    path.write_text(whole.replace('score = "additive"', 'score = "newest"'))
    assert refused(saved[0]).startswith(f'{saved[0]}: needs the score "newest", which ')
    path.write_bytes(b"\xff\xfe")
    assert refused(saved[0]).startswith(f"{old}{path}: cannot be read: ")


def test_tokenizers_that_do_not_fit_the_config_are_reported(tmp_path):
    config = config_of("model.tie=all")
    tokenizer = train_bpe(["one two three four five"], 270, 1)
    save_system(tmp_path, system_of(config, [tokenizer, tokenizer]))
    train_words(["one two three"], 12, 1).save(tmp_path / tokenizer_file("de"))
    assert refused(tmp_path).startswith(f"{tmp_path}: ")
    assert 'model.tie: "all" needs equal vocabularies' in refused(tmp_path)


def test_broken_tokenizer_is_reported(saved):
    path = saved[0] / tokenizer_file("de")
    path.write_text(path.read_text()[:-20])
    assert refused(saved[0]).startswith(f"{path}: the tokenizer file must be whole JSON; got ")
    shutil.copy(saved[0] / tokenizer_file("en"), path)
    assert refused(saved[0]).startswith(f"{saved[0] / WEIGHTS}: does not fit the model of its config: ")


def test_full_disk_leaves_the_old_weights(saved):
    """The limit on file size is real, because the library that writes the file raises its own errors."""
    folder, system = saved
    path, before = folder / WEIGHTS, (folder / WEIGHTS).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(RnnsearchError) as error:
            save_weights(path, named_weights(system.model) | {"large": torch.ones(1 << 16)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(error.value).startswith(f"{path}: cannot be written: ")
    assert str(error.value).endswith("; nothing was changed")
    assert path.read_bytes() == before
    assert sorted(p.name for p in folder.iterdir()) == sorted([CONFIG, WEIGHTS, TOKENIZERS])
