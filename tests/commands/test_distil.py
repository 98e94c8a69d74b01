"""`rnnsearch distil`: a teacher's translations, or those in its beam that are closest to the references."""

import pytest
from sacrebleu.metrics.bleu import BLEU

from rnnsearch import load
from rnnsearch.translator.rerank import Closest
from rnnsearch.translator.translator import Translator

PAIRS = [
    ("the small cat sees the dog.", "die kleine Katze sieht einen Hund."),
    ("", "ohne Quelle."),
    ("the old bird finds the tree.", "der alte Vogel findet der Baum."),
    ("the red dog hears the child.", ""),
    ("the quiet tree finds the bird.", "der stille Vogel findet der Baum."),
]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path):
    sides = zip(("en", "de"), zip(*PAIRS, strict=True), strict=True)
    return [write(tmp_path / f"train.{side}", lines * 8) for side, lines in sides]


@pytest.fixture
def n_best(cli, model, files):
    """Return the 6 best translations of each line."""
    lists = [[] for _ in range(8 * len(PAIRS))]
    for line in cli("translate", model, "-i", files[0], "--beam", "6", "--n-best", "6", "--format", "nbest").lines:
        number, text, *_ = line.split(" ||| ")
        lists[int(number)].append(text)
    return lists


def test_output_is_that_of_translate(cli, model, files, tmp_path):
    out = tmp_path / "out.de"
    result = cli("distil", model, files[0], "-o", out)
    assert result.code == 0, result.err
    assert "8 lines have no translation; `rnnsearch prepare` leaves them out" in result.err
    assert out.read_text(encoding="utf-8") == cli("translate", model, "-i", files[0]).out
    options = ["--weights", "0.7,0.3", "--mean", "arithmetic", "--beam", "2"]
    assert cli("distil", model, model, files[0], "-o", out, *options).code == 0
    expected = cli("translate", model, model, *options, "-i", files[0]).out
    assert out.read_text(encoding="utf-8") == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.de", "train.de", "train.en"]


def test_interpolation_chooses_the_closest_translation(cli, model, files, n_best, tmp_path):
    """See Kim & Rush 2016, section 3.3; the reference is sacreBLEU's sentence BLEU with add-one smoothing."""
    out = tmp_path / "out.de"
    metric = BLEU(smooth_method="add-k", smooth_value=1)
    references = [f"{texts[n % len(texts)]} Heute?" if n % 5 != 3 else "" for n, texts in enumerate(n_best)]
    references_file = write(tmp_path / "references", references)
    result = cli("distil", model, files[0], "-o", out, "--interpolate", references_file, "--beam", "6")
    assert result.code == 0, result.err
    expected = []
    for texts, reference in zip(n_best, references, strict=True):
        scores = [metric.sentence_score(text, [reference]).score if reference else 0.0 for text in texts]
        expected.append(texts[scores.index(max(scores))])
    found = out.read_text(encoding="utf-8").split("\n")[:-1]
    assert found == expected
    firsts = [texts[0] for texts in n_best]
    assert found != firsts, "not always the best of the beam"
    assert found[3] == firsts[3], "without a reference"


def test_translation_equal_to_the_reference_is_chosen(cli, model, files, n_best, tmp_path):
    members = [texts[n % len(texts)] for n, texts in enumerate(n_best)]
    references, out = write(tmp_path / "members.de", members), tmp_path / "out.de"
    assert cli("distil", model, files[0], "-o", out, "--interpolate", references, "--beam", "6").code == 0
    assert out.read_bytes() == references.read_bytes()


def test_closest_reorders_n_best_lists(model):
    translator = load(model)
    [best] = translator.n_best([PAIRS[0][0]], translator.options(beam=4, n_best=1))
    [several] = translator.n_best([PAIRS[0][0]], translator.options(beam=4, n_best=4))
    closest = Closest("de")
    assert closest(best, PAIRS[0][1]) == closest(best, "") == best
    assert [t.text for t in closest(several, several[2].text)] == [several[n].text for n in (2, 0, 1, 3)]
    assert closest(several, "") == several


def test_killed_run_is_resumed(cli, model, files, tmp_path, monkeypatch):
    monkeypatch.setattr("rnnsearch.cli.translate_lines.BATCHES_PER_CHUNK", 1)
    command = ["distil", model, files[0], "--interpolate", files[1], "--batch", "10", "-o"]
    expected_file = tmp_path / "whole"
    output = tmp_path / "broken"
    assert cli(*command, expected_file).code == 0
    n_best = Translator.n_best
    chunks = []

    def interrupt(self, texts, *rest, **named):
        chunks.append(len(texts))
        if len(chunks) == 3:
            raise KeyboardInterrupt
        return n_best(self, texts, *rest, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Translator, "n_best", interrupt)
        assert cli(*command, output).code == 130
    references = files[1].read_text(encoding="utf-8")
    write(files[1], ["x"] * 40)
    other = cli(*command, output)
    assert other.code == 1 and "holds a run with other closest to; finish that one, or delete it" in other.err
    files[1].write_text(references, encoding="utf-8")
    result = cli(*command, output)
    assert result.code == 0 and "resuming after 20 of 40 lines" in result.err
    assert output.read_bytes() == expected_file.read_bytes()


def test_errors(cli, user_error, model, files, tmp_path):
    short, out = write(tmp_path / "short", ["x"]), ["-o", tmp_path / "out"]
    message = user_error("distil", model, files[0], *out, "--interpolate", short)
    assert message == f"{files[0]} and {short} must have the same number of lines; got 40 and 1"
    assert "no.de" in user_error("distil", model, files[0], *out, "--interpolate", tmp_path / "no.de")
    assert "no.en" in user_error("distil", model, tmp_path / "no.en", *out)
    assert "is one model; a mean needs several" in user_error("distil", model, files[0], *out, "--mean", "geometric")
    assert "there is no such model folder" in user_error("distil", tmp_path / "none", files[0], *out)
    for arguments, expected in (
        (["--interpolate", files[1], "--beam", "1"], "--interpolate needs several translations to choose from"),
        (["--actors", "2"], "--actors has no effect without --engine ray"),
    ):
        result = cli("distil", model, files[0], *out, *arguments)
        assert result.code == 2 and expected in result.err, result.err
    assert not (tmp_path / "out").exists()
