"""Text of one language in training, from the command line."""

import json

import pytest

SETTINGS = ["training.max_updates=2", "training.dev_bleu=false", "training.metric=nll", "data.aligner=false"]
SUBWORDS = ["text.type=bpe", "text.vocabulary=300", "text.joint=true"]


@pytest.fixture
def train(cli, corpus, tmp_path):
    """Trains on the corpus and more files, with settings, and returns the folder."""

    def run(more, *settings):
        files = ["train.en|train.de", more]
        asked = [f"data.train={json.dumps(files)}", f"folder={tmp_path / 'run'}", *SETTINGS, *settings]
        result = cli("train", corpus / "run.toml", *(part for one in asked for part in ("--set", one)))
        assert result.code == 0, result.err
        assert "400 training pairs" in result.err
        assert cli("translate", tmp_path / "run", stdin="the cat sees the dog.\n\n").out.count("\n") == 2
        return tmp_path / "run"

    return run


@pytest.mark.parametrize(("kind", "text"), [("copied", SUBWORDS), ("null", []), ("null", SUBWORDS)])
def test_text_of_the_target(train, corpus, tmp_path, kind, text):
    lines = (corpus / "train.de").read_text().splitlines()
    (tmp_path / "mono.de").write_text("".join(f"Hier: {line}\n" for line in lines))
    folder = train(f"|{tmp_path / 'mono.de'}", f"data.target_only={kind}", "data.weights=[1, 0.5]", *text)
    assert f'target_only = "{kind}"' in (folder / "config.toml").read_text()


def test_self_training(cli, train, corpus, model, tmp_path):
    """Text of the source, with what the model makes of it."""
    lines = (corpus / "train.en").read_text().splitlines()
    (tmp_path / "mono.en").write_text("".join(f"so {line}\n" for line in lines))
    result = cli("translate", model, "-i", tmp_path / "mono.en", "-o", tmp_path / "mono.de", "--beam", "1")
    assert result.code == 0, result.err
    train(f"{tmp_path / 'mono.en'}|{tmp_path / 'mono.de'}", "data.weights=[1, 0.5]")
