"""A model as one engine file, and what reads it without PyTorch: the same translations, and no harm from any file."""

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
from rnnsearch.accel.rnnsearch_search import arrays_of
from rnnsearch.engine import file, stored
from rnnsearch.engine.rnnsearch import MATRICES, TABLES, RNNsearch, Weight
from rnnsearch.engine.structs import Kind
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.export.engine_file import export
from rnnsearch.metrics.calibration import Calibration
from rnnsearch.ops.native.building import SWITCH
from rnnsearch.ops.native.library import library
from rnnsearch.runtime import load
from rnnsearch.runtime.translator import variant
from rnnsearch.search.candidates import learn_candidate_tables, save_candidate_tables
from rnnsearch.serve.registry import read_model_info
from rnnsearch.systems.folder import load_system
from rnnsearch.translator.confidence import CONFIDENCE, FEATURES
from scripts.runtime_wheel import imported_modules, module_path, required_modules
from tests.command_line import run
from tests.untrained import BAHDANAU, RNNENCDEC, write_model

pytestmark = pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")


@pytest.fixture(autouse=True)
def one_variant(monkeypatch):
    """The whole package runs what the runtime does, which knows no AMX tiles: they sum bf16 in another order."""
    if "amx" in os.environ.get(SWITCH, ""):
        monkeypatch.delenv(SWITCH)
    monkeypatch.setenv(SWITCH, variant().name)


TEXTS = [
    "the small cat sees a bird.",
    "",
    "Is it red?",
    "the dog the dog the dog sees!",
    "Ünïcode ⁂ and\u00a0more",
    "\u00a0 ",
]
PREFIXES = ["die kl", "", "Ein ", "der Hund sieht d", "", ""]
TIED = {**BAHDANAU, "embedding": 8, "tie": "target", "decoder": {**BAHDANAU["decoder"], "maxout": 8}}
SAME = ("text", "tokens", "token_scores", "score", "log_prob", "finished", "alignment", "source_tokens", "confidence")


@pytest.fixture(scope="module", params=["bpe, tied", "words, tanh layer"])
def model(request, tmp_path_factory):
    """A model folder with a calibration."""
    kind, how = request.param.split(", ")
    tanh = {**BAHDANAU, "decoder": {"type": "bahdanau-tanh", "cell": "gru", "size": 11, "readout": 7}}
    folder = write_model(tmp_path_factory.mktemp(kind) / "model", TIED if how == "tied" else tanh, kind)
    values = [float(n % 3) for n in range(len(FEATURES))]
    Calibration(FEATURES, tuple(values), (2.0,) * len(FEATURES), tuple(values), 0.5, 300, 0.7, 0.1).save(
        folder / CONFIDENCE
    )
    return folder


@pytest.mark.parametrize("precision", ["int4", "int8", "bf16", "fp32"])
@pytest.mark.parametrize("read", ["model", "file"])
def test_the_same_translations(model, tmp_path, precision, read):
    """Of the runtime, and of the whole package that reads the model's folder or the file."""
    size = export(model, tmp_path / "m.rnn", precision)
    assert size == (tmp_path / "m.rnn").stat().st_size
    if read == "model" and precision == "int4":
        pytest.skip("no folder has numbers of 4 bits")
    whole = rnnsearch.load(model, precision=precision) if read == "model" else rnnsearch.load(tmp_path / "m.rnn")
    alone = load(tmp_path / "m.rnn")
    for n_best, beam, prefixes in ((1, 1, None), (1, None, None), (4, 4, None), (2, 3, PREFIXES), (1, 1, PREFIXES)):
        expected = whole.n_best(TEXTS, whole.options(beam, n_best), prefixes=prefixes)
        found = alone.n_best(TEXTS, n_best, beam, prefixes)
        assert [len(own) for own in found] == [len(own) for own in expected]
        for own, wanted in zip(found, expected, strict=True):
            for one, other in zip(own, wanted, strict=True):
                assert [getattr(one, name) for name in SAME] == [getattr(other, name) for name in SAME]
                if one.attention is not None:
                    np.testing.assert_array_equal(one.attention, other.attention)
    assert alone.translate(TEXTS[0]).text == whole.translate(TEXTS[0]).text
    assert alone.languages == ("en", "de")


