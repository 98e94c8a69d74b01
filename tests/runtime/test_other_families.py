"""Engine files of other families than RNNsearch: equal translations, and rejection of damaged programs."""

import json
import random
import zlib

import numpy as np
import pytest

import rnnsearch
from rnnsearch.engine import file
from rnnsearch.engine.program import parse_program
from rnnsearch.errors import ModelError
from rnnsearch.export.engine_file import export
from rnnsearch.ops.native.library import library
from rnnsearch.runtime import load
from tests.command_line import run
from tests.runtime.test_runtime import PREFIXES, TEXTS, with_changed_header
from tests.stress.engine_files import corrupt_value
from tests.untrained import FAMILY_SEARCH, OTHER_FAMILIES, write_model

pytestmark = pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")

# Tolerance of the log-probability per token compared with the full package. The encoder's cells sum in another order,
# after which a value may be rounded to its neighbour.
TOLERANCE = {"fp32": 1e-4, "bf16": 0.03, "int8": 0.05, "int4": 0.05}


@pytest.fixture(scope="module", params=OTHER_FAMILIES)
def model(request, tmp_path_factory):
    """Return a model folder."""
    tokenizer = "bpe" if request.param == "luong" else "words"
    folder = tmp_path_factory.mktemp(request.param) / "model"
    return write_model(folder, OTHER_FAMILIES[request.param], tokenizer, search=FAMILY_SEARCH.get(request.param))


@pytest.mark.parametrize("precision", TOLERANCE)
def test_runtime_equals_full_package_within_rounding(model, tmp_path, precision):
    export(model, tmp_path / "m.rnn", precision)
    translators = [rnnsearch.load(tmp_path / "m.rnn")]
    if precision == "fp32":
        translators.append(rnnsearch.load(model, precision="fp32"))
    runtime = load(tmp_path / "m.rnn")
    for translator in translators:
        for n_best, beam, prefixes in ((1, 1, None), (1, None, None), (2, 3, PREFIXES)):
            expected_lists = translator.n_best(TEXTS, translator.options(beam, n_best), prefixes=prefixes)
            result_lists = runtime.n_best(TEXTS, n_best, beam, prefixes)
            for results, expected in zip(result_lists, expected_lists, strict=True):
                assert len(results) == len(expected)
                result = results[0]
                best = expected[0]
                length = max(1, len(best.token_scores))
                assert result.score == pytest.approx(best.score, abs=TOLERANCE[precision] * length)
                assert result.source_tokens == best.source_tokens
                assert (result.attention is None) == (best.attention is None)
                if precision == "fp32":
                    assert (result.text, result.finished) == (best.text, best.finished)
                    assert result.alignment == best.alignment
                    assert result.token_scores == pytest.approx(best.token_scores, abs=1e-3)


def test_commands_write_and_read_engine_files(model, tmp_path):
    assert run("export", model, tmp_path / "m.rnn", "--precision", "fp32").code == 0
    assert file.read_header(tmp_path / "m.rnn")["system"] == "recurrent"
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    options = ("-i", tmp_path / "in.txt", "--precision", "fp32")
    from_file, from_folder = (run("translate", path, *options) for path in (tmp_path / "m.rnn", model))
    assert from_file.code == from_folder.code == 0
    assert from_file.out == from_folder.out
    assert run("export", model, tmp_path / "site", "--format", "web").code == 0
    (entry,) = json.loads((tmp_path / "site/models.json").read_text(encoding="utf-8"))
    assert entry["attention"] == (load(tmp_path / "m.rnn").translate("the dog").attention is not None)


def test_corrupt_programs_are_rejected_or_do_no_harm(model, tmp_path):
    export(model, tmp_path / "original.rnn")
    content = (tmp_path / "original.rnn").read_bytes()
    rng = random.Random(4)
    rejected = 0
    length = int.from_bytes(content[8:16], "little")
    program = json.loads(zlib.decompress(content[24 : 24 + length]))["program"]
    for _ in range(150):
        corrupt = corrupt_value(program, rng)
        changed = with_changed_header(content, lambda h, corrupt=corrupt: h.update(program=corrupt))
        (tmp_path / "m.rnn").write_bytes(changed)
        try:
            load(tmp_path / "m.rnn").translate("the dog", 2)
        except ModelError as error:
            assert "m.rnn: " in str(error) and "\n" not in str(error)
            rejected += 1
        except rnnsearch.RnnsearchError:
            pass
    assert rejected > 75


def test_operations_cannot_name_missing_arrays(model, tmp_path):
    export(model, tmp_path / "original.rnn")
    content = (tmp_path / "original.rnn").read_bytes()
    program = parse_program(file.read_header(tmp_path / "original.rnn")["program"])
    for index, operation in enumerate(program.step.operations):
        operations = list(program.step.operations)
        operations[index] = operation._replace(parameters="missing")
        changed = program._replace(step=program.step._replace(operations=tuple(operations)))
        content = with_changed_header(content, lambda h, changed=changed: h.update(program=changed))
        (tmp_path / "m.rnn").write_bytes(content)
        with pytest.raises(ModelError, match=r"m\.rnn: its header is damaged"):
            load(tmp_path / "m.rnn")


def test_arrays_of_other_shapes_are_rejected(model, tmp_path):
    export(model, tmp_path / "original.rnn", "fp32")
    content = (tmp_path / "original.rnn").read_bytes()
    path = tmp_path / "m.rnn"
    header = file.read_header(tmp_path / "original.rnn")
    for name in header["arrays"]:
        arrays = {**header["arrays"], name: smaller(header["arrays"][name])}
        path.write_bytes(with_changed_header(content, lambda h, arrays=arrays: h.update(arrays=arrays)))
        with pytest.raises(ModelError, match=r"m\.rnn: [^\n]+$"):
            load(path)
            rnnsearch.load(path)  # reads arrays that the runtime does not need


def smaller(entry):
    """Return the entry of an array with one row less, or of another rank."""
    type, shape, start, form = entry
    other_shape = [shape[0] - 1, *shape[1:]] if shape[0] > 1 else [*shape, 1]
    return type, other_shape, start, form


def test_int8_weights_take_one_byte_and_vectors_are_exact(model, tmp_path):
    sizes = {precision: export(model, tmp_path / f"{precision}.rnn", precision) for precision in ("fp32", "int8")}
    assert sizes["int8"] < 0.6 * sizes["fp32"]
    vectors_by_precision = []
    for precision in sizes:
        with file.open_file(tmp_path / f"{precision}.rnn") as contents:
            vectors_by_precision.append(contents.model.vectors)
    fp32_vectors, int8_vectors = vectors_by_precision
    assert fp32_vectors.keys() == int8_vectors.keys()
    for name, vector in fp32_vectors.items():
        np.testing.assert_array_equal(int8_vectors[name], vector)
