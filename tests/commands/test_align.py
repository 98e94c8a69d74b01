"""`rnnsearch score`, `align` and `plot`."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from rnnsearch.errors import RnnsearchError
from rnnsearch.text.alignments import format_pharaoh, links_from_attention, symmetrise, token_attention
from rnnsearch.translator.loading import load
from tests.untrained import BAHDANAU, write_model

CAT = "the small cat sees the dog."
BIRD = "the old bird finds the tree."


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    source = tmp_path / "s.txt"
    target = tmp_path / "t.txt"
    source.write_text(f"{CAT}\n{CAT}\n\n\n{CAT}\n")
    target.write_text("der kleine Katze sieht der Hund.\nHund Hund Hund.\n\nder\n\n")
    return source, target


def test_good_translation_scores_higher_than_bad_one(cli, model, texts, tmp_path):
    result = cli("score", model, *texts)
    assert (result.code, result.err) == (0, "")
    scores = [float(line) for line in result.lines]
    assert len(scores) == 5
    assert scores[0] > scores[1] + 5
    assert scores[2] == 0.0
    assert max(scores[3], scores[4]) < 0
    [best] = cli("translate", model, "--format", "json", stdin=f"{CAT}\n").rows
    texts[1].write_text(f"{best['text']}\n" * 5)
    again = cli("score", model, *texts, "--format", "json", "-o", tmp_path / "out.jsonl")
    assert again.out == ""
    row = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert row["log_prob"] == pytest.approx(best["log_prob"], abs=1e-4)
    assert row["tokens"] == best["tokens"]
    assert row["alignment"] == best["alignment"]


def test_pairs_with_too_many_tokens_are_reported_and_have_empty_lines(cli, model, tmp_path):
    source, target = tmp_path / "s.txt", tmp_path / "t.txt"
    source.write_text(f"{CAT}\n{CAT * 200}\n{CAT}\n{CAT}\n")
    target.write_text(f"der Hund.\nder Hund.\n{'der ' * 300_000}\nder Hund.\n")
    messages = "".join(
        f"{path}:{number}: must have at most 20 tokens (--max-symbols); its output line is empty\n"
        for number, path in ((2, source), (3, target))
    )
    code, scores, err = cli("score", model, source, target, "--max-symbols", 20)
    first, *skipped, last = scores.splitlines()
    assert (code, skipped, err) == (0, ["", ""], messages)
    assert first == last and float(first) < 0
    rows = cli("score", model, source, target, "--max-symbols", 20, "--format", "json").rows
    assert [row["source"] for row in rows] == [CAT, CAT * 200, CAT, CAT]
    assert [row["log_prob"] is None for row in rows] == [False, True, True, False]
    assert rows[1]["warnings"] == rows[2]["warnings"] == ["too long"] and rows[1]["text"] == "der Hund."
    code, links, err = cli("align", model, source, target, "--max-symbols", 20)
    first, *skipped, last = links.splitlines()
    assert (code, skipped, err) == (0, ["", ""], messages)
    assert first == last != ""


def test_scores_do_not_depend_on_chunks(cli, model, texts, monkeypatch):
    scores = [float(line) for line in cli("score", model, *texts).lines]
    monkeypatch.setattr("rnnsearch.cli.io.MAX_CHUNK_SQUARED_CHARACTERS", 1)
    assert [float(line) for line in cli("score", model, *texts).lines] == pytest.approx(scores, abs=1e-4)
    texts[1].write_text("der Hund.\n")
    code, out, err = cli("align", model, *texts)
    assert (code, out) == (1, "") and err.endswith("must have the same number of lines; got 5 and 1\n")


def test_align_links_every_target_word(cli, model, texts, tmp_path):
    result = cli("align", model, *texts)
    assert (result.code, result.err) == (0, "")
    assert len(result.lines) == 5
    assert result.lines[2:] == ["", "", ""], "an empty sentence has no links"
    assert {int(link.split("-")[1]) for link in result.lines[0].split(" ")} == set(range(6))
    assert cli("align", model, *texts, "-o", tmp_path / "out").out == ""
    assert (tmp_path / "out").read_text() == result.out
    symbols = cli("align", model, *texts, "--unit", "symbols")
    assert len(symbols.lines[0].split(" ")) == 7


def test_uniform_attention_is_reported(cli, corpus, tmp_path):
    untrained = write_model(tmp_path / "untrained", BAHDANAU, "words")
    pair = [corpus / "test.en", corpus / "test.de"]
    result = cli("align", untrained, *pair)
    assert len(result.lines) == len(pair[0].read_text().splitlines())
    assert re.fullmatch(
        rf"{untrained}: attention is nearly the same for every target word \(\d% of the possible information\), "
        r"so these alignments mean nothing; has the model been trained long enough\?\n",
        result.err,
    )
    back = write_model(tmp_path / "back", BAHDANAU, "words", ("de", "en"))
    bidirectional = cli("align", untrained, *pair, "--by", "attention", "--reverse", back)
    assert [line.partition(":")[0] for line in bidirectional.err.splitlines()] == [str(untrained), str(back)]
    translated = cli("translate", untrained, "-i", pair[0], "-o", tmp_path / "out", "--alignments", tmp_path / "links")
    assert "so these alignments mean nothing" in translated.err


@pytest.mark.parametrize("command", ["score", "align", "evaluate"])
def test_different_numbers_of_lines_are_an_error(user_error, model, texts, command):
    texts[1].write_text("one\ntwo\n")
    assert user_error(command, model, *texts) == (
        f"{texts[0]} and {texts[1]} must have the same number of lines; got 5 and 2"
    )


def test_read_attention_is_that_of_the_position_after_the_word(cli, user_error, model, tmp_path):
    """See Luong et al. 2015, footnote 14. The last word has the attention of the end token."""
    late = {
        "embedding": 8,
        "encoder": {"type": "stacked", "direction": "forward", "cell": "lstm", "size": 8, "layers": 1},
        "attention": {"score": "general"},
        "decoder": {"type": "luong", "cell": "lstm", "size": 8, "layers": 1, "bridge": "copy", "readout": 8},
    }
    translator = load(write_model(tmp_path / "late", late))
    sources = ["the cat sees a dog"]
    targets = ["die Katze sieht einen Hund"]
    [predicted] = translator.score(sources, targets, "attention")
    [read] = translator.score(sources, targets, "read")
    assert read.attention.tolist() == predicted.attention.tolist()
    assert len(predicted.tokens) == len(predicted.words) + 1
    after = links_from_attention(token_attention(predicted.attention, len(predicted.words), read=True)[:, :-1])
    assert set(read.alignment) == after
    assert after != set(predicted.alignment)
    (tmp_path / "s").write_text(f"{sources[0]}\n")
    (tmp_path / "t").write_text(f"{targets[0]}\n")
    command = ("align", tmp_path / "late", tmp_path / "s", tmp_path / "t", "--by", "read")
    assert cli(*command).out == format_pharaoh(after) + "\n"
    assert "bahdanau attends before it reads" in user_error("align", model, *command[2:])
    rows, columns, symbols = read.heatmap_data("symbols")
    assert (len(columns), len(symbols)) == (rows.shape[1], len(rows)) == (6, 6)
    assert rows.tolist() == [*predicted.attention[1:].tolist(), [0.0] * 6], "each row belongs to its own token"


def test_attended_word_is_a_model_setting_or_an_option(cli, user_error, model, tmp_path):
    """`search.attended_word` and `translate --by read` also determine which word replaces an unknown one."""
    late = {
        "embedding": 8,
        "encoder": {"type": "bidirectional", "cell": "gru", "size": 8},
        "attention": {"score": "dot"},
        "decoder": {"type": "luong", "cell": "lstm", "size": 16, "layers": 1, "bridge": "zero", "readout": 8},
    }
    write_model(tmp_path / "late", late)
    write_model(tmp_path / "with-setting", late, search={"attended_word": "read"})
    (tmp_path / "s").write_text("the cat sees a dog\n\nIs it red?\n")
    outputs = {}
    for name, folder, by in [
        ("default", "late", "attention"),
        ("option", "late", "read"),
        ("setting", "with-setting", "attention"),
    ]:
        command = ("translate", tmp_path / folder, "-i", tmp_path / "s", "--replace-unknown", "copy", "--by", by)
        outputs[name] = (
            cli(*command, "--alignments", tmp_path / f"{name}.links").lines,
            (tmp_path / f"{name}.links").read_text(),
        )
    assert outputs["option"] == outputs["setting"] != outputs["default"]
    assert all(len(lines) == links.count("\n") == 3 for lines, links in outputs.values())
    assert "bahdanau attends before it reads" in user_error(
        "translate", model, "-i", tmp_path / "s", "--by", "read", "--alignments", tmp_path / "none"
    )


def test_links_of_two_directions_are_symmetrised(cli, user_error, model, texts, tmp_path):
    back = write_model(tmp_path / "back", BAHDANAU, languages=("de", "en"))
    sources = texts[0].read_text().split("\n")[:5]
    targets = texts[1].read_text().split("\n")[:5]
    command = ("align", model, *texts, "--by", "attention", "--reverse", back)
    forward_links = load(model).align(sources, targets, by="attention")
    backward_links = []
    for links in load(back).align(targets, sources, by="attention"):
        backward_links.append([(source, target) for target, source in links])
    for method in ("intersection", "union", "grow-diag-final-and"):
        pairs = zip(forward_links, backward_links, strict=True)
        expected = [format_pharaoh(symmetrise(forward, backward, method)) for forward, backward in pairs]
        assert cli(*command, "--symmetrise", method).lines == expected
    assert cli(*command).lines == expected, "the default"
    assert user_error(*command[:-1], model) == "the reverse model must translate from de to en; got en to de"
    assert "--by attention, read or posterior" in cli("align", model, *texts, "--reverse", back).err
    assert "no effect without --reverse" in cli("align", model, *texts, "--symmetrise", "union").err


def test_posterior_alignments_are_at_least_as_good_as_attention(cli, model, corpus):
    """The words of the two languages correspond one by one, in order."""
    files = (model, corpus / "test.en", corpus / "test.de")
    attention = cli("align", *files, "--by", "attention")
    posterior = cli("align", *files, "--by", "posterior")
    assert (posterior.code, posterior.err) == (0, "")
    assert len(posterior.lines) == len(attention.lines)
    assert monotone_links(posterior.lines) >= monotone_links(attention.lines) > 0


def monotone_links(lines: list[str]) -> int:
    """Return the number of links between words at the same position."""
    return sum(link.split("-")[0] == link.split("-")[1] for line in lines for link in line.split())


def monotone_rate(lines: list[str]) -> float:
    """Return the fraction of links between words at the same position."""
    return monotone_links(lines) / sum(len(line.split()) for line in lines)


def test_alignments_come_from_the_aligner_by_default(cli, model, corpus, tmp_path):
    files = (model, corpus / "test.en", corpus / "test.de")
    default = cli("align", *files)
    aligned = cli("align", *files, "--by", "aligner")
    attended = cli("align", *files, "--by", "attention")
    assert default.lines == aligned.lines != attended.lines
    assert monotone_rate(default.lines) > max(0.95, monotone_rate(attended.lines))
    links = tmp_path / "links"
    translations = cli("translate", model, "-i", corpus / "test.en", "--alignments", links)
    assert len(translations.lines) == len(links.read_text().splitlines())
    attended_links = tmp_path / "attended"
    command = ("translate", model, "-i", corpus / "test.en", "--alignments", attended_links, "--by", "attention")
    assert cli(*command).out == translations.out
    assert attended_links.read_text() != links.read_text()
    assert "--by has no effect" in cli("translate", model, "--by", "attention", stdin=CAT).err
    (tmp_path / "out.de").write_text(translations.out)
    assert cli("align", model, corpus / "test.en", tmp_path / "out.de").out == links.read_text()
    [row] = cli("translate", model, "--format", "json", stdin=f"{CAT}\n").rows
    assert all(len(link) == 2 for link in row["alignment"]) and row["token_alignment"]
    symbols = cli("align", *files, "--unit", "symbols")
    assert symbols.code == 0 and len(symbols.lines) == len(default.lines)


def test_aligner_can_be_added_to_a_model_without_attention(cli, user_error, one_vector, corpus, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(one_vector, folder, ignore=shutil.ignore_patterns("checkpoints", "data"))
    texts = (corpus / "test.en", corpus / "test.de")
    assert user_error("align", folder, *texts, "--by", "aligner") == (
        "this needs an aligner, which the model does not have; make one with `rnnsearch aligner MODEL SRC TGT`"
    )
    learned = cli("aligner", folder, corpus / "train.en", corpus / "train.de")
    assert (learned.code, learned.out) == (0, "")
    assert "learned from" in learned.err and "sentence pairs" in learned.err
    assert monotone_rate(cli("align", folder, *texts).lines) > 0.95
    [row] = cli("translate", folder, "--format", "json", stdin=f"{CAT}\n").rows
    assert row["attention"] is None and row["alignment"]
    with pytest.raises(RnnsearchError, match='by must be one of aligner, attention, read, posterior; got "alinger"'):
        load(folder).require_alignments("alinger")
    # As a killed process leaves it, whose id is in use again.
    set_aside = (folder / "aligner").rename(folder / f".aligner.{os.getppid()}.old")
    assert monotone_rate(cli("align", folder, *texts).lines) > 0.95
    assert set_aside.is_dir() and not (folder / "aligner").exists(), "commands that read change nothing"
    (set_aside / "tables.safetensors").write_bytes(b"broken")
    assert "tables.safetensors: is truncated or damaged" in user_error("align", folder, *texts)


def test_aligner_needs_equal_numbers_of_lines(user_error, model_copy, texts):
    texts[1].write_text("one\n")
    assert "must have the same number of lines" in user_error("aligner", model_copy, *texts)


def test_plot_draws_one_sentence(cli, model, tmp_path):
    plotted = cli("plot", model, CAT)
    assert (plotted.code, plotted.err) == (0, "")
    assert plotted.lines[0] == cli("translate", model, stdin=f"{CAT}\n").lines[0]
    assert any("sees" in line for line in plotted.lines)
    symbols = cli("plot", model, CAT, "--target", "der Hund", "--unit", "symbols")
    assert "</s>" in symbols.out, "the end token has a row and a column"
    assert any(line.startswith("▁Hund") for line in symbols.lines)
    picture = cli("plot", model, CAT, "-o", tmp_path / "a.svg")
    assert picture == (0, "", f"{tmp_path / 'a.svg'}\n")
    assert (tmp_path / "a.svg").read_text().count("<svg") == 1


def test_plot_errors(user_error, model, one_vector, tmp_path):
    assert "attention" in user_error("plot", one_vector, CAT)
    assert user_error("plot", model, " ") == "there is nothing to plot: the source or the translation has no words"
    assert ".txt" in user_error("plot", model, CAT, "-o", tmp_path / "a.txt")


@pytest.mark.parametrize("by", ["aligner", "attention"])
def test_align_needs_one_translation_per_source(model, by):
    with pytest.raises(RnnsearchError, match=r"targets must be as many as the sources \(2\); got 1"):
        load(model).align([CAT, BIRD], ["der Hund"], by=by)
