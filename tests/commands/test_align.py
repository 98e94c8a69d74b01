"""`rnnsearch score`, `align` and `plot`."""

import json
import re
import shutil
from pathlib import Path

import pytest

from rnnsearch.errors import RnnsearchError
from rnnsearch.text.alignments import attention_of_symbols, format_pharaoh, links_from_attention, symmetrise
from rnnsearch.translator.loading import load
from tests.untrained import BAHDANAU, write_model

CAT = "the small cat sees the dog."
BIRD = "the old bird finds the tree."


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    source, target = tmp_path / "s.txt", tmp_path / "t.txt"
    source.write_text(f"{CAT}\n{CAT}\n\n\n{CAT}\n")
    target.write_text("der kleine Katze sieht der Hund.\nHund Hund Hund.\n\nder\n\n")
    return source, target


def test_score_tells_a_good_translation_from_a_bad_one(cli, model, texts, tmp_path):
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


def test_pairs_of_too_many_symbols_are_told_of_and_have_empty_lines(cli, model, tmp_path):
    source, target = tmp_path / "s.txt", tmp_path / "t.txt"
    source.write_text(f"{CAT}\n{CAT * 200}\n{CAT}\n{CAT}\n")
    target.write_text(f"der Hund.\nder Hund.\n{'der ' * 300_000}\nder Hund.\n")
    told = "".join(
        f"{path}:{number}: must have at most 20 symbols (--max-symbols); its line of output is empty\n"
        for number, path in ((2, source), (3, target))
    )
    code, scores, said = cli("score", model, source, target, "--max-symbols", 20)
    one, *none, other = scores.splitlines()
    assert (code, none, said) == (0, ["", ""], told) and one == other and float(one) < 0
    rows = cli("score", model, source, target, "--max-symbols", 20, "--format", "json").rows
    assert [row["source"] for row in rows] == [CAT, CAT * 200, CAT, CAT]
    assert [row["log_prob"] is None for row in rows] == [False, True, True, False]
    assert rows[1]["warnings"] == rows[2]["warnings"] == ["too long"] and rows[1]["text"] == "der Hund."
    code, links, said = cli("align", model, source, target, "--max-symbols", 20)
    one, *none, other = links.splitlines()
    assert (code, none, said) == (0, ["", ""], told) and one == other != ""


def test_many_portions_are_scored_as_one_is(cli, model, texts, monkeypatch):
    scores = [float(line) for line in cli("score", model, *texts).lines]
    monkeypatch.setattr("rnnsearch.cli.io.SQUARES", 1)
    assert [float(line) for line in cli("score", model, *texts).lines] == pytest.approx(scores, abs=1e-4)
    texts[1].write_text("der Hund.\n")
    code, out, err = cli("align", model, *texts)
    assert (code, out) == (1, "") and err.endswith("must have the same number of lines; got 5 and 1\n")


def test_align_links_every_target_word(cli, model, texts, tmp_path):
    result = cli("align", model, *texts)
    assert (result.code, result.err) == (0, "")
    assert len(result.lines) == 5
    assert result.lines[2:] == ["", "", ""], "nothing to link on an empty side"
    assert {int(link.split("-")[1]) for link in result.lines[0].split(" ")} == set(range(6))
    assert cli("align", model, *texts, "-o", tmp_path / "out").out == ""
    assert (tmp_path / "out").read_text() == result.out
    symbols = cli("align", model, *texts, "--unit", "symbols")
    assert len(symbols.lines[0].split(" ")) == 7


def test_links_that_mean_nothing_are_said_to(cli, corpus, tmp_path):
    untrained = write_model(tmp_path / "untrained", BAHDANAU, "words")
    pair = [corpus / "test.en", corpus / "test.de"]
    result = cli("align", untrained, *pair)
    assert len(result.lines) == len(pair[0].read_text().splitlines())
    assert re.fullmatch(
        rf"{untrained}: its attention is nearly the same at every word \(\d% of what it could tell of them\), "
        r"so these links mean nothing; has it been trained long enough\?\n",
        result.err,
    )
    back = write_model(tmp_path / "back", BAHDANAU, "words", ("de", "en"))
    both = cli("align", untrained, *pair, "--by", "attention", "--reverse", back)
    assert [line.partition(":")[0] for line in both.err.splitlines()] == [str(untrained), str(back)]
    beside = cli("translate", untrained, "-i", pair[0], "-o", tmp_path / "out", "--alignments", tmp_path / "links")
    assert "so these links mean nothing" in beside.err


@pytest.mark.parametrize("command", ["score", "align", "evaluate"])
def test_different_line_counts(fault, model, texts, command):
    texts[1].write_text("one\ntwo\n")
    assert fault(command, model, *texts) == (
        f"{texts[0]} and {texts[1]} must have the same number of lines; got 5 and 2"
    )


