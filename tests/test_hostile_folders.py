"""Files of model folders that nobody could have trained: infinite numbers, and every error of the libraries."""

import hashlib
import math
import os
import shutil
import struct

import pytest
import torch

import rnnsearch
from rnnsearch.config.run_file import resolve
from rnnsearch.engine import file
from rnnsearch.errors import ConfigError, ModelError, RnnsearchError, is_out_of_memory
from rnnsearch.export.engine_file import export
from rnnsearch.runtime import translator as runtime
from rnnsearch.text import tokenizer as tokenizer_module
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.utils import weights as weights_module
from rnnsearch.utils.weights import SafetensorError, read_weights, save_weights
from tests.runtime.test_runtime import with_changed_header
from tests.untrained import BAHDANAU, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a model folder."""
    return write_model(tmp_path_factory.mktemp("model") / "en-de", BAHDANAU)


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.0, torch.inf]),
        torch.tensor([-torch.inf]),
        torch.tensor([torch.nan, 1.0]),
        torch.tensor([1e300], dtype=torch.float64),
        torch.tensor([torch.inf], dtype=torch.bfloat16),
    ],
)
def test_weights_must_be_finite(tmp_path, value):
    save_weights(tmp_path / "w.safetensors", {"fine": torch.zeros(0), "bad": value})
    with pytest.raises(
        ModelError, match=r"w\.safetensors: must contain finite numbers; bad has infinite values or NaN"
    ):
        read_weights(tmp_path / "w.safetensors")


def test_infinite_weights_are_neither_loaded_nor_exported(tmp_path):
    folder = write_model(tmp_path / "en-de", BAHDANAU)
    tensors = read_weights(folder / "model.safetensors")
    tensors["output.bias"][7] = torch.inf
    save_weights(folder / "model.safetensors", tensors)
    for use in (rnnsearch.load, lambda path: export(path, tmp_path / "m.rnn")):
        with pytest.raises(ModelError, match=r"output\.bias has infinite values or NaN"):
            use(folder)


@pytest.mark.parametrize("name", ["output", "vector"])
def test_arrays_of_engine_files_must_be_finite(model, tmp_path, name):
    path = tmp_path / "m.rnn"
    export(model, path, "fp32")
    content = bytearray(path.read_bytes())
    head = 24 + int.from_bytes(content[8:16], "little")
    start = head + -head % 64
    _, shape, offset, form = file.read_header(path)["arrays"][name]
    offset += start + (-(-math.prod(shape) // 8) if form == "sparse" else 0)  # of the first value that is not 0
    content[offset : offset + 4] = struct.pack("<f", float("inf"))
    digest = hashlib.sha256(content[start:]).hexdigest()
    path.write_bytes(with_changed_header(bytes(content), lambda header: header.update(sha256=digest)))
    with (
        pytest.raises(ModelError, match=r"m\.rnn: must contain finite numbers; (output|vector) has"),
        file.open_file(path) as contents,
    ):
        contents.model.weights[name]


@pytest.mark.parametrize(
    ("scale", "problem"), [(1e37, "values that are too large"), (math.nan, "infinite values or NaN")]
)
def test_scales_of_engine_files_must_keep_weights_finite(model, tmp_path, scale, problem):
    path = tmp_path / "m.rnn"
    export(model, path, "int8")
    content = bytearray(path.read_bytes())
    head = 24 + int.from_bytes(content[8:16], "little")
    start = head + -head % 64
    offset = start + file.read_header(path)["arrays"]["key.scale"][2]
    content[offset : offset + 4] = struct.pack("<f", scale)
    digest = hashlib.sha256(content[start:]).hexdigest()
    path.write_bytes(with_changed_header(bytes(content), lambda header: header.update(sha256=digest)))
    with pytest.raises(ModelError, match=rf"m\.rnn: must contain finite numbers; key\.scale has {problem}$"):
        runtime.load(path)


class PanicException(BaseException):
    """An exception like those of libraries in Rust, which is no `Exception`."""


WEIGHT_ERRORS = [SafetensorError("bad"), PanicException("bad"), OSError(5, "bad"), PermissionError(13, "bad")]


@pytest.mark.parametrize("error", [*WEIGHT_ERRORS, FileNotFoundError(2, "bad")], ids=lambda error: type(error).__name__)
def test_every_error_of_reading_weights_is_a_model_error(model, monkeypatch, error):
    def safe_open(*_, **__):
        raise error

    monkeypatch.setattr(weights_module, "safe_open", safe_open)
    with pytest.raises(ModelError, match=r"^[^\n]*model\.safetensors: [^\n]+$"):
        read_weights(model / "model.safetensors")


@pytest.mark.parametrize("error", [MemoryError(), OSError(12, "Cannot allocate memory")])
def test_exhausted_memory_is_not_taken_for_damage(model, monkeypatch, error):
    def safe_open(*_, **__):
        raise error

    monkeypatch.setattr(weights_module, "safe_open", safe_open)
    with pytest.raises(MemoryError):
        read_weights(model / "model.safetensors")


@pytest.mark.parametrize(
    "error", [Exception("bad"), ValueError("bad"), PanicException("bad"), TypeError()], ids=lambda e: type(e).__name__
)
def test_every_error_of_reading_tokenizers_is_a_model_error(model, monkeypatch, error):
    class Library:
        @staticmethod
        def from_str(_):
            raise error

    monkeypatch.setattr(tokenizer_module.tokenizers, "Tokenizer", Library)
    with pytest.raises(ModelError, match=r"^[^\n]*en\.json: must be a tokenizer that rnnsearch saved; got"):
        Tokenizer.load(model / "tokenizers/en.json")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("unable to mmap 8 bytes from file <w>: Cannot allocate memory (12)"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_out_of_memory_is_recognised(error):
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shapes differ"))


DAMAGE = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path),
    "link to a file outside": lambda path: path.symlink_to("/etc/passwd"),
    "folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("name", ["config.toml", "model.safetensors", "tokenizers/en.json", "dictionary.tsv"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_files_of_a_folder_must_be_regular_and_inside(model, tmp_path, name, damage):
    folder = shutil.copytree(model, tmp_path / "en-de")
    if name == "dictionary.tsv":
        config = (folder / "config.toml").read_text(encoding="utf-8")
        config = config.replace("[search]", '[search]\nreplace_unknown = "dictionary"\ndictionary = "dictionary.tsv"')
        config = config.replace('\nreplace_unknown = "none"', "")
        (folder / "config.toml").write_text(config, encoding="utf-8")
    (folder / name).unlink(missing_ok=True)
    DAMAGE[damage](folder / name)
    with pytest.raises(RnnsearchError, match=r"^[^\n]+$"):
        rnnsearch.load(folder)


@pytest.mark.parametrize("damage", DAMAGE)
def test_engine_files_must_be_regular(tmp_path, damage):
    DAMAGE[damage](tmp_path / "m.rnn")
    with pytest.raises(ModelError, match=r"m\.rnn: [^\n]+$"):
        file.read_header(tmp_path / "m.rnn")


def test_folders_in_a_folder_must_be_inside(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "en-de")
    shutil.move(folder / "tokenizers", tmp_path / "elsewhere")
    (folder / "tokenizers").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="tokenizers must be inside the folder"):
        rnnsearch.load(folder)


def test_run_files_must_not_contain_nul():
    with pytest.raises(ConfigError, match=r"^data\.train: must not contain NUL$"):
        resolve({"data": {"source": "en", "target": "de", "train": ["a\0b"]}})
