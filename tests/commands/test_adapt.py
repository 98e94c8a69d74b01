"""`rnnsearch adapt`: a model is fine-tuned on new text, keeps what belongs to it, and is compared on held-out pairs."""

import json
import re
import shutil

import pytest

from rnnsearch.config import load
from rnnsearch.evaluation.adaptation import MIN_PAIRS, split_pairs
from rnnsearch.translator.confidence import CALIBRATION_FILE


def distinct_pairs(count):
    return [(f"source {n} a", f"target {n} b") for n in range(count)]


def read_pairs(corpus):
    lines = []
    for language in ("en", "de"):
        texts = [(corpus / f"{part}.{language}").read_text(encoding="utf-8") for part in ("train", "test")]
        lines.append("".join(texts).splitlines())
    return list(zip(*lines, strict=True))


@pytest.fixture(scope="module")
def new_text(corpus, tmp_path_factory):
    """Return a file of pairs, in which every other translation has other words than in the model's text."""
    rows = []
    for number, (source, target) in enumerate(read_pairs(corpus)):
        words = target.split()
        rows.append(f"{source}\t{' '.join(words if number % 2 else words[::-1])}\n")
    path = tmp_path_factory.mktemp("new-text") / "new.tsv"
    path.write_text("".join(rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def adapted(cli, model, new_text, tmp_path_factory):
    """Return the folder of an adapted, calibrated model, and the result of the command."""
    folder = tmp_path_factory.mktemp("adapted")
    original = folder / "original"
    shutil.copytree(model, original, ignore=shutil.ignore_patterns("checkpoints"))
    for column, language in enumerate(("en", "de")):
        texts = [line.split("\t")[column] for line in new_text.read_text(encoding="utf-8").splitlines()]
        (folder / f"all.{language}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    calibrated = cli("calibrate", original, folder / "all.en", folder / "all.de")
    assert calibrated.code == 0, calibrated.err
    return folder, cli("adapt", original, new_text, "-o", folder / "new", "--set", "training.max_updates=4")


def test_both_models_are_compared_on_new_and_old_text(adapted):
    _, result = adapted
    assert result.code == 0, result.err
    header, new, old = result.lines
    assert header.split("  ")[0] == "held-out text"
    assert re.fullmatch(r"new +\d+( +\d+\.\d){4}", new)
    assert re.fullmatch(r"old +\d+( +\d+\.\d){4}", old)


def test_tokenizers_aligner_and_calibration_are_kept(adapted):
    folder, _ = adapted
    for name in ("tokenizers/en.json", "tokenizers/de.json", "aligner/tables.safetensors"):
        assert (folder / "new" / name).read_bytes() == (folder / "original" / name).read_bytes()
    # The calibration belongs to the new weights.
    before, after = (json.loads((folder / name / CALIBRATION_FILE).read_text()) for name in ("original", "new"))
    assert before != after


def test_weights_change_and_old_text_is_mixed_in(adapted):
    folder, _ = adapted
    weights = [(folder / name / "model.safetensors").read_bytes() for name in ("original", "new")]
    assert weights[0] != weights[1]
    config = load(folder / "new" / "config.toml")
    assert config.data.train == ["text/new.en|text/new.de", "text/old.en|text/old.de"]
    assert config.training.optimiser.learning_rate == pytest.approx(0.2 * 0.02)
    assert config.training.schedule.type == "linear"
    dev = (folder / "new" / "text" / "dev.en").read_text().splitlines()
    assert len(dev) % 2 == 0  # as many old pairs as new ones


def test_finished_adaptation_is_not_trained_again(adapted, cli, new_text):
    folder, first = adapted
    before = (folder / "new" / "model.safetensors").read_bytes()
    again = cli("adapt", folder / "original", new_text, "-o", folder / "new", "--set", "training.max_updates=4")
    assert (again.code, again.out) == (0, first.out)
    assert (folder / "new" / "model.safetensors").read_bytes() == before


def test_other_text_needs_another_folder(adapted, user_error, corpus):
    folder, _ = adapted
    message = user_error("adapt", folder / "original", f"{corpus}/train.en|{corpus}/train.de", "-o", folder / "new")
    assert str(folder / "new") in message


def test_text_that_is_too_short_to_calibrate_with_is_reported(adapted, cli, corpus):
    folder, _ = adapted
    text = f"{corpus}/dev.en|{corpus}/dev.de"
    result = cli("adapt", folder / "original", text, "-o", folder / "short", "--set", "training.max_updates=2")
    assert result.code == 0, result.err
    assert "the new model is not calibrated: a calibration needs at least 200" in result.err
    assert not (folder / "short" / CALIBRATION_FILE).exists()


def test_invalid_arguments_are_errors(user_error, model, corpus, tmp_path, new_text):
    assert "must be another folder than the model's" in user_error("adapt", model, new_text, "-o", model)
    few = tmp_path / "few.tsv"
    few.write_text("a b\tc d\n")
    expected = f"{few}: must have at least {MIN_PAIRS} distinct sentence pairs to adapt to; got 1"
    assert user_error("adapt", model, few, "-o", tmp_path / "new") == expected
    assert "no such file" in user_error("adapt", model, corpus / "none.tsv", "-o", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_held_out_pairs_share_no_sentence_with_training():
    pairs = distinct_pairs(200) + [(f"source {n} a", f"other target {n}") for n in range(200)]
    split = split_pairs(pairs, "text")
    train = {text for pair in split.train for text in pair}
    held_out = {text for pair in split.dev + split.test for text in pair}
    assert train.isdisjoint(held_out)
    assert len(split.test) == 40
    assert split_pairs(pairs[::-1], "text").test == split.test


def test_old_text_that_repeats_sentences_of_new_text_is_left_out():
    new, old = split_pairs(distinct_pairs(200), "new"), split_pairs(distinct_pairs(100), "old")
    repeated = old._replace(
        train=[*old.train, (new.test[0][0], "another translation"), ("another", new.dev[0][1])],
        test=[*old.test, (new.train[0][0], "another translation")],
    )
    left = repeated.disjoint_from(new)
    sentences = {name: {text for pair in pairs for text in pair} for name, pairs in new._asdict().items()}
    assert (sentences["dev"] | sentences["test"]).isdisjoint(text for pair in left.train for text in pair)
    assert sentences["train"].isdisjoint(text for pair in left.dev + left.test for text in pair)
    assert set(left.train) < set(repeated.train)
