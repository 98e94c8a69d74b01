"""The scripts of reproduce/ at toy size: they train, score and write the documented files."""

from __future__ import annotations

import json
import random
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rnnsearch.data.corpora import catalog
from rnnsearch.data.corpora.bible import AlignedPair

SCRIPTS = Path(__file__).parents[2] / "reproduce"
WORDS = {"cat": "Katze", "dog": "Hund", "bird": "Vogel", "tree": "Baum", "house": "Haus", "sees": "sieht"}
FAST_TRAINING = [
    *("training.max_updates=2", "training.threads=1", "training.dev_bleu=false", "training.precision=fp32"),
]
TINY = [*FAST_TRAINING, "model.embedding=6", "model.encoder.size=4", "model.decoder.size=8", "search.beam=1"]
TINY_PRESET = [*TINY, "model.decoder.maxout=6", "model.attention.size=5", "training.average=0"]
FILES = [
    *("--train", "own/train.en|own/train.de", "--dev", "own/dev.en|own/dev.de", "--test", "own/test.en|own/test.de"),
    *("--source", "en", "--target", "de"),
]
TEST_SENTENCES = 12
Script = Callable[..., None]


def random_pairs(count: int) -> list[tuple[str, str]]:
    """Return sentences of random words with their word-by-word translations."""
    rng = random.Random(count)
    sentences = [rng.choices(list(WORDS), k=rng.randint(2, 7)) for _ in range(count)]
    return [(" ".join(words), " ".join(WORDS[word] for word in words)) for words in sentences]


