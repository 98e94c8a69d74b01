"""Engine files and the runtime without PyTorch: equal translations, and rejection of damaged and hostile files."""

import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tracemalloc
import zlib
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

import rnnsearch
from rnnsearch.accel.rnnsearch_search import export_arrays
from rnnsearch.engine import file, stored
from rnnsearch.engine.rnnsearch import MATRICES, TABLES, RNNsearchEngine, Weight
from rnnsearch.engine.structs import DType
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.export.engine_file import export
from rnnsearch.metrics.calibration import Calibration
from rnnsearch.ops.native.building import SWITCH
from rnnsearch.ops.native.library import library
from rnnsearch.runtime import load
from rnnsearch.runtime.translator import best_variant
from rnnsearch.search.candidates import learn_candidate_tables, save_candidate_tables
from rnnsearch.serve.registry import read_model_info
from rnnsearch.systems.folder import load_system
from rnnsearch.translator.confidence import CALIBRATION_FILE, FEATURES
from scripts.runtime_wheel import imported_modules, module_path, required_modules
from tests.command_line import run
from tests.untrained import BAHDANAU, RNNENCDEC, write_model

pytestmark = pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")


@pytest.fixture(autouse=True)
def one_variant(monkeypatch):
    """Make the full package use the native variant of the runtime, since AMX tiles sum bf16 in another order."""
    if "amx" in os.environ.get(SWITCH, ""):
        monkeypatch.delenv(SWITCH)
    monkeypatch.setenv(SWITCH, best_variant().name)


TEXTS = [
    "the small cat sees a bird.",
    "",
    "Is it red?",
    "the dog the dog the dog sees!",
    "Ünïcode ⁂ and\u00a0more",
    "\u00a0 ",
    "5 - 7.",
    "2024",
    "\u200b",
]
PREFIXES = ["die kl", "", "Ein ", "der Hund sieht d", "", "", "5 ", "im Jahr ", ""]
TIED = {**BAHDANAU, "embedding": 8, "tie": "target", "decoder": {**BAHDANAU["decoder"], "maxout": 8}}
EQUAL_FIELDS = (
    "text",
    "tokens",
    "token_scores",
    "score",
    "log_prob",
    "finished",
    "alignment",
    "source_tokens",
    "confidence",
)


@pytest.fixture(scope="module", params=["bpe, tied", "words, tanh layer"])
def model(request, tmp_path_factory):
    """Return a model folder with a calibration."""
    tokenizer, variant = request.param.split(", ")
    tanh = {**BAHDANAU, "decoder": {"type": "bahdanau-tanh", "cell": "gru", "size": 11, "readout": 7}}
    folder = write_model(tmp_path_factory.mktemp(tokenizer) / "model", TIED if variant == "tied" else tanh, tokenizer)
    values = tuple(float(n % 3) for n in range(len(FEATURES)))
    calibration = Calibration(FEATURES, values, (2.0,) * len(FEATURES), values, 0.5, 300, 0.7, 0.1)
    calibration.save(folder / CALIBRATION_FILE)
    return folder


@pytest.mark.parametrize("precision", ["int4", "int8", "bf16", "fp32"])
@pytest.mark.parametrize("read", ["model", "file"])
def test_runtime_equals_full_package(model, tmp_path, precision, read):
    size = export(model, tmp_path / "m.rnn", precision)
    assert size == (tmp_path / "m.rnn").stat().st_size
    if read == "model" and precision == "int4":
        pytest.skip("model folders have no 4-bit weights")
    full = rnnsearch.load(model, precision=precision) if read == "model" else rnnsearch.load(tmp_path / "m.rnn")
    runtime = load(tmp_path / "m.rnn")
    for n_best, beam, prefixes in ((1, 1, None), (1, None, None), (4, 4, None), (2, 3, PREFIXES), (1, 1, PREFIXES)):
        expected_lists = full.n_best(TEXTS, full.options(beam, n_best), prefixes=prefixes)
        result_lists = runtime.n_best(TEXTS, n_best, beam, prefixes)
        for results, expected in zip(result_lists, expected_lists, strict=True):
            assert list(map(equal_fields, results)) == list(map(equal_fields, expected))
            for result, translation in zip(results, expected, strict=True):
                if result.attention is not None:
                    np.testing.assert_array_equal(result.attention, translation.attention)
    assert runtime.translate(TEXTS[0]).text == full.translate(TEXTS[0]).text
    assert runtime.languages == ("en", "de")


