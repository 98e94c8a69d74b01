"""`rnnsearch prepare`, `train` and `inspect`, and errors in run files."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from rnnsearch import config as run_config
from rnnsearch.align.aligner import TABLES_FILE


def test_train_writes_a_model_folder_and_prints_next_steps(trained, model):
    assert trained.out == "", "training has no text output"
    err = trained.err
    assert "prepared 200 training pairs in " in err
    assert '[model.attention]\nscore = "additive"' in err, "the resolved config is printed"
    assert "dev, epoch" in err
    assert "training ended: 100 updates done (training.max_updates)" in err
    assert err.rstrip().endswith(f"Next: rnnsearch translate {model}, rnnsearch inspect {model}")
    names = {path.name for path in model.iterdir()}
    assert names == {
        "aligner", "card.md", "checkpoints", "config.toml", "data", "log.jsonl", "model.safetensors",
        "tokenizers", "training.json",
    }  # fmt: skip
    assert run_config.load(model / "config.toml").training.max_updates == 100


def test_aligner_does_not_affect_training(cli, corpus):
    weights = []
    for name, on in (("with", "true"), ("without", "false")):
        settings = (f"folder={name}", f"data.aligner={on}", "training.max_updates=5")
        assert cli("train", corpus / "run.toml", "--set", *settings).code == 0
        assert (corpus / name / "aligner").is_dir() is (on == "true")
        weights.append((corpus / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_aligner_that_was_interrupted_is_learned_by_a_resumed_run(cli, corpus, monkeypatch):
    def interrupt(_prepared):
        raise KeyboardInterrupt

    run = ("train", corpus / "run.toml", "--set", "folder=stopped", "training.max_updates=2")
    with monkeypatch.context() as patch:
        patch.setattr("rnnsearch.data.aligner_text.learn_pending", interrupt)
        stopped = cli(*run)
    assert stopped.code == 130
    assert stopped.err.index("training ended") < stopped.err.index("learning the word aligner")
    assert "stopped: the model is complete, but has no word aligner; continue with --resume" in stopped.err
    translated = cli("translate", corpus / "stopped", "--alignments", corpus / "links", stdin="the small cat\n")
    assert "has no word aligner yet" in translated.err and translated.code == 0
    assert "learns the word aligner after the model" in cli("inspect", corpus / "stopped").out
    shutil.copytree(corpus / "stopped", corpus / "completed")
    assert cli(*run, "--resume").code == 0
    assert (corpus / "stopped" / "aligner").is_dir() and (corpus / "stopped" / "data" / "aligner").is_dir()
    assert "learned from the training text in" in cli("aligner", corpus / "completed").err
    tables = [(corpus / name / "aligner" / TABLES_FILE).read_bytes() for name in ("stopped", "completed")]
    assert tables[0] == tables[1]
    shutil.rmtree(corpus / "completed" / "data")
    assert (
        "its run has no text for a word aligner; give the source and target text"
        in cli("aligner", corpus / "completed").err
    )
    assert cli("aligner", corpus / "completed", corpus / "train.en").code == 2
    assert "has no word aligner" not in cli("translate", corpus / "stopped", "--tags", stdin="the small cat\n").err


def test_bpe_dropout_uses_the_same_prepared_data(cli, corpus):
    def weights(name, *settings):
        shared = (f"folder={name}", "data.prepared=merges", "data.aligner=false", "training.max_updates=4")
        result = cli("train", corpus / "run.toml", "--set", "text.type=bpe", "text.vocabulary=270", *shared, *settings)
        assert result.code == 0, result.err
        return "prepared 200" in result.err, (corpus / name / "model.safetensors").read_bytes()

    dropped = [weights(f"dropped-{number}", "text.bpe_dropout=0.1") for number in range(2)]
    whole = weights("whole")
    assert [is_new for is_new, _ in (*dropped, whole)] == [True, False, False]
    assert dropped[0][1] == dropped[1][1] != whole[1]


def test_unigram_sampling_uses_the_same_prepared_data(cli, corpus):
    def trained(name, *settings):
        text = ("text.type=unigram", "text.vocabulary=270", "data.prepared=unigram", "data.aligner=false")
        shared = (*text, f"folder={name}", "training.max_updates=4")
        result = cli("train", corpus / "run.toml", "--set", *shared, *settings)
        assert result.code == 0, result.err
        return "prepared 200" in result.err, (corpus / name / "model.safetensors").read_bytes()

    sampled_weights = [trained(f"drawn-{number}", "text.unigram_sampling=0.1") for number in range(2)]
    whole = trained("likeliest")
    assert [is_new for is_new, _ in (*sampled_weights, whole)] == [True, False, False]
    assert sampled_weights[0][1] == sampled_weights[1][1] != whole[1]
    result = cli("translate", corpus / "likeliest", stdin="the small cat sees the dog.\n\n日本\n")
    assert result.code == 0 and len(result.out.splitlines()) == 3
    shown = cli("inspect", corpus / "likeliest")
    assert shown.code == 0 and "subwords (unigram)" in shown.out


def test_unigram_needs_sentencepiece(cli, corpus, monkeypatch):
    monkeypatch.setattr("rnnsearch.text.unigram.find_spec", {}.get)
    result = cli("prepare", corpus / "run.toml", "--set", "text.type=unigram", "text.vocabulary=270", "folder=none")
    assert result.code == 1
    assert result.err.count("\n") <= 2 and "pip install sentencepiece" in result.err, result.err
    assert not (corpus / "none").exists()


def test_joint_vocabulary_with_minimum_counts_per_language(cli, corpus):
    joint = ("text.type=bpe", "text.joint=true", "text.vocabulary=300", "text.side_min_count=20", "model.tie=unset")
    shared = (*joint, "folder=joint", "data.aligner=false", "training.max_updates=250")
    result = cli("train", corpus / "run.toml", "--set", *shared)
    assert result.code == 0, result.err
    [row] = cli("translate", corpus / "joint", "--format", "json", stdin="the small cat sees the dog.\n").rows
    assert row["text"] == "der kleine Katze sieht der Hund."
    sides = [(corpus / "joint" / "tokenizers" / f"{side}.json").read_text() for side in ("en", "de")]
    assert sides[0] != sides[1], "each language has its own rare tokens"
    dropped = cli("train", corpus / "run.toml", "--set", *shared, "text.bpe_dropout=0.1", "folder=joint-dropped")
    assert dropped.code == 0 and "prepared 200" in dropped.err


def test_missing_aligner_of_prepared_data_is_reported(cli, corpus):
    data = ("data.prepared=bare", "training.max_updates=2")
    first = cli("train", corpus / "run.toml", "--set", "folder=first", *data, "data.aligner=false")
    assert "has no aligner" not in first.err
    (corpus / "later" / "aligner").mkdir(parents=True)
    (corpus / "later" / "aligner" / "of another run").touch()
    assert "has no aligner" in cli("train", corpus / "run.toml", "--set", "folder=later", *data).err
    assert not (corpus / "later" / "aligner").exists()


@pytest.fixture
def folder(corpus: Path, tmp_path: Path) -> Path:
    """Return a copy of the corpus and its run file that a test can change."""
    shutil.copytree(corpus, tmp_path / "corpus", ignore=shutil.ignore_patterns("model", "one-vector"))
    return tmp_path / "corpus"


def test_prepare_reports_what_was_left_out(cli, folder, tmp_path):
    with (folder / "train.en").open("ab") as en, (folder / "train.de").open("ab") as de:
        en.write(b"the cat\nthe dog\nbad \xff byte\n")
        de.write(b"\nder Hund\nschlechtes Byte\n")
    result = cli("prepare", folder / "run.toml", "--set", f"folder={tmp_path / 'out'}")
    assert (result.code, result.out) == (0, "")
    assert "203 pairs read, 201 kept" in result.err
    assert "1 left out: empty; for example" in result.err
    assert "1 left out: invalid UTF-8; for example" in result.err
    assert f"{folder / 'train.en'}:203" in result.err
    assert "target: " in result.err
    assert "% unknown" in result.err
    assert (tmp_path / "out" / "data" / "prepared.json").is_file()
    # Training uses the prepared data.
    result = cli("train", folder / "run.toml", "--set", f"folder={tmp_path / 'out'}", "training.max_updates=1")
    assert result.code == 0
    assert "prepared 2" not in result.err


def test_prepare_replaces_stale_data(cli, folder, tmp_path):
    settings = ("--set", f"folder={tmp_path / 'out'}")
    assert cli("prepare", folder / "run.toml", *settings).code == 0
    for name in ("train.en", "train.de"):
        with (folder / name).open("a") as file:
            file.write("one more\n" if name == "train.en" else "noch eins\n")
    stale = cli("train", folder / "run.toml", *settings)
    assert stale.code == 1
    assert stale.err.endswith("train.en has changed since it was prepared (prepare the corpus again)\n")
    again = cli("prepare", folder / "run.toml", *settings)
    assert again.code == 0, again.err
    assert "201 pairs read, 201 kept" in again.err


def test_default_run_folder(cli, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train = ("train", corpus / "run.toml", "--set", "training.dev_bleu=false", "--set")
    result = cli(*train, "training.max_updates=1")
    assert result.code == 0, result.err
    assert (tmp_path / "runs" / "tiny" / "model.safetensors").is_file()
    # A second run is rejected without --resume, and continues with it.
    again = cli(*train, "training.max_updates=1")
    assert again.code == 1
    assert again.err.splitlines()[-1] == (
        "rnnsearch: runs/tiny: holds a training run already; continue with --resume, or name another folder"
    )
    resumed = cli(*train, "training.max_updates=2", "--resume")
    assert resumed.code == 0, resumed.err
    assert "resuming from update 1 (runs/tiny/checkpoints/last)" in resumed.err
    assert "training ended: 2 updates done" in resumed.err
    other = cli(*train, "training.seed=3", "--resume", "--set", "model.embedding=8")
    assert other.code == 1
    assert "its run differs from this config in model.embedding, training.seed;" in other.err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("preset=smal", "preset must be one of "),
        ("training.batch_tokens=3", "training.batch_tokens: unknown option"),
        ("training.max_updatess=3", 'unknown option (did you mean "max_updates"?)'),
        ("training.device=tpu", 'training.device: must be auto, cpu, cuda or cuda:N; got "tpu"'),
        ("nonsense", '--set must be key=value, such as training.seed=2; got "nonsense"'),
    ],
)
def test_wrong_setting_is_a_one_line_error(cli, corpus, tmp_path, setting, message):
    result = cli("train", corpus / "run.toml", "--set", f"folder={tmp_path / 'out'}", "--set", setting)
    assert (result.code, result.out) == (1, "")
    last = result.err.splitlines()[-1]
    assert message in last
    assert last.startswith("rnnsearch: ")
    assert "Traceback" not in result.err
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_all_problems_are_reported_together(cli, corpus):
    result = cli(
        "train", corpus / "run.toml", "--set", "training.optimiser.rho=0.9", "--set", "model.encoder.cell=gruu",
        "--set", "training.schedule.type=halving",
    )  # fmt: skip
    assert result.code == 1
    paths = [line.split(": ")[2] for line in result.err.splitlines()]
    assert paths == [
        "model.encoder.cell",
        "training.optimiser.rho",
        "training.schedule.every",
        "training.schedule.start",
    ]


def test_missing_and_unequal_files_are_an_error(user_error, corpus, tmp_path):
    nowhere = tmp_path / "nowhere.toml"
    assert user_error("train", nowhere) == f"{nowhere}: no such run file"
    out = f"folder={tmp_path / 'out'}"
    text = user_error("train", corpus / "run.toml", "--set", out, "--set", 'data.train=["train.en|dev.de"]')
    assert text == f"{corpus / 'train.en'} and {corpus / 'dev.de'} must have the same number of lines; got 200 and 20"
    assert not (tmp_path / "out" / "data").exists()


def test_folder_of_another_model_is_rejected_before_preparation(user_error, corpus, model_copy):
    before = sorted(model_copy.rglob("*"))
    message = user_error("train", corpus / "run.toml", "--set", f'folder="{model_copy}"')
    assert message == f"{model_copy}: holds a model without a checkpoint to resume from; name another folder"
    assert sorted(model_copy.rglob("*")) == before


def test_folder_name_is_not_parsed_as_markup(cli, model, tmp_path):
    (tmp_path / "my [bold]").symlink_to(model)
    assert "my [bold]" in cli("inspect", tmp_path / "my [bold]").out


def test_inspect_shows_components_training_and_config(cli, model):
    result = cli("inspect", model, "--config")
    assert (result.code, result.err) == (0, "")
    facts = json.loads((model / "training.json").read_text(encoding="utf-8"))
    rows = dict(
        re.split(r"  +", line, maxsplit=1) for line in map(str.rstrip, result.lines) if re.match(r"\S.*  +\S", line)
    )
    assert rows["Languages"] == "en → de"
    assert rows["Encoder"] == "bidirectional (cell gru, size 24)"
    assert rows["Attention"].startswith("additive (size 24")
    assert rows["Decoder"].startswith("bahdanau (cell gru, size 32, maxout 16")
    assert rows["Search"] == "beam 3, length penalty 1"
    assert rows["In training"] == "fast implementations of encoder, decoder, output"
    assert rows["Training pairs"] == "200"
    assert rows["SHA-256 of weights"] == hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    assert rows["Updates"].startswith(f"{facts['updates']} (")
    assert "[model.attention]" in result.out
    assert "[model.attention]" not in cli("inspect", model).out
    from rnnsearch.systems.folder import load_system

    parameters = dict(load_system(model).model.named_parameters())
    total = sum(p.numel() for p in parameters.values())
    assert rows["all"].split() == [f"{total:,}", "100.0%"]
    for component in ("source_embedding", "encoder", "decoder", "output"):
        inside = sum(p.numel() for name, p in parameters.items() if name.partition(".")[0] == component)
        assert rows[component].split() == [f"{inside:,}", f"{inside / total:.1%}"]
    for name, _ in parameters.items():
        assert f"  {name} " in result.out, "names are not cut off"


def test_inspect_shows_scores(cli, model_copy, corpus):
    assert "Scores" not in cli("inspect", model_copy).out
    cli("evaluate", model_copy, corpus / "dev.en", corpus / "dev.de", "--beam", "1")
    shown = cli("inspect", model_copy).out
    assert re.search(r"^dev\.en +20 +beam 1, length penalty 1 +BLEU +\d+\.\d\d +nrefs:1", shown, re.MULTILINE)
    (model_copy / "training.json").unlink()
    assert "NLL" not in cli("inspect", model_copy).out
