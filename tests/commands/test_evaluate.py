"""`rnnsearch evaluate`: scores, comparison, word alignment, and the page."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def evaluated(cli: Any, model: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Path]:
    """Everything at once: the result, the folder of the report, and the model's own copy."""
    folder = tmp_path_factory.mktemp("evaluate")
    own = folder / "my [model]"
    shutil.copytree(model, own, ignore=shutil.ignore_patterns("checkpoints", "data"))
    count = len((corpus / "test.en").read_text().splitlines())
    (folder / "gold.align").write_text("0-0 1-1 2-2 3-3 4p4 5-5\n" * count)
    (folder / "other.txt").write_text("der Hund.\n" * count)
    result = cli(
        "evaluate", own, corpus / "test.en", corpus / "test.de", "--alignments", folder / "gold.align",
        "--baseline", folder / "other.txt", "--report", folder / "report", "--beam", "2",
        "-o", folder / "scores.json",
    )  # fmt: skip
    return result, folder, own


def test_it_prints_scores_with_signatures(evaluated):
    result = evaluated[0]
    assert (result.code, result.err) == (0, "")
    for name in ("BLEU", "chrF2", "TER"):
        assert re.search(rf"^{re.escape(name)} .*\d+\.\d\d .*version:", result.out, re.MULTILINE), result.out
    assert "paired bootstrap" in result.out
    assert "other.txt" in result.out
    assert "word alignment: " in result.out
    assert "source words" in result.out


def test_it_writes_the_scores(evaluated):
    result, folder, own = evaluated
    scores = json.loads((folder / "scores.json").read_text())
    bleu = scores["scores"][0]
    assert bleu["name"] == "BLEU"
    assert f"{bleu['value']:.2f}" in result.out
    assert scores["alignment"]["aer"] < 0.8
    [kept] = json.loads((own / "scores.json").read_text())
    assert kept["search"] == "beam 2, length penalty 1", "the search that was used, not the model's own"
    assert kept["set"] == "test.en"
    card = (own / "card.md").read_text(encoding="utf-8")
    signature = bleu["signature"].replace("|", "\\|")  # a bare bar would end the table's cell
    assert f"| BLEU | {bleu['value']:.2f} | `{signature}` |" in card
    assert "beam 2" in card