def equal_fields(translation):
    return [getattr(translation, name) for name in EQUAL_FIELDS]


def test_arrays_are_read_back_within_rounding(model, tmp_path):
    arrays = export_arrays(load_system(model).model)
    for dtype, tolerance in ((DType.FP32, 0.0), (DType.BF16, 2 * 2.0**-8), (DType.INT8, 1 / 250)):
        file.write(tmp_path / "m.rnn", file.Contents({}, arrays, dtype))
        with file.open_file(tmp_path / "m.rnn") as (_, stored_model, stored_dtype, _):
            assert (stored_dtype, stored_model.sizes) == (dtype, arrays.sizes)
            for name in (*MATRICES, *TABLES):
                values = arrays.weights[name].values
                stored_values = stored_model.weights[name].fp32_rows(np.arange(len(values)))
                assert np.abs(stored_values - values).max() <= tolerance * np.abs(values).max()
        for name, bias in arrays.biases.items():
            np.testing.assert_array_equal(stored_model.biases[name], bias)


def test_weights_are_read_one_at_a_time(model, tmp_path):
    # Peak memory is that of the packed weights and one weight of the file.
    arrays = export_arrays(load_system(model).model)
    rng = np.random.default_rng(4)
    shapes = {name: (200_000, arrays.weights[name].values.shape[1]) for name in ("output", *TABLES)}
    larger = {name: Weight(rng.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()}
    biases = {**arrays.biases, "output": np.zeros(200_000, np.float32)}
    path = tmp_path / "m.rnn"
    size = file.write(
        path, file.Contents({}, replace(arrays, weights={**arrays.weights, **larger}, biases=biases), DType.INT8)
    )
    tracemalloc.start()
    with file.open_file(path) as (_, stored_model, dtype, _):
        RNNsearchEngine(library(), stored_model, dtype)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.6 * size


def test_pruned_weights_take_one_bit(model, tmp_path):
    arrays = export_arrays(load_system(model).model)
    for weight in arrays.weights.values():
        weight.values[:] = np.where(np.random.default_rng(1).random(weight.values.shape) < 0.8, 0, weight.values)
    for dtype in DType:
        size = file.write(tmp_path / "m.rnn", file.Contents({}, arrays, dtype))
        value_bytes = (4, 2, 1)[dtype]
        bias_bytes = 4 * sum(bias.size for bias in arrays.biases.values())
        dense_bytes = sum(weight.values.size for weight in arrays.weights.values()) * value_bytes
        assert size < (0.3 + 1 / (8 * value_bytes)) * dense_bytes + 64 * 60 + bias_bytes
        with file.open_file(tmp_path / "m.rnn") as (_, stored_model, *_):
            for name, weight in arrays.weights.items():
                is_zero = stored_model.weights[name].fp32_rows(np.arange(len(weight.values))) == 0
                assert (is_zero >= (weight.values == 0)).all()
                if dtype is DType.FP32:
                    np.testing.assert_array_equal(stored_model.weights[name].values, weight.values)


def test_int4_rounds_by_group_and_keeps_the_scale_of_rows():
    rng = np.random.default_rng(2)
    values = np.rint(rng.normal(0, 30, (5000, 37)).clip(-127, 127)).astype(np.int8)
    values[:, 5] = 127 * rng.choice([-1, 1], len(values))  # the maximum, which determines the row's scale
    values[7] = 0
    values[7, 5] = 127
    stored_rows = stored.pack_int4(values)
    assert stored_rows.shape == (5000, stored.int4_row_bytes(37)) and stored_rows.dtype == np.uint8
    unpacked = stored.unpack_int4(stored_rows, 37)
    np.testing.assert_array_equal(unpacked[:, 5], values[:, 5])
    np.testing.assert_array_equal(unpacked[7], values[7])
    rounded_by_row = np.clip(np.rint(values / (127 / 7)), -7, 7) * 127 / 7
    error = ((unpacked.astype(float) - values) ** 2).mean()
    assert error < 0.7 * ((rounded_by_row - values) ** 2).mean()  # each group has a separate step
    np.testing.assert_array_equal(stored.unpack_int4(stored.pack_int4(unpacked), 37)[:, :16], unpacked[:, :16])


@pytest.mark.parametrize("type", ["int8", "bf16", "fp32"])
def test_sparse_arrays_are_read_back_exactly(type):
    rng = np.random.default_rng(3)
    for shape, sparsity in (((3, 5), 0.9), ((1, 1), 1.0), ((17,), 0.5), ((8, 64), 0.0)):
        array = rng.normal(0, 40, shape).astype(np.float32)
        array[rng.random(shape) < sparsity] = 0
        array.flat[0] = -0.0
        values = {"int8": array.astype(np.int8), "bf16": stored.to_bf16(array), "fp32": array}[type]
        form, raw = stored.encode(type, values)
        assert len(raw) <= values.nbytes
        payload = stored.Payload(BytesIO(b"a header" + b"\0" * 64 + raw), 8, 64 + len(raw))
        stored.check_entry(payload, type, list(shape), 64, form)
        result = stored.read_array(payload, type, list(shape), 64, form)
        expected = stored.from_bf16(values) if type == "bf16" else values
        np.testing.assert_array_equal(np.signbit(result), np.signbit(expected))
        np.testing.assert_array_equal(result, expected)
        for function in (stored.check_entry, stored.read_array):
            with pytest.raises(ValueError):
                function(payload._replace(size=63 + len(raw)), type, list(shape), 64, form)


def test_commands_that_read_models_accept_engine_files(model, tmp_path):
    export(model, tmp_path / "m.rnn", "int8")
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    results = [run("translate", path, "-i", tmp_path / "in.txt") for path in (tmp_path / "m.rnn", model)]
    assert results[0].code == results[1].code == 0
    assert results[0].out.count("\n") == len(TEXTS)
    inspected = run("inspect", tmp_path / "m.rnn", "--config")
    assert inspected.code == 0
    assert "SHA-256" in inspected.out
    assert 'precision = "int8"' in inspected.out
    info = read_model_info(tmp_path / "m.rnn")
    assert (info.name, info.source, info.target, info.calibrated) == ("m.rnn", "en", "de", True)
    for command in (["prune", "-o", tmp_path / "p", "--share", "0.5"], ["export", tmp_path / "n.rnn"]):
        rejected = run(command[0], tmp_path / "m.rnn", *command[1:])
        assert rejected.code == 1
        assert "m.rnn: must be a model folder; got a file" in rejected.err
    with pytest.raises(ModelError, match="has no candidate lists; got 10: export it with --candidates 10"):
        rnnsearch.load(tmp_path / "m.rnn", candidates=10)
    ensemble = rnnsearch.load([tmp_path / "m.rnn", model])
    assert len(ensemble.translate(TEXTS)) == len(TEXTS)


def test_exported_candidate_lists_are_used(model, tmp_path):
    sizes = [len(tokenizer) for tokenizer in (load_system(model).source, load_system(model).target)]
    folder = shutil.copytree(model, tmp_path / "model")
    pairs = [[5, 6, 7], [8, 5], [6, 9, 9, 10]], [[7, 5], [9, 9, 6], [8]]
    save_candidate_tables(folder, learn_candidate_tables(*pairs, *sizes))
    export(folder, tmp_path / "m.rnn", candidates=2)
    runtime = load(tmp_path / "m.rnn")
    full_from_file = rnnsearch.load(tmp_path / "m.rnn")
    full_from_folder = rnnsearch.load(folder, candidates=2, precision="int8")
    export(folder, tmp_path / "without.rnn", candidates=0)
    without_lists = load(tmp_path / "without.rnn")
    differences = 0
    for text in [*TEXTS, "the small small dog"]:
        for beam in (1, 3):
            result = runtime.translate(text, beam)
            from_file, from_folder = (
                translator.translate(text, translator.options(beam))
                for translator in (full_from_file, full_from_folder)
            )
            assert equal_fields(result) == equal_fields(from_file)
            assert equal_fields(result)[:-1] == equal_fields(from_folder)[:-1]  # without the confidence
            differences += result.token_scores != without_lists.translate(text, beam).token_scores
    assert differences
    # With a prefix, all tokens are allowed.
    assert runtime.n_best(["the dog"], 1, 2, prefixes=["Ein"])[0][0].text.startswith("Ein")
    with pytest.raises(ModelError, match="has lists of 2 translations; got 3"):
        rnnsearch.load(tmp_path / "m.rnn", candidates=3)
    with pytest.raises(ModelError, match=r"candidates must be between 0 and 100; got -1"):
        export(folder, tmp_path / "n.rnn", candidates=-1)
    for name, shape in {"another vocabulary": [3, 2], "one row": [2]}.items():
        path = tmp_path / f"{name}.rnn"
        change = partial(lambda h, shape: h["arrays"][file.CANDIDATES[0]].__setitem__(1, shape), shape=shape)
        path.write_bytes(with_changed_header((tmp_path / "m.rnn").read_bytes(), change))
        with pytest.raises(ModelError, match=r"rnn: [^\n]+$"):
            load(path)


def test_scales_of_int8_tables_are_reproducible():
    scale = np.random.default_rng(1).uniform(1e-8, 10, 200_000).astype(np.float32) / np.float32(127)
    top = stored.reproducible_scales(scale) * np.float32(127)
    np.testing.assert_array_equal(top / np.float32(127), scale)


def test_damaged_files_are_rejected(model, tmp_path):
    path = tmp_path / "m.rnn"
    export(model, path)
    for content in damaged_copies(path.read_bytes(), random.Random(3)).values():
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"m\.rnn: [^\n]+$"):
            load(path)
    with pytest.raises(ModelError, match="no such engine file"):
        load(tmp_path / "none.rnn")
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path)


