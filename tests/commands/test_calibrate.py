"""`rnnsearch calibrate`, and the confidence of translations."""

import json
from random import Random

CAT = "the small cat sees the dog."
ODD = "red red old the sees hears finds tree."


def write_dev_set(corpus, folder):
    """Write sentences of the training text, and random word sequences with wrong references."""
    english, german = ((corpus / f"train.{side}").read_text().splitlines() for side in ("en", "de"))
    random = Random(1)
    mixed = [" ".join(random.choices(" ".join(english).split(), k=6)) for _ in range(60)]
    for name, lines in (("dev.en", english[:100] + mixed), ("dev.de", german[:100] + ["x y z"] * 60)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder / "dev.en", folder / "dev.de"


def test_calibrated_model_has_confidence(cli, model_copy, corpus, user_error, tmp_path):
    text = f"{CAT}\n\n{ODD}\n"
    assert "this needs a calibrated model" in user_error("translate", model_copy, "--min-confidence", "0.5", stdin=text)
    before = cli("translate", model_copy, "--format", "json", stdin=text).rows
    assert all(row["confidence"] is row["word_confidence"] is None and row["warnings"] == [] for row in before[:2])
    result = cli("calibrate", model_copy, *write_dev_set(corpus, tmp_path))
    assert result.code == 0, result.err
    assert "words are correct" in result.err
    assert "expected calibration error" in result.err
    calibration = json.loads((model_copy / "confidence.json").read_text())
    assert 0 < calibration["error"] < 0.2
    assert 0.3 < calibration["right"] < 0.9
    rows = cli("translate", model_copy, "--format", "json", stdin=text).rows
    for row in (rows[0], rows[2]):
        probabilities = row["word_confidence"]
        assert len(probabilities) == len(row["text"].split())
        assert all(0 <= p <= 1 for p in probabilities)
        assert abs(row["confidence"] - sum(probabilities) / len(probabilities)) < 1e-3
    assert rows[0]["confidence"] > rows[2]["confidence"]
    assert (rows[1]["confidence"], rows[1]["word_confidence"]) == (1.0, [])
    between = str((rows[0]["confidence"] + rows[2]["confidence"]) / 2)
    empty = cli("translate", model_copy, "--min-confidence", between, stdin=text)
    assert empty.lines == [rows[0]["text"], "", ""]
    assert "1 lines below confidence" in empty.err
    marked = cli("translate", model_copy, "--min-confidence", between, "--unsure", "mark", stdin=text)
    assert marked.lines == [rows[0]["text"], "", f"[?] {rows[2]['text']}"]
    links = [tmp_path / name for name in ("all", "empty", "marked", "symbols", "symbols-marked")]
    threshold = ["--min-confidence", between]
    marking = [*threshold, "--unsure", "mark"]
    by_symbols = ["--unit", "symbols"]
    for path, options in zip(links, ([], threshold, marking, by_symbols, [*marking, *by_symbols]), strict=True):
        assert cli("translate", model_copy, "--alignments", path, *options, stdin=text).code == 0
    all_links, emptied, after, symbols, symbols_after = (path.read_text().split("\n") for path in links)
    assert emptied == [all_links[0], "", "", ""]
    pairs = [link.split("-") for link in all_links[2].split()]
    assert after == [*all_links[:2], " ".join(f"{source}-{int(target) + 1}" for source, target in pairs), ""]
    assert symbols_after == symbols, "the mark is not a token of the model"
    small_set = [tmp_path / "few.en", tmp_path / "few.de"]
    for path, name in zip(small_set, ("dev.en", "dev.de"), strict=True):
        path.write_text("".join((tmp_path / name).read_text().splitlines(keepends=True)[90:]))
    scored = cli("evaluate", model_copy, *small_set, "--no-card", "-o", tmp_path / "scores.json")
    measured = json.loads((tmp_path / "scores.json").read_text())["confidence"]
    assert 0 < measured["error"] < 0.3
    assert sum(b["count"] for b in measured["bins"]) > 200
    assert f"expected calibration error {measured['error']:.1%}" in scored.out
    together = cli("translate", model_copy, model_copy, "--format", "json", stdin=text).rows
    assert together[0]["confidence"] is None, "the calibration of one model does not apply to an ensemble"
    (model_copy / "confidence.json").write_text("{}")
    assert "got a damaged or foreign file" in user_error("translate", model_copy, stdin=text)


def test_engine_file_is_rejected_before_translation(corpus, user_error, tmp_path, monkeypatch):
    monkeypatch.setattr("rnnsearch.translator.loading.load", None)
    engine = tmp_path / "m.rnn"
    engine.write_bytes(b"an engine file")
    message = user_error("calibrate", engine, corpus / "dev.en", corpus / "dev.de")
    assert message == f"{engine}: must be a model folder; got a file"


def test_unsuitable_dev_set_is_an_error(model_copy, corpus, user_error, tmp_path):
    (tmp_path / "few").write_text(f"{CAT}\n")
    assert "a calibration needs at least 200 translated words" in user_error(
        "calibrate", model_copy, tmp_path / "few", tmp_path / "few"
    )
    assert "same number of lines" in user_error("calibrate", model_copy, tmp_path / "few", corpus / "train.de")
    assert not (model_copy / "confidence.json").exists()
