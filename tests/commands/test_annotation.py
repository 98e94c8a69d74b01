"""From a run file to translations: unknown words that say where they come from (Luong et al. 2015, ACL)."""

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from rnnsearch import load
from rnnsearch.data.prepared import Prepared

pytestmark = pytest.mark.xdist_group("annotation")
"""Its models are trained once, by one worker."""

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
ATTENDING = [
    "encoder={type='bidirectional',cell='gru',size=16}",
    "attention={score='additive',size=16}",
    "decoder={type='bahdanau',cell='gru',size=24,maxout=16}",
]
BLIND = [
    "encoder={type='stacked',cell='lstm',size=24,layers=1,direction='forward'}",
    "decoder={type='sutskever',cell='lstm',size=24,layers=1,bridge='copy'}",
]
NAMES = ["dewn", "sned", "wesd", "nend", "dsen", "ewes", "swed"]
MODELS = {"posunk": ATTENDING, "posall": ATTENDING, "copyable": ATTENDING, "posunk without attention": BLIND}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences about two names, whose translations have them the other way about."""
    folder = tmp_path_factory.mktemp("annotated")
    pairs = [(f"now {a} sees {b}.", f"jetzt {b} sieht {a}.") for a in NAMES for b in NAMES if a != b for _ in range(3)]
    for part, some in (("train", pairs), ("dev", pairs[::14])):
        for side, language in enumerate(("en", "de")):
            (folder / f"{part}.{language}").write_text("".join(f"{pair[side]}\n" for pair in some), encoding="utf-8")
    (folder / "run.toml").write_text(RUN)
    return folder


@pytest.fixture(scope="module", params=MODELS)
def model(cli: Any, corpus: Path, request: pytest.FixtureRequest) -> Path:
    name, kind = request.param.replace(" ", "-"), request.param.partition(" ")[0]
    parts = [f"model.{part}" for part in MODELS[request.param]]
    settings = [f"folder={name}", *parts, f"text.annotation={{type='{kind}'}}"]
    result = cli("train", corpus / "run.toml", "--set", *settings)
    assert result.code == 0, result.err
    return corpus / name


WRITTEN = {
    "posunk": "▁jetzt <unk+2> ▁sieht <unk-2> .",
    "posall": "▁jetzt <at+0> <unk> <at+2> ▁sieht <at??> <unk> <at-2> . <at??>",
    "copyable": "▁jetzt <unk2> ▁sieht <unk1> .",
}


def test_training_text_says_where_unknown_words_come_from(model):
    prepared, kind = Prepared.open(model / "data"), model.name.partition("-")[0]
    for row in (0, 60):
        source, target = (ids.tolist() for ids in prepared.train.row(row))
        symbols = [prepared.target.symbol(id) for id in target]
        wanted = WRITTEN[kind].split(" ")
        assert len(symbols) == len(wanted) and all(map(fnmatchcase, symbols, wanted))
    numbered = "▁now <unk1> ▁sees <unk2> ." if kind == "copyable" else "▁now <unk> ▁sees <unk> ."
    assert [prepared.source.symbol(id) for id in source] == numbered.split(" ")
    assert prepared.facts["unknown"] == {"en": pytest.approx(0.4), "de": pytest.approx(0.4)}, "of the text"


def test_words_that_were_never_seen_come_out_in_their_places(cli, model, tmp_path):
    lines = "now Zorro sees Bob.\n\nnow Éß9 sees Éß8.\n"
    told = cli("translate", model, stdin=lines)
    assert told.lines == ["jetzt Bob sieht Zorro.", "", "jetzt Éß8 sieht Éß9."], told.err
    assert "4 unknown words replaced: 4 copied" in told.err
    for options in (["--beam", "1"], ["--precision", "fp32"]):
        assert cli("translate", model, *options, stdin=lines).lines == told.lines
    [row, *_] = cli("translate", model, "--format", "json", stdin=lines).rows
    assert [(one["source"], one["by"]) for one in row["replaced"]] == [("Bob", "copy"), ("Zorro", "copy")]
    best = cli("translate", model, "--format", "nbest", "--n-best", "2", stdin=lines.partition("\n")[0])
    assert told.lines[0] in best.lines[0]
    words = tmp_path / "words.tsv"
    words.write_text("Zorro\tFuchs\n")
    looked_up = cli("translate", model, "--dictionary", words, stdin=lines)
    assert looked_up.lines[0] == "jetzt Bob sieht Fuchs."
    pairs = [model.parent / f"train.{language}" for language in ("en", "de")]
    assert cli("candidates", model, *pairs).code == 0
    assert cli("translate", model, "--candidates", "1", stdin=lines).lines == told.lines


def test_what_is_given_is_read_as_training_text_was(model):
    """A translation's score is that of the same text given, whose unknown words say no other places; so do those of a
    prefix."""
    translator = load(model)
    source, text = f"now {NAMES[0]} sees {NAMES[1]}.", f"jetzt {NAMES[1]} sieht {NAMES[0]}."
    [[found]] = translator.n_best([source], translator.options(beam=1))
    [given] = translator.score([source], [text])
    assert found.text == given.text == text and found.tokens == given.tokens
    assert given.log_prob == pytest.approx(found.log_prob, abs=0.05)
    for size in (2, 6, 11, 14):  # the unknown word may come after a space
        [[begun]] = translator.n_best([source], translator.options(beam=1), prefixes=[text[:size]])
        assert begun.text == text and begun.tokens == found.tokens
    [[other]] = translator.n_best(["now Zorro sees Bob."], prefixes=["jetzt Anna "])
    assert other.text.startswith("jetzt Anna ")


def test_dev_scores_are_of_what_the_model_writes(model):
    history = json.loads((model / "training.json").read_text())["history"]
    assert history[-1]["dev_nll"] < 1.0, "places of dev sentences are those of the training text"


@pytest.mark.parametrize(
    ("settings", "said"),
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
def test_what_it_does_not_go_with(cli, corpus, settings, said):
    parts = [f"model.{part}" for part in ATTENDING]
    result = cli("train", corpus / "run.toml", "--set", *parts, "text.annotation={type='posunk'}", *settings)
    assert result.code != 0 and said in result.err, result.err