def test_arrays_come_back(model, tmp_path):
    arrays = arrays_of(load_system(model).model)
    for kind, most in ((Kind.FP32, 0.0), (Kind.BF16, 2.0**-8), (Kind.INT8, 1 / 250)):
        file.write(tmp_path / "m.rnn", file.Contents({}, arrays, kind))
        with file.opened(tmp_path / "m.rnn") as (_, found, told, _):
            assert (told, found.sizes) == (kind, arrays.sizes)
            for name in (*MATRICES, *TABLES):
                own = arrays.weights[name].values
                other = found.weights[name].rows(np.arange(len(own)))
                assert np.abs(other - own).max() <= most * np.abs(own).max() * (1 if kind is Kind.INT8 else 2)
        for name, bias in arrays.biases.items():
            np.testing.assert_array_equal(found.biases[name], bias)


def test_one_weight_at_a_time_is_read(model, tmp_path):
    """Beside what is laid out: not all of a file, as long as none of them is most of it."""
    arrays, draw = arrays_of(load_system(model).model), np.random.default_rng(4)
    words = {name: (200_000, arrays.weights[name].values.shape[1]) for name in ("output", *TABLES)}
    larger = {name: Weight(draw.normal(size=shape).astype(np.float32)) for name, shape in words.items()}
    biases = {**arrays.biases, "output": np.zeros(200_000, np.float32)}
    path = tmp_path / "m.rnn"
    size = file.write(
        path, file.Contents({}, replace(arrays, weights={**arrays.weights, **larger}, biases=biases), Kind.INT8)
    )
    tracemalloc.start()
    with file.opened(path) as (_, found, kind, _):
        RNNsearch(library(), found, kind)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.6 * size


def test_what_is_pruned_takes_a_bit(model, tmp_path):
    arrays = arrays_of(load_system(model).model)
    for weight in arrays.weights.values():
        weight.values[:] = np.where(np.random.default_rng(1).random(weight.values.shape) < 0.8, 0, weight.values)
    for kind in Kind:
        size = file.write(tmp_path / "m.rnn", file.Contents({}, arrays, kind))
        each, biases = (4, 2, 1)[kind], sum(bias.size for bias in arrays.biases.values())
        dense = sum(one.values.size for one in arrays.weights.values()) * each
        assert size < (0.3 + 1 / (8 * each)) * dense + 64 * 60 + 4 * biases
        with file.opened(tmp_path / "m.rnn") as (_, found, *_):
            for name, weight in arrays.weights.items():
                zero = found.weights[name].rows(np.arange(len(weight.values))) == 0
                assert (zero >= (weight.values == 0)).all()
                if kind is Kind.FP32:
                    np.testing.assert_array_equal(found.weights[name].values, weight.values)


def test_numbers_of_4_bits():
    """Each byte comes back with an error of half its group's step at most, but where a few are clipped for the others'
    good; 127, and so the row's scale, comes back whole."""
    draw = np.random.default_rng(2)
    values = np.rint(draw.normal(0, 30, (5000, 37)).clip(-127, 127)).astype(np.int8)
    values[:, 5] = 127 * draw.choice([-1, 1], len(values))
    values[7] = 0
    values[7, 5] = 127
    stored_rows = stored.in_halves(values)
    assert stored_rows.shape == (5000, stored.half_width(37)) and stored_rows.dtype == np.uint8
    found = stored.from_halves(stored_rows, 37)
    np.testing.assert_array_equal(found[:, 5], values[:, 5])
    np.testing.assert_array_equal(found[7], values[7])
    whole = np.clip(np.rint(values / (127 / 7)), -7, 7) * 127 / 7
    error = ((found.astype(float) - values) ** 2).mean()
    assert error < 0.7 * ((whole - values) ** 2).mean()  # groups have steps of their own
    np.testing.assert_array_equal(stored.from_halves(stored.in_halves(found), 37)[:, :16], found[:, :16])


