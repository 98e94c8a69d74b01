"""`rnnsearch translate` with samples, diverse groups, n-gram blocking, minimum Bayes risk, and several models."""

import json
from collections import Counter
from itertools import permutations

import pytest

CAT = "the small cat sees the dog."
BIRD = "the old bird finds the tree."
GIVEN = f"{CAT}\n\n{BIRD}\n"


def texts(result):
    """The translations of an n-best list by their sentence."""
    found: dict[int, list[str]] = {}
    for line in result.lines:
        number, text, *_ = line.split(" ||| ")
        found.setdefault(int(number), []).append(text)
    return found


def test_samples_are_many_and_the_seeds(cli, model):
    asked = ["translate", model, "--sample", "--n-best", "8", "--format", "nbest", "--temperature", "3"]
    result = cli(*asked, stdin=GIVEN)
    assert (result.code, result.err) == (0, "")
    found = texts(result)
    assert {number: len(each) for number, each in found.items()} == {0: 8, 1: 1, 2: 8}
    assert len(set(found[0])) > 2
    assert cli(*asked, stdin=GIVEN) == result
    assert texts(cli(*asked, stdin=f"{BIRD}\n{CAT}\n"))[0] == found[2], "wherever a sentence stands"
    assert texts(cli(*asked, "--seed", "2", stdin=GIVEN)) != found
    one = cli("translate", model, "--sample", "--temperature", "3", stdin=GIVEN)
    assert one.lines[1] == ""
    assert one.lines[0] in found[0]
    assert one.lines[2] in found[2]
    cold = cli("translate", model, "--sample", "--top-k", "1", stdin=GIVEN)
    assert cold.lines == cli("translate", model, "--beam", "1", stdin=GIVEN).lines


def test_stochastic_beams_are_samples_no_two_the_same(cli, model):
    asked = ["translate", model, "--stochastic", "--n-best", "12", "--format", "nbest", "--temperature", "2"]
    result = cli(*asked, stdin=GIVEN)
    assert (result.code, result.err) == (0, "")
    found = texts(result)
    assert {number: len(set(each)) for number, each in found.items()} == {0: 12, 1: 1, 2: 12}
    assert cli(*asked, stdin=GIVEN) == result
    assert texts(cli(*asked, stdin=f"{BIRD}\n{CAT}\n"))[0] == found[2], "wherever a sentence stands"
    assert texts(cli(*asked, "--seed", "2", stdin=GIVEN)) != found
    cold = cli("translate", model, "--stochastic", "--beam", "1", "--temperature", "0.001", stdin=GIVEN)
    assert cold.lines == cli("translate", model, "--beam", "1", stdin=GIVEN).lines


def test_noisy_chains_are_never_worse_than_one(cli, model):
    asked = ["translate", model, "--length-penalty", "0", "--format", "json"]
    plain = cli(*asked, "--beam", "1", stdin=GIVEN)
    for sigma in ("0", "0.5", "4"):
        noisy = cli(*asked, "--noisy", "6", "--sigma", sigma, stdin=GIVEN)
        assert (noisy.code, noisy.err) == (0, "")
        for one, other in zip(noisy.rows, plain.rows, strict=True):
            assert one["log_prob"] >= other["log_prob"] - 0.02
            assert sigma != "0" or one["text"] == other["text"]
    assert cli(*asked, "--noisy", "6", "--sigma", "4", stdin=GIVEN) == noisy
    refused = cli("translate", model, "--noisy", "3", "--beam", "4", stdin=GIVEN)
    assert refused == (1, "", "rnnsearch: a beam must be shared evenly by the 3 chains; got 4\n")


def test_a_line_of_which_nothing_allowed_is_found_is_empty_and_named(cli, model, tmp_path):
    """Four terms must be there, no two of them side by side, and there is room for one symbol between them."""
    source, terms, ban = (tmp_path / name for name in ("source.txt", "terms.tsv", "ban.txt"))
    given = {"small": "kleine", "cat": "Hund", "sees": "findet", "dog": "Baum"}
    terms.write_text("".join(f"{one}\t{other}\n" for one, other in given.items()), encoding="utf-8")
    ban.write_text("".join(f"{one} {other}\n" for one, other in permutations(given.values(), 2)), encoding="utf-8")
    source.write_text(GIVEN, encoding="utf-8")
    asked = ["translate", model, "--glossary", terms, "--ban", ban, "--max-length", "1", "--beam", "6"]
    result = cli(*asked, "-i", source)
    told = f"{source}:1: the search found no translation that its options allow; its line of output is empty"
    assert result.err.splitlines()[0] == told
    assert "translations that look wrong: 1 blocked" in result.err
    assert (result.code, result.lines[:2]) == (0, ["", ""])
    assert result.lines[2] == cli("translate", model, "--max-length", "1", "--beam", "6", stdin=BIRD).lines[0] != ""
    [row, empty, _] = cli(*asked, "-i", source, "--format", "json", "--alignments", tmp_path / "links").rows
    assert (row["finished"], row["warnings"], row["tokens"], row["score"]) == (False, ["blocked"], [], 0.0)
    assert (empty["finished"], empty["warnings"]) == (True, [])
    assert (tmp_path / "links").read_text().split("\n")[0] == ""


