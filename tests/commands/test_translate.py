"""`rnnsearch translate`: input, output, options and errors."""

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


def test_blank_line_gives_an_empty_line(cli, model):
    text = f"{CAT}\n \n\t\n\u00a0\n   \n\n{BIRD}\n"
    assert [n for n, line in enumerate(cli("translate", model, stdin=text).lines) if line] == [0, 6]
    rows = cli("translate", model, "--format", "json", stdin=text).rows
    assert [row["source"] for row in rows] == text.split("\n")[:-1]


def test_each_input_line_gives_one_output_line(cli, model):
    """This includes empty lines and characters that `str.splitlines` splits at."""
    text = [CAT, "", "the cat\u2028sees the dog.", "the old\x85bird", "  ", "the\x0cred\x0bcat", "", BIRD, ""]
    result = cli("translate", model, stdin="".join(f"{line}\n" for line in text))
    assert (result.code, result.err) == (0, "")
    assert len(result.lines) == len(text)
    assert [n for n, line in enumerate(result.lines) if not line] == [1, 4, 6, 8]
    assert [line.startswith("der ") for line in (result.lines[0], result.lines[7])] == [True, True]
    single = cli("translate", model, stdin=f"{BIRD}\n")
    assert single.lines == [result.lines[7]]


def test_model_translates_most_test_sentences_correctly(cli, model, corpus):
    """The other tests would be meaningless with an untrained model."""
    result = cli("translate", model, "-i", corpus / "test.en")
    references = (corpus / "test.de").read_text(encoding="utf-8").splitlines()
    num_correct = sum(line == reference for line, reference in zip(result.lines, references, strict=True))
    assert num_correct > len(references) / 2


def test_files_and_standard_streams_are_equivalent(cli, model, tmp_path):
    source = tmp_path / "in.txt"
    target = tmp_path / "new" / "out.txt"
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
    assert [row["source"] for row in rows] == [CAT, "", BIRD], "without the byte order mark"


def test_empty_input_gives_empty_output(cli, model):
    assert cli("translate", model) == (0, "", "")


def test_json_has_all_fields(cli, model):
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
        n_best = [row for row in rows if row[0] == number]
        scores = [float(row[3]) for row in n_best]
        assert scores == sorted(scores, reverse=True)
        assert len({row[1] for row in n_best}) == 4
        assert all(re.fullmatch(r"log_prob=-?\d+\.\d{6}", row[2]) for row in n_best)


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
def test_int8_translations_are_mostly_those_of_fp32(cli, model, corpus):
    quantised = cli("translate", model, "-i", corpus / "test.en", "--precision", "int8")
    exact = cli("translate", model, "-i", corpus / "test.en", "--precision", "fp32")
    assert len(quantised.lines) == len(exact.lines)
    num_equal = sum(one == other for one, other in zip(quantised.lines, exact.lines, strict=True))
    assert num_equal > 0.9 * len(exact.lines)
    scored = [cli("translate", model, "--precision", p, "--format", "json", stdin=f"{CAT}\n") for p in ("int8", "fp32")]
    assert scored[0].out != scored[1].out
    assert Precision == SearchPrecision


def test_ban_unknown(cli, one_vector):
    """The barely trained model with few words produces <unk> unless it is banned."""
    text = "the quiet child hears the tree.\n" * 3 + f"{CAT}\n"
    free = cli("translate", one_vector, "--format", "json", "--n-best", "10", stdin=text)
    banned = cli("translate", one_vector, "--format", "json", "--n-best", "10", "--ban-unknown", stdin=text)
    assert any("<unk>" in best["tokens"] for row in free.rows for best in row["n_best"])
    assert not any("<unk>" in best["tokens"] for row in banned.rows for best in row["n_best"])


@pytest.fixture(scope="module")
def few_words(cli: Any, corpus: Path) -> Path:
    """Return a model with attention whose vocabulary does not contain most nouns."""
    settings = ["folder=few", "text.vocabulary=14", "training.max_updates=60", "search.replace_unknown=dictionary"]
    (corpus / "words.tsv").write_text("cat\tKatze\n", encoding="utf-8")
    result = cli("train", corpus / "run.toml", *[p for s in settings for p in ("--set", s)],
                 "--set", "search.dictionary=words.tsv")  # fmt: skip
    assert result.code == 0, result.err
    return corpus / "few"


