"""Contrastive evaluation: decisions, intervals, files and the command."""

import json

import pytest

from rnnsearch.errors import DataError
from rnnsearch.evaluation import contrastive
from rnnsearch.evaluation.contrastive import ContrastiveResult, contrast, read_examples
from rnnsearch.metrics.significance import wilson_interval
from rnnsearch.systems.folder import save_system
from rnnsearch.translator.translator import Translator
from tests.command_line import run
from tests.untrained import BAHDANAU, TEXT, untrained, untrained_multiway, with_context

CONTEXT, SOURCE = TEXT["en"][:2]
CORRECT, *INCORRECT = TEXT["de"]


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(with_context(untrained(BAHDANAU, "bpe")))


def test_wilson_interval_equals_its_formula():
    """The end points are the solutions p of |p - k/n| = z sqrt(p (1 - p) / n)."""
    for successes, trials in ((0, 7), (3, 10), (50, 100), (9, 9)):
        for end in wilson_interval(successes, trials):
            deviation = abs(end - successes / trials)
            assert deviation == pytest.approx(1.959964 * (end * (1 - end) / trials) ** 0.5, abs=1e-9)


def test_margins_are_differences_of_log_probabilities(translator, tmp_path):
    lines = [
        {"context": [CONTEXT], "source": SOURCE, "correct": CORRECT, "incorrect": INCORRECT, "group": "a"},
        {"source": SOURCE, "correct": INCORRECT[0], "incorrect": [CORRECT], "group": "b"},
        {"context": ["x", CONTEXT], "source": SOURCE, "correct": CORRECT, "incorrect": INCORRECT[0], "group": "a"},
    ]
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = contrast(translator, path)
    [scored] = [translator.with_context([CONTEXT, SOURCE], [0, 0])[1:]]
    log_probs = translator.log_probs(scored * 3, [CORRECT, *INCORRECT])
    assert result.margins[0] == pytest.approx(log_probs[0] - max(log_probs[1:]), abs=1e-4)
    alone = translator.log_probs([SOURCE] * 2, [INCORRECT[0], CORRECT])
    assert result.margins[1] == pytest.approx(alone[0] - alone[1], abs=1e-4)
    without = contrast(translator, path, reads_context=False)
    assert without.margins[0] != pytest.approx(result.margins[0], abs=1e-4)
    assert without.margins[1] == pytest.approx(result.margins[1], abs=1e-4)
    assert result.groups == ("a", "b", "a")


def test_models_that_read_translations_need_those_of_the_context(tmp_path):
    translator = Translator(with_context(untrained(BAHDANAU, "bpe"), type="streams", target=True))
    example = {"context": CONTEXT, "source": SOURCE, "correct": CORRECT, "incorrect": INCORRECT}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(example))
    with pytest.raises(DataError, match=r"a\.jsonl:1: must have target_context, because"):
        contrast(translator, path)
    [without] = contrast(translator, path, reads_context=False).margins
    path.write_text(json.dumps({**example, "target_context": INCORRECT[0]}))
    [margin] = contrast(translator, path).margins
    source = translator.with_context([CONTEXT, SOURCE], [0, 0], [INCORRECT[0], ""])[1]
    log_probs = translator.log_probs([source] * 3, [CORRECT, *INCORRECT])
    assert margin == pytest.approx(log_probs[0] - max(log_probs[1:]), abs=1e-4) != pytest.approx(without, abs=1e-4)
    path.write_text(json.dumps({**example, "target_context": INCORRECT}))
    with pytest.raises(DataError, match=r"target_context must have one text per sentence of context \(1\); got 2"):
        contrast(translator, path)


def test_number_of_groups_is_limited(translator, tmp_path, monkeypatch):
    monkeypatch.setattr(contrastive, "CHUNK_EXAMPLES", 1)
    monkeypatch.setattr(contrastive, "MAX_GROUPS", 2)
    line = {"source": SOURCE, "correct": CORRECT, "incorrect": INCORRECT}
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(json.dumps(line | {"group": group}) + "\n" for group in ("a", "b", "", "a")))
    assert contrast(translator, path).groups == ("a", "b", None, "a")
    path.write_text("".join(json.dumps(line | {"group": group}) + "\n" for group in "abc"))
    with pytest.raises(DataError, match="at most 2 groups"):
        contrast(translator, path)