def damaged_copies(content: bytes, rng: random.Random) -> dict[str, bytes]:
    """Return copies of a file that are truncated or have one changed bit, by the kind of damage."""
    header_end = 24 + int.from_bytes(content[8:16], "little")
    lengths = (0, 5, 23, 24, 100, header_end, header_end + 64, len(content) - 1)
    copies = {f"cut at {length}": content[:length] for length in lengths}
    original = significant_content(content, header_end)
    for _ in range(150):
        index = rng.randrange(header_end if rng.random() < 0.7 else len(content))
        changed_byte = bytes([content[index] ^ (1 << rng.randrange(8))])
        copy = content[:index] + changed_byte + content[index + 1 :]
        if significant_content(copy, header_end) != original:
            copies[f"byte {index}"] = copy
    return copies


def significant_content(content: bytes, header_end: int) -> tuple[bytes, bytes, bytes]:
    """Return what is read of a file: the header may be compressed differently, and padding is ignored."""
    try:
        header = zlib.decompress(content[24:header_end])
    except zlib.error:
        header = content[24:header_end]
    return content[:24], header, content[header_end + -header_end % 64 :]


def with_changed_header(content: bytes, change) -> bytes:
    """Return an engine file whose header was changed by a function, with valid lengths and positions."""
    length = int.from_bytes(content[8:16], "little")
    header = json.loads(zlib.decompress(content[24 : 24 + length]))
    change(header)
    text = json.dumps(header).encode()
    packed = zlib.compress(text)
    head = content[:8] + len(packed).to_bytes(8, "little") + len(text).to_bytes(8, "little") + packed
    payload = content[24 + length + -(24 + length) % 64 :]
    return head + bytes(-len(head) % 64) + payload


