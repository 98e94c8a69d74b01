"""Training on arrays, and `rnnsearch translate` and Python with models that read arrays."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import rnnsearch
from rnnsearch.errors import DataError, RnnsearchError
from rnnsearch.serve.registry import read_model_info
from rnnsearch.systems.card import load_scores
from rnnsearch.text.alignments import format_pharaoh
from rnnsearch.training.progress import RunLog
from tests.command_line import run
from tests.training.toys import HARD_ATTENTION

NAMES = ["red", "green", "blue", "white"]


def write_images(folder: Path, name: str, count: int, seed: int) -> None:
    """Write images of one colour in one of four regions, and the names of the colours."""
    rng = np.random.default_rng(seed)
    colours = rng.integers(len(NAMES), size=count)
    values = np.zeros((count, 4, 3), np.float32)
    values[np.arange(count), rng.integers(4, size=count)] = np.eye(4, 3)[colours] - 0.3
    np.save(folder / f"{name}.npy", values)
    (folder / f"{name}.en").write_text("".join(f"a {NAMES[colour]} one\n" for colour in colours))


RUN_FILE: dict[str, Any] = {
    "folder": "run",
    "data": {
        "arrays": {"image": {"features": 3, "grid": [2, 2]}},
        "source": "image",
        "target": "en",
        "train": ["train.npy|train.en"],
        "dev": "dev.npy|dev.en",
        "test": "test.npy|test.en",
    },
    "text": {"type": "words"},
    "model": {
        "embedding": 8,
        "encoder": {"type": "feedforward", "size": 8},
        "attention": {"score": "additive", "size": 8, **HARD_ATTENTION["model"]["attention"]},
        "decoder": {"type": "bahdanau", "cell": "gru", "size": 8, "maxout": 8},
        "dropout": {"embedding": 0.1, "annotations": 0.1},
    },
    "objective": {**HARD_ATTENTION["objective"], "doubly_stochastic": 0.1},
    "training": {
        "batch": {"sentences": 8},
        "optimiser": {"type": "adam", "learning_rate": 0.01},
        "max_updates": 6,
        "evaluate_every": 3,
        "threads": 1,
    },
    "search": {"beam": 2, "max_extra": 6},
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, a run file, and the folder `run` of a trained model."""
    folder = tmp_path_factory.mktemp("images")
    for seed, (name, count) in enumerate({"train": 40, "dev": 8, "test": 7}.items()):
        write_images(folder, name, count, seed)
    (folder / "run.toml").write_text(tomli_w.dumps(RUN_FILE))
    result = run("train", folder / "run.toml")
    assert result.code == 0, result.err
    return folder


def test_preparation_reports_arrays(images, tmp_path):
    result = run("prepare", images / "run.toml", "--set", f'data.prepared="{tmp_path / "data"}"')
    assert result.code == 0, result.err
    assert "image: arrays of 3 features, 160 rows\n" in result.err
    assert "target: 120 tokens, vocabulary of 10, 0.00% unknown\n" in result.err


def test_interrupted_run_resumes_bit_for_bit(images, tmp_path, monkeypatch):
    other = f'folder="{tmp_path / "other"}"'
    updates = 0
    original = RunLog.update

    def interrupt(self: RunLog, row: dict[str, Any]) -> None:
        nonlocal updates
        updates += 1
        original(self, row)
        if updates == 4:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunLog, "update", interrupt)
    assert run("train", images / "run.toml", "--set", other).code == 130
    assert run("train", images / "run.toml", "--set", other, "--resume").code == 0
    for name in ("model.safetensors", "tokenizers/en.json"):
        assert (tmp_path / "other" / name).read_bytes() == (images / "run" / name).read_bytes()


def test_every_array_gives_one_line_with_attention_over_its_regions(images, tmp_path):
    links = tmp_path / "links"
    result = run("translate", images / "run", "-i", images / "test.npy", "--format", "json", "--alignments", links)
    assert result.code == 0, result.err
    assert len(result.rows) == len(links.read_text().splitlines()) == 7
    translator = rnnsearch.load(images / "run")
    arrays = np.load(images / "test.npy")
    for row, array in zip(result.rows, arrays, strict=True):
        assert row["source_tokens"] == ["1,1", "1,2", "2,1", "2,2"]
        assert np.shape(row["attention"]) == (len(row["tokens"]), 4)
        assert translator.translate(array).text == row["text"]
    assert [t.text for t in translator.translate(list(arrays))] == [row["text"] for row in result.rows]
    plain = run("translate", images / "run", "-i", images / "test.npy", "--n-best", "2", "--format", "nbest")
    assert len(plain.lines) == 14