def test_unknown_words_are_replaced(cli, few_words, tmp_path):
    assert (few_words / "dictionary.tsv").read_text(encoding="utf-8") == "cat\tKatze\n", "the model folder has a copy"
    text = "".join(f"the old {noun} sees the Zebra.\n" for noun in ("cat", "dog", "bird", "child", "tree"))
    dictionary = tmp_path / "dictionary.tsv"
    dictionary.write_text("".join(f"{word}\tX\n" for word in f"{text} .".replace(".", " .").split()))
    unknown = cli("translate", few_words, "--replace-unknown", "none", stdin=text).out
    copied = cli("translate", few_words, "--replace-unknown", "copy", stdin=text).out
    looked_up = cli("translate", few_words, "--dictionary", dictionary, stdin=text).out
    by_default = cli("translate", few_words, stdin=text).out
    assert "<unk>" in unknown
    assert "<unk>" not in copied
    assert looked_up == unknown.replace("<unk>", "X")
    assert by_default == re.sub(r"\bcat\b", "Katze", copied) != copied
    result = cli("translate", few_words, "--format", "json", stdin=text)
    replaced = [word for row in result.rows for word in row["replaced"]]
    assert {(word["source"], word["by"]) for word in replaced} >= {("cat", "dictionary"), ("dog", "copy")}
    for row in result.rows:
        assert all(row["tokens"][word["token"]] == "<unk>" for word in row["replaced"])
    assert f"{len(replaced):,} unknown words replaced: " in result.err


def test_tags_are_placed_around_the_aligned_words(cli, model):
    lines = f"{CAT.replace('cat', '<b>cat</b>')}\n<x/>\n\n<i>{BIRD}</i>\n"
    plain = cli("translate", model, stdin=f"{CAT}\n\n\n{BIRD}\n").lines
    translations = cli("translate", model, "--tags", stdin=lines).lines
    assert [re.sub("<[^>]*>", "", line) for line in translations] == plain
    assert re.search("<b>Katze</b>", translations[0])
    assert translations[1:] == ["<x/>", "", f"<i>{plain[3]}</i>"]
    long = f"{CAT.replace('cat', f'<b id={chr(34)}{900 * chr(120)}{chr(34)}>cat</b>')}\n"
    [translated] = cli("translate", model, "--tags", "--max-source", "20", stdin=long).lines
    assert re.sub("<[^>]*>", "", translated) == plain[0], "markup does not count towards the limit"
    rows = cli("translate", model, "--tags", "--by", "attention", "--format", "json", stdin=lines).rows
    assert [row["text"] for row in rows] == plain
    assert all(row["marked"].count("<b>") == row["source"].count("cat") for row in rows)
    nbest = cli(
        "translate", model, "--tags", "--format", "nbest", "--n-best", "2", stdin=lines.partition("\n")[0]
    ).lines
    assert all(line.count("<b>") == 1 for line in nbest)


def test_protected_text_is_copied(cli, model):
    line = "the old cat sees 21,000 trees of https://a.org/b.\n"
    [translations] = cli("translate", model, "--protect", "numbers,urls", stdin=line).lines
    assert " 21,000" in translations
    assert "https://a.org/b" in translations
    assert cli("translate", model, "--protect", "numbers", "--protect", "urls", stdin=line).lines == [translations]
    assert cli("translate", model, "--protect", "urls", stdin="www.a.org\n").lines == ["www.a.org"]
    for names in ("all", "all,urls"):
        unchanged = cli("translate", model, "--protect", names, stdin=f"{CAT}\n")
        assert unchanged == cli("translate", model, stdin=f"{CAT}\n")


def test_glossary_terms_are_in_the_translations(cli, model, tmp_path):
    terms = tmp_path / "terms.tsv"
    terms.write_text("cat\tVogel\nold tree\tHund\n", encoding="utf-8")
    text = f"{CAT}\nthe bird sees the old tree.\n{BIRD}\n\n"
    translations = cli("translate", model, "--glossary", terms, "--beam", "6", stdin=text).lines
    free = cli("translate", model, "--beam", "6", stdin=text).lines
    assert "Vogel" in translations[0]
    assert "Hund" in translations[1]
    assert "Hund" not in free[1]
    assert translations[2:] == free[2:]
    greedy = cli("translate", model, "--glossary", terms, "--beam", "1", stdin=text)
    assert "Vogel" in greedy.lines[0]
    assert "could not be placed" not in greedy.err


def test_terms_may_be_outside_the_vocabulary(cli, few_words, tmp_path):
    terms = tmp_path / "terms.tsv"
    terms.write_text("cat\tZebra|Zebras\n", encoding="utf-8")
    result = cli("translate", few_words, "--glossary", terms, "--beam", "4", stdin=f"{CAT}\n")
    assert result.code == 0
    assert ("Zebra" in result.out) != ("1 glossary terms, 1 could not be placed" in result.err)


def test_json_reports_terms_that_could_not_be_placed(cli, one_vector, tmp_path):
    """Without attention and aligner, no word is known to translate the source term."""
    terms = tmp_path / "terms.tsv"
    terms.write_text("cat\tZebra\n", encoding="utf-8")
    result = cli("translate", one_vector, "--glossary", terms, "--format", "json", "--beam", "1", stdin=f"{CAT}\n")
    [row] = result.rows
    assert row["missing_terms"] == ["cat"]
    assert "missing terms" in row["warnings"]
    assert "1 glossary terms, 1 could not be placed" in result.err


