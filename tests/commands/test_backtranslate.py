"""`rnnsearch backtranslate`: output and resumption of a killed run."""

import pytest

from rnnsearch.translator.translator import Translator

LINES = ["the small cat sees the dog.", "", "the old bird finds the tree.", "the red dog hears the child."] * 60


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "mono.en"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


def test_output_is_that_of_translate(cli, model, text, tmp_path):
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


def test_killed_run_is_resumed(cli, model, text, tmp_path, monkeypatch):
    monkeypatch.setattr("rnnsearch.cli.translate_lines.BATCHES_PER_CHUNK", 1)
    command = ["backtranslate", model, text, "--sample", "--temperature", "2", "--batch", "50"]
    expected = tmp_path / "whole"
    output = tmp_path / "broken"
    assert cli(*command, "-o", expected).code == 0
    n_best = Translator.n_best
    chunks = []

    def interrupt(self, texts, *rest, **named):
        chunks.append(len(texts))
        if len(chunks) == 3:
            raise KeyboardInterrupt
        return n_best(self, texts, *rest, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Translator, "n_best", interrupt)
        assert cli(*command, "-o", output).code == 130
    assert not output.exists()
    left = tmp_path / "broken.partial"
    other = cli(*command, "-o", output, "--seed", "2")
    message = f"rnnsearch: {left}: holds a run with other seed; finish that one, or delete it\n"
    assert other == (1, "", message)
    assert len(list(left.glob("*.done"))) == 2
    result = cli(*command, "-o", output)
    assert result.code == 0, result.err
    assert "resuming after 100 of 240 lines" in result.err
    assert "60 lines have no translation" in result.err, "the count includes lines of the killed run"
    assert output.read_bytes() == expected.read_bytes()
    assert not left.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tag", "two words"], '--tag must be one word; got "two words"'),
        (["--tag", " "], "--tag must be one word"),
        (["--top-p", "0.5"], "--top-p has no effect without --sample"),
    ],
)
def test_wrong_usage(cli, model, text, tmp_path, arguments, message):
    result = cli("backtranslate", model, text, "-o", tmp_path / "x", *arguments)
    assert result.code == 2
    assert message in result.err


def test_missing_text_is_an_error(user_error, model, tmp_path):
    assert "no.en" in user_error("backtranslate", model, tmp_path / "no.en", "-o", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