@pytest.mark.parametrize("type", ["int8", "bf16", "fp32"])
def test_sparse_arrays_come_back(type):
    draw = np.random.default_rng(3)
    for shape, share in (((3, 5), 0.9), ((1, 1), 1.0), ((17,), 0.5), ((8, 64), 0.0)):
        array = draw.normal(0, 40, shape).astype(np.float32)
        array[draw.random(shape) < share] = 0
        array.flat[0] = -0.0
        numbers = {"int8": array.astype(np.int8), "bf16": stored.to_bf16(array), "fp32": array}[type]
        form, raw = stored.written(type, numbers)
        assert len(raw) <= numbers.nbytes
        payload = stored.Payload(BytesIO(b"a header" + b"\0" * 64 + raw), 8, 64 + len(raw))
        stored.require(payload, type, list(shape), 64, form)
        found = stored.read(payload, type, list(shape), 64, form)
        expected = stored.from_bf16(numbers) if type == "bf16" else numbers
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
        np.testing.assert_array_equal(found, expected)
        for refuses in (stored.require, stored.read):
            with pytest.raises(ValueError):
                refuses(payload._replace(size=63 + len(raw)), type, list(shape), 64, form)


def test_an_engine_file_is_a_model(model, tmp_path):
    """To the commands that read models; what writes into a folder says that it is none."""
    export(model, tmp_path / "m.rnn", "int8")
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    made = [run("translate", of, "-i", tmp_path / "in.txt") for of in (tmp_path / "m.rnn", model)]
    assert made[0].code == made[1].code == 0 and made[0].out.count("\n") == len(TEXTS)
    shown = run("inspect", tmp_path / "m.rnn", "--config")
    assert shown.code == 0 and "SHA-256" in shown.out and 'precision = "int8"' in shown.out
    about = read_model_info(tmp_path / "m.rnn")
    assert (about.name, about.source, about.target, about.calibrated) == ("m.rnn", "en", "de", True)
    for command in (["prune", "-o", tmp_path / "p", "--share", "0.5"], ["export", tmp_path / "n.rnn"]):
        refused = run(command[0], tmp_path / "m.rnn", *command[1:])
        assert refused.code == 1 and "m.rnn: must be a model folder; got a file" in refused.err
    with pytest.raises(ModelError, match="has no candidate lists; got 10: export it with --candidates 10"):
        rnnsearch.load(tmp_path / "m.rnn", candidates=10)
    together = rnnsearch.load([tmp_path / "m.rnn", model]).translate(TEXTS)
    assert len(together) == len(TEXTS)


def test_candidate_lists_go_along(model, tmp_path):
    """Translations of a batch are made of the same symbols, with the same scores."""
    sizes = [len(tokenizer) for tokenizer in (load_system(model).source, load_system(model).target)]
    folder = shutil.copytree(model, tmp_path / "model")
    pairs = [[5, 6, 7], [8, 5], [6, 9, 9, 10]], [[7, 5], [9, 9, 6], [8]]
    save_candidate_tables(folder, learn_candidate_tables(*pairs, *sizes))
    export(folder, tmp_path / "m.rnn", candidates=2)
    whole, alone = rnnsearch.load(folder, candidates=2, precision="int8"), load(tmp_path / "m.rnn")
    read, free = rnnsearch.load(tmp_path / "m.rnn"), load_without_lists(folder, tmp_path)
    changed = 0
    for text in [*TEXTS, "the small small dog"]:
        for beam in (1, 3):
            other, theirs = (t.n_best([text], t.options(beam))[0][0] for t in (whole, read))
            mine = alone.translate(text, beam)
            assert [getattr(mine, name) for name in SAME] == [getattr(theirs, name) for name in SAME]
            assert [getattr(mine, name) for name in SAME[:-1]] == [getattr(other, name) for name in SAME[:-1]]
            changed += mine.token_scores != free.translate(text, beam).token_scores
    assert changed
    assert alone.n_best(["the dog"], 1, 2, prefixes=["Ein"])[0][0].text.startswith("Ein")  # over all symbols
    with pytest.raises(ModelError, match="has lists of 2 translations; got 3"):
        rnnsearch.load(tmp_path / "m.rnn", candidates=3)
    with pytest.raises(ModelError, match=r"candidates must be between 0 and 100; got -1"):
        export(folder, tmp_path / "n.rnn", candidates=-1)
    for name, shape in {"another vocabulary": [3, 2], "one row": [2]}.items():
        path, content = tmp_path / f"{name}.rnn", (tmp_path / "m.rnn").read_bytes()
        change = partial(lambda h, shape: h["arrays"][file.CANDIDATES[0]].__setitem__(1, shape), shape=shape)
        path.write_bytes(rewritten(content, change))
        with pytest.raises(ModelError, match=r"rnn: [^\n]+$"):
            load(path)


