"""`rnnsearch import`: the result is a model folder that all commands accept."""

import tomli_w

from rnnsearch.systems.folder import load_system
from tests.importers import joeynmt
from tests.importers.opennmt_py import Model


def test_imported_model_is_used_by_other_commands(tmp_path, cli):
    path = Model.random().save(tmp_path / "model_step_40.pt")
    imported = cli("import", path, "-o", tmp_path / "m", "--source", "en", "--target", "de")
    assert (imported.code, imported.out) == (0, "")
    assert "(stacked lstm, luong-input-feeding), 10 source and 11 target tokens" in imported.err
    assert (tmp_path / "m" / "card.md").read_text().count("40") >= 1
    system = load_system(tmp_path / "m")
    assert system.config.data.train == ["train.en|train.de"]
    assert system.config.training.max_updates == 40
    assert cli("translate", tmp_path / "m", stdin="a b@@ c\n").code == 0
    shown = cli("inspect", tmp_path / "m")
    assert "reads_end False" in shown.out
    assert "beam 5, length penalty 1 (power-with-bos), stop top" in shown.out
    exported = cli("export", tmp_path / "m", tmp_path / "m.rnn")
    assert "the engine does not support it" in exported.err
    repeated = cli("import", path, "-o", tmp_path / "m", "--source", "en", "--target", "de")
    assert (repeated.code, "already exists" in repeated.err) == (1, True)
    (tmp_path / "train.en").write_text("a b@@ c\nd f a\n" * 20)
    (tmp_path / "train.de").write_text("u v\nx y z\n" * 20)
    run = tmp_path / "run.toml"
    model = system.config.model_dump(mode="json", exclude_none=True)["model"]
    tables = {
        "folder": "run",
        "data": {
            "source": "en",
            "target": "de",
            "train": ["train.en|train.de"],
            "dev": "train.en|train.de",
            "test_size": 0,
        }
        | {"aligner": False, "cleaning": {"drop_duplicates": False}},
        "text": {"type": "words", "tokenizers": "m"},
        "model": model,
        "training": {"begin_from": "m", "max_updates": 2, "dev_bleu": False, "device": "cpu"}
        | {"optimiser": {"type": "adam", "learning_rate": 0.001}},
    }
    run.write_text(tomli_w.dumps(tables))
    trained = cli("train", run)
    assert trained.code == 0, trained.err
    assert "warm start from" in trained.err


def test_joeynmt_model_is_imported(tmp_path, cli):
    path = joeynmt.Model.random().save(tmp_path / "joey")
    imported = cli("import", path, "--from", "joeynmt", "-o", tmp_path / "m", "--source", "en", "--target", "de")
    assert (imported.code, imported.out) == (0, "")
    assert "(stacked torch-gru, luong-input-feeding), 10 source and 10 target tokens" in imported.err
    assert cli("translate", tmp_path / "m", stdin="a b@@ c\n").code == 0
    assert "tanh-bias" in cli("inspect", tmp_path / "m").out