def test_attention_of_the_word_read_is_that_of_the_position_after_it(cli, fault, model, tmp_path):
    """Luong et al. 2015, footnote 14; of a decoder that attends after it has read, and the last word has EOS's row."""
    late = {
        "embedding": 8,
        "encoder": {"type": "stacked", "direction": "forward", "cell": "lstm", "size": 8, "layers": 1},
        "attention": {"score": "general"},
        "decoder": {"type": "luong", "cell": "lstm", "size": 8, "layers": 1, "bridge": "copy", "readout": 8},
    }
    own = load(write_model(tmp_path / "late", late))
    sources, targets = ["the cat sees a dog"], ["die Katze sieht einen Hund"]
    [guessed], [read] = (own.score(sources, targets, by) for by in ("attention", "read"))
    assert read.attention.tolist() == guessed.attention.tolist() and len(guessed.tokens) == len(guessed.words) + 1
    after = links_from_attention(attention_of_symbols(guessed.attention, len(guessed.words), read=True)[:, :-1])
    assert set(read.alignment) == after
    assert after != set(guessed.alignment)
    (tmp_path / "s").write_text(f"{sources[0]}\n")
    (tmp_path / "t").write_text(f"{targets[0]}\n")
    asked = ("align", tmp_path / "late", tmp_path / "s", tmp_path / "t", "--by", "read")
    assert cli(*asked).out == format_pharaoh(after) + "\n"
    assert "bahdanau attends before it reads" in fault("align", model, *asked[2:])
    rows, columns, symbols = read.drawing("symbols")
    assert (len(columns), len(symbols)) == (rows.shape[1], len(rows)) == (6, 6)
    assert rows.tolist() == [*guessed.attention[1:].tolist(), [0.0] * 6], "a row is that of its own symbol"


def test_a_model_says_whose_attention_it_is(cli, fault, model, tmp_path):
    """`search.attended_word`, in what becomes of unknown words, too, or `translate --by read`."""
    late = {
        "embedding": 8,
        "encoder": {"type": "bidirectional", "cell": "gru", "size": 8},
        "attention": {"score": "dot"},
        "decoder": {"type": "luong", "cell": "lstm", "size": 16, "layers": 1, "bridge": "zero", "readout": 8},
    }
    write_model(tmp_path / "late", late)
    write_model(tmp_path / "told", late, search={"attended_word": "read"})
    (tmp_path / "s").write_text("the cat sees a dog\n\nIs it red?\n")
    found = {}
    for name, folder, by in [("plain", "late", "attention"), ("asked", "late", "read"), ("told", "told", "attention")]:
        asked = ("translate", tmp_path / folder, "-i", tmp_path / "s", "--replace-unknown", "copy", "--by", by)
        found[name] = (
            cli(*asked, "--alignments", tmp_path / f"{name}.links").lines,
            (tmp_path / f"{name}.links").read_text(),
        )
    assert found["asked"] == found["told"] != found["plain"]
    assert all(len(lines) == links.count("\n") == 3 for lines, links in found.values())
    assert "bahdanau attends before it reads" in fault(
        "translate", model, "-i", tmp_path / "s", "--by", "read", "--alignments", tmp_path / "none"
    )


def test_links_of_two_directions_become_one(cli, fault, model, texts, tmp_path):
    back = write_model(tmp_path / "back", BAHDANAU, languages=("de", "en"))
    both = texts[0].read_text().split("\n")[:5], texts[1].read_text().split("\n")[:5]
    asked = ("align", model, *texts, "--by", "attention", "--reverse", back)
    there = load(model).align(*both, by="attention")
    other = [[(s, t) for t, s in own] for own in load(back).align(*both[::-1], by="attention")]
    for method in ("intersection", "union", "grow-diag-final-and"):
        expected = [format_pharaoh(symmetrise(*own, method)) for own in zip(there, other, strict=True)]
        assert cli(*asked, "--symmetrise", method).lines == expected
    assert cli(*asked).lines == expected, "the default"
    assert fault(*asked[:-1], model) == "the reverse model must translate from de to en; it does from en to de"
    assert "--by attention, read or posterior" in cli("align", model, *texts, "--reverse", back).err
    assert "no effect without --reverse" in cli("align", model, *texts, "--symmetrise", "union").err


def test_posterior_weights_align_given_the_word(cli, model, corpus):
    """As good as or better than attention's guesses, on a language whose words go one by one."""
    both = (model, corpus / "test.en", corpus / "test.de")
    plain, posterior = (cli("align", *both, "--by", by) for by in ("attention", "posterior"))
    assert (posterior.code, posterior.err) == (0, "")
    assert len(posterior.lines) == len(plain.lines)

    def monotone(lines: list[str]) -> int:
        return sum(link.split("-")[0] == link.split("-")[1] for line in lines for link in line.split())

    assert monotone(posterior.lines) >= monotone(plain.lines) > 0