HOSTILE_HEADERS = {
    "later version": lambda h: h.update(format=3),
    "other system": lambda h: h.update(system="transformer"),
    "unknown kind": lambda h: h.update(kind="int2"),
    "beyond the end": lambda h: h["arrays"]["output"].__setitem__(2, 1 << 40),
    "before the start": lambda h: h["arrays"]["output"].__setitem__(2, -64),
    "huge": lambda h: h["arrays"]["output"].__setitem__(1, [1 << 40, 1 << 40]),
    "other shape": lambda h: h["arrays"]["key"].__setitem__(1, h["arrays"]["key"][1][::-1]),
    "sparse bits beyond the end": lambda h: h["arrays"]["output"].__setitem__(
        slice(1, 4), [[1 << 20, 1 << 20], 0, "sparse"]
    ),
    "unknown form": lambda h: h["arrays"]["output"].__setitem__(3, "dense-ish"),
    "other type": lambda h: h["arrays"]["vector"].__setitem__(0, "int8"),
    "scale of type int8": lambda h: h["arrays"]["target_embedding.scale"].__setitem__(0, "int8"),
    "no scale": lambda h: h["arrays"].pop("key.scale"),
    "larger sizes": lambda h: h["sizes"].update(state=64),
    "no pool": lambda h: h["sizes"].update(pool=0),
    "negative": lambda h: h["sizes"].update(encoder=-16),
    "sizes that are a list": lambda h: h.update(sizes=["state"]),
    "huge beam": lambda h: h["search"].update(beam=1 << 40),
    "huge max_ratio": lambda h: h["search"].update(max_ratio=1e30),
    "fraction of a token": lambda h: h["search"].update(max_extra=1.5),
    "banned tokens": lambda h: h["search"].update(banned=[5]),
    "int8 weights for fp32": lambda h: h.update(kind="fp32"),
    "many arrays with the same bytes": lambda h: h["arrays"].update(
        {f"more.{n}": h["arrays"]["output"] for n in range(3000)}
    ),
    "unknown norm": lambda h: h["search"].update(length_norm="none"),
    "huge length penalty": lambda h: h["search"].update(length_penalty=1000.0),
    "list as norm": lambda h: h["search"].update(length_norm=[1]),
    "unknown setting": lambda h: h["search"].update(cats=3),
    "no batch": lambda h: h["search"].update(batch_sentences=0),
    "no tokenizer": lambda h: h.update(tokenizers=["{}", "{}"]),
    "one tokenizer": lambda h: h.update(tokenizers=h["tokenizers"][:1]),
    "no languages": lambda h: h.update(languages=[]),
    "invalid calibration": lambda h: h.update(calibration="{}"),
}


