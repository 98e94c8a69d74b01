"""`rnnsearch import`: what it makes is a model folder that the other commands take."""

import tomli_w

from rnnsearch.systems.folder import load_system
from tests.importing import joeynmt
from tests.importing.opennmt_py import Model


def test_the_folder_is_an_ordinary_one(tmp_path, cli):
    path = Model.drawn().save(tmp_path / "model_step_40.pt")
    made = cli("import", path, "-o", tmp_path / "m", "--source", "en", "--target", "de")
    assert (made.code, made.out) == (0, "")
    assert "(stacked lstm, luong-input-feeding), 10 source and 11 target symbols" in made.err
    assert (tmp_path / "m" / "card.md").read_text().count("40") >= 1
    system = load_system(tmp_path / "m")
    assert system.config.data.train == ["train.en|train.de"]
    assert system.config.training.max_updates == 40
    assert cli("translate", tmp_path / "m", stdin="a b@@ c\n").code == 0
    shown = cli("inspect", tmp_path / "m")
    assert "reads_end False" in shown.out
    assert "beam 5, length penalty 1 (power-with-bos), stop top" in shown.out
    refused = cli("export", tmp_path / "m", tmp_path / "m.rnn")
    assert "the engine cannot run it" in refused.err
    again = cli("import", path, "-o", tmp_path / "m", "--source", "en", "--target", "de")
    assert (again.code, "there is something already" in again.err) == (1, True)
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


def test_a_model_of_joeynmt(tmp_path, cli):
    path = joeynmt.Model.drawn().save(tmp_path / "joey")
    made = cli("import", path, "--from", "joeynmt", "-o", tmp_path / "m", "--source", "en", "--target", "de")
    assert (made.code, made.out) == (0, "")
    assert "(stacked torch-gru, luong-input-feeding), 10 source and 10 target symbols" in made.err
    assert cli("translate", tmp_path / "m", stdin="a b@@ c\n").code == 0
    assert "tanh-bias" in cli("inspect", tmp_path / "m").out
