"""`rnnsearch backtranslate`: one line out a line in, and a killed run goes on where it was."""

import pytest

from rnnsearch.translator.translator import Translator

LINES = ["the small cat sees the dog.", "", "the old bird finds the tree.", "the red dog hears the child."] * 60


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "mono.en"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


def test_it_is_what_translate_writes(cli, model, text, tmp_path):
    out = tmp_path / "back.de"
    result = cli("backtranslate", model, text, "-o", out)
    assert result.code == 0, result.err
    assert "60 lines have no translation" in result.err
    assert out.read_text() == cli("translate", model, "-i", text).out
    tagged = cli("backtranslate", model, text, "-o", out, "--tag", "<bt>", "--beam", "1")
    assert tagged.code == 0
    plain = cli("translate", model, "-i", text, "--beam", "1").lines
    assert out.read_text().splitlines() == [line and f"<bt> {line}" for line in plain]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.de", "mono.en"]


def test_a_killed_run_goes_on(cli, model, text, tmp_path, monkeypatch):
    monkeypatch.setattr("rnnsearch.cli.translate_lines.CHUNK_BATCHES", 1)
    asked = ["backtranslate", model, text, "--sample", "--temperature", "2", "--batch", "50"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert cli(*asked, "-o", whole).code == 0
    n_best, portions = Translator.n_best, []

    def dies(self, texts, *rest, **named):
        portions.append(len(texts))
        if len(portions) == 3:
            raise KeyboardInterrupt
        return n_best(self, texts, *rest, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Translator, "n_best", dies)
        assert cli(*asked, "-o", broken).code == 130
    assert not broken.exists()
    left = tmp_path / "broken.partial"
    other = cli(*asked, "-o", broken, "--seed", "2")
    said = f"rnnsearch: {left}: holds a run with other search options; finish that one, or delete it\n"
    assert other == (1, "", said)
    assert len(list(left.glob("*.done"))) == 2
    result = cli(*asked, "-o", broken)
    assert result.code == 0, result.err
    assert "goes on after 100 of 240 lines" in result.err
    assert "60 lines have no translation" in result.err, "of all, whichever run has done them"
    assert broken.read_bytes() == whole.read_bytes()
    assert not left.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tag", "two words"], '--tag must be one word; got "two words"'),
        (["--tag", " "], "--tag must be one word"),
        (["--top-p", "0.5"], "--top-p has no effect without --sample"),
    ],
)
def test_bad_options(cli, model, text, tmp_path, arguments, said):
    result = cli("backtranslate", model, text, "-o", tmp_path / "x", *arguments)
    assert result.code == 2
    assert said in result.err


def test_missing_text(fault, model, tmp_path):
    assert "no.en" in fault("backtranslate", model, tmp_path / "no.en", "-o", tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == []
