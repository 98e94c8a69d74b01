"""Training on monolingual text."""

import json

import pytest

SETTINGS = ["training.max_updates=2", "training.dev_bleu=false", "training.metric=nll", "data.aligner=false"]
SUBWORDS = ["text.type=bpe", "text.vocabulary=300", "text.joint=true"]


@pytest.fixture
def train(cli, corpus, tmp_path):
    """Return a function that trains on the corpus and more files, and returns the model folder."""

    def run(more, *settings):
        files = ["train.en|train.de", more]
        all_settings = [f"data.train={json.dumps(files)}", f"folder={tmp_path / 'run'}", *SETTINGS, *settings]
        result = cli("train", corpus / "run.toml", *(part for setting in all_settings for part in ("--set", setting)))
        assert result.code == 0, result.err
        assert "400 training pairs" in result.err
        assert cli("translate", tmp_path / "run", stdin="the cat sees the dog.\n\n").out.count("\n") == 2
        return tmp_path / "run"

    return run


@pytest.mark.parametrize(("target_only", "text"), [("copied", SUBWORDS), ("null", []), ("null", SUBWORDS)])
def test_target_only_text_is_used_in_training(train, corpus, tmp_path, target_only, text):
    lines = (corpus / "train.de").read_text().splitlines()
    (tmp_path / "mono.de").write_text("".join(f"Hier: {line}\n" for line in lines))
    folder = train(f"|{tmp_path / 'mono.de'}", f"data.target_only={target_only}", "data.weights=[1, 0.5]", *text)
    assert f'target_only = "{target_only}"' in (folder / "config.toml").read_text()


def test_translated_source_text_is_used_in_training(cli, train, corpus, model, tmp_path):
    lines = (corpus / "train.en").read_text().splitlines()
    (tmp_path / "mono.en").write_text("".join(f"so {line}\n" for line in lines))
    result = cli("translate", model, "-i", tmp_path / "mono.en", "-o", tmp_path / "mono.de", "--beam", "1")
    assert result.code == 0, result.err
    train(f"{tmp_path / 'mono.en'}|{tmp_path / 'mono.de'}", "data.weights=[1, 0.5]")
