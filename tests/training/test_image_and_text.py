"""A model with an image beside a sentence (double attention, Calixto et al. 2017): training, resuming, translation."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rnnsearch.config import RunConfig
from rnnsearch.data.arrays import open_arrays
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import Interrupted, RnnsearchError
from rnnsearch.serve.registry import read_model_info
from rnnsearch.training.run import check, train
from rnnsearch.translator.loading import load
from rnnsearch.translator.translator import Translator
from tests.command_line import run
from tests.training.toys import Recorder, random_sentences, toy_config

SENTENCES = [" ".join(words) for words in random_sentences(5, 60, 2, 5)]
SOURCES = {"type": "mean", "encoders": {"image": {"type": "feedforward", "size": 12}}}


def configure(folder: Path, **training: Any) -> RunConfig:
    tables = {
        "data": {
            "arrays": {"image": {"features": 3, "grid": [1, 2]}},
            "source": ["aa", "image"],
            "target": "bb",
            "train": ["train.aa|train.npy|train.bb"],
            "dev": "dev.aa|dev.npy|dev.bb",
        },
        "model": {"encoder": {"type": "unidirectional", "cell": "gru", "size": 12}, "sources": SOURCES},
    }
    return toy_config(folder, {"training": {"dev_bleu": True, **training}}, tables)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences and translations with two-region images; every third training image is missing."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(2)
    for part, rows in {"train": SENTENCES[:40], "dev": SENTENCES[40:]}.items():
        lengths = np.full(len(rows), 2)
        if part == "train":
            lengths[::3] = 0
        np.save(folder / f"{part}.npy", rng.normal(size=(lengths.sum(), 3)).astype(np.float32))
        np.save(folder / f"{part}.ends.npy", np.cumsum(lengths))
        for suffix, lines in {"aa": rows, "bb": [" ".join(reversed(row.split())) for row in rows]}.items():
            (folder / f"{part}.{suffix}").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def prepared(corpus: Path) -> Prepared:
    return prepare(configure(corpus, max_updates=1), corpus / "data")


@pytest.fixture(scope="module")
def translator(corpus: Path, prepared: Prepared) -> Translator:
    config = configure(corpus, max_updates=4)
    assert check(config) == []
    recorder = Recorder()
    train(config, prepared, corpus / "model", recorder)
    assert recorder.evaluations[-1]["dev_bleu"] is not None
    return load(corpus / "model")


def test_rows_without_an_image_are_kept(prepared):
    lengths = prepared.train.lengths(np.arange(len(prepared.train)))
    assert prepared.train.names == ("aa", "image", "bb")
    assert len(prepared.train) == 40
    assert sorted(set(lengths[1].tolist())) == [0, 2]


def test_image_and_sentence_have_attention_each(translator):
    image = np.ones((2, 3), np.float32)
    both = translator.translate({"aa": "ba ce", "image": image})
    assert set(both.sources) == {"aa", "image"}
    by_source = {name: source.attention for name, source in both.sources.items()}
    assert by_source["aa"].shape[1] == 3  # two words and EOS
    assert by_source["image"].shape[1] == 2  # regions
    [same] = translator.translate([("ba ce", image)])
    assert same.log_prob == pytest.approx(both.log_prob, abs=1e-5)
    other = translator.score([("ba ce", image), ("ba ce", 5 * image), ("ba ce", None)], ["ce ba"] * 3)
    assert len({round(translation.log_prob, 5) for translation in other}) == 3
    with pytest.raises(RnnsearchError, match="must have 2 rows, one per cell of the grid; got 1"):
        translator.translate({"aa": "ba ce", "image": image[:1]})
    with pytest.raises(RnnsearchError, match=r"the model reads arrays \(image\), not text"):
        translator.translate({"aa": "ba ce", "image": "ba"})


@pytest.mark.usefixtures("translator")
def test_resumed_run_equals_uninterrupted_run(corpus, prepared):
    def interrupt(update: int) -> None:
        if update == 2:
            signal.raise_signal(signal.SIGINT)

    config = configure(corpus, max_updates=4)
    with pytest.raises(Interrupted):
        train(config, prepared, corpus / "broken", Recorder(interrupt))
    train(config, prepared, corpus / "broken", Recorder(), resume=True)
    straight, broken = (corpus / name / "model.safetensors" for name in ("model", "broken"))
    assert straight.read_bytes() == broken.read_bytes()


def test_commands_describe_and_reject_the_model(corpus, translator):
    model = corpus / "model"
    result = run("inspect", model)
    assert result.code == 0, result.err
    assert "and arrays of 3 features, 1 x 2 regions source and" in " ".join(result.out.split())
    assert " aa, " in (model / "card.md").read_text()
    result = run("translate", model, "-i", corpus / "dev.npy")
    assert (result.code, result.out) == (1, "")
    assert f'reads aa and image; name a file of each, separated by "|"; got {corpus / "dev.npy"}' in result.err
    sentences = (corpus / "train.aa").read_text().splitlines()
    images = open_arrays(corpus / "train.npy", translator.system.arrays["image"])
    result = run("translate", model, "-i", f"{corpus / 'train.aa'}|{corpus / 'train.npy'}")
    pairs = [(text, images.array(index)) for index, text in enumerate(sentences)]
    assert result.lines == [translation.text for translation in translator.translate(pairs)]
    skipped = run("translate", model, "-i", f"{corpus / 'train.aa'}|{corpus / 'train.npy'}", "--max-source", "1")
    assert skipped.lines == [""] * len(pairs) and "must have at most 1 tokens (--max-source)" in skipped.err
    result = run("translate", model, "-i", f"{corpus / 'train.aa'}|{corpus / 'dev.npy'}")
    assert (result.code, result.out) == (1, "")
    assert "must have the same number of lines; got 40 and 19" in result.err
    result = run("translate", model, stdin="ba ce\t\nki\t\n")
    assert (result.code, len(result.lines)) == (0, 2), result.err
    result = run("translate", model, stdin="ba ce\timage.npy\n")
    assert (result.code, result.out) == (1, "")
    assert "this one reads arrays (image)" in result.err
    with pytest.raises(RnnsearchError, match=r"the server translates text; this model reads arrays \(image\)"):
        read_model_info(model)
    assert translator.languages == ("aa", "bb")


def test_commands_score_align_and_evaluate_images_beside_sentences(corpus, translator):
    model, target = corpus / "model", corpus / "train.bb"
    sources = f"{corpus / 'train.aa'}|{corpus / 'train.npy'}"
    images = open_arrays(corpus / "train.npy", translator.system.arrays["image"])
    pairs = [(text, images.array(index)) for index, text in enumerate(SENTENCES[:40])]
    expected = translator.score(pairs, target.read_text().splitlines())
    result = run("score", model, sources, target)
    assert [float(line) for line in result.lines] == pytest.approx([pair.log_prob for pair in expected], abs=1e-4)
    links = run("align", model, sources, target).lines
    assert [line.count("\t") for line in links] == [1] * 40
    assert links[3].endswith("\t") and not links[4].endswith("\t"), "every third image is missing"
    result = run("evaluate", model, sources, target, "--no-card")
    assert result.code == 0 and "BLEU" in result.out, result.err
    skipped = run("score", model, sources, target, "--max-symbols", "1")
    assert skipped.lines == [""] * 40
    assert f"{corpus / 'train.npy'}:2: must have at most 1 rows" in skipped.err
    result = run("score", model, f"{corpus / 'train.npy'}|{corpus / 'train.aa'}", target)
    assert (result.code, result.out) == (1, "")
    assert "train.npy: must be text; the model reads no arrays in aa" in result.err