def test_terms_inside_protected_text_are_left_alone(cli, model, tmp_path):
    terms = tmp_path / "terms.tsv"
    terms.write_text("https://a.org\tVogel\n", encoding="utf-8")
    [row] = cli("translate", model, "--glossary", terms, "--format", "json", stdin="https://a.org\n").rows
    assert row["text"] == "https://a.org"
    assert "missing_terms" not in row


def test_dictionary_is_learned_from_text_links_or_model(cli, model, corpus, tmp_path):
    texts = (corpus / "train.en", corpus / "train.de")
    by_text = cli("dictionary", *texts)
    assert by_text.code == 0
    entries = {tuple(line.split("\t")[:2]): line.split("\t")[2:] for line in by_text.lines}
    assert ("cat", "Katze") in entries
    assert float(entries["cat", "Katze"][0]) > 0.8
    assert any(" " in source for source, _ in entries)
    links = tmp_path / "links"
    out = tmp_path / "dictionary.tsv"
    assert cli("align", model, *texts, "-o", links).code == 0
    assert cli("dictionary", *texts, "--alignments", links, "-o", out).code == 0
    assert out.read_text(encoding="utf-8") == cli("dictionary", *texts, "--model", model).out
    assert not any(" " in line.split("\t")[0] for line in cli("dictionary", *texts, "--words", "1").lines)
    assert "no entries: " in cli("dictionary", *texts, "--min-count", "1000").err


def test_links_of_other_sentences_are_an_error(cli, corpus, tmp_path):
    texts = (corpus / "test.en", corpus / "test.de")
    links = tmp_path / "links"
    count = len(texts[0].read_text(encoding="utf-8").splitlines())
    links.write_text("0-0\n" * (count - 1) + "0-99\n")
    result = cli("dictionary", *texts, "--alignments", links)
    assert result.code == 1
    assert f"{links}:{count}: links must lie within " in result.err
    links.write_text("0-0\n")
    assert "must have the same number of lines" in cli("dictionary", *texts, "--alignments", links).err


def test_missing_dictionary_is_an_error_in_training(cli, corpus):
    settings = ["folder=none", "search.replace_unknown=dictionary", "search.dictionary=nothing.tsv"]
    result = cli("train", corpus / "run.toml", *[p for s in settings for p in ("--set", s)])
    assert result.code == 1
    assert result.err.splitlines()[-1] == f"rnnsearch: {corpus / 'nothing.tsv'}: no such file"


def test_alignments_are_written_line_by_line(cli, model, tmp_path):
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
    assert len(first) > len(result.lines[0].split(" ")), "the full stop is a token, but not a word"


def test_line_of_a_thousand_words_is_translated(cli, model):
    long = " ".join(["the small cat sees the dog"] * 170)
    assert len(long.split()) > 1000
    result = cli("translate", model, "--beam", "2", "--max-length", "50", stdin=f"{long}\n{CAT}\n")
    assert result.code == 0
    assert len(result.lines) == 2
    assert result.lines[1] == cli("translate", model, "--beam", "2", stdin=f"{CAT}\n").lines[0]


def test_text_like_special_tokens_is_ordinary_text(cli, model):
    [row] = cli("translate", model, "--format", "json", stdin="</s> <s> <pad> <unk>\n").rows
    assert row["source"] == "</s> <s> <pad> <unk>"
    assert row["source_tokens"].count("</s>") == 1
    assert "<pad>" not in row["source_tokens"]


@pytest.mark.parametrize("name", ["standard input", "file"])
def test_invalid_utf8_is_reported_with_its_line(user_error, model, tmp_path, name):
    content = f"{CAT}\n\n".encode() + b"caf\xe9\n"
    if name == "file":
        (tmp_path / "in.txt").write_bytes(content)
        text = user_error("translate", model, "-i", tmp_path / "in.txt", "-o", tmp_path / "out.txt")
        assert text == f"{tmp_path / 'in.txt'}:3: must be UTF-8; got byte 0xe9 at position 3"
        assert [path.name for path in tmp_path.iterdir()] == ["in.txt"], "no incomplete output"
    else:
        text = user_error("translate", model, stdin=content)
        assert text.startswith("<standard input>:3: must be text in UTF-8")


