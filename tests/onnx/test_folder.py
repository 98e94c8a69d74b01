"""`rnnsearch export --format onnx`: the folder, the example that translates with it, and what is refused."""

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
from rnnsearch.export.onnx import export, lacks
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


def settings(model: Path, **values: object) -> Path:
    """The folder with other settings in its config."""
    text = (model / "config.toml").read_text()
    for name, value in values.items():
        text, found = re.subn(rf"(?m)^{name} = .*$", f"{name} = {json.dumps(value)}", text)
        assert found
    (model / "config.toml").write_text(text)
    return model


@pytest.fixture(scope="module")
def example():
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")
    spec = spec_from_file_location("onnx_example", EXAMPLES / "translate.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GNMT = {"length_norm": "gnmt", "length_penalty": 0.6}


@pytest.mark.parametrize(
    ("name", "kind", "search"),
    [
        ("bahdanau", "words", {**GNMT, "coverage_penalty": 0.3}),
        ("rnnencdec, torch-gru", "bpe", GNMT),
    ],
)
def test_the_example_translates_as_rnnsearch_does(example, tmp_path, name, kind, search):
    model = settings(write_model(tmp_path / "model", MODELS[name], kind), precision="fp32", **search)
    export(model, tmp_path / "onnx")
    whole, translator = rnnsearch.load(model), example.Translator(tmp_path / "onnx")
    for beam in (1, 2, 5):
        expected = [found.text for found in whole.translate(TEXTS, whole.options(beam=beam))]
        assert [translator.translate(text, beam) for text in TEXTS] == expected


def test_symbols_that_are_taken_apart(example, tmp_path):
    system = untrained(BAHDANAU, "bpe")
    tokenizer = system.source
    rare = [id for id in tokenizer.ids([TEXTS[0]])[0] if len(tokenizer.symbol(id)) > 2]
    system.tokenizers["en"] = tokenizer.without(rare)
    save_system(tmp_path / "model", system)
    export(tmp_path / "model", tmp_path / "onnx")
    translator, read = example.Translator(tmp_path / "onnx"), []
    translator.search = lambda ids, _: read.append(ids) or []
    translator.translate(TEXTS[0])
    assert read == system.source.ids([TEXTS[0]]) != tokenizer.ids([TEXTS[0]])


def test_the_command_and_the_example_as_a_program(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install onnxruntime")
    model = settings(write_model(tmp_path / "model", BAHDANAU), precision="fp32")
    for _ in range(2):  # an export is written over
        done = run("export", model, tmp_path / "onnx", "--format", "onnx")
        assert done.code == 0 and re.fullmatch(r".*/onnx: 0\.\d MB, fp32\n", done.err)
    assert sorted(file.name for file in (tmp_path / "onnx").iterdir()) == FILES
    about = json.loads((tmp_path / "onnx" / "model.json").read_text())
    assert (about["format"], about["version"], about["languages"]) == ("rnnsearch-onnx", 1, ["en", "de"])
    assert about["symbols"] == {"pad": 0, "unk": 1, "bos": 2, "eos": 3} and about["search"]["beam"] == 3
    program = [sys.executable, EXAMPLES / "translate.py", tmp_path / "onnx"]
    given = "\ufeff" + "".join(f"{text}\r\n" for text in TEXTS)
    found = subprocess.run(program, input=given.encode(), capture_output=True, timeout=120, check=True).stdout.decode()
    assert found == run("translate", model, stdin=given).out


def test_the_javascript_example_parses():
    if (node := shutil.which("node")) is None:
        pytest.skip("needs node")
    subprocess.run([node, "--check", EXAMPLES / "translate.mjs"], timeout=60, check=True)


@pytest.mark.parametrize(
    ("model", "why"),
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
        ({"pointer": {"size": 4}}, "the copying of source words (pointer)"),
        ({"decoder": {"type": "copynet", "cell": "gru", "size": 11}}, "source words (copynet)"),
        ({"output": {"type": "hierarchical"}}, "its output (hierarchical)"),
        ({"source_characters": {"type": "lstm", "embedding": 4}}, "words made of characters"),
    ],
)
def test_models_that_no_graph_can_hold(model, why):
    assert why in lacks(untrained({**BAHDANAU, **model}).model)


def test_what_the_command_refuses(tmp_path, monkeypatch):
    other = {**BAHDANAU, "encoder": {**BAHDANAU["encoder"], "cell": "rnmt-lstm"}}
    model, out = write_model(tmp_path / "other", other), tmp_path / "onnx"
    done = run("export", model, out, "--format", "onnx")
    assert done.code == 1
    assert done.err.startswith(f"rnnsearch: {model}: cannot be two ONNX graphs: a graph cannot hold its encoder's cell")
    model = write_model(tmp_path / "model", BAHDANAU)
    with pytest.raises(ModelError, match="is there, and no export to ONNX"):
        export(model, model)
    assert run("export", model, out, "--format", "onnx", "--precision", "int8").code == 2
    with pytest.raises(ModelError, match=r"cannot be two ONNX graphs: it has no search\.no_repeat_ngram yet"):
        export(settings(model, no_repeat_ngram=3), out)
    monkeypatch.setattr(onnx_folder, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match='format "onnx" needs the package onnx, which is not installed'):
        export(model, out)
    assert not out.exists()
