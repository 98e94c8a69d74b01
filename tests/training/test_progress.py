"""Progress reports: rows, log lines, TensorBoard, and the model card."""

import io
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, TrainingError
from rnnsearch.ops.device import choose_device
from rnnsearch.ops.native import library
from rnnsearch.training.progress import Reporter, ReporterGroup, RunLog, Screen, format_duration
from rnnsearch.training.run import train
from tests.training.toys import Recorder

ROW = {
    "update": 20,
    "epoch": 1.5,
    "tokens": 400,
    "nll_per_word": 2.25,
    "tokens_per_second": 12345.6,
    "waiting": 0.0125,
    "padding": 0.125,
    "learning_rate": 0.001,
    "gradient_norm": 3.0,
    "seconds": 65.0,
    "seconds_left": 3900.0,
}
DEV = {
    "update": 20,
    "epoch": 1.5,
    "seconds": 65.0,
    "train_nll": 20.0,
    "train_nll_per_word": 2.0,
    "dev_nll": 19.5,
    "dev_nll_per_word": 1.5,
    "dev_perplexity": 4.48,
    "dev_bleu": 12.34,
    "best": True,
}


@pytest.fixture(scope="module")
def trained(configure: Any, prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recorder]:
    """Return the folder and the recorded reports of a run of 4 epochs with all reports enabled."""
    folder = tmp_path_factory.mktemp("progress") / "run"
    recorder = Recorder()
    about = {"corpus": "toys", "licence": "CC BY 9.9", "attribution": "Sentences by the Toy Makers"}
    described = Prepared(prepared.folder, prepared.facts | about)
    config = configure(max_epochs=4, dev_bleu=True, tensorboard=True)
    train(config, described, folder, recorder)
    return folder, recorder


def test_every_update_is_reported(trained):
    rows = trained[1].updates
    assert [row["update"] for row in rows] == list(range(1, 25))
    assert rows[-1]["epoch"] == 4.0
    for row in rows:
        assert row.keys() == ROW.keys()
        assert row["tokens_per_second"] > 0
        assert 0.0 < row["padding"] < 0.5
        assert row["gradient_norm"] > 0
        assert row["learning_rate"] == 0.01
    assert 2.0 < rows[0]["nll_per_word"] < 3.0, "near log(12) of a vocabulary of 12"
    assert rows[-1]["nll_per_word"] < rows[0]["nll_per_word"]
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    assert rows[11]["seconds_left"] == pytest.approx(rows[11]["seconds"]), "half of the epochs are done"
    assert rows[-1]["seconds_left"] == 0.0


def test_every_evaluation_is_reported_and_recorded(trained):
    folder, recorder = trained
    assert [row["update"] for row in recorder.evaluations] == [6, 12, 18, 24]
    for row in recorder.evaluations:
        assert row.keys() == DEV.keys()
        assert 0.0 <= row["dev_bleu"] <= 100.0
        assert row["dev_nll"] > row["dev_nll_per_word"] > 0
    history = json.loads((folder / "training.json").read_text())["history"]
    assert [row["update"] for row in history] == [6, 12, 18, 24]


def test_remaining_time_is_until_nearest_limit(learn):
    recorder = learn(max_updates=4, max_epochs=100.0, max_minutes=60.0)
    first = recorder.updates[0]
    assert first["seconds_left"] == pytest.approx(3 * first["seconds"])


def read_log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_log_has_one_json_object_per_line(trained):
    rows = read_log(trained[0] / "log.jsonl")
    assert [row["update"] for row in rows if row["kind"] == "update"] == [20]
    assert [row["update"] for row in rows if row["kind"] == "dev"] == [6, 12, 18, 24]
    messages = [row["text"] for row in rows if row["kind"] == "message"]
    assert "44 training pairs; fp32 on 1 thread of" in messages[0]
    assert "training ended: 4 epochs done (training.max_epochs)" in messages
    assert messages == trained[1].messages


def test_log_is_appended_to(tmp_path):
    for text in ("first", "zweitens: äöü"):
        log = RunLog(tmp_path / "log.jsonl")
        log.message(text)
        log.update(ROW)
        log.update(ROW | {"update": 21})
        log.evaluated(DEV)
    rows = read_log(tmp_path / "log.jsonl")
    assert [row["kind"] for row in rows] == ["message", "update", "dev"] * 2
    assert rows[3]["text"] == "zweitens: äöü"
    assert rows[4] == pytest.approx({"kind": "update", **ROW})


def test_line_summarises_updates_since_previous_line(tmp_path: Path) -> None:
    # Update n has n tokens; updates 1 to 20 take one second each, 21 to 40 two.
    rows = [
        ROW | {"update": n, "tokens": n, "nll_per_word": 60.0 / n, "tokens_per_second": n / seconds, "waiting": waiting}
        for first, seconds, waiting in ((1, 1.0, 0.25), (21, 2.0, 0.5))
        for n in range(first, first + 20)
    ]
    log = RunLog(tmp_path / "log.jsonl")
    screen, file = make_screen(1000.0)
    for row in rows:
        log.update(row)
        screen.update(row)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["update"] for line in lines] == [20, 40]
    assert [line["tokens"] for line in lines] == [210, 610]
    assert [line["nll_per_word"] for line in lines] == pytest.approx([20 * 60 / 210, 20 * 60 / 610])
    assert [line["tokens_per_second"] for line in lines] == pytest.approx([210 / 20, 610 / 40])
    assert [line["waiting"] for line in lines] == pytest.approx([0.25, 0.5])
    screen.next_due = 0.0
    screen.update(ROW | {"update": 41, "tokens": 180, "nll_per_word": 5.0, "tokens_per_second": 9.0, "waiting": 0.0})
    assert "NLL 3.30 per word  12 tokens/s" in file.getvalue()
    assert "waiting for data 31%" in file.getvalue()