def test_command_takes_a_direction(tmp_path):
    save_system(tmp_path / "multi", untrained_multiway("en-de", "fr-de", "de-fr"))
    (tmp_path / "a.tsv").write_text(f"\t{SOURCE}\t{CORRECT}\t{INCORRECT[0]}\n")
    result = run("contrast", tmp_path / "multi", tmp_path / "a.tsv", "--from", "en", "--to", "de")
    assert result.code == 0, result.err
    assert "choose a source and a target" in run("contrast", tmp_path / "multi", tmp_path / "a.tsv").err


def test_accuracies_count_positive_margins():
    result = ContrastiveResult((0.5, -0.1, 0.0, 2.0), ("er", "sie", "sie", None))
    assert (result.total.correct, result.total.examples) == (2, 4)
    assert {group: accuracy.fraction for group, accuracy in result.by_group.items()} == {"er": 1.0, "sie": 0.0}
    assert result.to_text().splitlines()[1].split() == ["all", "4", "50.0%", "15.0%", "to", "85.0%"]
    assert result.as_dict()["margins"] == [0.5, -0.1, 0.0, 2.0]


def test_tsv_and_json_lines_give_the_same_examples(translator, tmp_path):
    (tmp_path / "a.tsv").write_text("One. ||| Two.\ta\tb\tc\td\n\n\ta\tb\tc\n")
    lines = [
        {"context": ["One.", "Two."], "source": "a", "correct": "b", "incorrect": ["c", "d"]},
        {"context": "", "source": "a", "correct": "b", "incorrect": "c"},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    examples = list(read_examples(tmp_path / "a.tsv", translator))
    assert examples == list(read_examples(tmp_path / "a.jsonl", translator))
    assert examples[0].context == ("One.", "Two.")


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("a.tsv", "a\tb\tc", "columns context, source, correct and incorrect translation"),
        ("a.tsv", "\ta\t\tc", "only the context may be empty"),
        ("a.tsv", "\ta\tb\tb", "must not be a wrong one, too"),
        ("a.tsv", "\ta\tb\t" + "x " * 3000, "at most 2,000 tokens"),
        ("a.jsonl", "[" * 100_000, "must be a JSON object; got another line"),
        ("a.jsonl", '{"source": "a", "correct": "b", "wrong": "c"}', "with the keys context, correct, group"),
        ("a.jsonl", '{"source": "a", "correct": ["b", "c"], "incorrect": "d"}', "correct must be one text; got 2"),
        ("a.jsonl", '{"source": "a", "correct": "b"}', "incorrect must be at least one text; got 0"),
        ("a.jsonl", '{"source": 1, "correct": "b", "incorrect": "c"}', "source must be a text or a list of texts"),
    ],
)
def test_invalid_lines_are_named(translator, tmp_path, name, line, message):
    (tmp_path / name).write_text("\n" + line + "\n")
    with pytest.raises(DataError, match=message) as error:
        contrast(translator, tmp_path / name)
    assert str(error.value).startswith(f"{tmp_path / name}:2: ")


def test_command_prints_a_table_and_writes_json(translator, tmp_path):
    save_system(tmp_path / "model", translator.system)
    (tmp_path / "a.tsv").write_text(f"{CONTEXT}\t{SOURCE}\t{CORRECT}\t{INCORRECT[0]}\n")
    result = run("contrast", tmp_path / "model", tmp_path / "a.tsv", "-o", tmp_path / "a.json")
    assert (result.code, result.err) == (0, "")
    assert result.out == contrast(translator, tmp_path / "a.tsv").to_text() + "\n"
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["examples"] == 1 and len(written["margins"]) == 1
    save_system(tmp_path / "plain", untrained(BAHDANAU, "bpe"))
    result = run("contrast", tmp_path / "plain", tmp_path / "a.tsv", "--no-context")
    assert result.code == 1 and "reads previous sentences" in result.err
