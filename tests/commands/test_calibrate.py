"""`rnnsearch calibrate`, and what translations then say of themselves."""

import json
from random import Random

CAT = "the small cat sees the dog."
ODD = "red red old the sees hears finds tree."


def salad(corpus, folder):
    """Sentences of the training text, and some that say nothing, whose references are others."""
    english, german = ((corpus / f"train.{side}").read_text().splitlines() for side in ("en", "de"))
    random = Random(1)
    mixed = [" ".join(random.choices(" ".join(english).split(), k=6)) for _ in range(60)]
    for name, lines in (("dev.en", english[:100] + mixed), ("dev.de", german[:100] + ["x y z"] * 60)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder / "dev.en", folder / "dev.de"


def test_a_calibrated_model_says_how_sure_it_is(cli, own, corpus, fault, tmp_path):
    given = f"{CAT}\n\n{ODD}\n"
    assert "this needs a calibrated model" in fault("translate", own, "--min-confidence", "0.5", stdin=given)
    before = cli("translate", own, "--format", "json", stdin=given).rows
    assert all(row["confidence"] is row["word_confidence"] is None and row["warnings"] == [] for row in before[:2])
    result = cli("calibrate", own, *salad(corpus, tmp_path))
    assert result.code == 0, result.err
    assert "confidence.json: of " in result.err
    assert "expected calibration error" in result.err
    kept = json.loads((own / "confidence.json").read_text())
    assert 0 < kept["error"] < 0.2
    assert 0.3 < kept["right"] < 0.9
    rows = cli("translate", own, "--format", "json", stdin=given).rows
    for row in (rows[0], rows[2]):
        sure = row["word_confidence"]
        assert len(sure) == len(row["text"].split())
        assert all(0 <= p <= 1 for p in sure)
        assert abs(row["confidence"] - sum(sure) / len(sure)) < 1e-3
    assert rows[0]["confidence"] > rows[2]["confidence"]
    assert (rows[1]["confidence"], rows[1]["word_confidence"]) == (1.0, [])
    between = str((rows[0]["confidence"] + rows[2]["confidence"]) / 2)
    empty = cli("translate", own, "--min-confidence", between, stdin=given)
    assert empty.lines == [rows[0]["text"], "", ""]
    assert "1 lines below a confidence of" in empty.err
    marked = cli("translate", own, "--min-confidence", between, "--unsure", "mark", stdin=given)
    assert marked.lines == [rows[0]["text"], "", f"[?] {rows[2]['text']}"]
    links = [tmp_path / name for name in ("all", "empty", "marked", "symbols", "symbols-marked")]
    unsure = ["--min-confidence", between]
    ways = ([], unsure, [*unsure, "--unsure", "mark"], ["--unit", "symbols"])
    for path, more in zip(links, (*ways, [*ways[2], *ways[3]]), strict=True):
        assert cli("translate", own, "--alignments", path, *more, stdin=given).code == 0
    every, emptied, after, symbols, symbols_after = (path.read_text().split("\n") for path in links)
    assert emptied == [every[0], "", "", ""]
    pairs = [link.split("-") for link in every[2].split()]
    assert after == [*every[:2], " ".join(f"{source}-{int(target) + 1}" for source, target in pairs), ""]
    assert symbols_after == symbols, "the mark is none of the model's symbols"
    few = [tmp_path / name for name in ("few.en", "few.de")]
    for path, name in zip(few, ("dev.en", "dev.de"), strict=True):
        path.write_text("".join((tmp_path / name).read_text().splitlines(keepends=True)[90:]))
    scored = cli("evaluate", own, *few, "--no-card", "-o", tmp_path / "scores.json")
    measured = json.loads((tmp_path / "scores.json").read_text())["confidence"]
    assert 0 < measured["error"] < 0.3
    assert sum(b["count"] for b in measured["bins"]) > 200
    assert f"confidence is {measured['error']:.1%} off" in scored.out
    together = cli("translate", own, own, "--format", "json", stdin=given).rows
    assert together[0]["confidence"] is None, "one model's calibration says nothing of several"
    (own / "confidence.json").write_text("{}")
    assert "got a damaged or foreign file" in fault("translate", own, stdin=given)


def test_an_engine_file_is_refused_before_anything_is_translated(corpus, fault, tmp_path, monkeypatch):
    monkeypatch.setattr("rnnsearch.translator.loading.load", None)
    engine = tmp_path / "m.rnn"
    engine.write_bytes(b"an engine file")
    told = fault("calibrate", engine, corpus / "dev.en", corpus / "dev.de")
    assert told == f"{engine}: must be a model folder; got a file"


def test_what_does_not_fit_is_refused(own, corpus, fault, tmp_path):
    (tmp_path / "few").write_text(f"{CAT}\n")
    assert "a calibration needs 200 translated words" in fault("calibrate", own, tmp_path / "few", tmp_path / "few")
    assert "same number of lines" in fault("calibrate", own, tmp_path / "few", corpus / "train.de")
    assert not (own / "confidence.json").exists()
