"""The scripts of reproduce/ at toy size: they train, score and write what they promise."""

from __future__ import annotations

import json
import random
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rnnsearch.data import catalog

SCRIPTS = Path(__file__).parents[2] / "reproduce"
WORDS = {"cat": "Katze", "dog": "Hund", "bird": "Vogel", "tree": "Baum", "house": "Haus", "sees": "sieht"}
TINY = [
    *("training.max_updates=2", "training.threads=1", "training.dev_bleu=false", "training.precision=fp32"),
    *("model.embedding=6", "model.encoder.size=4", "model.decoder.size=8", "search.beam=1"),
]
Script = Callable[..., None]


def pairs(count: int) -> list[tuple[str, str]]:
    """Sentences of some words, each word translated by itself."""
    draw = random.Random(count)
    chosen = [draw.choices(list(WORDS), k=draw.randint(2, 7)) for _ in range(count)]
    return [(" ".join(words), " ".join(WORDS[word] for word in words)) for words in chosen]


def write_parts(folder: Path, languages: tuple[str, str]) -> None:
    """train, dev and test, and the alignment of each, word by word."""
    folder.mkdir(parents=True)
    for part, count in (("train", 80), ("dev", 6), ("test", 12)):
        some = pairs(count)
        for side, language in enumerate(languages):
            write_lines(folder / f"{part}.{language}", [pair[side] for pair in some])
        write_lines(folder / f"{part}.align", [" ".join(f"{n}-{n}" for n in range(s.count(" ") + 1)) for s, _ in some])


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Runs a script by name with these arguments, in a folder with a corpus of its own."""
    torch.set_num_threads(1)
    write_parts(tmp_path / "own", ("en", "de"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(SCRIPTS))

    def run(name: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [name, *arguments, "--output", "out"])
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")

    return run


OWN = [
    *("--train", "own/train.en|own/train.de", "--dev", "own/dev.en|own/dev.de", "--test", "own/test.en|own/test.de"),
    *("--source", "en", "--target", "de"),
]


def test_bahdanau(script: Script, tmp_path: Path) -> None:
    script("bahdanau", *OWN, "--lengths", "5", "--set", *TINY, "model.decoder.maxout=4")
    out = tmp_path / "out"
    assert [row["name"] for row in json.loads((out / "scores.json").read_text())] == ["RNNencdec-5", "RNNsearch-5"]
    assert {"table.md", "statistics.md", "bleu-by-length.png"} <= {file.name for file in out.iterdir()}
    assert (out / "RNNsearch-5" / "evaluation" / "report.html").is_file()


def test_bahdanau_by_paragraphs(script, tmp_path, capsys):
    """12 lines of the test set, 6 paragraphs of two and 4 of three."""
    tiny = ["--lengths", "9", "--set", *TINY, "model.decoder.maxout=4"]
    script("bahdanau", *OWN, "--join", "3", *tiny)
    english, german = ((tmp_path / "out" / f"test.{n}.txt").read_text().splitlines() for n in (0, 1))
    lines = (tmp_path / "own" / "test.en").read_text().splitlines()
    assert english[:12] == lines and english[12] == f"{lines[0]} {lines[1]}" and len(english) == len(german) == 22
    assert english[-1] == " ".join(lines[-3:])
    with pytest.raises(SystemExit):
        script("bahdanau", "--join", "3", *tiny)
    assert "--join needs --train, --dev and --test" in capsys.readouterr().err


def test_luong_goes_on_where_it_stopped(script: Script, tmp_path: Path) -> None:
    steps = ("base", "+ local-p attention (general)", "+ UNK replacement")
    settings = [*TINY, "model.encoder.size=8", "text.vocabulary=20"]
    script("luong", *OWN, "--steps", *steps[:1], "--set", *settings)
    kept = tmp_path / "out" / "base" / "luong.json"
    before = kept.stat().st_mtime_ns
    script("luong", *OWN, "--steps", *steps, "--set", *settings)
    results = json.loads((tmp_path / "out" / "luong.json").read_text())
    assert [row["name"] for row in results] == list(steps)
    assert kept.stat().st_mtime_ns == before
    assert results[1]["parameters"] > results[0]["parameters"]
    assert {"table.md", "learning-curves.png", "bleu-by-length.png"} <= {f.name for f in (tmp_path / "out").iterdir()}


def test_luongs_attention_architectures(script, tmp_path):
    """The two that are steps of the ladder are those models; unknown words are replaced in the second column alone."""
    settings = [*TINY, "model.encoder.size=8", "text.vocabulary=8"]
    script("luong", *OWN, "--steps", "+ local-p attention (general)", "--set", *settings)
    model = tmp_path / "out" / "local" / "model.safetensors"
    before = model.stat().st_mtime_ns
    script("luong_attention", *OWN, "--systems", "global (dot)", "local-p (general)", "--set", *settings)
    assert model.stat().st_mtime_ns == before
    dot, local, both = json.loads((tmp_path / "out" / "luong-attention.json").read_text())
    assert (dot["name"], local["name"], dot["aer"], dot["paper"]) == ("global (dot)", "local-p (general)", None, "18.6")
    assert both["name"] == "ensemble of these 2" and both["perplexity"] not in (dot["perplexity"], local["perplexity"])
    assert len((tmp_path / "out" / "table-4.md").read_text().splitlines()) == 5
    with pytest.raises(SystemExit):
        script("luong_attention", *OWN, "--systems", "global (dots)")


@pytest.mark.usefixtures("greek")
def test_luongs_attention_is_held_to_links(script, tmp_path):
    settings = [*TINY, "model.encoder.size=8", "text.vocabulary=300"]
    systems = ["global (dot)", "local-m (general)"]
    script("luong_attention", "--corpus", "bible-grc-en", "--systems", *systems, "--set", *settings)
    rows = json.loads((tmp_path / "out" / "luong-attention.json").read_text())
    assert [[0.0 <= aer <= 1.0 for aer in row["aer"]] for row in rows] == [[True] * 2, [True] * 2, [True]]
    assert "AER, word read" in (tmp_path / "out" / "table-4.md").read_text()


@pytest.fixture
def greek(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small corpus by the name of a listed one with links."""
    corpus = catalog.find("bible-grc-en")
    folder = tmp_path / "cache" / "corpora" / corpus.name
    write_parts(folder, (corpus.source, corpus.target))
    files = {file.name: file.stat().st_size for file in folder.iterdir()}
    archive = {"sha256": corpus.archive.sha256}
    facts = {"format": catalog.FORMAT, "name": corpus.name, "archive": archive, "files": files}
    (folder / "corpus.json").write_text(json.dumps(facts), encoding="utf-8")
    monkeypatch.setenv("RNNSEARCH_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("greek")
def test_alignment(script: Script, tmp_path: Path) -> None:
    systems = ["local-p", "symmetry"]
    arguments = ["--systems", *systems, "--posterior", "symmetry", "--verse", "0", "--epochs", "1"]
    script("alignment", *arguments, "--set", *TINY, "model.attention.size=4", "text.vocabulary=300")
    results = json.loads((tmp_path / "out" / "alignment.json").read_text())
    ways = [(row["system"], row["links"].partition(",")[0]) for row in results]
    symmetry = [("symmetry", f"{kind}{way}") for kind in ("", "posterior ") for way in ("argmax", "tuned", "both")]
    assert ways == [("local-p", "argmax"), ("local-p", "tuned"), *symmetry]
    assert all(0.0 <= row["aer"] <= 1.0 for row in results)
    assert (tmp_path / "out" / "attention.png").is_file()


@pytest.mark.usefixtures("greek")
def test_priors_and_penalties(script, tmp_path):
    systems = ["additive", "coverage-embedding", "fertility-global-after"]
    small = ["model.attention.size=4", "text.vocabulary=300"]
    script("priors", "--systems", *systems, "--set", *TINY, *small)
    results = json.loads((tmp_path / "out" / "priors.json").read_text())
    assert [row["system"] for row in results] == systems
    for row in results:
        assert len(row["argmax"]) == len(row["posterior"]) == len(row["translations"]) == 12
        assert all(of_sure <= of_possible <= proposed for proposed, _, of_sure, of_possible in row["argmax"])
    table = (tmp_path / "out" / "table.md").read_text()
    module = runpy.run_path(str(SCRIPTS / "priors.py"))
    counts = [[(3, 2, 2, 3)] * 20, [(3, 2, 1, 1)] * 20]
    better, worse = (module["np"].array(own) for own in counts)
    assert module["error"](better) == pytest.approx(1 - 5 / 5)
    assert module["error"](worse) == pytest.approx(1 - 2 / 5)
    assert module["chance"](better, worse) < 0.01 < module["chance"](better, better) == 1.0
    assert "coverage-embedding" in table


def test_systems_side_by_side(script, tmp_path):
    own = [f"own/{part}.en|own/{part}.de" for part in ("train", "dev", "test")]
    files = ["--train", own[0], "--dev", own[1], "--test", own[2], "--source", "en", "--target", "de", "--pairs", "50"]
    sizes = [setting for setting in TINY if not setting.startswith("model.")]
    script("systems", *files, "--systems", "RNNsearch", "cGRU", "--set", *sizes, "text.vocabulary=300")
    out = tmp_path / "out"
    assert len((out / "train.de").read_text(encoding="utf-8").splitlines()) == 50
    head, _, first, second = (out / "table.md").read_text(encoding="utf-8").splitlines()
    assert head.startswith("| System") and first.startswith("| RNNsearch") and second.startswith("| cGRU")
    found = json.loads((out / "systems.json").read_text(encoding="utf-8"))
    assert [(row["name"], row["translations"]) for row in found] == [("RNNsearch", 12), ("cGRU", 12)]
    written = (out / "table.md").stat().st_mtime_ns
    script("systems", *files, "--systems", "RNNsearch", "cGRU", "--set", *sizes, "text.vocabulary=300")
    assert (out / "table.md").stat().st_mtime_ns > written, "written anew, from what is kept"


@pytest.mark.parametrize("name", ["BiDeep", "deep LSTM", "RNMT+", "low-resource"])
@pytest.mark.usefixtures("script")
def test_every_system_is_one(name):
    module = runpy.run_path(str(SCRIPTS / "systems.py"))
    data = {"source": "en", "target": "de", "train": ["own/train.en|own/train.de"]}
    args = module["argparse"].Namespace(set=[])
    assert module["system_config"](args, name, data).model.decoder.type != "bahdanau"


def test_terms_forced_and_read(script, tmp_path):
    sizes = [*TINY, "model.decoder.maxout=6", "model.attention.size=5", "training.average=0"]
    script("terms", *OWN, "--set", *sizes, "text.vocabulary=300")
    found = json.loads((tmp_path / "out" / "terms.json").read_text(encoding="utf-8"))
    assert {(row["terms"], row["count"]) for row in found} == {("as they are", 23), ("inflected", 0)}
    forced = next(row for row in found if row["way"] == "forced")
    assert forced["glossary"] == forced["reference"] == 1.0 and len(forced["translations"]) == 12
    assert (tmp_path / "out" / "table.md").read_text(encoding="utf-8").count("\n| ") >= 10


def test_searches_and_ensembles(script, tmp_path):
    sizes = [*TINY, "model.decoder.maxout=6", "model.attention.size=5", "training.average=0", "search.max_extra=2"]
    for members in ("1", "3"):
        script("search", *OWN, "--members", members, "--set", *sizes, "text.vocabulary=300")
    out = tmp_path / "out"
    found = {row["name"]: row for row in json.loads((out / "search.json").read_text(encoding="utf-8"))}
    assert [name for name in found if "model" in name] == [
        *("1 model", "2 models, geometric", "2 models, arithmetic", "3 models, geometric", "3 models, arithmetic")
    ]
    assert found["beam 100"]["nll"] <= found["greedy"]["nll"] < found["sampling, 1 chain"]["nll"]
    assert found["sampling, 50 chains"]["nll"] < found["sampling, 1 chain"]["nll"]
    with pytest.raises(SystemExit):
        script("search", *OWN, "--ways", "beem 5")
    for name, rows in (("decoding.md", 22), ("ensembles.md", 5)):
        assert (out / name).read_text(encoding="utf-8").count("\n| ") == rows + 1


def test_rare_words_side_by_side(script, tmp_path):
    sizes = [*TINY, "model.decoder.maxout=6", "model.attention.size=5", "training.average=0"]
    rows = ["words", "+ copied", "+ dictionary", "hybrid"]
    subwords = ["BPE", "characters out"]
    script("open_vocabulary", *OWN, "--rows", *subwords, "--set", *sizes, "text.vocabulary=300")
    assert len(list((tmp_path / "out").glob("text-bpe*"))) == 2
    script("open_vocabulary", *OWN, "--rows", *rows, "--set", *sizes, "text.vocabulary=9")
    out = tmp_path / "out"
    found = json.loads((out / "open-vocabulary.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in found] == rows and all(row["pairs_a_second"] > 0 for row in found)
    assert (out / "table.md").read_text(encoding="utf-8").count("\n| ") >= 4
    assert "words of the references" in (out / "rare-words.md").read_text(encoding="utf-8")
    assert "cat\tKatze\n" in (out / "dictionary.tsv").read_text(encoding="utf-8")
    names = [f"{name.replace(' ', '-')}.json" for name in rows]
    copied, spelled = (json.loads((out / names[place]).read_text())["translations"] for place in (1, 3))
    assert not any("<unk>" in line for line in [*copied, *spelled])


def test_text_of_the_target_language_alone(script, tmp_path):
    sizes = [*TINY, "model.decoder.maxout=6", "model.attention.size=5", "training.average=0", "text.vocabulary=300"]
    small = ["model.embedding=6", "model.network.size=6", "training.max_updates=2", "training.precision=fp32"]
    rest = ["--set", *sizes, "--lm-set", *small, "training.threads=1"]
    rows = ["back-translated, sampled, tagged", "pairs alone, as many updates", "copied", "no source, a half of it"]
    beside = ["shallow fusion", "deep fusion", "cold fusion", "reranked, both", "reranked, reverse model"]
    script("monolingual", *OWN, "--pairs", "50", "--sentences", "20", "--rows", *rows, *beside, *rest)
    out = tmp_path / "out"
    found = json.loads((out / "monolingual.json").read_text(encoding="utf-8"))
    assert [(row["name"], row["translations"]) for row in found] == [
        (name, 12) for name in ["pairs alone", *rows, *beside]
    ]
    sizes_of = {row["name"]: row["parameters"] for row in found}
    assert sizes_of["pairs alone"] == sizes_of["reranked, both"] < sizes_of["deep fusion"] < sizes_of["cold fusion"]
    assert {file.stem for file in out.glob("*.md")} == {"table", "shallow fusion", *beside[3:]}
    train, alone, made = (
        (tmp_path / file).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        for file in ("own/train.de", "out/rest.de", "out/back-translated,-sampled,-tagged.en")
    )
    assert alone == train[50:70]
    assert len(made) == 20 and all(line == "" or line.startswith("<bt> ") for line in made)


def test_pruned_step_by_step_and_trained_on(script, tmp_path):
    sizes = [*TINY, "model.decoder.maxout=6", "model.attention.size=5", "training.average=0", "text.vocabulary=300"]
    way, shares = "class-blind, step by step", ["0.5", "0.9"]
    script("compression", *OWN, "--ways", way, "--shares", *shares, "--set", *sizes)
    out = tmp_path / "out"
    found = json.loads((out / "compression.json").read_text(encoding="utf-8"))
    assert [(row["way"], row["share"]) for row in found] == [(way, 0.5), (way, 0.9)]
    assert all(row["classes"]["all"] == pytest.approx(row["share"], abs=0.001) for row in found)
    assert {"target_embedding, output", "decoder.attention"} <= found[0]["classes"].keys()
    assert all(len(row["before"]) == len(row["after"]) == 4 for row in found)
    assert (out / "table.md").read_text(encoding="utf-8").count("\n| ") == 4
    assert (out / "classes.md").is_file() and (out / "bleu-by-share.png").is_file()
    for faulty in (["--shares", "0.9", "0.5"], ["--ways", "blind"]):
        with pytest.raises(SystemExit):
            script("compression", *OWN, *faulty)


def test_pruned_and_trained_on_at_some_shares_alone(script, tmp_path):
    sizes = [*TINY, "model.decoder.maxout=6", "model.attention.size=5", "training.average=0", "text.vocabulary=300"]
    script("compression", *OWN, "--ways", "class-blind", "--shares", "0.5", "0.9", "--retrain", "0.9", "--set", *sizes)
    found = json.loads((tmp_path / "out" / "compression.json").read_text(encoding="utf-8"))
    assert [(row["share"], row["after"] is None) for row in found] == [(0.5, True), (0.9, False)]
    assert not (tmp_path / "out" / "class-blind-0.5").exists()
    with pytest.raises(SystemExit):
        script("compression", *OWN, "--shares", "0.5", "--retrain", "0.4")


def test_students_learn_from_their_teacher(script, tmp_path):
    sizes = [*TINY, "model.decoder.maxout=6", "model.attention.size=5", "training.average=0"]
    rows = ["student", "sequence-level, interpolation", "word- and sequence-level", "sequence-level, more text"]
    rest = ["--set", *sizes, "text.vocabulary=300", "--student-set", *sizes]
    more = tmp_path / "more.en"
    more.write_text("a new line\na new line\nanother\n", encoding="utf-8")
    script("distillation", *OWN, "--rows", *rows, "--beam", "3", "--more", str(more), *rest)
    out = tmp_path / "out"
    found = json.loads((out / "distillation.json").read_text(encoding="utf-8"))
    names = [name for row in rows for name in (row, f"{row}, beam 5")]
    assert [row["name"] for row in found] == ["teacher, beam 5", "teacher, greedy", *names]
    assert all(row["translations"] == 12 for row in found)
    references, taught, closer = (
        (out / f"{name}.de").read_text(encoding="utf-8").count("\n") for name in ("train", "taught", "closer")
    )
    assert references == taught == closer
    assert (out / "more.en").read_text(encoding="utf-8") == "a new line\nanother\n"
    assert (out / "more.taught").read_text(encoding="utf-8").count("\n") == 2
    assert (out / "sequence-level" / "model.safetensors").is_file()  # what interpolation goes on from
