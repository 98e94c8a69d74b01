"""Unknown word annotation (Luong et al. 2015, ACL), from the run file to translations."""

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from rnnsearch import load
from rnnsearch.data.prepared import Prepared

pytestmark = pytest.mark.xdist_group("annotation")
"""The models are trained once, by one test process."""

RUN = """
folder = "model"
[data]
source = "en"
target = "de"
train = ["train.en|train.de"]
dev = "dev.en|dev.de"
test_size = 0
[data.cleaning]
drop_duplicates = false
[text]
type = "words"
min_count = 100
[model]
embedding = 16
[training]
batch = { sentences = 20 }
optimiser = { type = "adam", learning_rate = 1e-2 }
max_updates = 320
evaluate_every = 160
threads = 1
"""
WITH_ATTENTION = [
    "encoder={type='bidirectional',cell='gru',size=16}",
    "attention={score='additive',size=16}",
    "decoder={type='bahdanau',cell='gru',size=24,maxout=16}",
]
WITHOUT_ATTENTION = [
    "encoder={type='stacked',cell='lstm',size=24,layers=1,direction='forward'}",
    "decoder={type='sutskever',cell='lstm',size=24,layers=1,bridge='copy'}",
]
NAMES = ["dewn", "sned", "wesd", "nend", "dsen", "ewes", "swed"]
MODELS = {
    "posunk": WITH_ATTENTION,
    "posall": WITH_ATTENTION,
    "copyable": WITH_ATTENTION,
    "posunk without attention": WITHOUT_ATTENTION,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of sentences about two names, whose order is reversed in the translation."""
    folder = tmp_path_factory.mktemp("annotated")
    pairs = [(f"now {a} sees {b}.", f"jetzt {b} sieht {a}.") for a in NAMES for b in NAMES if a != b for _ in range(3)]
    for part, part_pairs in (("train", pairs), ("dev", pairs[::14])):
        for side, language in enumerate(("en", "de")):
            (folder / f"{part}.{language}").write_text(
                "".join(f"{pair[side]}\n" for pair in part_pairs), encoding="utf-8"
            )
    (folder / "run.toml").write_text(RUN)
    return folder


@pytest.fixture(scope="module", params=MODELS)
def model(cli: Any, corpus: Path, request: pytest.FixtureRequest) -> Path:
    name = request.param.replace(" ", "-")
    annotation = request.param.partition(" ")[0]
    components = [f"model.{component}" for component in MODELS[request.param]]
    settings = [f"folder={name}", *components, f"text.annotation={{type='{annotation}'}}"]
    result = cli("train", corpus / "run.toml", "--set", *settings)
    assert result.code == 0, result.err
    return corpus / name


ANNOTATED = {
    "posunk": "▁jetzt <unk+2> ▁sieht <unk-2> .",
    "posall": "▁jetzt <at+0> <unk> <at+2> ▁sieht <at??> <unk> <at-2> . <at??>",
    "copyable": "▁jetzt <unk2> ▁sieht <unk1> .",
}


def test_training_text_is_annotated(model):
    prepared = Prepared.open(model / "data")
    annotation = model.name.partition("-")[0]
    for row in (0, 60):
        source, target = (ids.tolist() for ids in prepared.train.row(row))
        tokens = [prepared.target.token(id) for id in target]
        patterns = ANNOTATED[annotation].split(" ")
        assert len(tokens) == len(patterns) and all(map(fnmatchcase, tokens, patterns))
    numbered = "▁now <unk1> ▁sees <unk2> ." if annotation == "copyable" else "▁now <unk> ▁sees <unk> ."
    assert [prepared.source.token(id) for id in source] == numbered.split(" ")
    assert prepared.facts["unknown"] == {"en": pytest.approx(0.4), "de": pytest.approx(0.4)}, (
        "rates of the text without annotation"
    )


def test_unseen_words_are_copied_to_their_positions(cli, model, tmp_path):
    lines = "now Zorro sees Bob.\n\nnow Éß9 sees Éß8.\n"
    result = cli("translate", model, stdin=lines)
    assert result.lines == ["jetzt Bob sieht Zorro.", "", "jetzt Éß8 sieht Éß9."], result.err
    assert "4 unknown words replaced: 4 copied" in result.err
    for options in (["--beam", "1"], ["--precision", "fp32"]):
        assert cli("translate", model, *options, stdin=lines).lines == result.lines
    [row, *_] = cli("translate", model, "--format", "json", stdin=lines).rows
    assert [(word["source"], word["by"]) for word in row["replaced"]] == [("Bob", "copy"), ("Zorro", "copy")]
    best = cli("translate", model, "--format", "nbest", "--n-best", "2", stdin=lines.partition("\n")[0])
    assert result.lines[0] in best.lines[0]
    words = tmp_path / "words.tsv"
    words.write_text("Zorro\tFuchs\n")
    looked_up = cli("translate", model, "--dictionary", words, stdin=lines)
    assert looked_up.lines[0] == "jetzt Bob sieht Fuchs."
    pairs = [model.parent / f"train.{language}" for language in ("en", "de")]
    assert cli("candidates", model, *pairs).code == 0
    assert cli("translate", model, "--candidates", "1", stdin=lines).lines == result.lines


def test_given_translations_and_prefixes_are_annotated(model):
    """A given translation has the score and the tokens of the same translation found by search."""
    translator = load(model)
    source = f"now {NAMES[0]} sees {NAMES[1]}."
    text = f"jetzt {NAMES[1]} sieht {NAMES[0]}."
    [[best]] = translator.n_best([source], translator.options(beam=1))
    [scored] = translator.score([source], [text])
    assert best.text == scored.text == text and best.tokens == scored.tokens
    assert scored.log_prob == pytest.approx(best.log_prob, abs=0.05)
    for size in (2, 6, 11, 14):  # the unknown word may come after a space
        [[continued]] = translator.n_best([source], translator.options(beam=1), prefixes=[text[:size]])
        assert continued.text == text and continued.tokens == best.tokens
    [[prefixed]] = translator.n_best(["now Zorro sees Bob."], prefixes=["jetzt Anna "])
    assert prefixed.text.startswith("jetzt Anna ")


def test_dev_set_is_annotated(model):
    history = json.loads((model / "training.json").read_text())["history"]
    assert history[-1]["dev_nll"] < 1.0, "dev sentences are annotated like the training text"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["text.type=bpe"], 'needs `type = "words"` on both sides'),
        (["data.aligner=false"], "needs the aligner of one source and one target"),
        (["model.pointer={}"], "text.annotation: cannot be combined with model.pointer"),
        (["model.target_characters={size=8}"], "text.annotation: cannot be combined with model.target_characters"),
        (["text.annotation={type='posunk',window=-1}"], "text.annotation.window"),
        (["text.annotation={type='posunk',numbers=3}"], "text.annotation.numbers: has no effect"),
        (["text.annotation={type='pos'}"], "text.annotation.type: must be one of copyable, posall, posunk"),
        (["text.annotation={type='copyable'}", "model.source_characters={type='cnn'}"], "model.source_characters"),
    ],
)
def test_incompatible_options_are_an_error(cli, corpus, settings, message):
    components = [f"model.{component}" for component in WITH_ATTENTION]
    result = cli("train", corpus / "run.toml", "--set", *components, "text.annotation={type='posunk'}", *settings)
    assert result.code != 0 and message in result.err, result.err
