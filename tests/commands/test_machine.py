"""`rnnsearch inspect --machine`: what each kernel does here, and which way serves."""

import re

import pytest

from rnnsearch.ops import autotune, autotune_cases
from rnnsearch.ops.native import library
from rnnsearch.utils.files import write_json


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A machine's kept times, made up; native code need not be there."""
    library.library()  # built where it always is
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setenv("RNNSEARCH_CACHE", str(tmp_path))
    autotune.time_at_first_use(autotune_cases.cases)
    autotune.forget()
    key = autotune.key(autotune._place().rpartition("/")[2])
    timed = [
        autotune.Timed(autotune.PRODUCT, "fp32", "9 x 8 x 7", 1e9, {"native": 0.1, "torch": 0.05, "onednn": 0.02}),
        autotune.Timed(autotune.GRU, "fp32", "3 rows", 1e9, {"native": 0.04, "torch": 0.08}),
        autotune.Timed(autotune.SOFTMAX, "bf16", "3 x 4", 1e9, {"native": 1.0, "torch": 2.0}),
    ]
    write_json(autotune.kept_in(key), {"key": key, "cases": [case._asdict() for case in timed]})
    yield autotune.kept_in(key)
    autotune.forget()


def rows(result):
    return [re.split(r"  +", line.strip()) for line in result.lines]


def test_speeds_shares_and_what_serves(cli, kept):
    result = cli("inspect", "--machine")
    assert (result.code, result.err) == (0, "")
    found = rows(result)
    assert ["Kept in", str(kept)] in found
    assert ["Limit", "fp32 50 GFLOP/s"] in found
    assert ["Threads", "1"] in found
    assert ["Processor", autotune.processor_name()] in found
    assert ["product", "fp32", "9 x 8 x 7", "10.0", "20.0", "50.0", "100%", "onednn"] in found
    assert ["GRU", "fp32", "3 rows", "25.0", "12.5", "50%", "native"] in found
    assert ["softmax loss", "bf16", "3 x 4", "1.0", "0.5", "native"] in found


@pytest.mark.usefixtures("kept")
def test_held_to_native_code(cli, monkeypatch):
    if library.library() is None:
        pytest.skip(library.why_not())
    monkeypatch.setenv(library.SWITCH, "1")
    assert ["product", "fp32", "9 x 8 x 7", "10.0", "20.0", "50.0", "20%", "native"] in rows(
        cli("inspect", "--machine")
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a model folder, or --machine alone"),
        (("--machine", "--config"), "give a model folder, or --machine alone"),
        (("model", "--threads", "2"), "--threads has no effect without --machine"),
    ],
)
def test_options_that_do_not_fit(cli, arguments, message):
    result = cli("inspect", *arguments)
    assert result.code == 2
    assert message in result.err


@pytest.mark.parametrize(
    ("command", "options"), [("evaluate", ["--no-card"]), ("score", []), ("align", []), ("translate", ["-i"])]
)
def test_threads_are_those_asked_for(cli, model, tmp_path, monkeypatch, command, options):
    asked = []
    monkeypatch.setattr("torch.set_num_threads", asked.append)
    files = [tmp_path / name for name in ("en", "de")]
    for path, text in zip(files, ("the small cat sees the dog.", "der kleine Katze sieht der Hund."), strict=True):
        path.write_text(f"{text}\n")
    given = files[:1] if command == "translate" else files
    result = cli(command, model, *options, *given, "--threads", "3")
    assert result.code == 0, result.err
    assert asked[0] == 3