def load_without_lists(folder, tmp_path):
    export(folder, tmp_path / "free.rnn", candidates=0)
    return load(tmp_path / "free.rnn")


def test_bytes_of_a_table_round_to_themselves():
    scale = np.random.default_rng(1).uniform(1e-8, 10, 200_000).astype(np.float32) / np.float32(127)
    top = stored.readable(scale) * np.float32(127)
    np.testing.assert_array_equal(top / np.float32(127), scale)


def test_a_damaged_file_is_told_of(model, tmp_path):
    path = tmp_path / "m.rnn"
    export(model, path)
    damaged = damages(path.read_bytes(), random.Random(3))
    for content in damaged.values():
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"m\.rnn: [^\n]+$"):
            load(path)
    with pytest.raises(ModelError, match="no such engine file"):
        load(tmp_path / "none.rnn")
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path)


def damages(whole: bytes, draw: random.Random) -> dict[str, bytes]:
    """A file cut or with one bit changed, by what was done to it."""
    header = 24 + int.from_bytes(whole[8:16], "little")
    damaged = {f"cut at {n}": whole[:n] for n in (0, 5, 23, 24, 100, header, header + 64, len(whole) - 1)}
    said = says(whole, header)
    for _ in range(150):
        at = draw.randrange(header if draw.random() < 0.7 else len(whole))
        changed = whole[:at] + bytes([whole[at] ^ (1 << draw.randrange(8))]) + whole[at + 1 :]
        if says(changed, header) != said:
            damaged[f"byte {at}"] = changed
    return damaged


def says(whole: bytes, header: int) -> tuple[bytes, bytes, bytes]:
    """What is read of a file: deflated, other bits may spell the same header, and none are looked at between it and the
    arrays."""
    try:
        text = zlib.decompress(whole[24:header])
    except zlib.error:
        text = whole[24:header]
    return whole[:24], text, whole[header + -header % 64 :]


def rewritten(whole: bytes, change) -> bytes:
    """A file whose header, whole and true of its arrays, says other things."""
    length = int.from_bytes(whole[8:16], "little")
    header = json.loads(zlib.decompress(whole[24 : 24 + length]))
    change(header)
    text = json.dumps(header).encode()
    packed = zlib.compress(text)
    head = whole[:8] + len(packed).to_bytes(8, "little") + len(text).to_bytes(8, "little") + packed
    payload = whole[24 + length + -(24 + length) % 64 :]
    return head + bytes(-len(head) % 64) + payload


HOSTILE = {
    "later": lambda h: h.update(format=3),
    "foreign": lambda h: h.update(system="transformer"),
    "no kind": lambda h: h.update(kind="int2"),
    "beyond the end": lambda h: h["arrays"]["output"].__setitem__(2, 1 << 40),
    "before the beginning": lambda h: h["arrays"]["output"].__setitem__(2, -64),
    "huge": lambda h: h["arrays"]["output"].__setitem__(1, [1 << 40, 1 << 40]),
    "another shape": lambda h: h["arrays"]["key"].__setitem__(1, h["arrays"]["key"][1][::-1]),
    "bits beyond the end": lambda h: h["arrays"]["output"].__setitem__(slice(1, 4), [[1 << 20, 1 << 20], 0, "sparse"]),
    "an unknown form": lambda h: h["arrays"]["output"].__setitem__(3, "dense-ish"),
    "another type": lambda h: h["arrays"]["vector"].__setitem__(0, "int8"),
    "a scale of bytes": lambda h: h["arrays"]["target_embedding.scale"].__setitem__(0, "int8"),
    "no scale": lambda h: h["arrays"].pop("key.scale"),
    "larger sizes": lambda h: h["sizes"].update(state=64),
    "no pool": lambda h: h["sizes"].update(pool=0),
    "negative": lambda h: h["sizes"].update(encoder=-16),
    "text for sizes": lambda h: h.update(sizes=["state"]),
    "a wide beam": lambda h: h["search"].update(beam=1 << 40),
    "long": lambda h: h["search"].update(max_ratio=1e30),
    "half a symbol more": lambda h: h["search"].update(max_extra=1.5),
    "symbols that are banned": lambda h: h["search"].update(banned=[5]),
    "bytes for fp32": lambda h: h.update(kind="fp32"),
    "the same bytes again and again": lambda h: h["arrays"].update(
        {f"more.{n}": h["arrays"]["output"] for n in range(3000)}
    ),
    "no norm": lambda h: h["search"].update(length_norm="none"),
    "a norm without bound": lambda h: h["search"].update(length_penalty=1000.0),
    "lists for a norm": lambda h: h["search"].update(length_norm=[1]),
    "unknown setting": lambda h: h["search"].update(cats=3),
    "no batch": lambda h: h["search"].update(batch_sentences=0),
    "no tokenizer": lambda h: h.update(tokenizers=["{}", "{}"]),
    "one tokenizer": lambda h: h.update(tokenizers=h["tokenizers"][:1]),
    "no languages": lambda h: h.update(languages=[]),
    "calibration": lambda h: h.update(calibration="{}"),
}


