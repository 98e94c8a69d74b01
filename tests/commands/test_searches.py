"""`rnnsearch translate` with other search methods, constraints, minimum Bayes risk and ensembles."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from rnnsearch.text.vocabulary import EOS
from rnnsearch.translator.translator import Translator

CAT = "the small cat sees the dog."
BIRD = "the old bird finds the tree."
TEXT = f"{CAT}\n\n{BIRD}\n"


def texts(result):
    """Return the translations of an n-best list by sentence."""
    translations: dict[int, list[str]] = {}
    for line in result.lines:
        number, text, *_ = line.split(" ||| ")
        translations.setdefault(int(number), []).append(text)
    return translations


def test_samples_depend_on_sentence_and_seed(cli, model):
    command = ["translate", model, "--sample", "--n-best", "8", "--format", "nbest", "--temperature", "3"]
    result = cli(*command, stdin=TEXT)
    assert (result.code, result.err) == (0, "")
    translations = texts(result)
    assert {number: len(each) for number, each in translations.items()} == {0: 8, 1: 1, 2: 8}
    assert len(set(translations[0])) > 2
    assert cli(*command, stdin=TEXT) == result
    assert texts(cli(*command, stdin=f"{BIRD}\n{CAT}\n"))[0] == translations[2], "not dependent on the position"
    assert texts(cli(*command, "--seed", "2", stdin=TEXT)) != translations
    one = cli("translate", model, "--sample", "--temperature", "3", stdin=TEXT)
    assert one.lines[1] == ""
    assert one.lines[0] in translations[0]
    assert one.lines[2] in translations[2]
    cold = cli("translate", model, "--sample", "--top-k", "1", stdin=TEXT)
    assert cold.lines == cli("translate", model, "--beam", "1", stdin=TEXT).lines


def test_stochastic_beam_samples_are_distinct(cli, model):
    command = ["translate", model, "--stochastic", "--n-best", "12", "--format", "nbest", "--temperature", "2"]
    result = cli(*command, stdin=TEXT)
    assert (result.code, result.err) == (0, "")
    translations = texts(result)
    assert {number: len(set(each)) for number, each in translations.items()} == {0: 12, 1: 1, 2: 12}
    assert cli(*command, stdin=TEXT) == result
    assert texts(cli(*command, stdin=f"{BIRD}\n{CAT}\n"))[0] == translations[2], "not dependent on the position"
    assert texts(cli(*command, "--seed", "2", stdin=TEXT)) != translations
    cold = cli("translate", model, "--stochastic", "--beam", "1", "--temperature", "0.001", stdin=TEXT)
    assert cold.lines == cli("translate", model, "--beam", "1", stdin=TEXT).lines


def test_noisy_chains_are_never_worse_than_greedy_search(cli, model):
    command = ["translate", model, "--length-penalty", "0", "--format", "json"]
    unrestricted = cli(*command, "--beam", "1", stdin=TEXT)
    for sigma in ("0", "0.5", "4"):
        noisy = cli(*command, "--noisy", "6", "--sigma", sigma, stdin=TEXT)
        assert (noisy.code, noisy.err) == (0, "")
        for one, other in zip(noisy.rows, unrestricted.rows, strict=True):
            assert one["log_prob"] >= other["log_prob"] - 0.02
            assert sigma != "0" or one["text"] == other["text"]
    assert cli(*command, "--noisy", "6", "--sigma", "4", stdin=TEXT) == noisy
    error = cli("translate", model, "--noisy", "3", "--beam", "4", stdin=TEXT)
    assert error == (1, "", "rnnsearch: beam must be divisible by the number of chains (3); got 4\n")


def test_line_without_allowed_translation_is_empty_and_reported(cli, model, tmp_path, monkeypatch):
    """All words are banned for one sentence, and translations must not be empty."""
    source = tmp_path / "source.txt"
    source.write_text(TEXT, encoding="utf-8")
    unrestricted = Translator.n_best

    def n_best(self, texts, options, *arguments, **named):
        banned = frozenset(range(len(self.target))) - {EOS}
        n_best_lists = []
        for text in texts:
            is_first = text == TEXT.split("\n", maxsplit=1)[0]
            limits = {"min_length": 1, "banned": banned} if is_first else {}
            n_best_lists += unrestricted(self, [text], replace(options, **limits), *arguments, **named)
        return n_best_lists

    monkeypatch.setattr(Translator, "n_best", n_best)
    command = ["translate", model, "--max-length", "1", "--beam", "6"]
    result = cli(*command, "-i", source)
    message = f"{source}:1: the search found no translation that satisfies the constraints; its output line is empty"
    assert result.err.splitlines()[0] == message
    assert "translations that look wrong: 1 blocked" in result.err
    assert (result.code, result.lines[:2]) == (0, ["", ""])
    assert result.lines[2] == cli("translate", model, "--max-length", "1", "--beam", "6", stdin=BIRD).lines[0] != ""
    [row, empty, _] = cli(*command, "-i", source, "--format", "json", "--alignments", tmp_path / "links").rows
    assert (row["finished"], row["warnings"], row["tokens"], row["score"]) == (False, ["blocked"], [], 0.0)
    assert (empty["finished"], empty["warnings"]) == (True, [])
    assert (tmp_path / "links").read_text().split("\n")[0] == ""


def test_banned_phrases_are_in_no_translation(cli, model, tmp_path):
    ban = tmp_path / "ban.txt"
    command = ["translate", model, "--format", "nbest"]
    unrestricted = texts(cli(*command, "--beam", "6", "--n-best", "6", stdin=TEXT))
    words = unrestricted[0][0].split()
    ban.write_text(f"{words[0]}\n\n{words[1]} {words[2]}\n", encoding="utf-8")
    for more in ([], ["--sample", "--temperature", "2"], ["--stochastic"], ["--groups", "3"], ["--noisy", "3"]):
        result = cli(*command, "--beam", "6", "--n-best", "6", "--ban", ban, *more, stdin=TEXT)
        assert (result.code, result.err) == (0, "")
        lines = [line for n_best in texts(result).values() for line in n_best]
        assert any(lines)
        assert not any(words[0] in line.replace(".", " ").split() for line in lines)
        assert not any(f" {words[1]} {words[2]} " in f" {line} " for line in lines)
    assert words[0] not in cli("translate", model, "--beam", "1", "--ban", ban, stdin=TEXT).lines[0].split()
    ban.write_text("\n \n", encoding="utf-8")
    assert cli(*command, "--ban", ban) == (1, "", f"rnnsearch: {ban}: must contain phrases, one per line; got none\n")
    ban.write_text(words[0], encoding="utf-8")
    terms = tmp_path / "terms.tsv"
    terms.write_text(f"cat\t{words[0]}\n", encoding="utf-8")
    error = cli("translate", model, "--ban", ban, "--glossary", terms, "--beam", "6", stdin=TEXT)
    assert error == (1, "", f'rnnsearch: a term must not contain a banned phrase; got "{words[0]}"\n')


@pytest.mark.parametrize("method", [["--sample"], ["--groups", "3"], ["--noisy", "3"], ["--stochastic"]])
def test_all_search_methods_place_terms_or_report_them(cli, model, tmp_path, method):
    terms = tmp_path / "terms.tsv"
    terms.write_text("cat\tVogel\n", encoding="utf-8")
    result = cli("translate", model, "--glossary", terms, *method, stdin=TEXT)
    assert result.code == 0
    assert ("Vogel" in result.lines[0]) != ("1 could not be placed" in result.err)
    assert cli("translate", model, "--glossary", terms, *method, stdin="") == (0, "", "")


def test_banned_term_is_rejected_before_translation(user_error, model, tmp_path):
    terms, ban = tmp_path / "terms.tsv", tmp_path / "ban.txt"
    terms.write_text("cat\tVogel\ndog\tder Hund\n", encoding="utf-8")
    ban.write_text("Hund\n", encoding="utf-8")
    command = ["translate", model, "--glossary", terms, "--ban", ban, "--beam", "6"]
    assert user_error(*command, stdin=f"{BIRD}\n") == 'a term must not contain a banned phrase; got "der Hund"'


def test_groups_are_more_diverse_than_a_beam(cli, model):
    shared = ["translate", model, "--beam", "4", "--n-best", "4", "--format", "nbest"]
    unrestricted, groups = (
        texts(cli(*shared, *more, stdin=TEXT)) for more in ([], ["--groups", "4", "--diversity", "50"])
    )
    firsts = [Counter(text.split()[0] for text in each[0]) for each in (unrestricted, groups)]
    assert len(firsts[1]) == 4 > len(firsts[0]), firsts
    error = cli(*shared, "--groups", "3", stdin=TEXT)
    assert error == (1, "", "rnnsearch: beam must be divisible by the number of groups (3); got 4\n")


def test_no_repeat_ngram_prevents_repetition(cli, model):
    words = cli("translate", model, "--no-repeat-ngram", "1", stdin=TEXT).lines
    assert all(max(Counter(line.split()).values(), default=1) == 1 for line in words)
    assert words != cli("translate", model, stdin=TEXT).lines, "without the option, words are repeated"


def test_mbr_reorders_the_same_translations(cli, model):
    command = ["translate", model, "--sample", "--beam", "12", "--temperature", "2"]
    result = cli(*command, "--mbr", "chrf", "--n-best", "12", "--format", "nbest", stdin=TEXT)
    samples = texts(cli(*command, "--n-best", "12", "--format", "nbest", stdin=TEXT))
    translations = texts(result)
    assert [sorted(each) for each in translations.values()] == [sorted(each) for each in samples.values()]
    assert cli(*command, "--mbr", "chrf", stdin=TEXT).lines == [each[0] for each in translations.values()]
    error = cli("translate", model, "--mbr", "bleu", "--beam", "1", stdin=TEXT)
    assert error.code == 2
    assert "--mbr needs several translations to choose from" in error.err


def test_ensembles(cli, model, one_vector):
    single = cli("translate", model, "--format", "json", stdin=TEXT)
    links = model.parent / "links"
    ensemble = cli("translate", model, model, "--format", "json", "--alignments", links, stdin=TEXT)
    assert (ensemble.code, ensemble.err) == (0, "")
    for one, other in zip(single.rows, ensemble.rows, strict=True):
        assert one["text"] == other["text"]
        assert one["log_prob"] == pytest.approx(other["log_prob"], abs=0.02)
        assert one["alignment"] == other["alignment"]
    assert len(links.read_text().splitlines()) == 3
    mixed = cli("translate", model, model, "--mean", "arithmetic", "--weights", "3,1", stdin=TEXT)
    assert mixed.lines == [row["text"] for row in single.rows]
    other = cli("translate", model, one_vector, stdin=TEXT)
    assert other.code == 1
    assert "model 2 of the ensemble must have the target vocabulary of the first" in other.err
    error = cli("translate", model, model, "--weights", "1,2,3", stdin=TEXT)
    assert error == (1, "", "rnnsearch: an ensemble must have as many weights as models (2); got 3\n")
    assert json.loads(ensemble.out.splitlines()[0])["attention"]