def write_corpus(folder: Path, languages: tuple[str, str]) -> None:
    """Write train, dev and test files with monotone word alignments."""
    folder.mkdir(parents=True)
    for part, count in (("train", 80), ("dev", 6), ("test", TEST_SENTENCES)):
        pairs = random_pairs(count)
        for column, language in enumerate(languages):
            write_lines(folder / f"{part}.{language}", [pair[column] for pair in pairs])
        lengths = [len(source.split()) for source, _ in pairs]
        write_lines(folder / f"{part}.align", [" ".join(f"{n}-{n}" for n in range(length)) for length in lengths])


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def read_json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Return the folder that scripts write to."""
    return tmp_path / "out"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Return a function that runs a script with arguments in a folder with a small corpus."""
    torch.set_num_threads(1)
    write_corpus(tmp_path / "own", ("en", "de"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(SCRIPTS))

    def run(name: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [name, *arguments, "--output", "out"])
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")

    return run


@pytest.fixture
def greek(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a small corpus in the cache in place of a listed corpus with word alignments."""
    corpus = catalog.find("bible-grc-en")
    folder = tmp_path / "cache" / "corpora" / corpus.name
    write_corpus(folder, (corpus.source, corpus.target))
    files = {file.name: file.stat().st_size for file in folder.iterdir()}
    archive = {"sha256": corpus.archive.sha256}
    facts = {"format": catalog.CORPUS_FORMAT, "name": corpus.name, "archive": archive, "files": files}
    (folder / "corpus.json").write_text(json.dumps(facts), encoding="utf-8")
    monkeypatch.setenv("RNNSEARCH_CACHE", str(tmp_path / "cache"))


def test_bahdanau_writes_tables_figure_and_reports(script: Script, output: Path) -> None:
    script("bahdanau", *FILES, "--lengths", "5", "--set", *TINY, "model.decoder.maxout=4")
    assert [row["name"] for row in read_json(output / "scores.json")] == ["RNNencdec-5", "RNNsearch-5"]
    assert {"table.md", "statistics.md", "bleu-by-length.png"} <= {file.name for file in output.iterdir()}
    assert (output / "RNNsearch-5" / "evaluation" / "report.html").is_file()


def test_bahdanau_joins_lines_to_paragraphs(script, output, tmp_path, capsys):
    tiny = ["--lengths", "9", "--set", *TINY, "model.decoder.maxout=4"]
    script("bahdanau", *FILES, "--join", "3", *tiny)
    english, german = ((output / f"test.{n}.txt").read_text().splitlines() for n in (0, 1))
    lines = (tmp_path / "own" / "test.en").read_text().splitlines()
    assert english[:12] == lines
    assert english[12] == f"{lines[0]} {lines[1]}"
    assert english[-1] == " ".join(lines[-3:])
    assert len(english) == len(german) == 12 + 6 + 4  # lines, paragraphs of two, paragraphs of three
    with pytest.raises(SystemExit):
        script("bahdanau", "--join", "3", *tiny)
    assert "--join needs --train, --dev and --test" in capsys.readouterr().err


def test_luong_resumes_where_it_stopped(script: Script, output: Path) -> None:
    steps = ("base", "+ local-p attention (general)", "+ UNK replacement")
    settings = [*TINY, "model.encoder.size=8", "text.vocabulary=20"]
    script("luong", *FILES, "--steps", *steps[:1], "--set", *settings)
    stored = output / "base" / "luong.json"
    before = stored.stat().st_mtime_ns
    script("luong", *FILES, "--steps", *steps, "--set", *settings)
    results = read_json(output / "luong.json")
    assert [row["name"] for row in results] == list(steps)
    assert stored.stat().st_mtime_ns == before
    assert results[1]["parameters"] > results[0]["parameters"]
    assert {"table.md", "learning-curves.png", "bleu-by-length.png"} <= {file.name for file in output.iterdir()}


def test_luong_attention_reuses_models_of_luong(script, output):
    settings = [*TINY, "model.encoder.size=8", "text.vocabulary=8"]
    script("luong", *FILES, "--steps", "+ local-p attention (general)", "--set", *settings)
    model = output / "local" / "model.safetensors"
    before = model.stat().st_mtime_ns
    script("luong_attention", *FILES, "--systems", "global (dot)", "local-p (general)", "--set", *settings)
    assert model.stat().st_mtime_ns == before
    dot, local, ensemble = read_json(output / "luong-attention.json")
    assert (dot["name"], dot["aer"], dot["paper"]) == ("global (dot)", None, "18.6")
    assert (local["name"], ensemble["name"]) == ("local-p (general)", "ensemble of all 2")
    assert ensemble["perplexity"] not in (dot["perplexity"], local["perplexity"])
    assert len((output / "table-4.md").read_text().splitlines()) == 5
    with pytest.raises(SystemExit):
        script("luong_attention", *FILES, "--systems", "global (dots)")


@pytest.mark.usefixtures("greek")
def test_luong_attention_reports_alignment_error(script, output):
    settings = [*TINY, "model.encoder.size=8", "text.vocabulary=300"]
    systems = ["global (dot)", "local-m (general)"]
    script("luong_attention", "--corpus", "bible-grc-en", "--systems", *systems, "--set", *settings)
    error_rates = [row["aer"] for row in read_json(output / "luong-attention.json")]
    assert list(map(len, error_rates)) == [2, 2, 1]
    assert all(0.0 <= rate <= 1.0 for rates in error_rates for rate in rates)
    assert "AER, next step" in (output / "table-4.md").read_text()


@pytest.mark.usefixtures("greek")
def test_alignment_scores_each_method(script: Script, output: Path) -> None:
    systems = ["local-p", "symmetry"]
    arguments = ["--systems", *systems, "--posterior", "symmetry", "--verse", "0", "--epochs", "1"]
    script("alignment", *arguments, "--set", *TINY, "model.attention.size=4", "text.vocabulary=300")
    results = read_json(output / "alignment.json")
    methods = [(row["system"], row["links"].partition(",")[0]) for row in results]
    assert methods == [
        ("local-p", "argmax"),
        ("local-p", "tuned"),
        ("symmetry", "argmax"),
        ("symmetry", "tuned"),
        ("symmetry", "bidirectional"),
        ("symmetry", "posterior argmax"),
        ("symmetry", "posterior tuned"),
        ("symmetry", "posterior bidirectional"),
    ]
    assert all(0.0 <= row["aer"] <= 1.0 for row in results)
    assert (output / "attention.png").is_file()


def test_aligner_reads_folders_with_and_without_dev_links(script, output, tmp_path):
    for name in ("with-en-de", "without-en-de"):
        write_corpus(tmp_path / name, ("en", "de"))
    for path in (tmp_path / "without-en-de").glob("dev.*"):
        path.unlink()
    script("aligner", "--corpora", "with-en-de", "without-en-de", "--without-eflomal", "--trained-on", "all")
    tables = [(output / name).read_text() for name in ("with-en-de.md", "without-en-de.md")]
    rules = [[row.split(" | ")[2] for row in table.splitlines() if "rnnsearch" in row] for table in tables]
    assert rules[0] == ["t = 0.15", "relative, 0.60", "relative, 0.60, tuned"]
    assert rules[1] == rules[0][:2]


@pytest.mark.usefixtures("greek")
def test_priors_reports_bleu_and_alignment_error(script, output):
    systems = ["additive", "coverage-embedding", "fertility-global-finetuned"]
    settings = [*TINY, "model.attention.size=4", "text.vocabulary=300"]
    script("priors", "--systems", *systems, "--set", *settings)
    results = read_json(output / "priors.json")
    assert [row["system"] for row in results] == systems
    for row in results:
        assert len(row["argmax"]) == len(row["posterior"]) == len(row["translations"]) == TEST_SENTENCES
        for predicted, _, predicted_sure, predicted_possible in row["argmax"]:
            assert predicted_sure <= predicted_possible <= predicted
    assert "coverage-embedding" in (output / "table.md").read_text()


@pytest.mark.usefixtures("script")
def test_priors_bootstrap_of_alignment_error():
    module = runpy.run_path(str(SCRIPTS / "priors.py"))
    better = module["np"].array([(3, 2, 2, 3)] * 20)
    worse = module["np"].array([(3, 2, 1, 1)] * 20)
    assert module["alignment_error_rate"](better) == pytest.approx(1 - 5 / 5)
    assert module["alignment_error_rate"](worse) == pytest.approx(1 - 2 / 5)
    assert module["bootstrap_p_value"](better, worse) < 0.01
    assert module["bootstrap_p_value"](better, better) == 1.0


def test_systems_compares_and_reuses_results(script, output):
    settings = [*FAST_TRAINING, "search.beam=1", "text.vocabulary=300"]
    arguments = [*FILES, "--pairs", "50", "--systems", "RNNsearch", "cGRU", "--set", *settings]
    script("systems", *arguments)
    assert len((output / "train.de").read_text(encoding="utf-8").splitlines()) == 50
    header, _, first, second = (output / "table.md").read_text(encoding="utf-8").splitlines()
    assert header.startswith("| System") and first.startswith("| RNNsearch") and second.startswith("| cGRU")
    results = read_json(output / "systems.json")
    assert [(row["name"], row["translations"]) for row in results] == [("RNNsearch", 12), ("cGRU", 12)]
    written = (output / "table.md").stat().st_mtime_ns
    models = {path: path.stat().st_mtime_ns for path in output.glob("*/model.safetensors")}
    script("systems", *arguments)
    assert (output / "table.md").stat().st_mtime_ns > written
    assert models == {path: path.stat().st_mtime_ns for path in output.glob("*/model.safetensors")}


@pytest.mark.parametrize("name", ["BiDeep", "deep LSTM", "RNMT+", "low-resource"])
@pytest.mark.usefixtures("script")
def test_systems_configs_are_valid(name):
    module = runpy.run_path(str(SCRIPTS / "systems.py"))
    data = {"source": "en", "target": "de", "train": ["own/train.en|own/train.de"]}
    args = module["argparse"].Namespace(set=[])
    assert module["system_config"](args, name, data).model.decoder.type != "bahdanau"


def test_terms_are_constrained_and_inline(script, output):
    script("terms", *FILES, "--set", *TINY_PRESET, "text.vocabulary=300")
    results = read_json(output / "terms.json")
    assert {(row["terms"], row["count"]) for row in results} == {("exact", 23), ("inflected", 0)}
    constrained = next(row for row in results if row["method"] == "constrained")
    assert constrained["glossary"] == constrained["reference"] == 1.0
    assert len(constrained["translations"]) == TEST_SENTENCES
    assert (output / "table.md").read_text(encoding="utf-8").count("\n| ") >= 10


def test_search_compares_strategies_and_ensembles(script, output):
    settings = [*TINY_PRESET, "search.max_extra=2", "text.vocabulary=300"]
    for members in ("1", "3"):
        script("search", *FILES, "--members", members, "--set", *settings)
    results = {row["name"]: row for row in read_json(output / "search.json")}
    assert [name for name in results if "model" in name] == [
        *("1 model", "2 models, geometric", "2 models, arithmetic", "3 models, geometric", "3 models, arithmetic")
    ]
    assert results["beam 100"]["nll"] <= results["greedy"]["nll"] < results["1 sample"]["nll"]
    assert results["best of 50 samples"]["nll"] < results["1 sample"]["nll"]
    with pytest.raises(SystemExit):
        script("search", *FILES, "--strategies", "beem 5")
    for name, rows in (("decoding.md", 22), ("ensembles.md", 5)):
        assert (output / name).read_text(encoding="utf-8").count("\n| ") == rows + 1


def test_open_vocabulary_replaces_unknown_words(script, output):
    rows = ["words", "words + copy", "words + dictionary", "hybrid"]
    subwords = ["BPE", "target characters"]
    script("open_vocabulary", *FILES, "--rows", *subwords, "--set", *TINY_PRESET, "text.vocabulary=300")
    assert len(list(output.glob("text-bpe*"))) == 2
    script("open_vocabulary", *FILES, "--rows", *rows, "--set", *TINY_PRESET, "text.vocabulary=9")
    results = read_json(output / "open-vocabulary.json")
    assert [row["name"] for row in results] == rows
    assert all(row["pairs_per_second"] > 0 for row in results)
    assert (output / "table.md").read_text(encoding="utf-8").count("\n| ") >= 4
    assert "reference words" in (output / "rare-words.md").read_text(encoding="utf-8")
    assert "cat\tKatze\n" in (output / "dictionary.tsv").read_text(encoding="utf-8")
    for name in ("words-+-copy", "hybrid"):
        assert not any("<unk>" in line for line in read_json(output / f"{name}.json")["translations"])


def test_monolingual_rows(script, output, tmp_path):
    settings = [*TINY_PRESET, "text.vocabulary=300"]
    lm_settings = [
        *("model.embedding=6", "model.network.size=6", "training.max_updates=2"),
        *("training.precision=fp32", "training.threads=1"),
    ]
    trained = [
        *("back-translated, sampled, tagged", "parallel data only, equal updates"),
        *("copied", "no source, half of the text"),
    ]
    with_models = ["shallow fusion", "deep fusion", "cold fusion", "reranked, both", "reranked, reverse model"]
    arguments = ["--pairs", "50", "--sentences", "20", "--rows", *trained, *with_models]
    script("monolingual", *FILES, *arguments, "--set", *settings, "--lm-set", *lm_settings)
    results = read_json(output / "monolingual.json")
    names = ["parallel data only", *trained, *with_models]
    assert [(row["name"], row["translations"]) for row in results] == [(name, TEST_SENTENCES) for name in names]
    parameters = {row["name"]: row["parameters"] for row in results}
    assert parameters["parallel data only"] == parameters["reranked, both"]
    assert parameters["reranked, both"] < parameters["deep fusion"] < parameters["cold fusion"]
    assert {file.stem for file in output.glob("*.md")} == {"table", "shallow fusion", *with_models[3:]}
    train, monolingual, back_translated = (
        (tmp_path / file).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        for file in ("own/train.de", "out/rest.de", "out/back-translated,-sampled,-tagged.en")
    )
    assert monolingual == train[50:70]
    assert len(back_translated) == 20
    assert all(line == "" or line.startswith("<bt> ") for line in back_translated)


def test_compression_prunes_iteratively(script, output):
    scheme = "class-blind, iterative"
    settings = [*TINY_PRESET, "text.vocabulary=300"]
    script("compression", *FILES, "--schemes", scheme, "--sparsities", "0.5", "0.9", "--set", *settings)
    results = read_json(output / "compression.json")
    assert [(row["scheme"], row["sparsity"]) for row in results] == [(scheme, 0.5), (scheme, 0.9)]
    assert all(row["classes"]["all"] == pytest.approx(row["sparsity"], abs=0.001) for row in results)
    assert {"target_embedding, output", "decoder.attention"} <= results[0]["classes"].keys()
    assert all(len(row["pruned"]) == len(row["retrained"]) == 4 for row in results)
    assert (output / "table.md").read_text(encoding="utf-8").count("\n| ") == 4
    assert (output / "classes.md").is_file() and (output / "bleu-by-sparsity.png").is_file()
    for invalid in (["--sparsities", "0.9", "0.5"], ["--schemes", "blind"]):
        with pytest.raises(SystemExit):
            script("compression", *FILES, *invalid)


def test_compression_retrains_at_requested_sparsities(script, output):
    settings = [*TINY_PRESET, "text.vocabulary=300"]
    arguments = ["--schemes", "class-blind", "--sparsities", "0.5", "0.9", "--retrain", "0.9"]
    script("compression", *FILES, *arguments, "--set", *settings)
    results = read_json(output / "compression.json")
    assert [(row["sparsity"], row["retrained"] is None) for row in results] == [(0.5, True), (0.9, False)]
    assert not (output / "class-blind-0.5").exists()
    with pytest.raises(SystemExit):
        script("compression", *FILES, "--sparsities", "0.5", "--retrain", "0.4")


def test_distillation_trains_students(script, output, tmp_path):
    rows = ["student", "sequence-level, interpolation", "word- and sequence-level", "sequence-level, more text"]
    more = tmp_path / "more.en"
    more.write_text("a new line\na new line\nanother\n", encoding="utf-8")
    settings = ["--set", *TINY_PRESET, "text.vocabulary=300", "--student-set", *TINY_PRESET]
    script("distillation", *FILES, "--rows", *rows, "--beam", "3", "--more", str(more), *settings)
    results = read_json(output / "distillation.json")
    students = [name for row in rows for name in (row, f"{row}, beam 5")]
    assert [row["name"] for row in results] == ["teacher, beam 5", "teacher, greedy", *students]
    assert all(row["translations"] == TEST_SENTENCES for row in results)
    num_lines = {
        (output / f"{name}.de").read_text(encoding="utf-8").count("\n")
        for name in ("train", "translated", "interpolated")
    }
    assert len(num_lines) == 1
    assert (output / "more.en").read_text(encoding="utf-8") == "a new line\nanother\n"
    assert (output / "more.translated").read_text(encoding="utf-8").count("\n") == 2
    assert (output / "sequence-level" / "model.safetensors").is_file()  # interpolation is fine-tuned from it


@pytest.fixture
def tatoeba(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Put a few rows in place of Tatoeba's; one of them misses three languages."""
    texts = ["a cat", "the dog", "one bird", "two trees", "my house", "a door", "red sun", "old moon"]
    rows = [tuple(f"{language} {text}" for language in ("de", "fr", "es", "ja", "en")) for text in texts]
    rows[3] = ("de two trees", "", "", "", "en two trees")
    monkeypatch.setattr(catalog, "read_tatoeba_rows", lambda _languages: iter(rows))
    return rows


TATOEBA_SIZES = ["--sizes", "4", "--seeds", "1", "--dev-rows", "1", "--test-rows", "2"]
TATOEBA_SETTINGS = [*TINY, "training.average=0", "text.vocabulary=300"]


@pytest.mark.usefixtures("tatoeba")
def test_multiway_compares_bilingual_and_shared_models(script, output):
    settings = [*TATOEBA_SETTINGS, "model.decoder.readout=6"]
    script("multiway", *TATOEBA_SIZES, "--systems", "bilingual", "shared attention", "--set", *settings)
    table = (output / "table.md").read_text(encoding="utf-8").splitlines()
    assert len(table) == 2 + 4 + 4
    assert "| 4 | 1 | ja-en | shared attention |" in table[-1]
    runs = (output / "runs.md").read_text(encoding="utf-8")
    assert runs.count("\n| shared attention |") == 4


@pytest.mark.usefixtures("tatoeba")
def test_multiway_of_selected_languages(script, output):
    settings = [*TATOEBA_SETTINGS, "model.decoder.readout=6"]
    languages = ["--languages", "fr", "es", "--directions", "from-en"]
    script("multiway", *TATOEBA_SIZES, *languages, "--systems", "target tags", "--set", *settings)
    table = (output / "table.md").read_text(encoding="utf-8").splitlines()
    assert [row.split(" | ")[2] for row in table[2:]] == ["en-fr", "en-es"]


def test_multisource_uses_rows_with_all_languages(script, output, tatoeba):
    systems = ["--sources", "de", "fr", "--target", "en", "--systems", "de", "early averaging"]
    script("multisource", *TATOEBA_SIZES, *systems, "--set", *TATOEBA_SETTINGS, "model.decoder.maxout=6")
    columns = [read_lines(output / "text" / f"train-de+fr+en-4.{language}") for language in ("de", "fr", "en")]
    rows = list(zip(*columns, strict=True))
    assert len(rows) == 4
    assert set(rows) <= {(row[0], row[1], row[4]) for row in tatoeba if row[1]}
    for name in ("4-1/table.md", "runs-4.md"):
        table = (output / name).read_text(encoding="utf-8").splitlines()
        assert [row.split(" | ")[0] for row in table[2:]] == ["| de", "| early averaging"]


def test_documents_are_translated_in_context(script, output, monkeypatch):
    pairs = iter(random_pairs(60))
    chapters = [[AlignedPair(*next(pairs), chapter=f"{n:05}") for _ in range(4)] for n in range(15)]
    monkeypatch.setattr(catalog, "read_chapters", lambda _corpus: iter(chapters))
    systems = ["no context", "source and target streams"]
    settings = [*TINY, "training.average=0", "text.vocabulary=300", "model.decoder.maxout=6"]
    script("documents", "--seeds", "1", "2", "--systems", *systems, "--set", *settings)
    folder = output / "bible-grc-en"
    text = (folder / "text" / "test.grc").read_text(encoding="utf-8")
    assert text == "".join("".join(f"{verse.source}\n" for verse in chapters[n]) + "\n" for n in (1, 14))
    assert len(read_json(folder / "2" / f"{systems[1]}.json")["translations"]) == 8
    table = (folder / "runs.md").read_text(encoding="utf-8").splitlines()
    assert [row.split(" | ")[0] for row in table[2:]] == [f"| {name}" for name in systems]
    assert table[2].count(",") == 1  # the BLEU of two runs


@pytest.mark.usefixtures("tatoeba")
def test_transfer_starts_children_from_the_parent(script, output):
    settings = [*TATOEBA_SETTINGS, "model.decoder.readout=6"]
    script("transfer", *TATOEBA_SIZES, "--set", *settings)
    table = (output / "es-4-1" / "table.md").read_text(encoding="utf-8").splitlines()
    assert [row.split(" | ")[0] for row in table[2:]] == ["| from scratch", "| random rows", "| rows by token"]
    folders = [output / "parent-fr-en" / "fr-en", output / "es-4-1" / "random-rows"]
    parent, child = (load_file(folder / "model.safetensors") for folder in folders)
    assert torch.equal(parent["target_embedding.weight"], child["target_embedding.weight"])
    assert not torch.equal(parent["source_embedding.weight"], child["source_embedding.weight"])
    with pytest.raises(SystemExit):
        script("transfer", "--child", "fr")


@pytest.mark.usefixtures("tatoeba")
def test_zero_resource_shares_no_english_sentence(script, output):
    systems = ["pivot", "pivot, 5 best", "pseudo-parallel", "zero-shot, shared attention"]
    systems += ["fine-tuned, shared attention"]
    # Whole words, because untrained models of subwords write control characters.
    settings = [*TATOEBA_SETTINGS, "model.decoder.maxout=6", "text.type=words", "search.max_extra=2"]
    settings += ["data.cleaning.max_ratio=50"]
    sizes = ["--sizes", "2", "--seeds", "1", "--dev-rows", "1", "--test-rows", "2"]
    script("zero_resource", *sizes, "--systems", *systems, "--set", *settings)
    table = (output / "table.md").read_text(encoding="utf-8").splitlines()
    assert [row.split(" | ")[2] for row in table[2:]] == systems
    german, french = (read_lines(output / "text-2" / f"{pair}.en") for pair in ("de-en", "en-fr"))
    assert len(german) == len(french) == 2 and not set(german) & set(french)
    assert read_lines(output / "2-1" / "pseudo.fr") == read_lines(output / "text-2" / "en-fr.fr")
    assert (output / "2-1" / "shared-attention-fine-tuned" / "model.safetensors").is_file()


@pytest.mark.usefixtures("greek")
def test_gradients_are_measured_by_distance(script, output):
    settings = [*FAST_TRAINING, "text.vocabulary=300"]
    sizes = ["--length", "5", "--size", "6", "--updates", "2"]
    script("gradients", "--cells", "tanh", "lstm", *sizes, "--set", *settings)
    rows = [row.strip("| ").split(" | ") for row in (output / "table.md").read_text(encoding="utf-8").splitlines()]
    assert rows[0][2:-1] == ["1", "2"]  # of four distances
    assert [row[:3] for row in rows[2:4]] == [["tanh", "before training", "1"], ["lstm", "before training", "1"]]
    assert all(0 < float(row[3]) < 5 for row in rows[2:])
    assert (output / "gradients.png").is_file()


def test_scenes_scores_and_draws_attention(script, output, monkeypatch):
    rng = np.random.default_rng(1)
    pixels, labels = rng.integers(17, size=(60, 64)).astype(float), rng.integers(10, size=60)
    monkeypatch.setitem(sys.modules, "sklearn", ModuleType("sklearn"))
    datasets = ModuleType("sklearn.datasets")
    monkeypatch.setattr(datasets, "load_digits", lambda **_: (pixels, labels), raising=False)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", datasets)
    tiny = ["--scenes", "40", "--seeds", "1", "--systems", "soft", "hard, weight 0.02"]
    script("scenes", *tiny, "--set", "training.max_updates=2", "model.embedding=6", "model.encoder.size=6")
    results = read_json(output / "scenes.json")
    assert [row["system"] for row in results] == ["soft", "hard, weight 0.02"]
    assert all(0 <= row["mass"] <= 1 for row in results)
    assert (output / "table.md").read_text().count("\n| ") == 3
    assert {"soft-1-1.png", "hard-weight-002-1-4.png"} <= {file.name for file in output.iterdir()}
    # No digit image is in two parts.
    parts = [np.load(output / "scenes" / f"{part}.npy").reshape(-1, 64) for part in ("train", "dev", "test")]
    images = [{cell.tobytes() for cell in part if cell.any()} for part in parts]
    assert not (images[0] & images[1] or images[0] & images[2] or images[1] & images[2])


def test_beyond_likelihood_compares_methods_with_more_training_by_likelihood(script, output):
    settings = ["training.threads=1", "training.precision=fp32", "search.beam=2", *TINY[4:7]]
    settings += ["model.decoder.maxout=6", "model.attention.size=5", "text.vocabulary=300"]
    methods = ["--methods", "likelihood", "mrt", "bso", "--updates", "2", "--samples", "2", "--base-epochs", "1"]
    script("beyond_likelihood", *FILES, *methods, "--seeds", "1", "--set", *settings)
    table = (output / "1" / "table.md").read_text().splitlines()
    assert [row.split(" | ")[0].strip("| ") for row in table[2:]] == [
        *("base", "base", "likelihood", "likelihood", "mrt", "mrt", "bso", "bso")
    ]
    assert len(read_json(output / "1" / "mrt.json")["translations"]["greedy"]) == TEST_SENTENCES
