"""From a run file to translations: words that no vocabulary holds are read and spelled, or pointed at."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("hybrid")
"""Its models are trained once, by one worker."""

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
"""Of letters that known words have on either side: others have no number."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences about names, which are the same in both languages and in neither vocabulary."""
    folder = tmp_path_factory.mktemp("names")
    pairs = [(f"we see {name} and see.", f"wir sehen {name} und sehen.") for name in NAMES for _ in range(14)]
    for part, some in (("train", pairs), ("dev", pairs[::14])):
        for side, language in enumerate(("en", "de")):
            (folder / f"{part}.{language}").write_text("".join(f"{pair[side]}\n" for pair in some), encoding="utf-8")
    (folder / "run.toml").write_text(RUN)
    return folder


@pytest.fixture(scope="module")
def hybrid(cli: Any, corpus: Path) -> Path:
    result = cli("train", corpus / "run.toml", "--set", "data.cleaning.drop_duplicates=false")
    assert result.code == 0, result.err
    assert "unknown words: use" not in result.err, "what is spelled is not unknown"
    return corpus / "model"


def test_words_that_no_vocabulary_holds_are_spelled(cli, hybrid):
    lines = "we see swed and see.\n\nwe see sned and see.\n"
    told = cli("translate", hybrid, stdin=lines)
    assert told.lines == ["wir sehen swed und sehen.", "", "wir sehen sned und sehen."]
    assert re.search("2 unknown words replaced: 2 spelled", told.err)
    assert cli("translate", hybrid, "--beam", "1", stdin=lines).lines == told.lines
    rows = cli("translate", hybrid, "--format", "json", stdin=lines).rows
    assert [(one["source"], one["by"]) for one in rows[0]["replaced"]] == [("swed", "spelled")]
    assert rows[0]["tokens"][2] == "<unk>" and rows[0]["text"] == told.lines[0]
    best = cli("translate", hybrid, "--format", "nbest", "--n-best", "2", stdin=lines.partition("\n")[0])
    assert told.lines[0] in best.lines[0]


def test_a_dictionary_comes_before_the_spelling(cli, hybrid, tmp_path):
    words = tmp_path / "words.tsv"
    words.write_text("swed\tSchwede\n")
    told = cli("translate", hybrid, "--dictionary", words, stdin="we see swed and see.\n")
    assert told.lines == ["wir sehen Schwede und sehen."]
    assert "1 unknown words replaced: 1 by the dictionary" in told.err
    assert cli("translate", hybrid, "--replace-unknown", "copy", stdin="x\n").code == 1


def test_what_was_prepared_before_unknown_words_were_kept(cli, corpus, hybrid):
    facts = json.loads((hybrid / "data" / "prepared.json").read_text())
    old = corpus / "old"
    old.mkdir()
    for file in (hybrid / "data").iterdir():
        if not file.name.endswith((".unknown", ".unknown.ends")):
            (old / file.name).write_bytes(file.read_bytes())
    kept = {name: size for name, size in facts["files"].items() if (old / name).exists()}
    facts.pop("spelled")
    (old / "prepared.json").write_text(json.dumps(facts | {"files": kept}))
    again = ["--set", "data.prepared=old", "folder=again", "data.cleaning.drop_duplicates=false"]
    result = cli("train", corpus / "run.toml", *again)
    assert result.code == 1 and "holds no unknown words of" in result.err and "prepare the corpus again" in result.err


@pytest.fixture(scope="module", params=["model.pointer={size=8}", "model.decoder={type='copynet',cell='gru',size=24}"])
def copying(cli: Any, corpus: Path, request: pytest.FixtureRequest) -> tuple[Path, str]:
    """A model, and the name of what it copies by."""
    name = "model.pointer" if "pointer" in request.param else "copynet"
    unset = ["model.source_characters=unset", "model.target_characters=unset", request.param]
    settings = [f"folder={name}", "data.cleaning.drop_duplicates=false", *unset]
    result = cli("train", corpus / "run.toml", "--set", *settings)
    assert result.code == 0, result.err
    return corpus / name, name


def test_words_that_were_never_seen_are_copied(cli, copying, tmp_path):
    pointing, name = copying
    lines = "we see Zorro and see.\n\nwe see Éß9 and see.\n"
    told = cli("translate", pointing, stdin=lines)
    assert told.code == 0, told.err
    assert told.lines == ["wir sehen Zorro und sehen.", "", "wir sehen Éß9 und sehen."]
    assert re.search("2 unknown words replaced: 2 copied", told.err)
    for options in (["--beam", "1"], ["--precision", "fp32"]):
        assert cli("translate", pointing, *options, stdin=lines).lines == told.lines
    [row, *_] = cli("translate", pointing, "--format", "json", stdin=lines).rows
    assert [(one["source"], one["by"]) for one in row["replaced"]] == [("Zorro", "copy")]
    assert [2, 2] in row["alignment"], "a copied word is aligned to itself"
    cli("translate", pointing, "--alignments", tmp_path / "links", stdin=lines)
    written = (tmp_path / "links").read_text().splitlines()[0].split()
    assert written == [f"{source}-{target}" for source, target in row["alignment"]]
    for side, text in (("src", lines + "we see Zorro.\n"), ("ref", lines + "wir sehen Zorro.\n")):
        (tmp_path / side).write_text(text, encoding="utf-8")
    judged = cli("evaluate", pointing, tmp_path / "src", tmp_path / "ref", "--report", tmp_path / "evaluation")
    assert judged.code == 0, judged.err
    page = (tmp_path / "evaluation" / "report.html").read_text(encoding="utf-8")
    row = '<th scope="row">Zorro</th><td>Zorro</td><td>copy</td><td class="number">2</td>'
    assert row in re.sub(r">\s+<", "><", page)
    words = tmp_path / "words.tsv"
    words.write_text("Zorro\tFuchs\n")
    assert cli("translate", pointing, "--dictionary", words, stdin=lines).lines[0] == "wir sehen Fuchs und sehen."
    refused = cli("align", pointing, words, words, "--by", "posterior")
    assert refused.code == 1 and name in refused.err