def test_the_report_and_what_stands_beside_it(evaluated, corpus):
    report = evaluated[1] / "report"
    names = {path.name for path in report.iterdir()}
    assert {"report.html", "translations.txt", "scores.json"} <= names
    assert any(re.fullmatch(r"attention-.*\.png", name) for name in names)
    translations = (report / "translations.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert len(translations) == len((corpus / "test.en").read_text().splitlines())


@pytest.fixture
def few(corpus: Path, tmp_path: Path) -> list[Path]:
    """Three sentences of the test set, in two files."""
    for name in ("en", "de"):
        lines = (corpus / f"test.{name}").read_text(encoding="utf-8").splitlines()[:3]
        (tmp_path / f"few.{name}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [tmp_path / "few.en", tmp_path / "few.de"]


def test_scores_go_on_the_card_without_a_report_too(cli, own, few, corpus):
    result = cli("evaluate", own, *few)
    assert result.code == 0
    assert "all (3)" in result.out
    assert "On 3 sentences of few.en, beam 3" in (own / "card.md").read_text(encoding="utf-8")
    cli("evaluate", own, *few, "--beam", "1")
    cli("evaluate", own, corpus / "dev.en", corpus / "dev.de")
    cli("evaluate", own, *few)  # again: takes the place of the first
    card = (own / "card.md").read_text(encoding="utf-8")
    found = re.findall(r"^On (\d+) sentences of (\S+), beam (\d)", card, re.MULTILINE)
    assert found == [("3", "few.en", "1"), ("20", "dev.en", "3"), ("3", "few.en", "3")]
    assert card.count("## Scores") == 1


def test_scores_of_other_weights_leave_the_card(cli, own, one_vector, few):
    cli("evaluate", own, *few)
    shutil.copy(one_vector / "model.safetensors", own)
    from rnnsearch.systems.card import add_scores, load_scores, write_card

    write_card(own)
    assert "## Scores" not in (own / "card.md").read_text(encoding="utf-8")
    add_scores(own, {"sentences": 1, "set": "s", "text": "t", "search": "greedy", "scores": []})
    assert [row["set"] for row in load_scores(own)] == ["s"]
    assert len(json.loads((own / "scores.json").read_text())) == 1


def test_a_scores_file_of_another_kind_is_said(cli, own, few):
    (own / "scores.json").write_text('["BLEU"]')
    result = cli("evaluate", own, *few)
    assert result.code == 0
    assert "BLEU" in result.out
    assert result.err.startswith("the scores are not on the model's card: ")
    assert "must be a file written by `rnnsearch evaluate`" in result.err
    (own / "scores.json").write_text('{"name": "of an earlier version", "scores": []}')
    assert cli("evaluate", own, *few).err == ""
    assert len(json.loads((own / "scores.json").read_text())) == 1


def test_nothing_is_written_where_nothing_is_asked_for(cli, model, few, tmp_path):
    before = {path.name: path.stat().st_mtime_ns for path in model.iterdir()}
    assert cli("evaluate", model, *few, "--no-card").code == 0
    assert {path.name: path.stat().st_mtime_ns for path in model.iterdir()} == before
    assert len(list(tmp_path.iterdir())) == 2


def test_what_would_be_lost_or_cannot_be_written_is_refused_before_anything_is_translated(
    cli, fault, own, few, tmp_path, monkeypatch
):
    cli("evaluate", own, *few)
    kept = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    (tmp_path / "link").symlink_to(own)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("rnnsearch.translator.loading.load", None)
    for place in (own, tmp_path / "link"):
        said = "must not be a model folder, whose scores.json the report's would replace; name a folder in it"
        assert fault("evaluate", own, *few, "--report", place) == f"{place}: {said}"
        said = "must not be the file in which a model folder keeps what was measured; name another"
        assert fault("evaluate", own, *few, "-o", place / "scores.json") == f"{place / 'scores.json'}: {said}"
    assert fault("evaluate", own, *few, "-o", own) == f"{own}: must be a file to write to; it is a folder"
    for place in (tmp_path / "file", tmp_path / "file" / "report"):
        said = f"must be a folder, or the name of one to make; {tmp_path / 'file'} is a file"
        assert fault("evaluate", own, *few, "--report", place) == f"{place}: {said}"
    assert f"{tmp_path / 'file'} is a file" in fault("evaluate", own, *few, "-o", tmp_path / "file" / "scores.json")
    assert {path: path.read_bytes() for path in own.rglob("*") if path.is_file()} == kept


def test_rare_words_by_the_runs_own_text_or_by_a_file(cli, model, own, few, corpus):
    by_run = cli("evaluate", model, *few, "--no-card")
    assert "Times in training" in by_run.out
    assert re.search(r"^100–999 ", by_run.out, re.MULTILINE)
    assert "Times in training" not in cli("evaluate", own, *few, "--no-card").out, "a model alone knows no text"
    assert cli("evaluate", own, *few, "--no-card", "--training-text", corpus / "train.de").out == by_run.out


def test_further_references(cli, fault, model, few, tmp_path):
    one = cli("evaluate", model, *few, "--no-card")
    own = tmp_path / "own.de"
    assert cli("translate", model, "-i", few[0], "-o", own).code == 0
    both = cli("evaluate", model, *few, "--no-card", "--also", own, "--baseline", own)
    assert "nrefs:1|" in one.out
    assert re.search(r"^BLEU +100.00 .*nrefs:2\|", both.out, re.MULTILINE)
    assert "100.00 ± 0.00" in both.out
    (tmp_path / "short").write_text("one line\n")
    assert "must have the same number of lines" in fault("evaluate", model, *few, "--also", tmp_path / "short")


def test_sentences_to_draw(cli, own, few, tmp_path):
    mine = tmp_path / "mine.tsv"
    mine.write_text("the small cat sees the dog.\tcats\n\nthe old cat hears the dog.\tcats\nthe red tree.\ttrees\n")
    result = cli("evaluate", own, *few, "--no-card", "--report", tmp_path / "report", "--sentences", mine)
    assert result.code == 0, result.err
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert page.count('class="point') == 3
    assert "<title>the red tree. (trees)</title>" in page
    assert "--sentences has no effect without --report" in cli("evaluate", own, *few, "--sentences", mine).err


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"gold": "0-0\n"}, "gold must have the same number of lines; got 2 and 1"),
        ({"gold": "0-0\n9-0\n"}, "gold:2: links must lie within 2 source and 2 target words, counted from 0; got 9-0"),
        ({"other": "one line\n"}, "must have the same number of lines"),
        ({"s": "", "t": ""}, "there must be at least one sentence to score; got none"),
    ],
)
def test_files_that_do_not_fit(fault, model, tmp_path, files, said):
    for name, text in {"s": "the cat\nthe dog\n", "t": "der Katze\nder Hund\n", **files}.items():
        (tmp_path / name).write_text(text)
    named = {"gold": "--alignments", "other": "--baseline"}
    options = [part for name in files if name in named for part in (named[name], tmp_path / name)]
    assert said in fault("evaluate", model, tmp_path / "s", tmp_path / "t", *options, "--report", tmp_path / "report")
    assert not (tmp_path / "report").exists()
