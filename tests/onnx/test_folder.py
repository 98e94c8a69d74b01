"""`rnnsearch export --format onnx`: the folder, the example that translates with it, and unsupported models."""

import json
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import rnnsearch
from rnnsearch.errors import ModelError
from rnnsearch.export import onnx as onnx_folder
from rnnsearch.export.onnx import export, unsupported_reason
from rnnsearch.systems.folder import save_system
from tests.command_line import run
from tests.onnx.models import ADDITIVE, MODELS
from tests.untrained import BAHDANAU, untrained, write_model

pytest.importorskip("onnx", reason="needs onnx: pip install onnx")
EXAMPLES = Path(__file__).parents[2] / "examples" / "onnx"
TEXTS = [
    "the small cat sees the dog.",
    "A bird sees the zebra! Is it red?",
    "",
    "dog",
    " a  big bird",
    "größer 😀 … don't",
]
FILES = ["encoder.onnx", "model.json", "source.json", "step.onnx", "target.json"]


def change_settings(model: Path, **values: object) -> Path:
    """Change settings in the config of a model folder."""
    text = (model / "config.toml").read_text()
    for name, value in values.items():
        text, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {json.dumps(value)}", text)
        assert count
    (model / "config.toml").write_text(text)
    return model


@pytest.fixture(scope="module")
def example():
    """Return the module examples/onnx/translate.py."""
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")
    spec = spec_from_file_location("onnx_example", EXAMPLES / "translate.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GNMT = {"length_norm": "gnmt", "length_penalty": 0.6}


@pytest.mark.parametrize(
    ("name", "tokenizer", "search"),
    [
        ("bahdanau", "words", {**GNMT, "coverage_penalty": 0.3}),
        ("rnnencdec, torch-gru", "bpe", GNMT),
    ],
)
def test_example_translates_like_rnnsearch(example, tmp_path, name, tokenizer, search):
    model = change_settings(write_model(tmp_path / "model", MODELS[name], tokenizer), precision="fp32", **search)
    export(model, tmp_path / "onnx")
    full = rnnsearch.load(model)
    translator = example.Translator(tmp_path / "onnx")
    for beam in (1, 2, 5):
        expected = [translation.text for translation in full.translate(TEXTS, full.options(beam=beam))]
        assert [translator.translate(text, beam) for text in TEXTS] == expected


def test_example_splits_rare_tokens(example, tmp_path):
    system = untrained(BAHDANAU, "bpe")
    tokenizer = system.source
    rare = [id for id in tokenizer.ids([TEXTS[0]])[0] if len(tokenizer.token(id)) > 2]
    system.tokenizers["en"] = tokenizer.without_tokens(rare)
    save_system(tmp_path / "model", system)
    export(tmp_path / "model", tmp_path / "onnx")
    translator = example.Translator(tmp_path / "onnx")
    searched = []
    translator.search = lambda ids, _: searched.append(ids) or []
    translator.translate(TEXTS[0])
    assert searched == system.source.ids([TEXTS[0]]) != tokenizer.ids([TEXTS[0]])


def test_command_writes_folder_and_example_reads_it(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")
    model = change_settings(write_model(tmp_path / "model", BAHDANAU), precision="fp32")
    for _ in range(2):  # a second export overwrites the first
        result = run("export", model, tmp_path / "onnx", "--format", "onnx")
        assert result.code == 0
        assert re.fullmatch(r".*/onnx: 0\.\d MB, fp32\n", result.err)
    assert sorted(file.name for file in (tmp_path / "onnx").iterdir()) == FILES
    description = json.loads((tmp_path / "onnx" / "model.json").read_text())
    assert (description["format"], description["version"]) == ("rnnsearch-onnx", 1)
    assert description["languages"] == ["en", "de"]
    assert description["symbols"] == {"pad": 0, "unk": 1, "bos": 2, "eos": 3}
    assert description["search"]["beam"] == 3
    program = [sys.executable, EXAMPLES / "translate.py", tmp_path / "onnx"]
    text = "\ufeff" + "".join(f"{line}\r\n" for line in TEXTS)
    process = subprocess.run(program, input=text.encode(), capture_output=True, timeout=120, check=True)
    assert process.stdout.decode() == run("translate", model, "--split", "lines", stdin=text).out


def test_javascript_example_parses():
    if (node := shutil.which("node")) is None:
        pytest.skip("needs node")
    subprocess.run([node, "--check", EXAMPLES / "translate.mjs"], timeout=60, check=True)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            {"encoder": {**BAHDANAU["encoder"], "cell": "layer-norm-gru"}},
            "its encoder's cell (layer-norm-gru; ONNX has gru",
        ),
        (
            {"encoder": {"type": "pyramid", "cell": "gru", "size": 10, "layers": 2, "reduce": 1}},
            "its encoder (pyramid)",
        ),
        ({"attention": {"score": "location", "max_source": 5}}, "a part of its attention (location)"),
        ({"attention": {**ADDITIVE, "normaliser": "linear-chain"}}, "a part of its attention (linear-chain)"),
        ({"attention": {**ADDITIVE, "features": ["markov"], "neighbours": 1}}, "a part of its attention (markov)"),
        ({"pointer": {"size": 4}}, "copying source words (pointer)"),
        ({"decoder": {"type": "copynet", "cell": "gru", "size": 11}}, "source words (copynet)"),
        ({"output": {"type": "hierarchical"}}, "its output (hierarchical)"),
        ({"output": {"type": "tree"}}, "its output (tree)"),
        ({"source_characters": {"type": "lstm", "embedding": 4}}, "words made of characters"),
    ],
)
def test_unsupported_models_are_rejected_with_a_reason(model, reason):
    assert reason in unsupported_reason(untrained({**BAHDANAU, **model}).model)


def test_command_rejects_unsupported_exports(tmp_path, monkeypatch):
    other = {**BAHDANAU, "encoder": {**BAHDANAU["encoder"], "cell": "rnmt-lstm"}}
    model = write_model(tmp_path / "other", other)
    out = tmp_path / "onnx"
    result = run("export", model, out, "--format", "onnx")
    assert result.code == 1
    message = f"rnnsearch: {model}: cannot be exported to ONNX: graphs do not support its encoder's cell"
    assert result.err.startswith(message)
    model = write_model(tmp_path / "model", BAHDANAU)
    with pytest.raises(ModelError, match="exists and is not an export to ONNX"):
        export(model, model)
    assert run("export", model, out, "--format", "onnx", "--precision", "int8").code == 2
    with pytest.raises(ModelError, match=r"cannot be exported to ONNX: it uses search\.no_repeat_ngram, which"):
        export(change_settings(model, no_repeat_ngram=3), out)
    monkeypatch.setattr(onnx_folder, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match='format "onnx" needs the package onnx, which is not installed'):
        export(model, out)
    assert not out.exists()
