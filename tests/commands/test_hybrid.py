"""Words outside the vocabulary are spelled or copied, from the run file to translations."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("hybrid")
"""The models are trained once, by one test process."""

RUN = """
folder = "model"
[data]
source = "en"
target = "de"
train = ["train.en|train.de"]
dev = "dev.en|dev.de"
test_size = 0
aligner = false
[data.cleaning]
drop_identical = false
[text]
type = "words"
vocabulary = 8
[model]
embedding = 16
encoder = { type = "bidirectional", cell = "gru", size = 16 }
attention = { score = "additive", size = 16 }
decoder = { type = "bahdanau", cell = "gru", size = 24, maxout = 16 }
source_characters = { type = "ngrams", words = "unknown", shortest = 1 }
target_characters = { size = 48, embedding = 12 }
[training]
batch = { sentences = 20 }
optimiser = { type = "adam", learning_rate = 1e-2 }
max_updates = 320
evaluate_every = 160
"""
NAMES = ["dewn", "sned", "wesd", "nend", "dsen", "ewes", "swed"]
"""Their letters occur in known words of both languages; other letters have no id."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of sentences about names, which are equal in both languages and in neither vocabulary."""
    folder = tmp_path_factory.mktemp("names")
    pairs = [(f"we see {name} and see.", f"wir sehen {name} und sehen.") for name in NAMES for _ in range(14)]
    for part, part_pairs in (("train", pairs), ("dev", pairs[::14])):
        for side, language in enumerate(("en", "de")):
            (folder / f"{part}.{language}").write_text(
                "".join(f"{pair[side]}\n" for pair in part_pairs), encoding="utf-8"
            )
    (folder / "run.toml").write_text(RUN)
    return folder


@pytest.fixture(scope="module")
def hybrid(cli: Any, corpus: Path) -> Path:
    result = cli("train", corpus / "run.toml", "--set", "data.cleaning.drop_duplicates=false")
    assert result.code == 0, result.err
    assert "unknown words: use" not in result.err, "words that can be spelled are not reported as unknown"
    return corpus / "model"


def test_words_outside_the_vocabulary_are_spelled(cli, hybrid):
    lines = "we see swed and see.\n\nwe see sned and see.\n"
    result = cli("translate", hybrid, stdin=lines)
    assert result.lines == ["wir sehen swed und sehen.", "", "wir sehen sned und sehen."]
    assert re.search("2 unknown words replaced: 2 spelled", result.err)
    assert cli("translate", hybrid, "--beam", "1", stdin=lines).lines == result.lines
    rows = cli("translate", hybrid, "--format", "json", stdin=lines).rows
    assert [(word["source"], word["by"]) for word in rows[0]["replaced"]] == [("swed", "spelled")]
    assert rows[0]["tokens"][2] == "<unk>" and rows[0]["text"] == result.lines[0]
    best = cli("translate", hybrid, "--format", "nbest", "--n-best", "2", stdin=lines.partition("\n")[0])
    assert result.lines[0] in best.lines[0]


def test_dictionary_takes_precedence_over_spelling(cli, hybrid, tmp_path):
    words = tmp_path / "words.tsv"
    words.write_text("swed\tSchwede\n")
    result = cli("translate", hybrid, "--dictionary", words, stdin="we see swed and see.\n")
    assert result.lines == ["wir sehen Schwede und sehen."]
    assert "1 unknown words replaced: 1 by the dictionary" in result.err
    assert cli("translate", hybrid, "--replace-unknown", "copy", stdin="x\n").code == 1


def test_data_prepared_without_unknown_words_is_an_error(cli, corpus, hybrid):
    facts = json.loads((hybrid / "data" / "prepared.json").read_text())
    old = corpus / "old"
    old.mkdir()
    for file in (hybrid / "data").iterdir():
        if not file.name.endswith((".unknown", ".unknown.ends")):
            (old / file.name).write_bytes(file.read_bytes())
    files = {name: size for name, size in facts["files"].items() if (old / name).exists()}
    facts.pop("spelled")
    (old / "prepared.json").write_text(json.dumps(facts | {"files": files}))
    settings = ["--set", "data.prepared=old", "folder=again", "data.cleaning.drop_duplicates=false"]
    result = cli("train", corpus / "run.toml", *settings)
    assert result.code == 1 and "holds no unknown words of" in result.err and "prepare the corpus again" in result.err


@pytest.fixture(scope="module", params=["model.pointer={size=8}", "model.decoder={type='copynet',cell='gru',size=24}"])
def copying(cli: Any, corpus: Path, request: pytest.FixtureRequest) -> tuple[Path, str]:
    """Return a model that copies words, and the name of the component that copies."""
    name = "model.pointer" if "pointer" in request.param else "copynet"
    components = ["model.source_characters=unset", "model.target_characters=unset", request.param]
    settings = [f"folder={name}", "data.cleaning.drop_duplicates=false", *components]
    result = cli("train", corpus / "run.toml", "--set", *settings)
    assert result.code == 0, result.err
    return corpus / name, name


def test_unseen_words_are_copied(cli, copying, tmp_path):
    model, name = copying
    lines = "we see Zorro and see.\n\nwe see Éß9 and see.\n"
    result = cli("translate", model, stdin=lines)
    assert result.code == 0, result.err
    assert result.lines == ["wir sehen Zorro und sehen.", "", "wir sehen Éß9 und sehen."]
    assert re.search("2 unknown words replaced: 2 copied", result.err)
    for options in (["--beam", "1"], ["--precision", "fp32"]):
        assert cli("translate", model, *options, stdin=lines).lines == result.lines
    [row, *_] = cli("translate", model, "--format", "json", stdin=lines).rows
    assert [(word["source"], word["by"]) for word in row["replaced"]] == [("Zorro", "copy")]
    assert [2, 2] in row["alignment"], "a copied word is aligned with its source word"
    cli("translate", model, "--alignments", tmp_path / "links", stdin=lines)
    written = (tmp_path / "links").read_text().splitlines()[0].split()
    assert written == [f"{source}-{target}" for source, target in row["alignment"]]
    for side, text in (("src", lines + "we see Zorro.\n"), ("ref", lines + "wir sehen Zorro.\n")):
        (tmp_path / side).write_text(text, encoding="utf-8")
    evaluated = cli("evaluate", model, tmp_path / "src", tmp_path / "ref", "--report", tmp_path / "evaluation")
    assert evaluated.code == 0, evaluated.err
    page = (tmp_path / "evaluation" / "report.html").read_text(encoding="utf-8")
    row = '<th scope="row">Zorro</th><td>Zorro</td><td>copy</td><td class="number">2</td>'
    assert row in re.sub(r">\s+<", "><", page)
    words = tmp_path / "words.tsv"
    words.write_text("Zorro\tFuchs\n")
    assert cli("translate", model, "--dictionary", words, stdin=lines).lines[0] == "wir sehen Fuchs und sehen."
    error = cli("align", model, words, words, "--by", "posterior")
    assert error.code == 1 and name in error.err