def test_arrays_with_too_many_rows_give_empty_lines(images):
    result = run("translate", images / "run", "-i", images / "test.npy", "--max-source", "3")
    assert result.lines == [""] * 7
    assert f"{images / 'test.npy'}:1: must have at most 3 rows (--max-source); its output line is empty" in result.err


def test_model_that_reads_arrays_rejects_text(images, tmp_path):
    (tmp_path / "a.en").write_text("a red one\n")
    model = images / "run"
    for command in (
        ["translate", model, "-i", tmp_path / "a.en"],
        ["evaluate", model, tmp_path / "a.en", tmp_path / "a.en"],
        ["score", model, tmp_path / "a.en", tmp_path / "a.en"],
        ["tune", model, tmp_path / "a.en", tmp_path / "a.en"],
        ["candidates", model, tmp_path / "a.en", tmp_path / "a.en"],
        ["align", model, tmp_path / "a.en", tmp_path / "a.en"],
        ["calibrate", model, tmp_path / "a.en", tmp_path / "a.en"],
    ):
        result = run(*command)
        assert (result.code, result.out) == (1, ""), command
        assert "reads arrays (image)" in result.err
        assert len(result.err.splitlines()) == 1, (command, result.err)
    result = run("aligner", model, tmp_path / "a.en", tmp_path / "a.en")
    assert "reads arrays (image), which have no words to align" in result.err
    result = run("export", model, tmp_path / "x.rnns")
    assert result.code == 1
    assert len(result.err.splitlines()) == 1
    result = run("translate", model, "-i", images / "test.npy", "--tags")
    assert (result.code, "--tags needs text as input" in result.err) == (2, True)
    with pytest.raises(RnnsearchError, match="the server translates text; this model reads arrays"):
        read_model_info(model)
    translator = rnnsearch.load(model)
    with pytest.raises(RnnsearchError, match=r"the model reads arrays \(image\), not text"):
        translator.translate("a red one")
    with pytest.raises(DataError, match="array 1: must have 4 rows, one per cell of the grid; got 3"):
        translator.translate(np.zeros((3, 3)))


def test_scores_and_plots_of_arrays(images, tmp_path):
    translator = rnnsearch.load(images / "run")
    array = np.load(images / "test.npy")[0]
    [scored] = translator.score([array], ["a red one"])
    [cross_entropy] = translator.cross_entropies([array], ["a red one"])
    assert scored.log_prob / -4 == pytest.approx(cross_entropy, abs=0.05)  # three words and EOS, searched in bf16
    assert scored.plot(tmp_path / "plot.png").is_file()
    assert scored.source_words == ("1,1", "1,2", "2,1", "2,2")
    assert scored.word_attention.shape == (3, 4)


def test_commands_score_align_and_evaluate_arrays(images, tmp_path):
    model, source, target = images / "run", images / "test.npy", images / "test.en"
    translator = rnnsearch.load(model)
    arrays = list(np.load(source))
    references = target.read_text().splitlines()
    scored = translator.score(arrays, references)
    result = run("score", model, source, target)
    assert [float(line) for line in result.lines] == pytest.approx([pair.log_prob for pair in scored], abs=1e-4)
    rows = run("score", model, source, target, "--format", "json").rows
    assert [row["source_tokens"] for row in rows] == [["1,1", "1,2", "2,1", "2,2"]] * 7
    links = run("align", model, source, target)
    assert links.lines == [format_pharaoh(pair.alignment) for pair in scored]

    scores = tmp_path / "scores.json"
    gold = tmp_path / "gold"
    gold.write_text(links.out)
    result = run(
        *("evaluate", model, source, target, "-o", scores, "--alignments", gold, "--by", "attention"),
        *("--report", tmp_path / "report"),
    )
    assert result.code == 0, result.err
    evaluation = json.loads(scores.read_text())
    assert evaluation["alignment"]["aer"] == 0
    assert "by_length" not in evaluation and "no_unk" not in evaluation
    translations = (tmp_path / "report" / "translations.txt").read_text().splitlines()
    assert translations == [translation.text for translation in translator.translate(arrays)]
    assert load_scores(model)[-1]["set"] == "test.npy"
    result = run("report", model, "-o", tmp_path / "run.html")
    assert result.code == 0, result.err
    assert "10 en tokens" in (tmp_path / "run.html").read_text()