def export_with_changed_header(model, path, change):
    export(model, path)
    path.write_bytes(with_changed_header(path.read_bytes(), change))
    return path


@pytest.mark.parametrize("name", HOSTILE_HEADERS)
def test_hostile_headers_are_rejected(model, tmp_path, name):
    path = export_with_changed_header(model, tmp_path / "m.rnn", HOSTILE_HEADERS[name])
    with pytest.raises(ModelError, match=r"m\.rnn: [^\n]+$"):
        load(path)


def test_integer_written_as_float_is_rejected(model, tmp_path):
    # Native code would read its bits as another number.
    path = export_with_changed_header(model, tmp_path / "m.rnn", lambda h: h["search"].update(max_extra=1.0))
    with pytest.raises(ModelError, match="damaged: export the model again"):
        load(path)


def test_number_of_units_is_limited(model, tmp_path, monkeypatch):
    # Native code has rows of units on its stack.
    export(model, tmp_path / "m.rnn")
    monkeypatch.setattr("rnnsearch.engine.rnnsearch.MAX_UNITS", 16)
    with pytest.raises(ModelError, match="header is damaged"):
        load(tmp_path / "m.rnn")


@pytest.mark.parametrize("search", [{"max_ratio": 999_999.0}, {"max_extra": 999_999}])
def test_memory_of_a_search_is_limited(model, tmp_path, search):
    path = export_with_changed_header(model, tmp_path / "m.rnn", lambda h: h["search"].update(search))
    for beam in (1, 5):
        with pytest.raises(RnnsearchError, match=r"^a line of [\d,]+ tokens with a translation of up to [\d,]+ is too"):
            load(path).translate("the dog " * 400, beam)