def test_missing_files_and_devices_are_an_error(user_error, model, tmp_path):
    nowhere = tmp_path / "nowhere"
    assert user_error("translate", model, "-i", nowhere) == f"{nowhere}: no such file"
    assert user_error("align", model, nowhere, nowhere) == f"{nowhere}: no such file"
    assert user_error("translate", model, "--device", "tpu") == 'device: must be auto, cpu, cuda or cuda:N; got "tpu"'
    (tmp_path / "foreign").mkdir()
    assert user_error("translate", tmp_path / "foreign") == (
        f"{tmp_path / 'foreign'}: is not a complete model folder: missing config.toml, model.safetensors, tokenizers"
    )


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizers/en.json", "config.toml"])
def test_truncated_model_is_an_error(user_error, model_copy, name):
    content = (model_copy / name).read_bytes()
    (model_copy / name).write_bytes(content[: len(content) // 2])
    text = user_error("translate", model_copy, stdin=f"{CAT}\n")
    assert str(model_copy) in text
    assert name in text


def test_unwritable_output_is_an_error(user_error, model, tmp_path):
    (tmp_path / "file").write_text("kept")
    path = tmp_path / "file" / "out.txt"
    assert user_error("translate", model, "-o", path, stdin=f"{CAT}\n") == (
        f"{path}: cannot be written: File exists; nothing was changed"
    )
    assert (tmp_path / "file").read_text() == "kept"
    folder = tmp_path / "folder"
    folder.mkdir()
    assert user_error("translate", model, "-o", folder, stdin=f"{CAT}\n").startswith(f"{folder}: cannot be written: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_model_without_attention_translates_but_cannot_align(cli, user_error, one_vector, corpus, tmp_path):
    [row] = cli("translate", one_vector, "--format", "json", stdin=f"{CAT}\n").rows
    assert row["attention"] is None
    sentence = (
        "this needs an aligner, which the model does not have; make one with `rnnsearch aligner MODEL SRC TGT` "
        "(it has no attention, either)"
    )
    assert user_error("align", one_vector, corpus / "test.en", corpus / "test.de") == sentence
    assert user_error("translate", one_vector, "--alignments", tmp_path / "a", stdin=f"{CAT}\n") == sentence
    assert not (tmp_path / "a").exists()


def test_equal_input_and_output_files_are_wrong_usage(cli, model, tmp_path):
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


def test_too_long_line_is_reported_and_gives_an_empty_line(cli, model, tmp_path):
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
        f"{source}:{n}: must have at most 20 tokens (--max-source); its output line is empty" for n in (2, 4)
    ]


def test_separators_inside_translations_are_escaped(cli, model):
    line = 'the small <b title="1 ||| 2">cat</b> sees the dog.'
    [row] = cli("translate", model, "--tags", "--format", "nbest", stdin=f"{line}\n").lines
    assert len(row.split(" ||| ")) == 4
    assert '"1 &#124;&#124;&#124; 2"' in row


def test_input_from_a_named_pipe_and_dev_null(cli, model, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(f"{CAT}\n"))
    writer.start()
    result = cli("translate", model, "-i", pipe)
    writer.join()
    assert result.lines == cli("translate", model, stdin=f"{CAT}\n").lines
    assert cli("translate", model, "-i", "/dev/null") == (0, "", "")


@pytest.mark.parametrize(
    ("redirected", "message"),
    [
        (">/dev/full", "rnnsearch: standard output: No space left on device\n"),
        (">&-", "rnnsearch: standard output: Bad file descriptor\n"),
        (f"-o /tmp/{'a' * 300}", f"rnnsearch: /tmp/{'a' * 300}: File name too long\n"),
    ],
)
def test_full_or_closed_output_is_an_error(model, redirected, message):
    command = f"echo '{CAT}' | {sys.executable} -m rnnsearch translate {model} {redirected}"
    result = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], check=False, capture_output=True, text=True)
    assert result.stderr.startswith(message)
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr
    assert result.returncode == 1


def test_closed_standard_input_is_empty_input(model):
    # Without `echo |`: a closed input leaves that pipe without a reader, and `echo` may be killed by it.
    command = f"{sys.executable} -m rnnsearch translate {model} <&-"
    result = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_closed_standard_error_is_not_an_error(model):
    command = f"echo '{CAT}' | {sys.executable} -m rnnsearch translate {model} 2>&-"
    result = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True)
    assert result.stdout.count("\n") == 1


def test_by_selects_the_links_in_json(cli, model, tmp_path):
    links_of = {}
    for by in ("aligner", "attention"):
        command = ("translate", model, "--by", by, "--format", "json")
        rows = cli(*command, "--alignments", tmp_path / by, stdin=f"{CAT}\n{BIRD}\n").rows
        links_of[by] = [" ".join(f"{i}-{j}" for i, j in row["alignment"]) for row in rows]
        assert links_of[by] == (tmp_path / by).read_text().splitlines()
        assert cli(*command, stdin=f"{CAT}\n{BIRD}\n").rows == rows
    assert links_of["aligner"] != links_of["attention"]