def test_what_is_banned_stands_in_no_translation(cli, model, tmp_path):
    ban, asked = tmp_path / "ban.txt", ["translate", model, "--format", "nbest"]
    plain = texts(cli(*asked, "--beam", "6", "--n-best", "6", stdin=GIVEN))
    words = plain[0][0].split()
    ban.write_text(f"{words[0]}\n\n{words[1]} {words[2]}\n", encoding="utf-8")
    for more in ([], ["--sample", "--temperature", "2"], ["--stochastic"], ["--groups", "3"], ["--noisy", "3"]):
        found = cli(*asked, "--beam", "6", "--n-best", "6", "--ban", ban, *more, stdin=GIVEN)
        assert (found.code, found.err) == (0, "")
        each = [line for own in texts(found).values() for line in own]
        assert any(each)
        assert not any(words[0] in line.replace(".", " ").split() for line in each)
        assert not any(f" {words[1]} {words[2]} " in f" {line} " for line in each)
    assert words[0] not in cli("translate", model, "--beam", "1", "--ban", ban, stdin=GIVEN).lines[0].split()
    ban.write_text("\n \n", encoding="utf-8")
    assert cli(*asked, "--ban", ban) == (1, "", f"rnnsearch: {ban}: must hold phrases, one a line; got none\n")
    ban.write_text(words[0], encoding="utf-8")
    terms = tmp_path / "terms.tsv"
    terms.write_text(f"cat\t{words[0]}\n", encoding="utf-8")
    refused = cli("translate", model, "--ban", ban, "--glossary", terms, "--beam", "6", stdin=GIVEN)
    assert refused == (1, "", f'rnnsearch: a term must not contain a banned phrase; got "{words[0]}"\n')
    refused = cli("translate", model, "--noisy", "2", "--glossary", terms, stdin=GIVEN)
    assert refused == (1, "", "rnnsearch: terms need an ordinary beam search; got noisy chains\n")


@pytest.mark.parametrize("way", [["--sample"], ["--groups", "3"], ["--noisy", "3"], ["--stochastic"]])
def test_a_search_that_forces_no_terms_is_refused_before_the_first_line(fault, model, tmp_path, way):
    terms = tmp_path / "terms.tsv"
    terms.write_text("cat\tVogel\n", encoding="utf-8")
    for text in (f"{BIRD}\n", ""):
        said = fault("translate", model, "--glossary", terms, *way, stdin=text)
        assert said.startswith("terms need an ordinary beam search; got ")


def test_a_banned_term_is_refused_before_the_first_line(fault, model, tmp_path):
    terms, ban = tmp_path / "terms.tsv", tmp_path / "ban.txt"
    terms.write_text("cat\tVogel\ndog\tder Hund\n", encoding="utf-8")
    ban.write_text("Hund\n", encoding="utf-8")
    asked = ["translate", model, "--glossary", terms, "--ban", ban, "--beam", "6"]
    assert fault(*asked, stdin=f"{BIRD}\n") == 'a term must not contain a banned phrase; got "der Hund"'


def test_groups_differ_more_than_a_beam(cli, model):
    shared = ["translate", model, "--beam", "4", "--n-best", "4", "--format", "nbest"]
    plain, groups = (texts(cli(*shared, *more, stdin=GIVEN)) for more in ([], ["--groups", "4", "--diversity", "50"]))
    firsts = [Counter(text.split()[0] for text in each[0]) for each in (plain, groups)]
    assert len(firsts[1]) == 4 > len(firsts[0]), firsts
    refused = cli(*shared, "--groups", "3", stdin=GIVEN)
    assert refused == (1, "", "rnnsearch: a beam must be shared evenly by the 3 groups; got 4\n")


def test_nothing_stands_twice(cli, model):
    words = cli("translate", model, "--no-repeat-ngram", "1", stdin=GIVEN).lines
    assert all(max(Counter(line.split()).values(), default=1) == 1 for line in words)
    assert words != cli("translate", model, stdin=GIVEN).lines, "der ... den ... would do; die ... die would not"


def test_the_most_alike_comes_first(cli, model):
    asked = ["translate", model, "--sample", "--beam", "12", "--temperature", "2"]
    result = cli(*asked, "--mbr", "chrf", "--n-best", "12", "--format", "nbest", stdin=GIVEN)
    drawn = texts(cli(*asked, "--n-best", "12", "--format", "nbest", stdin=GIVEN))
    found = texts(result)
    assert [sorted(each) for each in found.values()] == [sorted(each) for each in drawn.values()]
    assert cli(*asked, "--mbr", "chrf", stdin=GIVEN).lines == [each[0] for each in found.values()]
    refused = cli("translate", model, "--mbr", "bleu", "--beam", "1", stdin=GIVEN)
    assert refused.code == 2
    assert "--mbr needs several translations to choose from" in refused.err


def test_several_models_are_one(cli, model, one_vector):
    alone, links = cli("translate", model, "--format", "json", stdin=GIVEN), model.parent / "links"
    twice = cli("translate", model, model, "--format", "json", "--alignments", links, stdin=GIVEN)
    assert (twice.code, twice.err) == (0, "")
    for one, other in zip(alone.rows, twice.rows, strict=True):
        assert one["text"] == other["text"]
        assert one["log_prob"] == pytest.approx(other["log_prob"], abs=0.02)
        assert one["alignment"] == other["alignment"]
    assert len(links.read_text().splitlines()) == 3
    mixed = cli("translate", model, model, "--mean", "arithmetic", "--weights", "3,1", stdin=GIVEN)
    assert mixed.lines == [row["text"] for row in alone.rows]
    other = cli("translate", model, one_vector, stdin=GIVEN)
    assert other.code == 1
    assert "model 2 of the ensemble must have the target vocabulary of the first" in other.err
    wrong = cli("translate", model, model, "--weights", "1,2,3", stdin=GIVEN)
    assert wrong == (1, "", "rnnsearch: an ensemble must have as many weights as models (2); got 3\n")
    assert json.loads(twice.out.splitlines()[0])["attention"]