def changed(model, path, change):
    """A model's file whose header says other things."""
    export(model, path)
    path.write_bytes(rewritten(path.read_bytes(), change))
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused(model, tmp_path, name):
    path = changed(model, tmp_path / "m.rnn", HOSTILE[name])
    with pytest.raises(ModelError, match=r"m\.rnn: [^\n]+$"):
        load(path)


def test_a_whole_number_with_a_point_is_none(model, tmp_path):
    """Its bits would be read as another."""
    path = changed(model, tmp_path / "m.rnn", lambda h: h["search"].update(max_extra=1.0))
    with pytest.raises(ModelError, match="damaged: export the model again"):
        load(path)


def test_units_without_bound_are_refused(model, tmp_path, monkeypatch):
    """Native code has rows of them on its stack."""
    export(model, tmp_path / "m.rnn")
    monkeypatch.setattr("rnnsearch.engine.rnnsearch.MOST_UNITS", 16)
    with pytest.raises(ModelError, match="header is damaged"):
        load(tmp_path / "m.rnn")


@pytest.mark.parametrize("search", [{"max_ratio": 999_999.0}, {"max_extra": 999_999}])
def test_a_file_cannot_ask_for_all_the_memory(model, tmp_path, search):
    path = changed(model, tmp_path / "m.rnn", lambda h: h["search"].update(search))
    for beam in (1, 5):
        with pytest.raises(RnnsearchError, match=r"^a line of [\d,]+ symbols whose translation may have [\d,]+ is too"):
            load(path).translate("the dog " * 400, beam)


def test_a_search_of_no_symbols_finds_one(model, tmp_path):
    path = changed(model, tmp_path / "m.rnn", lambda h: h["search"].update(max_ratio=0.0, max_extra=0))
    assert len(load(path).translate("the dog").tokens) <= 2


FOREIGN = {
    "no config": lambda h: h.pop("config"),
    "no TOML": lambda h: h.update(config="[["),
    "another model": lambda h: h.update(config=h["config"].replace('type = "bahdanau', 'type = "cho')),
    "a larger model": lambda h: h.update(config=h["config"].replace("embedding = ", "embedding = 9")),
    "one language": lambda h: h.update(tokenizers=h["tokenizers"][:1]),
}


def test_a_file_without_a_bias_has_zeros(model, tmp_path):
    path = changed(model, tmp_path / "m.rnn", lambda h: h["arrays"].pop("output.bias"))
    assert load(path).translate("the dog").text is not None


@pytest.mark.parametrize("name", FOREIGN)
def test_a_config_of_another_model_is_refused(model, tmp_path, name):
    path = changed(model, tmp_path / "m.rnn", FOREIGN[name])
    with pytest.raises(ModelError, match=r"m\.rnn: [^\n]+$"):
        rnnsearch.load(path)


def test_a_bomb_stays_small(model, tmp_path):
    path = tmp_path / "m.rnn"
    export(model, path)
    packed = zlib.compress(bytes(1 << 24))
    for claimed in (10, (1 << 24) - 1):
        path.write_bytes(
            path.read_bytes()[:8] + len(packed).to_bytes(8, "little") + claimed.to_bytes(8, "little") + packed
        )
        with pytest.raises(ModelError):
            load(path)