def test_maximum_length_is_at_least_one_token(model, tmp_path):
    path = export_with_changed_header(
        model, tmp_path / "m.rnn", lambda h: h["search"].update(max_ratio=0.0, max_extra=0)
    )
    assert len(load(path).translate("the dog").tokens) <= 2


MISMATCHED_HEADERS = {
    "no config": lambda h: h.pop("config"),
    "no TOML": lambda h: h.update(config="[["),
    "config of another model": lambda h: h.update(config=h["config"].replace('type = "bahdanau', 'type = "cho')),
    "config of a larger model": lambda h: h.update(config=h["config"].replace("embedding = ", "embedding = 9")),
    "tokenizer of one language": lambda h: h.update(tokenizers=h["tokenizers"][:1]),
}


def test_missing_bias_is_zero(model, tmp_path):
    path = export_with_changed_header(model, tmp_path / "m.rnn", lambda h: h["arrays"].pop("output.bias"))
    assert load(path).translate("the dog").text is not None


@pytest.mark.parametrize("name", MISMATCHED_HEADERS)
def test_config_that_does_not_fit_the_weights_is_rejected(model, tmp_path, name):
    path = export_with_changed_header(model, tmp_path / "m.rnn", MISMATCHED_HEADERS[name])
    with pytest.raises(ModelError, match=r"m\.rnn: [^\n]+$"):
        rnnsearch.load(path)


def test_compressed_header_cannot_be_larger_than_declared(model, tmp_path):
    path = tmp_path / "m.rnn"
    export(model, path)
    packed = zlib.compress(bytes(1 << 24))
    for declared in (10, (1 << 24) - 1):
        path.write_bytes(
            path.read_bytes()[:8] + len(packed).to_bytes(8, "little") + declared.to_bytes(8, "little") + packed
        )
        with pytest.raises(ModelError):
            load(path)


def test_unsupported_models_and_settings_are_rejected(tmp_path):
    other = write_model(tmp_path / "other", RNNENCDEC)
    result = run("export", other, tmp_path / "m.rnn")
    assert result.code == 1
    assert result.err.startswith(
        f"rnnsearch: {other}: the engine does not support it: the decoder is RNNencdec; it can"
    )
    config = write_model(tmp_path / "model", BAHDANAU) / "config.toml"
    config.write_text(config.read_text().replace("no_repeat_ngram = 0", "no_repeat_ngram = 3"))
    with pytest.raises(ModelError, match=r"it uses search\.no_repeat_ngram, which exports do not support"):
        export(config.parent, tmp_path / "m.rnn")
    config.write_text(config.read_text().replace('stop = "bound"', 'stop = "top"'))
    config.write_text(config.read_text().replace('length_norm = "power"', 'length_norm = "power-with-bos"'))
    message = r'search\.length_norm = "power-with-bos" and search\.stop = "top" and search'
    with pytest.raises(ModelError, match=message):
        export(config.parent, tmp_path / "m.rnn")
    with pytest.raises(ModelError, match="precision must be"):
        export(config.parent, tmp_path / "m.rnn", "int3")
    assert not (tmp_path / "m.rnn").exists()