def monotone(lines: list[str]) -> float:
    """Of all links, the share that goes straight."""
    links = [link.split("-") for line in lines for link in line.split()]
    return sum(i == j for i, j in links) / len(links)


def test_alignments_come_from_the_aligner(cli, model, corpus, tmp_path):
    """Where the model folder has one, unless something else is asked for; on a language whose words go one by one."""
    both = (model, corpus / "test.en", corpus / "test.de")
    best, asked, attended = (cli("align", *both, *by) for by in ((), ("--by", "aligner"), ("--by", "attention")))
    assert best.lines == asked.lines != attended.lines
    assert monotone(best.lines) > max(0.95, monotone(attended.lines))
    links = tmp_path / "links"
    translations = cli("translate", model, "-i", corpus / "test.en", "--alignments", links)
    assert len(translations.lines) == len(links.read_text().splitlines())
    looked = cli("translate", model, "-i", corpus / "test.en", "--alignments", tmp_path / "looked", "--by", "attention")
    assert looked.out == translations.out and (tmp_path / "looked").read_text() != links.read_text()
    assert "--by has no effect" in cli("translate", model, "--by", "attention", stdin=CAT).err
    (tmp_path / "out.de").write_text(translations.out)
    assert cli("align", model, corpus / "test.en", tmp_path / "out.de").out == links.read_text()
    [row] = cli("translate", model, "--format", "json", stdin=f"{CAT}\n").rows
    assert all(len(link) == 2 for link in row["alignment"]) and row["token_alignment"]
    symbols = cli("align", *both, "--unit", "symbols")
    assert symbols.code == 0 and len(symbols.lines) == len(best.lines)


def test_an_aligner_for_a_model_that_has_none(cli, fault, one_vector, corpus, tmp_path):
    """Attention or not."""
    own = tmp_path / "own"
    shutil.copytree(one_vector, own, ignore=shutil.ignore_patterns("checkpoints", "data"))
    both = (corpus / "test.en", corpus / "test.de")
    assert fault("align", own, *both, "--by", "aligner") == (
        "this needs an aligner, which the model has not; make it one with `rnnsearch aligner MODEL SRC TGT`"
    )
    learned = cli("aligner", own, corpus / "train.en", corpus / "train.de")
    assert (learned.code, learned.out) == (0, "")
    assert "learned from" in learned.err and "sentence pairs" in learned.err
    assert monotone(cli("align", own, *both).lines) > 0.95
    [row] = cli("translate", own, "--format", "json", stdin=f"{CAT}\n").rows
    assert row["attention"] is None and row["alignment"]
    with pytest.raises(RnnsearchError, match='by must be one of aligner, attention, read, posterior; got "alinger"'):
        load(own).require_alignments("alinger")
    (own / "aligner").rename(own / f".aligner.{2**22 + 1}.old")  # as a killed process leaves it
    assert monotone(cli("align", own, *both).lines) > 0.95
    (own / "aligner" / "tables.safetensors").write_bytes(b"broken")
    assert "tables.safetensors: is truncated or damaged" in fault("align", own, *both)


def test_an_aligner_is_learned_from_lines_that_go_together(fault, own, texts):
    texts[1].write_text("one\n")
    assert "must have the same number of lines" in fault("aligner", own, *texts)


def test_plot_draws_one_sentence(cli, model, tmp_path):
    drawn = cli("plot", model, CAT)
    assert (drawn.code, drawn.err) == (0, "")
    assert drawn.lines[0] == cli("translate", model, stdin=f"{CAT}\n").lines[0]
    assert any("sees" in line for line in drawn.lines)
    given = cli("plot", model, CAT, "--target", "der Hund", "--unit", "symbols")
    assert "</s>" in given.out, "the end symbol has its row and column"
    assert any(line.startswith("▁Hund") for line in given.lines)
    picture = cli("plot", model, CAT, "-o", tmp_path / "a.svg")
    assert picture == (0, "", f"{tmp_path / 'a.svg'}\n")
    assert (tmp_path / "a.svg").read_text().count("<svg") == 1


def test_plot_says_what_it_cannot_draw(fault, model, one_vector, tmp_path):
    assert "attention" in fault("plot", one_vector, CAT)
    assert fault("plot", model, " ") == "there is nothing to plot: the source or the translation has no words"
    assert ".txt" in fault("plot", model, CAT, "-o", tmp_path / "a.txt")


@pytest.mark.parametrize("by", ["aligner", "attention"])
def test_links_are_of_as_many_translations(model, by):
    with pytest.raises(RnnsearchError, match=r"targets must be as many as the sources \(2\); got 1"):
        load(model).align([CAT, BIRD], ["der Hund"], by=by)
