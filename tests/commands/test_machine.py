"""`rnnsearch inspect --machine`: speeds of kernels, and which implementation is used."""

import re

import pytest

from rnnsearch.ops import autotune, autotune_cases
from rnnsearch.ops.native import library
from rnnsearch.utils.files import write_json


@pytest.fixture
def stored_timings(monkeypatch, tmp_path):
    """Store timings of a fictitious machine; native code is not needed."""
    library.library()  # built in the usual cache
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setenv("RNNSEARCH_CACHE", str(tmp_path))
    autotune.register_cases(autotune_cases.cases)
    autotune.reset()
    key = autotune.table_key(autotune._library_name().rpartition("/")[2])
    timed = [
        autotune.Timing(autotune.PRODUCT, "fp32", "9 x 8 x 7", 1e9, {"native": 0.1, "torch": 0.05, "onednn": 0.02}),
        autotune.Timing(autotune.GRU, "fp32", "3 rows", 1e9, {"native": 0.04, "torch": 0.08}),
        autotune.Timing(autotune.SOFTMAX, "bf16", "3 x 4", 1e9, {"native": 1.0, "torch": 2.0}),
    ]
    write_json(autotune.table_path(key), {"key": key, "cases": [case._asdict() for case in timed]})
    yield autotune.table_path(key)
    autotune.reset()


def rows(result):
    return [re.split(r"  +", line.strip()) for line in result.lines]


def test_speeds_fractions_and_used_implementation_are_printed(cli, stored_timings):
    result = cli("inspect", "--machine")
    assert (result.code, result.err) == (0, "")
    printed = rows(result)
    assert ["Stored in", str(stored_timings)] in printed
    assert ["Limit", "fp32 50 GFLOP/s"] in printed
    assert ["Threads", "1"] in printed
    assert ["Processor", autotune.processor_name()] in printed
    assert ["product", "fp32", "9 x 8 x 7", "10.0", "20.0", "50.0", "100%", "onednn"] in printed
    assert ["GRU", "fp32", "3 rows", "25.0", "12.5", "50%", "native"] in printed
    assert ["softmax loss", "bf16", "3 x 4", "1.0", "0.5", "native"] in printed


@pytest.mark.usefixtures("stored_timings")
def test_native_code_is_used_if_required(cli, monkeypatch):
    if library.library() is None:
        pytest.skip(library.unavailable_reason())
    monkeypatch.setenv(library.SWITCH, "1")
    assert ["product", "fp32", "9 x 8 x 7", "10.0", "20.0", "50.0", "20%", "native"] in rows(
        cli("inspect", "--machine")
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "needs a model folder or --machine"),
        (("--machine", "--config"), "needs a model folder or --machine"),
        (("model", "--threads", "2"), "--threads has no effect without --machine"),
    ],
)
def test_wrong_usage(cli, arguments, message):
    result = cli("inspect", *arguments)
    assert result.code == 2
    assert message in result.err


@pytest.mark.parametrize(
    ("command", "options"), [("evaluate", ["--no-card"]), ("score", []), ("align", []), ("translate", ["-i"])]
)
def test_threads_option_sets_the_number_of_threads(cli, model, tmp_path, monkeypatch, command, options):
    thread_counts = []
    monkeypatch.setattr("torch.set_num_threads", thread_counts.append)
    files = [tmp_path / name for name in ("en", "de")]
    for path, text in zip(files, ("the small cat sees the dog.", "der kleine Katze sieht der Hund."), strict=True):
        path.write_text(f"{text}\n")
    if command == "translate":
        del files[1]
    result = cli(command, model, *options, *files, "--threads", "3")
    assert result.code == 0, result.err
    assert thread_counts[0] == 3