def test_what_the_engine_cannot_run_is_refused(tmp_path):
    other = write_model(tmp_path / "other", RNNENCDEC)
    result = run("export", other, tmp_path / "m.rnn")
    assert result.code == 1
    assert result.err.startswith(f"rnnsearch: {other}: the engine cannot run it: the decoder is RNNencdec; it can")
    config = write_model(tmp_path / "model", BAHDANAU) / "config.toml"
    config.write_text(config.read_text().replace("no_repeat_ngram = 0", "no_repeat_ngram = 3"))
    with pytest.raises(ModelError, match=r"it has no search\.no_repeat_ngram yet"):
        export(config.parent, tmp_path / "m.rnn")
    config.write_text(config.read_text().replace('stop = "bound"', 'stop = "top"'))
    config.write_text(config.read_text().replace('length_norm = "power"', 'length_norm = "power-with-bos"'))
    with pytest.raises(
        ModelError, match=r'no search\.length_norm = "power-with-bos" and no search\.stop = "top" and no'
    ):
        export(config.parent, tmp_path / "m.rnn")
    with pytest.raises(ModelError, match="precision must be"):
        export(config.parent, tmp_path / "m.rnn", "int3")
    assert not (tmp_path / "m.rnn").exists()


def test_bad_questions(model, tmp_path):
    export(model, tmp_path / "m.rnn")
    translator = load(tmp_path / "m.rnn")
    with pytest.raises(RnnsearchError, match="n_best must be between 1 and the beam"):
        translator.n_best(["a"], 3, 2)
    with pytest.raises(RnnsearchError, match="prefixes must be one a sentence"):
        translator.n_best(["a"], 1, prefixes=[])
    with pytest.raises(RnnsearchError, match="is of an empty sentence"):
        translator.n_best([""], 1, prefixes=["der"])
    with pytest.raises(RnnsearchError, match="is of an empty sentence"):
        translator.n_best([" "], 1, prefixes=["der"])
    with pytest.raises(RnnsearchError, match="a sentence must have at most 2,000 symbols"):
        translator.n_best(["the dog " * 1001], 1)


BARE = """
import sys
class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "pydantic", "typer", "jaxtyping", "safetensors", "rich", "matplotlib"}:
            raise ImportError(name)
sys.meta_path.insert(0, Bare())
from rnnsearch.runtime.command_line import main
main()
"""


def bare(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command line, where there is no torch."""
    command = [sys.executable, "-c", BARE, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=120, check=False)


def test_the_command_line_without_torch(model, tmp_path):
    assert run("export", model, tmp_path / "m.rnn").code == 0
    (tmp_path / "in.en").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    files = ["-i", tmp_path / "in.en", "-o", tmp_path / "out.de", "--alignments", tmp_path / "out.align"]
    result = bare("translate", tmp_path / "m.rnn", *files)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    expected = rnnsearch.load(model, precision="int8").translate(TEXTS)
    assert (tmp_path / "out.de").read_text(encoding="utf-8").split("\n")[:-1] == [t.text for t in expected]
    links = [" ".join(f"{i}-{j}" for i, j in t.alignment) for t in expected]
    assert (tmp_path / "out.align").read_text(encoding="utf-8").split("\n")[:-1] == links
    result = bare("translate", tmp_path / "m.rnn", "--format", "json", "--n-best", "2", stdin=b"the dog\n")
    assert [row["source"] for row in json.loads(result.stdout)] == ["the dog", "the dog"]
    result = bare("translate", tmp_path / "m.rnn", stdin=b"the dog\n" + b"the dog " * 1001 + b"\nthe dog\n")
    best = load(tmp_path / "m.rnn").translate("the dog").text
    assert result.stdout.decode() == f"{best}\n\n{best}\n"
    said = b"standard input:2: must have at most 2,000 symbols; its line of output is empty\n"
    assert (result.returncode, result.stderr) == (0, said)
    result = bare("translate", tmp_path / "m.rnn", stdin=b"a\n\xff\n")
    assert result.returncode == 1
    assert result.stderr == b"rnnsearch-runtime: standard input:2: must be text in UTF-8; got other bytes\n"


def test_the_wheel_asks_for_two_libraries_alone():
    allowed = {*sys.stdlib_module_names, "numpy", "tokenizers", "rnnsearch"}
    for module in required_modules():
        path: Path = module_path(module)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        named |= {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
        if not module.startswith("rnnsearch.metrics.plots"):  # imported only for plots
            assert {name.split(".")[0] for name in named if name} <= allowed, module
    assert "rnnsearch.translator.translator" not in required_modules()
    assert "rnnsearch.ops.native.building" in required_modules()
    assert "rnnsearch.engine.file" in imported_modules(module_path("rnnsearch.runtime.translator"))
