"""`rnnsearch translate`."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rnnsearch.cli.options import Precision
from rnnsearch.config import SearchPrecision
from rnnsearch.ops.native.library import library

CAT = "the small cat sees the dog."


BIRD = "the old bird finds the tree."


def test_a_line_of_white_space_comes_out_empty(cli, model):
    given = f"{CAT}\n \n\t\n\u00a0\n   \n\n{BIRD}\n"
    assert [n for n, line in enumerate(cli("translate", model, stdin=given).lines) if line] == [0, 6]
    rows = cli("translate", model, "--format", "json", stdin=given).rows
    assert [row["source"] for row in rows] == given.split("\n")[:-1]


def test_one_line_in_is_one_line_out(cli, model):
    """Empty lines, and characters that Python would break lines at, stay where they are."""
    given = [CAT, "", "the cat\u2028sees the dog.", "the old\x85bird", "  ", "the\x0cred\x0bcat", "", BIRD, ""]
    result = cli("translate", model, stdin="".join(f"{line}\n" for line in given))
    assert (result.code, result.err) == (0, "")
    assert len(result.lines) == len(given)
    assert [n for n, line in enumerate(result.lines) if not line] == [1, 4, 6, 8]
    assert [line.startswith("der ") for line in (result.lines[0], result.lines[7])] == [True, True]
    alone = cli("translate", model, stdin=f"{BIRD}\n")
    assert alone.lines == [result.lines[7]]


def test_it_has_learned(cli, model, corpus):
    """So that the tests of outputs are about more than noise."""
    result = cli("translate", model, "-i", corpus / "test.en")
    references = (corpus / "test.de").read_text(encoding="utf-8").splitlines()
    right = sum(line == reference for line, reference in zip(result.lines, references, strict=True))
    assert right > len(references) / 2


def test_files_in_and_out(cli, model, tmp_path):
    source, target = tmp_path / "in.txt", tmp_path / "new" / "out.txt"
    source.write_bytes(f"\ufeff{CAT}\r\n\r\n{BIRD}".encode())
    result = cli("translate", model, "-i", source, "-o", target)
    assert result == (0, "", "")
    from_stdin = cli("translate", model, stdin=source.read_bytes())
    plain = cli("translate", model, stdin=f"{CAT}\n\n{BIRD}\n")
    assert target.read_bytes() == from_stdin.out.encode() == plain.out.encode()
    assert cli("translate", model, "-i", "-", "-o", "-", stdin=source.read_bytes()) == from_stdin
    assert target.read_bytes().count(b"\n") == 3
    assert b"\r" not in target.read_bytes()
    rows = cli("translate", model, "--format", "json", stdin=source.read_bytes()).rows
    assert [row["source"] for row in rows] == [CAT, "", BIRD], "nor a byte order mark"


def test_no_lines_in_no_lines_out(cli, model):
    assert cli("translate", model) == (0, "", "")


def test_json_has_everything(cli, model):
    row, empty = cli("translate", model, "--format", "json", "--n-best", "2", stdin=f"{CAT}\n\n").rows
    assert row["source"] == CAT
    assert row["text"] == cli("translate", model, stdin=f"{CAT}\n").lines[0]
    assert row["finished"] is True
    assert row["tokens"][-1] == row["source_tokens"][-1] == "</s>"
    assert len(row["token_scores"]) == len(row["tokens"])
    assert row["log_prob"] == pytest.approx(sum(row["token_scores"]), abs=1e-4)
    assert row["score"] == pytest.approx(row["log_prob"] / len(row["tokens"]), abs=1e-6)
    assert len(row["attention"]) == len(row["tokens"])
    for weights in row["attention"]:
        assert len(weights) == len(row["source_tokens"])
        assert sum(weights) == pytest.approx(1.0, abs=1e-3)
    assert all(i < 6 for i, _ in row["alignment"])
    assert len(row["n_best"]) == 2
    assert row["n_best"][0]["text"] == row["text"]
    assert row["n_best"][0]["score"] >= row["n_best"][1]["score"]
    assert (empty["text"], empty["log_prob"], empty["alignment"]) == ("", 0.0, [])


def test_n_best_lists(cli, model):
    result = cli("translate", model, "--format", "nbest", "--n-best", "4", "--beam", "4", stdin=f"{CAT}\n{BIRD}\n")
    rows = [line.split(" ||| ") for line in result.lines]
    assert [row[0] for row in rows] == ["0"] * 4 + ["1"] * 4
    for number in ("0", "1"):
        mine = [row for row in rows if row[0] == number]
        scores = [float(row[3]) for row in mine]
        assert scores == sorted(scores, reverse=True)
        assert len({row[1] for row in mine}) == 4
        assert all(re.fullmatch(r"log_prob=-?\d+\.\d{6}", row[2]) for row in mine)


def test_beam_and_length_options(cli, model):
    text = f"{CAT}\n{BIRD}\n"
    greedy = cli("translate", model, "--beam", "1", "--format", "json", stdin=text)
    wide = cli("translate", model, "--beam", "8", "--length-penalty", "0", "--format", "json", stdin=text)
    for one, eight in zip(greedy.rows, wide.rows, strict=True):
        assert eight["log_prob"] >= one["log_prob"] - 1e-5
        assert eight["score"] == pytest.approx(eight["log_prob"])
    for row in cli("translate", model, "--max-length", "2", "--format", "json", stdin=text).rows:
        assert (len(row["tokens"]), row["finished"]) == (2, False)
    batched = cli("translate", model, "--batch", "1", "--threads", "1", stdin=text)
    assert batched == cli("translate", model, stdin=text)


@pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")
def test_products_of_bytes(cli, model, corpus):
    rough = cli("translate", model, "-i", corpus / "test.en", "--precision", "int8")
    exact = cli("translate", model, "-i", corpus / "test.en", "--precision", "fp32")
    assert len(rough.lines) == len(exact.lines)
    same = sum(one == other for one, other in zip(rough.lines, exact.lines, strict=True))
    assert same > 0.9 * len(exact.lines)
    scored = [cli("translate", model, "--precision", p, "--format", "json", stdin=f"{CAT}\n") for p in ("int8", "fp32")]
    assert scored[0].out != scored[1].out
    assert Precision == SearchPrecision


def test_unknown_words_can_be_banned(cli, one_vector):
    """The model of 2 updates and few words produces <unk> when it may."""
    text = "the quiet child hears the tree.\n" * 3 + f"{CAT}\n"
    free = cli("translate", one_vector, "--format", "json", "--n-best", "10", stdin=text)
    banned = cli("translate", one_vector, "--format", "json", "--n-best", "10", "--ban-unknown", stdin=text)
    found = [["<unk>" in best["tokens"] for row in r.rows for best in row["n_best"]] for r in (free, banned)]
    assert [any(some) for some in found] == [True, False]


@pytest.fixture(scope="module")
def few_words(cli: Any, corpus: Path) -> Path:
    """A model with attention whose vocabulary lacks most nouns."""
    settings = ["folder=few", "text.vocabulary=14", "training.max_updates=60", "search.replace_unknown=dictionary"]
    (corpus / "words.tsv").write_text("cat\tKatze\n", encoding="utf-8")
    result = cli("train", corpus / "run.toml", *[p for s in settings for p in ("--set", s)],
                 "--set", "search.dictionary=words.tsv")  # fmt: skip
    assert result.code == 0, result.err
    return corpus / "few"


def test_unknown_words_are_replaced(cli, few_words, tmp_path):
    assert (few_words / "dictionary.tsv").read_text(encoding="utf-8") == "cat\tKatze\n", "the model has its own copy"
    text = "".join(f"the old {noun} sees the Zebra.\n" for noun in ("cat", "dog", "bird", "child", "tree"))
    mine = tmp_path / "mine.tsv"
    mine.write_text("".join(f"{word}\tX\n" for word in f"{text} .".replace(".", " .").split()))
    choices = (["--replace-unknown", "none"], ["--replace-unknown", "copy"], ["--dictionary", mine], [])
    left, copied, given, own = (cli("translate", few_words, *options, stdin=text).out for options in choices)
    assert "<unk>" in left
    assert "<unk>" not in copied
    assert given == left.replace("<unk>", "X")
    assert own == re.sub(r"\bcat\b", "Katze", copied) != copied
    told = cli("translate", few_words, "--format", "json", stdin=text)
    replaced = [one for row in told.rows for one in row["replaced"]]
    assert {(one["source"], one["by"]) for one in replaced} >= {("cat", "dictionary"), ("dog", "copy")}
    for row in told.rows:
        assert all(row["tokens"][one["token"]] == "<unk>" for one in row["replaced"])
    assert f"{len(replaced):,} unknown words replaced: " in told.err


def test_tags_go_with_the_aligned_words(cli, model):
    lines = f"{CAT.replace('cat', '<b>cat</b>')}\n<x/>\n\n<i>{BIRD}</i>\n"
    plain = cli("translate", model, stdin=f"{CAT}\n\n\n{BIRD}\n").lines
    found = cli("translate", model, "--tags", stdin=lines).lines
    assert [re.sub("<[^>]*>", "", line) for line in found] == plain
    assert re.search("<b>Katze</b>", found[0])
    assert found[1:] == ["<x/>", "", f"<i>{plain[3]}</i>"]
    long = f"{CAT.replace('cat', f'<b id={chr(34)}{900 * chr(120)}{chr(34)}>cat</b>')}\n"
    [whole] = cli("translate", model, "--tags", "--max-source", "20", stdin=long).lines
    assert re.sub("<[^>]*>", "", whole) == plain[0], "markup is not counted"
    rows = cli("translate", model, "--tags", "--by", "attention", "--format", "json", stdin=lines).rows
    assert [row["text"] for row in rows] == plain
    assert all(row["marked"].count("<b>") == row["source"].count("cat") for row in rows)
    nbest = cli(
        "translate", model, "--tags", "--format", "nbest", "--n-best", "2", stdin=lines.partition("\n")[0]
    ).lines
    assert all(line.count("<b>") == 1 for line in nbest)


def test_what_is_protected_comes_out(cli, model):
    line = "the old cat sees 21,000 trees of https://a.org/b.\n"
    [found] = cli("translate", model, "--protect", "numbers,urls", stdin=line).lines
    assert " 21,000" in found
    assert "https://a.org/b" in found
    assert cli("translate", model, "--protect", "numbers", "--protect", "urls", stdin=line).lines == [found]
    assert cli("translate", model, "--protect", "urls", stdin="www.a.org\n").lines == ["www.a.org"]
    for names in ("all", "all,urls"):
        same = cli("translate", model, "--protect", names, stdin=f"{CAT}\n")
        assert same == cli("translate", model, stdin=f"{CAT}\n")


def test_terms_of_a_glossary_are_there(cli, model, tmp_path):
    terms = tmp_path / "terms.tsv"
    terms.write_text("cat\tVogel\nold tree\tHund\n", encoding="utf-8")
    text = f"{CAT}\nthe bird sees the old tree.\n{BIRD}\n\n"
    found = cli("translate", model, "--glossary", terms, "--beam", "6", stdin=text).lines
    free = cli("translate", model, "--beam", "6", stdin=text).lines
    assert "Vogel" in found[0]
    assert "Hund" in found[1]
    assert "Hund" not in free[1]
    assert found[2:] == free[2:]
    refused = cli("translate", model, "--glossary", terms, "--beam", "1", stdin=text)
    assert refused.code == 2
    assert "--glossary needs a beam of 2 or more" in refused.err


def test_terms_that_a_model_of_words_cannot_write_are_left_out(cli, few_words, tmp_path):
    terms = tmp_path / "terms.tsv"
    terms.write_text("cat\tZebra\nthe\tder\n", encoding="utf-8")
    result = cli("translate", few_words, "--glossary", terms, "--beam", "4", stdin=f"{CAT}\n")
    assert result.code == 0
    assert f'{terms}: 1 of 2 terms left out: the model has no symbol for a word of them (like "Zebra")' in result.err


def test_a_dictionary_is_learned(cli, model, corpus, tmp_path):
    texts = corpus / "train.en", corpus / "train.de"
    by_text = cli("dictionary", *texts)
    assert by_text.code == 0
    entries = {tuple(line.split("\t")[:2]): line.split("\t")[2:] for line in by_text.lines}
    assert ("cat", "Katze") in entries
    assert float(entries["cat", "Katze"][0]) > 0.8
    assert any(" " in source for source, _ in entries)
    links, out = tmp_path / "links", tmp_path / "dictionary.tsv"
    assert cli("align", model, *texts, "-o", links).code == 0
    assert cli("dictionary", *texts, "--alignments", links, "-o", out).code == 0
    assert out.read_text(encoding="utf-8") == cli("dictionary", *texts, "--model", model).out
    assert not any(" " in line.split("\t")[0] for line in cli("dictionary", *texts, "--words", "1").lines)
    assert "no entries: " in cli("dictionary", *texts, "--min-count", "1000").err


def test_links_of_other_pairs_make_no_dictionary(cli, corpus, tmp_path):
    texts, links = (corpus / "test.en", corpus / "test.de"), tmp_path / "links"
    count = len(texts[0].read_text(encoding="utf-8").splitlines())
    links.write_text("0-0\n" * (count - 1) + "0-99\n")
    result = cli("dictionary", *texts, "--alignments", links)
    assert result.code == 1
    assert f"{links}:{count}: links words that its sentences of " in result.err
    links.write_text("0-0\n")
    assert "must have the same number of lines" in cli("dictionary", *texts, "--alignments", links).err


def test_a_dictionary_that_is_not_there_stops_training(cli, corpus):
    settings = ["folder=none", "search.replace_unknown=dictionary", "search.dictionary=nothing.tsv"]
    result = cli("train", corpus / "run.toml", *[p for s in settings for p in ("--set", s)])
    assert result.code == 1
    assert result.err.splitlines()[-1] == f"rnnsearch: {corpus / 'nothing.tsv'}: no such file"


def test_alignments_go_beside_the_text(cli, model, tmp_path):
    links = tmp_path / "links" / "out.align"
    result = cli("translate", model, "--alignments", links, stdin=f"{CAT}\n\n{BIRD}\n")
    assert result.code == 0
    lines = links.read_text().split("\n")
    assert len(lines) == 4
    assert lines[1] == lines[3] == ""
    for line, text in ((lines[0], result.lines[0]), (lines[2], result.lines[2])):
        pairs = [tuple(map(int, link.split("-"))) for link in line.split(" ")]
        assert pairs == sorted(pairs)
        assert {j for _, j in pairs} == set(range(len(text.split(" ")))), "each target word has a source word"
        assert all(0 <= i < 6 for i, _ in pairs)
    symbols = tmp_path / "symbols.align"
    cli("translate", model, "--alignments", symbols, "--unit", "symbols", stdin=f"{CAT}\n")
    first = symbols.read_text().split("\n")[0].split(" ")
    assert len(first) > len(result.lines[0].split(" ")), "the full stop is a symbol, and no word"


def test_a_line_of_a_thousand_words(cli, model):
    long = " ".join(["the small cat sees the dog"] * 170)
    assert len(long.split()) > 1000
    result = cli("translate", model, "--beam", "2", "--max-length", "50", stdin=f"{long}\n{CAT}\n")
    assert result.code == 0
    assert len(result.lines) == 2
    assert result.lines[1] == cli("translate", model, "--beam", "2", stdin=f"{CAT}\n").lines[0]


def test_text_that_looks_like_special_symbols_is_text(cli, model):
    [row] = cli("translate", model, "--format", "json", stdin="</s> <s> <pad> <unk>\n").rows
    assert row["source"] == "</s> <s> <pad> <unk>"
    assert row["source_tokens"].count("</s>") == 1
    assert "<pad>" not in row["source_tokens"]


@pytest.mark.parametrize("name", ["standard input", "file"])
def test_invalid_utf8_is_named_with_its_line(fault, model, tmp_path, name):
    content = f"{CAT}\n\n".encode() + b"caf\xe9\n"
    if name == "file":
        (tmp_path / "in.txt").write_bytes(content)
        text = fault("translate", model, "-i", tmp_path / "in.txt", "-o", tmp_path / "out.txt")
        assert text == f"{tmp_path / 'in.txt'}:3: must be UTF-8; got byte 0xe9 at position 3"
        assert [path.name for path in tmp_path.iterdir()] == ["in.txt"], "no half-written output"
    else:
        text = fault("translate", model, stdin=content)
        assert text.startswith("<standard input>:3: must be text in UTF-8")


def test_what_is_missing_is_said(fault, model, tmp_path):
    nowhere = tmp_path / "nowhere"
    assert fault("translate", model, "-i", nowhere) == f"{nowhere}: no such file"
    assert fault("align", model, nowhere, nowhere) == f"{nowhere}: no such file"
    assert fault("translate", model, "--device", "tpu") == 'device: must be auto, cpu, cuda or cuda:N; got "tpu"'
    (tmp_path / "foreign").mkdir()
    assert fault("translate", tmp_path / "foreign") == (
        f"{tmp_path / 'foreign'}: is not a complete model folder: missing config.toml, model.safetensors, tokenizers"
    )


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizers/en.json", "config.toml"])
def test_a_truncated_model_is_said(fault, own, name):
    content = (own / name).read_bytes()
    (own / name).write_bytes(content[: len(content) // 2])
    text = fault("translate", own, stdin=f"{CAT}\n")
    assert str(own) in text
    assert name in text


def test_output_that_cannot_be_written(fault, model, tmp_path):
    (tmp_path / "file").write_text("kept")
    place = tmp_path / "file" / "out.txt"
    assert fault("translate", model, "-o", place, stdin=f"{CAT}\n") == (
        f"{place}: cannot be written: File exists; nothing was changed"
    )
    assert (tmp_path / "file").read_text() == "kept"
    folder = tmp_path / "folder"
    folder.mkdir()
    assert fault("translate", model, "-o", folder, stdin=f"{CAT}\n").startswith(f"{folder}: cannot be written: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_model_without_attention_translates_but_does_not_align(cli, fault, one_vector, corpus, tmp_path):
    [row] = cli("translate", one_vector, "--format", "json", stdin=f"{CAT}\n").rows
    assert row["attention"] is None
    sentence = (
        "this needs an aligner, which the model has not; make it one with `rnnsearch aligner MODEL SRC TGT` "
        "(nor has it attention)"
    )
    assert fault("align", one_vector, corpus / "test.en", corpus / "test.de") == sentence
    assert fault("translate", one_vector, "--alignments", tmp_path / "a", stdin=f"{CAT}\n") == sentence
    assert not (tmp_path / "a").exists()


def test_two_outputs_of_one_name_are_refused(cli, model, tmp_path):
    target = tmp_path / "same"
    target.write_text("old")
    (tmp_path / "link").symlink_to(target)
    for other in (target, tmp_path / "link"):
        result = cli("translate", model, "-o", target, "--alignments", other, stdin=CAT)
        assert result.code == 2
        assert "--output and --alignments must name different files" in result.err
        assert "--output must not be a file that is read" in cli("translate", model, "-i", target, "-o", other).err
    assert target.read_text() == "old"
    assert cli("translate", model, "-o", "/dev/null", "--alignments", "/dev/null", stdin=CAT).code == 0


def test_a_line_that_is_too_long_has_an_empty_line_of_output(cli, model, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text(f"{CAT}\n{'dog ' * 50}\n{BIRD}\n{'ö' * 700_000}\n{CAT}\n")
    result = cli("translate", model, "-i", source, "--max-source", "20", "--alignments", tmp_path / "links")
    assert cli("translate", model, "--max-source", "20", stdin=source.read_bytes()).lines == result.lines
    assert [bool(line) for line in result.lines] == [True, False, True, False, True]
    assert (tmp_path / "links").read_text().count("\n") == 5
    rows = cli("translate", model, "-i", source, "--max-source", "20", "--format", "json").rows
    assert [row["warnings"] == ["too long"] for row in rows] == [False, True, False, True, False]
    assert rows[1]["source"] == "dog " * 50 and rows[1]["text"] == ""
    assert result.err.splitlines() == [
        f"{source}:{n}: must have at most 20 symbols (--max-source); its line of output is empty" for n in (2, 4)
    ]


def test_input_from_a_pipe_and_from_nowhere(cli, model, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(f"{CAT}\n"))
    writer.start()
    result = cli("translate", model, "-i", pipe)
    writer.join()
    assert result.lines == cli("translate", model, stdin=f"{CAT}\n").lines
    assert cli("translate", model, "-i", "/dev/null") == (0, "", "")


@pytest.mark.parametrize(
    ("redirected", "said"),
    [
        (">/dev/full", "rnnsearch: standard output: No space left on device\n"),
        (">&-", "rnnsearch: standard output: Bad file descriptor\n"),
        (f"-o /tmp/{'a' * 300}", f"rnnsearch: /tmp/{'a' * 300}: File name too long\n"),
    ],
)
def test_streams_that_are_full_or_closed(model, redirected, said):
    command = f"echo '{CAT}' | {sys.executable} -m rnnsearch translate {model} {redirected}"
    told = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], check=False, capture_output=True, text=True)
    assert told.stderr.startswith(said)
    assert "Traceback" not in told.stderr
    assert "Exception ignored" not in told.stderr
    assert told.returncode == 1


def test_a_closed_standard_input_holds_no_lines(model):
    # Without `echo |`: a closed input leaves that pipe without a reader, and `echo` may be killed by it.
    command = f"{sys.executable} -m rnnsearch translate {model} <&-"
    told = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True)
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


def test_closed_standard_error_is_no_fault(model):
    command = f"echo '{CAT}' | {sys.executable} -m rnnsearch translate {model} 2>&-"
    told = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True)
    assert told.stdout.count("\n") == 1


def test_json_has_the_links_of_what_is_asked_for(cli, model, tmp_path):
    found = {}
    for by in ("aligner", "attention"):
        asked = ("translate", model, "--by", by, "--format", "json")
        rows = cli(*asked, "--alignments", tmp_path / by, stdin=f"{CAT}\n{BIRD}\n").rows
        found[by] = [" ".join(f"{i}-{j}" for i, j in row["alignment"]) for row in rows]
        assert found[by] == (tmp_path / by).read_text().splitlines()
        assert cli(*asked, stdin=f"{CAT}\n{BIRD}\n").rows == rows
    assert found["aligner"] != found["attention"]