def test_calibration_and_tuning_read_arrays(images, tmp_path):
    write_images(tmp_path, "many", 120, seed=4)
    source, target = tmp_path / "many.npy", tmp_path / "many.en"
    copy = tmp_path / "copy"
    shutil.copytree(images / "run", copy, ignore=shutil.ignore_patterns("checkpoints", "data"))
    result = run("calibrate", copy, source, target)
    assert result.code == 0, result.err
    assert rnnsearch.load(copy).translate(np.load(source)[0]).confidence is not None
    result = run("tune", copy, source, target, "--values", "beam=1,2", "--dry-run")
    assert result.code == 0 and "beam" in result.out, result.err


def test_pairs_of_arrays_with_too_many_rows_have_empty_lines(images):
    model, source, target = images / "run", images / "test.npy", images / "test.en"
    result = run("score", model, source, target, "--max-symbols", "3")
    assert result.lines == [""] * 7
    assert f"{source}:7: must have at most 3 rows (--max-symbols); its output line is empty" in result.err
    rows = run("score", model, source, target, "--max-symbols", "3", "--format", "json").rows
    assert rows[6]["source"] == "test.npy:7" and rows[6]["log_prob"] is None


def test_array_files_that_do_not_fit_are_rejected(images, tmp_path):
    model = images / "run"
    (tmp_path / "two.en").write_text("a red one\n" * 2)
    for command in ("score", "evaluate", "calibrate"):
        result = run(command, model, images / "test.npy", tmp_path / "two.en")
        assert (result.code, result.out) == (1, "")
        assert "must have the same number of lines; got 7 and 2" in result.err


def test_inspect_shows_the_arrays(images):
    result = run("inspect", images / "run")
    assert result.code == 0, result.err
    assert "arrays of 3 features, 2 x 2 regions; 10 target tokens" in result.out


def test_speech_frames_under_a_pyramid(tmp_path):
    """Frames of different lengths, as ragged files; an utterance without frames gives an empty line."""
    rng = np.random.default_rng(3)
    for part, lengths in {"train": [9, 14, 5, 30] * 4, "dev": [8, 3], "test": [7, 0, 21]}.items():
        frames = rng.normal(size=(sum(lengths), 4)).astype(np.float16)
        np.save(tmp_path / f"{part}.npy", frames)
        np.save(tmp_path / f"{part}.ends.npy", np.cumsum(lengths))
        (tmp_path / f"{part}.en").write_text("a red one\n" * len(lengths))
    tables = {
        **RUN_FILE,
        "data": {
            "arrays": {"speech": {"features": 4}},
            "source": "speech",
            "target": "en",
            "train": ["train.npy|train.en"],
            "dev": "dev.npy|dev.en",
            "test_size": 0,
        },
        "model": {
            **RUN_FILE["model"],
            "encoder": {"type": "pyramid", "cell": "lstm", "size": 4, "layers": 3, "reduce": 2},
            "attention": {"score": "additive", "size": 8},
        },
        "objective": {},
        "training": {**RUN_FILE["training"], "max_updates": 2, "evaluate_every": 2, "max_length": 20},
    }
    (tmp_path / "run.toml").write_text(tomli_w.dumps(tables))
    result = run("train", tmp_path / "run.toml")
    assert result.code == 0, result.err
    assert "4 left out as longer than training.max_length" in result.err
    result = run("translate", tmp_path / "run", "-i", tmp_path / "test.npy", "--format", "json")
    assert result.code == 0, result.err
    assert [row["source_tokens"][-1:] for row in result.rows] == [["7"], [], ["21"]]
    assert result.rows[1]["text"] == ""
    assert [np.shape(row["attention"])[-1] for row in result.rows[::2]] == [7, 21]
