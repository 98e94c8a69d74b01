"""`rnnsearch evaluate`: scores, comparison, word alignment and report."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from rnnsearch.metrics.scores import corpus_bleu


@pytest.fixture(scope="module")
def evaluated(cli: Any, model: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Path]:
    """Return the result of a command with all options, its folder, and the copy of the model."""
    folder = tmp_path_factory.mktemp("evaluate")
    copy = folder / "my [model]"
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns("checkpoints", "data"))
    count = len((corpus / "test.en").read_text().splitlines())
    (folder / "gold.align").write_text("0-0 1-1 2-2 3-3 4p4 5-5\n" * count)
    (folder / "other.txt").write_text("der Hund.\n" * count)
    result = cli(
        "evaluate", copy, corpus / "test.en", corpus / "test.de", "--alignments", folder / "gold.align",
        "--baseline", folder / "other.txt", "--report", folder / "report", "--beam", "2",
        "-o", folder / "scores.json",
    )  # fmt: skip
    return result, folder, copy


def test_scores_are_printed_with_signatures(evaluated):
    result = evaluated[0]
    assert (result.code, result.err) == (0, "")
    for name in ("BLEU", "chrF2", "TER"):
        assert re.search(rf"^{re.escape(name)} .*\d+\.\d\d .*version:", result.out, re.MULTILINE), result.out
    assert "paired bootstrap" in result.out
    assert "other.txt" in result.out
    assert "word alignment: " in result.out
    assert "source words" in result.out


def test_scores_are_written_to_file_and_card(evaluated):
    result, folder, copy = evaluated
    scores = json.loads((folder / "scores.json").read_text())
    bleu = scores["scores"][0]
    assert bleu["name"] == "BLEU"
    assert f"{bleu['value']:.2f}" in result.out
    assert scores["alignment"]["aer"] < 0.8
    [recorded] = json.loads((copy / "scores.json").read_text())
    assert recorded["search"] == "beam 2, length penalty 1", "the search that was used, not the model's default"
    assert recorded["set"] == "test.en"
    card = (copy / "card.md").read_text(encoding="utf-8")
    signature = bleu["signature"].replace("|", "\\|")  # a bare bar would end the table's cell
    assert f"| BLEU | {bleu['value']:.2f} | `{signature}` |" in card
    assert "beam 2" in card


def test_report_folder_contains_page_translations_and_scores(evaluated, corpus):
    report = evaluated[1] / "report"
    names = {path.name for path in report.iterdir()}
    assert {"report.html", "translations.txt", "scores.json"} <= names
    assert any(re.fullmatch(r"attention-.*\.png", name) for name in names)
    translations = (report / "translations.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert len(translations) == len((corpus / "test.en").read_text().splitlines())


@pytest.fixture
def few(corpus: Path, tmp_path: Path) -> list[Path]:
    """Return two files with three sentences of the test set."""
    for name in ("en", "de"):
        lines = (corpus / f"test.{name}").read_text(encoding="utf-8").splitlines()[:3]
        (tmp_path / f"few.{name}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [tmp_path / "few.en", tmp_path / "few.de"]


def test_scores_are_added_to_the_card_without_a_report(cli, model_copy, few, corpus):
    result = cli("evaluate", model_copy, *few)
    assert result.code == 0
    assert "all (3)" in result.out
    assert "On 3 sentences of few.en, beam 3" in (model_copy / "card.md").read_text(encoding="utf-8")
    cli("evaluate", model_copy, *few, "--beam", "1")
    cli("evaluate", model_copy, corpus / "dev.en", corpus / "dev.de")
    cli("evaluate", model_copy, *few)  # replaces the first one
    card = (model_copy / "card.md").read_text(encoding="utf-8")
    found = re.findall(r"^On (\d+) sentences of (\S+), beam (\d)", card, re.MULTILINE)
    assert found == [("3", "few.en", "1"), ("20", "dev.en", "3"), ("3", "few.en", "3")]
    assert card.count("## Scores") == 1


def test_scores_of_other_weights_are_removed_from_the_card(cli, model_copy, one_vector, few):
    cli("evaluate", model_copy, *few)
    shutil.copy(one_vector / "model.safetensors", model_copy)
    from rnnsearch.systems.card import add_scores, load_scores, write_card

    write_card(model_copy)
    assert "## Scores" not in (model_copy / "card.md").read_text(encoding="utf-8")
    add_scores(model_copy, {"sentences": 1, "set": "s", "text": "t", "search": "greedy", "scores": []})
    assert [row["set"] for row in load_scores(model_copy)] == ["s"]
    assert len(json.loads((model_copy / "scores.json").read_text())) == 1


def test_foreign_scores_file_is_reported(cli, model_copy, few):
    (model_copy / "scores.json").write_text('["BLEU"]')
    result = cli("evaluate", model_copy, *few)
    assert result.code == 0
    assert "BLEU" in result.out
    assert result.err.startswith("the scores were not added to the model card: ")
    assert "must be a file written by `rnnsearch evaluate`" in result.err
    (model_copy / "scores.json").write_text('{"name": "of an earlier version", "scores": []}')
    assert cli("evaluate", model_copy, *few).err == ""
    assert len(json.loads((model_copy / "scores.json").read_text())) == 1


def test_no_card_writes_nothing(cli, model, few, tmp_path):
    before = {path.name: path.stat().st_mtime_ns for path in model.iterdir()}
    assert cli("evaluate", model, *few, "--no-card").code == 0
    assert {path.name: path.stat().st_mtime_ns for path in model.iterdir()} == before
    assert len(list(tmp_path.iterdir())) == 2


def test_invalid_outputs_are_rejected_before_translation(cli, user_error, model_copy, few, tmp_path, monkeypatch):
    cli("evaluate", model_copy, *few)
    before = {path: path.read_bytes() for path in model_copy.rglob("*") if path.is_file()}
    (tmp_path / "link").symlink_to(model_copy)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("rnnsearch.translator.loading.load", None)
    for path in (model_copy, tmp_path / "link"):
        message = (
            "must not be a model folder, because the report would overwrite its scores.json; name a folder inside it"
        )
        assert user_error("evaluate", model_copy, *few, "--report", path) == f"{path}: {message}"
        message = "must not be the scores.json of a model folder; name another file"
        assert (
            user_error("evaluate", model_copy, *few, "-o", path / "scores.json") == f"{path / 'scores.json'}: {message}"
        )
    assert (
        user_error("evaluate", model_copy, *few, "-o", model_copy)
        == f"{model_copy}: must be a file to write to; it is a folder"
    )
    for path in (tmp_path / "file", tmp_path / "file" / "report"):
        message = f"must be a folder, or the name of one to make; {tmp_path / 'file'} is a file"
        assert user_error("evaluate", model_copy, *few, "--report", path) == f"{path}: {message}"
    assert f"{tmp_path / 'file'} is a file" in user_error(
        "evaluate", model_copy, *few, "-o", tmp_path / "file" / "scores.json"
    )
    assert {path: path.read_bytes() for path in model_copy.rglob("*") if path.is_file()} == before


def test_rare_words_are_counted_in_the_training_text(cli, model, model_copy, few, corpus):
    by_run = cli("evaluate", model, *few, "--no-card")
    assert "Times in training" in by_run.out
    assert re.search(r"^100–999 ", by_run.out, re.MULTILINE)
    assert "Times in training" not in cli("evaluate", model_copy, *few, "--no-card").out, (
        "a model without its run has no training text"
    )
    assert cli("evaluate", model_copy, *few, "--no-card", "--training-text", corpus / "train.de").out == by_run.out


def test_further_references_are_used(cli, user_error, model, few, tmp_path):
    single = cli("evaluate", model, *few, "--no-card")
    translations = tmp_path / "translations.de"
    assert cli("translate", model, "-i", few[0], "-o", translations).code == 0
    both = cli("evaluate", model, *few, "--no-card", "--also", translations, "--baseline", translations)
    assert "nrefs:1|" in single.out
    assert re.search(r"^BLEU +100.00 .*nrefs:2\|", both.out, re.MULTILINE)
    assert "100.00 ± 0.00" in both.out
    (tmp_path / "short").write_text("one line\n")
    assert "must have the same number of lines" in user_error("evaluate", model, *few, "--also", tmp_path / "short")


def test_sentences_are_plotted_by_encoder_state(cli, model_copy, few, tmp_path):
    sentences = tmp_path / "mine.tsv"
    sentences.write_text(
        "the small cat sees the dog.\tcats\n\nthe old cat hears the dog.\tcats\nthe red tree.\ttrees\n"
    )
    result = cli("evaluate", model_copy, *few, "--no-card", "--report", tmp_path / "report", "--sentences", sentences)
    assert result.code == 0, result.err
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert page.count('class="point') == 3
    assert "<title>the red tree. (trees)</title>" in page
    assert (
        "--sentences has no effect without --report" in cli("evaluate", model_copy, *few, "--sentences", sentences).err
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"gold": "0-0\n"}, "gold must have the same number of lines; got 2 and 1"),
        ({"gold": "0-0\n9-0\n"}, "gold:2: links must lie within 2 source and 2 target words, counted from 0; got 9-0"),
        ({"other": "one line\n"}, "must have the same number of lines"),
        ({"s": "", "t": ""}, "there must be at least one sentence to score; got none"),
    ],
)
def test_unsuitable_files_are_an_error(user_error, model, tmp_path, files, message):
    for name, text in {"s": "the cat\nthe dog\n", "t": "der Katze\nder Hund\n", **files}.items():
        (tmp_path / name).write_text(text)
    named = {"gold": "--alignments", "other": "--baseline"}
    options = [part for name in files if name in named for part in (named[name], tmp_path / name)]
    assert message in user_error(
        "evaluate", model, tmp_path / "s", tmp_path / "t", *options, "--report", tmp_path / "report"
    )
    assert not (tmp_path / "report").exists()


def test_documents_are_scored_as_one_segment_each(cli, model, corpus, tmp_path):
    sources = (corpus / "test.en").read_text().splitlines()[:6]
    references = (corpus / "test.de").read_text().splitlines()[:6]
    for name, lines in (("en", sources), ("de", references)):
        (tmp_path / name).write_text("\n".join([*lines[:2], "", *lines[2:5], "", lines[5], ""]))
    options = ("--documents", "--no-card", "-o", tmp_path / "scores.json")
    result = cli("evaluate", model, tmp_path / "en", tmp_path / "de", *options)
    assert result.code == 0 and "documents (3)" in result.out
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["sentences"] == 6
    assert [score["name"] for score in scores["documents"]["scores"]] == ["BLEU", "chrF2"]
    texts = [line["text"] for line in cli("translate", model, "--format", "json", stdin="\n".join(sources)).rows]
    joined = [[" ".join(lines[start:end]) for start, end in ((0, 2), (2, 5), (5, 6))] for lines in (texts, references)]
    assert scores["documents"]["scores"][0]["value"] == pytest.approx(corpus_bleu(*joined, "de"))
    (tmp_path / "de").write_text("\n".join([*references[:3], "", *references[3:5], "", references[5], ""]))
    result = cli("evaluate", model, tmp_path / "en", tmp_path / "de", "--documents")
    assert (result.code, result.out) == (1, "")
    assert f"{tmp_path / 'en'}:3: must not be empty, which would end a document" in result.err


def test_compare_prints_means_interval_and_p_of_several_runs(cli, tmp_path):
    lines = {
        "reference": ["the cat sees the old dog", "a bird sits under the tree", "the man reads a book at home"] * 4,
        "good": ["the cat sees the old dog", "a bird sits under a tree", "the man reads a book at home"] * 4,
        "better": ["the cat sees the old dog", "a bird sits under the tree", "the man reads a book at home"] * 4,
        "poor": ["the cat saw an old dog", "a bird under a tree", "the man is at home"] * 4,
    }
    files = {name: tmp_path / f"{name}.en" for name in lines}
    for name, path in files.items():
        path.write_text("".join(f"{line}\n" for line in lines[name]), encoding="utf-8")
    reference, good, better, poor = files.values()
    result = cli("compare", reference, good, better, "--baseline", poor, "-o", tmp_path / "scores.json")
    assert result.code == 0
    assert re.match(
        r"BLEU: \d+\.\d\d \(\d+\.\d\d to 100\.00, 2 runs\) against \d+\.\d\d \(1 run\): \+", result.lines[0]
    )
    assert "a system with one run says nothing about the difference between its seeds" in result.err
    stored = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert [difference["name"] for difference in stored["differences"]] == ["BLEU", "chrF2"]
    poor.write_text("one line\n", encoding="utf-8")
    failed = cli("compare", reference, good, "--baseline", poor)
    assert (failed.code, failed.out) == (1, "")
    assert failed.err.count("\n") == 1 and f"{reference} and {poor} must have the same number of lines" in failed.err