def test_invalid_arguments_are_rejected(model, tmp_path):
    export(model, tmp_path / "m.rnn")
    translator = load(tmp_path / "m.rnn")
    with pytest.raises(RnnsearchError, match="n_best must be between 1 and the beam"):
        translator.n_best(["a"], 3, 2)
    with pytest.raises(RnnsearchError, match="prefixes must be one per sentence"):
        translator.n_best(["a"], 1, prefixes=[])
    with pytest.raises(RnnsearchError, match=r"sentences must be a list, such as .* for one text; got str"):
        translator.n_best("a", 1)
    with pytest.raises(RnnsearchError, match=r"sentence 0 \(from 0\) is empty, so its prefix must be empty, too"):
        translator.n_best([""], 1, prefixes=["der"])
    with pytest.raises(RnnsearchError, match=r"sentence 0 \(from 0\) is empty, so its prefix must be empty, too"):
        translator.n_best([" "], 1, prefixes=["der"])
    with pytest.raises(RnnsearchError, match="a sentence must have at most 2,000 tokens"):
        translator.n_best(["the dog " * 1001], 1)


WITHOUT_TORCH = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "pydantic", "typer", "jaxtyping", "safetensors", "rich", "matplotlib"}:
            raise ImportError(name)
sys.meta_path.insert(0, Blocker())
from rnnsearch.runtime.command_line import main
main()
"""


def run_without_torch(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run `rnnsearch-runtime` in a process that cannot import torch and other libraries."""
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=120, check=False)


def test_command_line_works_without_torch(model, tmp_path):
    assert run("export", model, tmp_path / "m.rnn").code == 0
    (tmp_path / "in.en").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    files = ["-i", tmp_path / "in.en", "-o", tmp_path / "out.de", "--alignments", tmp_path / "out.align"]
    result = run_without_torch("translate", tmp_path / "m.rnn", *files)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    expected = rnnsearch.load(model, precision="int8").translate(TEXTS)
    assert (tmp_path / "out.de").read_text(encoding="utf-8").split("\n")[:-1] == [t.text for t in expected]
    links = [" ".join(f"{i}-{j}" for i, j in t.alignment) for t in expected]
    assert (tmp_path / "out.align").read_text(encoding="utf-8").split("\n")[:-1] == links
    result = run_without_torch("translate", tmp_path / "m.rnn", "--format", "json", "--n-best", "2", stdin=b"the dog\n")
    assert [row["source"] for row in json.loads(result.stdout)] == ["the dog", "the dog"]
    result = run_without_torch(
        "translate", tmp_path / "m.rnn", stdin=b"the dog\n" + b"the dog " * 1001 + b"\nthe dog\n"
    )
    best = load(tmp_path / "m.rnn").translate("the dog").text
    assert result.stdout.decode() == f"{best}\n\n{best}\n"
    message = b"standard input:2: must have at most 2,000 tokens; its output line is empty\n"
    assert (result.returncode, result.stderr) == (0, message)
    result = run_without_torch("translate", tmp_path / "m.rnn", stdin=b"a\n\xff\n")
    assert result.returncode == 1
    assert result.stderr == b"rnnsearch-runtime: standard input:2: must be text in UTF-8; got other bytes\n"


def test_wheel_only_imports_numpy_and_tokenizers():
    allowed = {*sys.stdlib_module_names, "numpy", "tokenizers", "rnnsearch"}
    only_for_plots = ("rnnsearch.metrics.plots", "rnnsearch.metrics.scores")  # imported inside `Translation.plot`
    for module in required_modules():
        path: Path = module_path(module)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imports = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        imports |= {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
        if not module.startswith(only_for_plots):
            assert {name.split(".")[0] for name in imports if name} <= allowed, module
    assert "rnnsearch.translator.translator" not in required_modules()
    assert "rnnsearch.ops.native.building" in required_modules()
    assert "rnnsearch.engine.file" in imported_modules(module_path("rnnsearch.runtime.translator"))