def test_log_that_cannot_be_opened_raises(tmp_path):
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(TrainingError) as error:
        RunLog(tmp_path / "log.jsonl")
    assert str(error.value) == f"{tmp_path / 'log.jsonl'}: cannot be written: Is a directory"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_log_on_full_disk_raises():
    log = RunLog(Path("/dev/full"))
    with pytest.raises(TrainingError) as error:
        log.message("text")
    assert str(error.value) == "/dev/full: cannot be written: No space left on device; nothing was added"


def test_tensorboard_has_scalars(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained[0] / "tensorboard")).Reload()
    names = set(events.Tags()["scalars"])
    assert {"train/nll_per_word", "train/tokens_per_second", "dev/dev_nll", "dev/dev_bleu"} <= names
    assert [event.step for event in events.Scalars("dev/dev_nll")] == [6, 12, 18, 24]
    reported = [row["dev_nll"] for row in trained[1].evaluations]
    assert [event.value for event in events.Scalars("dev/dev_nll")] == pytest.approx(reported, rel=1e-5)


def test_card_describes_data_and_training(trained):
    folder, recorder = trained
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert card.startswith("# aa → bb, a recurrent translation model\n")
    assert "| Corpus | toys |" in card
    assert "| Licence | CC BY 9.9 |" in card
    assert "| Attribution | Sentences by the Toy Makers |" in card
    assert "| Training pairs | 44 |" in card
    best = min(recorder.evaluations, key=lambda row: row["dev_nll"])
    row = next(line for line in card.splitlines() if line.startswith("| aa-bb |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == "24", "updates"
    assert float(cells[2]) == 4.0, "epochs"
    assert f"{best['train_nll']:.1f}" in cells
    assert f"{best['dev_nll']:.1f}" in cells
    facts = json.loads((folder / "training.json").read_text())
    assert facts["hours"] == pytest.approx(recorder.updates[-1]["seconds"] / 3600)
    assert facts["device"] in row
    assert sha256((folder / "model.safetensors").read_bytes()).hexdigest() in card


def test_card_contains_no_corpus_text(trained, corpus):
    line = (corpus / "train.aa").read_text().splitlines()[0]
    assert len(line) > 4
    assert line not in (trained[0] / "training.json").read_text()
    assert line not in (trained[0] / "card.md").read_text()


def make_screen(every_seconds: float) -> tuple[Screen, io.StringIO]:
    file = io.StringIO()
    return Screen(Console(file=file, width=60), every_seconds), file


def test_screen_prints_periodic_lines_without_terminal():
    screen, file = make_screen(0.0)
    with screen:
        screen.update(ROW)
        screen.evaluated(DEV)
        screen.message("a message with [brackets] and 1 number")
    assert file.getvalue().splitlines() == [
        "epoch 1.50  NLL 2.25 per word  12,346 tokens/s  lr 0.001  1 h 05 min left",
        "dev, epoch 1.50: NLL 19.50 per sentence  perplexity 4.48  BLEU 12.3  best so far",
        "a message with [brackets] and 1 number",
    ]
    screen, file = make_screen(1000.0)
    with screen:
        screen.update(ROW)
    assert file.getvalue() == ""


def test_screen_updates_live_line_on_terminal():
    file = io.StringIO()
    with Screen(Console(file=file, width=160, force_terminal=True)) as screen:
        screen.update(ROW)
        screen.live.refresh()
    assert "12,346 tokens/s" in file.getvalue()


def test_lines_omit_missing_limit_and_bleu():
    screen, file = make_screen(0.0)
    screen.update(ROW | {"seconds_left": None})
    screen.evaluated(DEV | {"dev_bleu": None, "best": False})
    assert "left" not in file.getvalue()
    assert "BLEU" not in file.getvalue()
    assert "best" not in file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 min 00 s"), (65.0, "1 min 05 s"), (3599.9, "59 min 59 s"), (4320.0, "1 h 12 min")]
)
def test_format_duration(seconds, text):
    assert format_duration(seconds) == text


def test_reporter_group_forwards_everything():
    recorders = [Recorder(), Recorder()]
    group: Reporter = ReporterGroup(*recorders)
    group.update(ROW)
    group.evaluated(DEV)
    group.message("text")
    for recorder in recorders:
        assert (recorder.updates, recorder.evaluations, recorder.messages) == ([ROW], [DEV], ["text"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", 'training.device: must be auto, cpu, cuda or cuda:N; got "gpu"'),
        ("meta", 'training.device: must be auto, cpu, cuda or cuda:N; got "meta"'),
        ("cuda:99", 'training.device: must be a device of this machine; got "cuda:99", and torch finds '),
    ],
)
def test_unavailable_device_raises(name, message):
    with pytest.raises(ConfigError) as error:
        choose_device(name)
    assert str(error.value).startswith(message)
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type in ("cpu", "cuda")


def test_reporting_the_device_builds_only_one_library(empty_library_folder, learn):
    recorder = learn(max_updates=1)
    assert recorder.messages[0].endswith(f", native code for {library.chosen_variant().name}")
    assert [file.name.rpartition("-")[0] for file in empty_library_folder.iterdir()] == [library.chosen_variant().name]
