"""Models of other families than RNNsearch as engine files: the same translations, and no harm from any program."""

import json
import random
import zlib

import numpy as np
import pytest

import rnnsearch
from rnnsearch.engine import file
from rnnsearch.errors import ModelError
from rnnsearch.export.engine_file import export
from rnnsearch.ops.native.library import library
from rnnsearch.runtime import load
from tests.command_line import run
from tests.runtime.test_runtime import PREFIXES, TEXTS, rewritten
from tests.stress.engine_files import corrupt_value
from tests.untrained import FAMILY_SEARCH, OTHER_FAMILIES, write_model

pytestmark = pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")

ROUNDED = {"fp32": 1e-4, "bf16": 0.03, "int8": 0.05, "int4": 0.05}
"""Of a translation's log-probability a symbol, beside the whole package's: the encoder's cells sum in another order,
and what is rounded next may be a neighbour."""


@pytest.fixture(scope="module", params=OTHER_FAMILIES)
def model(request, tmp_path_factory):
    """A model folder."""
    kind = "bpe" if request.param == "luong" else "words"
    folder = tmp_path_factory.mktemp(request.param) / "model"
    return write_model(folder, OTHER_FAMILIES[request.param], kind, search=FAMILY_SEARCH.get(request.param))


@pytest.mark.parametrize("precision", ROUNDED)
def test_the_same_translations(model, tmp_path, precision):
    """Of the runtime and of the whole package that reads the file, or, in fp32, the folder."""
    export(model, tmp_path / "m.rnn", precision)
    wholes = [rnnsearch.load(tmp_path / "m.rnn")]
    if precision == "fp32":
        wholes.append(rnnsearch.load(model, precision="fp32"))
    alone = load(tmp_path / "m.rnn")
    for whole in wholes:
        for n_best, beam, prefixes in ((1, 1, None), (1, None, None), (2, 3, PREFIXES)):
            expected = whole.n_best(TEXTS, whole.options(beam, n_best), prefixes=prefixes)
            found = alone.n_best(TEXTS, n_best, beam, prefixes)
            for own, wanted in zip(found, expected, strict=True):
                assert len(own) == len(wanted)
                one, other = own[0], wanted[0]
                length = max(1, len(other.token_scores))
                assert one.score == pytest.approx(other.score, abs=ROUNDED[precision] * length)
                assert one.source_tokens == other.source_tokens
                assert (one.attention is None) == (other.attention is None)
                if precision == "fp32":
                    assert (one.text, one.alignment, one.finished) == (other.text, other.alignment, other.finished)
                    assert one.token_scores == pytest.approx(other.token_scores, abs=1e-3)


def test_the_command_line_writes_and_reads_it(model, tmp_path):
    assert run("export", model, tmp_path / "m.rnn", "--precision", "fp32").code == 0
    assert file.header_of(tmp_path / "m.rnn")["system"] == "recurrent"
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    given = ("-i", tmp_path / "in.txt", "--precision", "fp32")
    made = [run("translate", of, *given) for of in (tmp_path / "m.rnn", model)]
    assert made[0].code == made[1].code == 0 and made[0].out == made[1].out
    assert run("export", model, tmp_path / "site", "--format", "web").code == 0
    (row,) = json.loads((tmp_path / "site/models.json").read_text(encoding="utf-8"))
    assert row["attention"] == (load(tmp_path / "m.rnn").translate("the dog").attention is not None)


def test_an_odd_program_is_refused_or_does_no_harm(model, tmp_path):
    export(model, tmp_path / "whole.rnn")
    whole, draw, refused = (tmp_path / "whole.rnn").read_bytes(), random.Random(4), 0
    length = int.from_bytes(whole[8:16], "little")
    program = json.loads(zlib.decompress(whole[24 : 24 + length]))["program"]
    for _ in range(150):
        changed = corrupt_value(program, draw)
        (tmp_path / "m.rnn").write_bytes(rewritten(whole, lambda h, changed=changed: h.update(program=changed)))
        try:
            load(tmp_path / "m.rnn").translate("the dog", 2)
        except ModelError as error:
            assert "m.rnn: " in str(error) and "\n" not in str(error)
            refused += 1
        except rnnsearch.RnnsearchError:
            pass
    assert refused > 75


def test_an_array_of_another_shape_is_refused(model, tmp_path):
    export(model, tmp_path / "whole.rnn", "fp32")
    whole, path = (tmp_path / "whole.rnn").read_bytes(), tmp_path / "m.rnn"
    header = file.header_of(tmp_path / "whole.rnn")
    for name in header["arrays"]:
        arrays = {n: entry if n != name else smaller(entry) for n, entry in header["arrays"].items()}
        path.write_bytes(rewritten(whole, lambda h, arrays=arrays: h.update(arrays=arrays)))
        with pytest.raises(ModelError, match=r"m\.rnn: [^\n]+$"):
            load(path)
            rnnsearch.load(path)  # what only this reads


def smaller(entry):
    """An array with a number less, or a row."""
    type, shape, begin, form = entry
    return type, [shape[0] - 1, *shape[1:]] if shape[0] > 1 else [*shape, 1], begin, form


def test_weights_take_a_byte_each_and_rows_stay(model, tmp_path):
    sizes = {precision: export(model, tmp_path / f"{precision}.rnn", precision) for precision in ("fp32", "int8")}
    assert sizes["int8"] < 0.6 * sizes["fp32"]
    kept = []
    for precision in sizes:
        with file.opened(tmp_path / f"{precision}.rnn") as contents:
            kept.append(contents.model.rows)
    assert kept[0].keys() == kept[1].keys()
    for name, row in kept[0].items():
        np.testing.assert_array_equal(kept[1][name], row)
