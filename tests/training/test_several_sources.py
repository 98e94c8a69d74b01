"""A model with two sources: training with rows that miss one, resuming, model folders, translation and its results."""

from __future__ import annotations

import json
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rnnsearch.config import RunConfig
from rnnsearch.data.batch import Direction
from rnnsearch.data.batches import Batches
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, Interrupted, ModelError, RnnsearchError
from rnnsearch.models.multi_source import MultiSourceModel
from rnnsearch.ops.native.library import library
from rnnsearch.search.beam import beam_search
from rnnsearch.search.decode import decode_all
from rnnsearch.search.forced import force_decode
from rnnsearch.systems.folder import load_system
from rnnsearch.training.run import check, train
from rnnsearch.translator.loading import load
from rnnsearch.translator.translation import Translation
from rnnsearch.translator.translator import Translator
from tests.command_line import run
from tests.training.toys import Recorder, random_sentences, toy_config

MEAN = {"type": "mean"}
ROWS = [" ".join(words) for words in random_sentences(3, 60, 2, 6)]


def configure(folder: Path, sources: dict[str, Any], **training: Any) -> RunConfig:
    tables = {"data": {"source": ["aa", "cc"], "target": "bb", "train": ["train.tsv"], "dev": "dev.tsv"}}
    return toy_config(folder, {"training": {"dev_bleu": True, **training}}, tables | {"model": {"sources": sources}})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts in three languages: every fifth row misses the first source, every seventh the second."""
    folder = tmp_path_factory.mktemp("several")
    lines = []
    for number, sentence in enumerate(ROWS):
        is_train = number < 50
        first = "" if is_train and number % 5 == 0 else sentence
        second = "" if is_train and first and number % 7 == 0 else sentence.upper()
        target = " ".join(reversed(sentence.split()))
        lines.append(f"{first}\t{second}\t{target}\n")
    (folder / "train.tsv").write_text("".join(lines[:50]))
    (folder / "dev.tsv").write_text("".join(lines[50:]))
    return folder


@pytest.fixture(scope="module")
def prepared(corpus: Path) -> Prepared:
    return prepare(configure(corpus, MEAN, max_updates=1), corpus / "data")


@pytest.fixture(scope="module")
def folder(corpus: Path, prepared: Prepared) -> Path:
    """Return the folder of a model that averages."""
    config = configure(corpus, MEAN, max_updates=6)
    assert check(config) == []
    recorder = Recorder()
    train(config, prepared, corpus / "model", recorder)
    assert recorder.evaluations[-1]["dev_bleu"] is not None
    return corpus / "model"


@pytest.fixture(scope="module")
def translator(folder: Path) -> Translator:
    return load(folder)


def values(translation: Translation) -> tuple[str, float]:
    return translation.text, translation.log_prob


def test_rows_need_one_source_and_the_target(prepared: Prepared, corpus: Path) -> None:
    batch = configure(corpus, MEAN, max_updates=1).training.batch
    direction = Direction(("aa", "cc"), "bb")
    rows = {}
    for any_source in (False, True):
        batches = Batches(prepared.train, batch, None, 1, direction=direction, any_source=any_source)
        rows[any_source] = [index for one in batches.epoch(0) for index in one.indices]
    missing = {n for n in range(50) if n % 5 == 0 or n % 7 == 0}
    assert sorted(rows[True]) == list(range(50))
    assert sorted(rows[False]) == sorted(set(range(50)) - missing)


def test_sampled_segmentation_keeps_missing_sources(prepared: Prepared, corpus: Path) -> None:
    batch = configure(corpus, MEAN, max_updates=1).training.batch
    same = {"aa": lambda ids, _: list(ids)}
    batches = [Batches(prepared.train, batch, None, 1, any_source=True, segments=segments) for segments in ({}, same)]
    for one, other in zip(*(each.epoch(0) for each in batches), strict=True):
        assert torch.equal(one.streams["aa"].ids, other.streams["aa"].ids)
        assert torch.equal(one.streams["cc"].ids, other.streams["cc"].ids)


def test_resume_is_bit_exact(corpus: Path, prepared: Prepared, tmp_path: Path, assert_same: Any) -> None:
    config = configure(corpus, MEAN, max_updates=3, dev_bleu=False)

    def interrupt(update: int) -> None:
        if update == 2:
            signal.raise_signal(signal.SIGINT)

    train(config, prepared, tmp_path / "straight", Recorder())
    with pytest.raises(Interrupted):
        train(config, prepared, tmp_path / "broken", Recorder(interrupt))
    train(config, prepared, tmp_path / "broken", Recorder(), resume=True)
    assert_same("straight", "broken")


def test_folder_stores_the_model(folder: Path, translator: Translator) -> None:
    system = load_system(folder, torch.device("cpu"))
    assert isinstance(system.model, MultiSourceModel)
    assert system.model.source_names == ("aa", "cc")
    again = load(folder)
    sentence = {"aa": ROWS[0], "cc": ROWS[0].upper()}
    assert values(again.translate(sentence)) == values(translator.translate(sentence))


def test_sentences_are_dicts_or_tuples(translator: Translator) -> None:
    first, second = ROWS[1], ROWS[2].upper()
    by_name, by_order = translator.translate([{"cc": second, "aa": first}, (first, second)])
    assert values(by_name) == values(by_order)
    assert by_name.source_texts == {"aa": first, "cc": second}


def test_a_tuple_is_one_sentence(translator: Translator) -> None:
    first, second = ROWS[0], ROWS[1].upper()
    expected = translator.translate({"aa": first, "cc": second})
    translation: Any = translator.translate((first, second))
    assert values(translation) == values(expected)
    assert values(translator.translate((None, second))) == values(translator.translate({"cc": second}))
    in_tuple = translator.translate(((first, second), {"cc": second}))
    assert [len(one.sources) for one in in_tuple] == [2, 1]
    assert repr(translator).startswith("<Translator aa and cc to bb, ")


def test_none_and_empty_text_are_missing_sources(translator: Translator) -> None:
    text = ROWS[1]
    sentences = [{"aa": text}, (text, None), (text, ""), (text, " "), text]
    translations = translator.translate(sentences)
    assert all(values(one) == values(translations[0]) for one in translations)
    assert list(translations[0].alignments) == ["aa"]


def test_first_source_may_be_missing(translator: Translator) -> None:
    text = ROWS[1].upper()
    translation = translator.translate({"cc": text})
    assert translation.source == ""
    assert translation.source_texts == {"cc": text}
    assert list(translation.alignments) == ["cc"]
    assert translation.alignment == ()
    assert translation.attention is None
    assert translation.text


def test_sentence_without_any_source_has_an_empty_translation(translator: Translator) -> None:
    assert [one.text for one in translator.translate([(None, None), "", {}])] == ["", "", ""]


def test_each_source_has_an_alignment(translator: Translator) -> None:
    sources = (ROWS[3], ROWS[4].upper())
    [[translation]] = translator.n_best([sources])
    assert set(translation.alignments) == {"aa", "cc"}
    assert translation.alignment == translation.alignments["aa"]
    for name, text in zip(("aa", "cc"), sources, strict=True):
        weights = translation.sources[name].weights
        assert weights is not None and weights.shape == (len(translation.words), len(text.split()))
    assert translation.attention is not None
    np.testing.assert_allclose(translation.attention.sum(1), 1.0, rtol=1e-5)


def test_scores_equal_those_of_the_search(translator: Translator) -> None:
    sentences = [(ROWS[n], ROWS[n + 1].upper() if n % 2 else None) for n in range(6)]
    translations = translator.translate(sentences)
    scored = translator.score(sentences, [translation.text for translation in translations])
    for translation, one in zip(translations, scored, strict=True):
        if translation.finished and translation.tokens == one.tokens:
            assert one.log_prob == pytest.approx(translation.log_prob, rel=1e-3)
            assert one.alignments.keys() == translation.alignments.keys()


def test_batch_does_not_change_translations(translator: Translator) -> None:
    sentences = [(ROWS[n] if n % 3 else "", ROWS[n + 1].upper() if n % 2 else "") for n in range(1, 9)]
    together = translator.translate(sentences)
    for sentence, translation in zip(sentences, together, strict=True):
        single = translator.translate([sentence])[0]
        assert single.text == translation.text
        assert single.log_prob == pytest.approx(translation.log_prob, rel=1e-4, abs=1e-5)


def test_beam_of_one_equals_greedy(translator: Translator) -> None:
    system = translator.system
    sentences = [(ROWS[n], ROWS[n + 1].upper()) for n in range(4)]
    ids = [segmented.spelled_ids for segmented in translator.segment(sentences)]
    scorer = system.reference_scorer()
    options = translator.options(beam=1)
    greedy = decode_all(scorer, ids, options, make_batch=system.make_sources)
    sources = system.make_sources(ids, torch.device("cpu"))
    beam = beam_search(scorer, sources, options)
    forced = force_decode(scorer, sources, [hypotheses[0].ids for hypotheses in greedy])
    for one, other, scored in zip(greedy, beam, forced, strict=True):
        assert one[0].ids == other[0].ids
        length = len(one[0].token_scores)
        assert one[0].token_scores == pytest.approx(scored.token_scores[:length], rel=1e-4, abs=1e-5)


@pytest.mark.skipif(library() is None, reason="there is no native code")
def test_search_is_native(translator: Translator) -> None:
    assert translator.search.description.startswith(("native search", "PyTorch"))


def test_stream_ends_with_the_translation(translator: Translator) -> None:
    sentence = (None, ROWS[2].upper())
    [whole] = translator.translate([sentence], translator.options(beam=1))

    def result() -> Generator[str, None, str]:
        return (yield from translator.stream(sentence)).text

    steps = result()
    with pytest.raises(StopIteration) as end:
        while True:
            next(steps)
    assert end.value.value == whole.text


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ({"xx": "a"}, "a sentence must have texts in aa and cc; got one in xx"),
        (("a",), r"a sentence must have one text per source \(aa, cc\); got 1"),
    ],
)
def test_other_sources_are_rejected(translator: Translator, sentence: Any, message: str) -> None:
    with pytest.raises(RnnsearchError, match=message):
        translator.translate([sentence])


@pytest.mark.parametrize("sentence", [{"aa": 1}, ("a", b"b"), ("a", ["b"]), b"a", None])
def test_sentences_that_are_not_strings_are_rejected(translator: Translator, sentence: Any) -> None:
    # Not by `translate`, whose arguments are checked in tests.
    with pytest.raises(RnnsearchError, match=r"a sentence must be a string; got (int|bytes|list|NoneType)"):
        translator._named([sentence])


def test_tasks_for_one_source_name_the_reason(folder: Path, translator: Translator) -> None:
    reason = "needs a model with one source; this one has"
    with pytest.raises(ModelError, match=f"markup {reason} aa and cc"):
        translator.translate_marked(["a"])
    with pytest.raises(ModelError, match=f"several sentences {reason}"):
        translator.translate_text("a. b.")
    with pytest.raises(ModelError, match="candidate lists need a model with one source"):
        load(folder, candidates=10)
    with pytest.raises(ModelError, match="encoder states need a model with one source"):
        translator.states(["a"])
    with pytest.raises(ConfigError, match=r"data\.source: must be one language for this; got aa and cc"):
        _ = translator.system.source
    with pytest.raises(ModelError, match=f"posterior attention {reason} several"):
        translator.score([("a", "b")], ["c"], by="posterior")


# Averaging of distributions.


def test_late_averaging_is_the_mean_of_single_sources(folder: Path, translator: Translator) -> None:
    late = load(folder, averaging="late")
    first, second = ROWS[1], ROWS[2].upper()
    target = ROWS[3]
    scores = [one.token_scores for one in translator.score([(first, None), (None, second)], [target] * 2)]
    [both] = late.score([(first, second)], [target])
    np.testing.assert_allclose(np.exp(both.token_scores), (np.exp(scores[0]) + np.exp(scores[1])) / 2, rtol=1e-4)
    [early] = translator.score([(first, second)], [target])
    [mean] = load(folder, averaging="both").score([(first, second)], [target])
    expected = (np.exp(early.token_scores) + np.exp(both.token_scores)) / 2
    np.testing.assert_allclose(np.exp(mean.token_scores), expected, rtol=1e-4)
    assert set(mean.alignments) == set(both.alignments) == {"aa", "cc"}


def test_late_averaging_of_one_source_equals_the_model(folder: Path, translator: Translator) -> None:
    sentence = {"cc": ROWS[1].upper()}
    assert values(load(folder, averaging="late").translate(sentence))[0] == values(translator.translate(sentence))[0]


def test_ensemble_of_one_model_equals_the_model(folder: Path, translator: Translator) -> None:
    sentences = [(ROWS[0], ROWS[1].upper()), (None, ROWS[2].upper())]
    for one, other in zip(load([folder, folder]).translate(sentences), translator.translate(sentences), strict=True):
        assert one.text == other.text
        assert one.log_prob == pytest.approx(other.log_prob, rel=1e-3)
        assert one.alignments.keys() == other.alignments.keys()


def test_inspect_shows_all_sources(folder: Path) -> None:
    shown = run("inspect", folder).out
    assert "aa, cc → bb" in shown
    assert "it attends to several sources" in shown


# Commands.


def test_translate_reads_tsv_files_as_columns(folder: Path, files: Path) -> None:
    (files / "lines.tsv").write_bytes((files / "tsv").read_bytes())
    assert run("translate", folder, "-i", files / "lines.tsv").out == run("translate", folder, "-i", files / "tsv").out
    for name in ("a.po", "a.tmx", "a.html"):
        (files / name).write_text("text")
        result = run("translate", folder, "-i", files / name)
        assert (result.code, result.out) == (1, "")
        assert f"{name}: models with several sources translate lines only" in result.err
        # Also if it is the file of one of the sources.
        result = run("translate", folder, "-i", f"{files / 'aa'}|{files / name}")
        assert (result.code, result.out) == (1, "")
        assert f"{name}: models with several sources translate lines only" in result.err


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with parallel files; the second line has no `aa`, the third no `cc`."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "aa").write_text("".join(f"{row}\n" for row in (ROWS[0], "", ROWS[2])))
    (folder / "cc").write_text("".join(f"{row.upper()}\n" for row in (ROWS[0], ROWS[1], "")))
    (folder / "bb").write_text("".join(f"{row}\n" for row in ROWS[3:6]))
    (folder / "tsv").write_text(f"{ROWS[0]}\t{ROWS[0].upper()}\n\t{ROWS[1].upper()}\n{ROWS[2]}\n")
    return folder


def test_translate_reads_parallel_files_or_columns(folder: Path, files: Path, translator: Translator) -> None:
    sentences = [(ROWS[0], ROWS[0].upper()), (None, ROWS[1].upper()), (ROWS[2], None)]
    expected = [one.text for one in translator.translate(sentences)]
    parallel = run("translate", folder, "-i", f"{files / 'aa'}|{files / 'cc'}", "--alignments", files / "links")
    assert parallel.out.splitlines() == expected, parallel.err
    assert run("translate", folder, "-i", files / "tsv").out == parallel.out
    links = [line.split("\t") for line in (files / "links").read_text().splitlines()]
    assert [len(columns) for columns in links] == [2, 2, 2]
    assert links[1][0] == links[2][1] == ""
    rows = run("translate", folder, "-i", files / "tsv", "--format", "json").out.splitlines()
    assert json.loads(rows[0])["sources"] == {"aa": ROWS[0], "cc": ROWS[0].upper()}
    assert json.loads(rows[1])["alignments"].keys() == {"cc"}


def test_score_align_and_evaluate_read_parallel_files(folder: Path, files: Path) -> None:
    sources = f"{files / 'aa'}|{files / 'cc'}"
    scores = run("score", folder, sources, files / "bb").out.splitlines()
    assert len(scores) == 3 and all(float(score) < 0 for score in scores)
    links = run("align", folder, sources, files / "bb").out.splitlines()
    assert [len(line.split("\t")) for line in links] == [2, 2, 2]
    done = run("evaluate", folder, sources, files / "bb", "--no-card")
    assert done.code == 0 and "BLEU" in done.out, done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "MODEL", "aa", "bb"], 'must be one file per source (aa, cc), separated by "|"; got 1'),
        (["translate", "MODEL", "-i", "tsv", "--tags"], "needs a model with one source; this one has aa and cc"),
        (["translate", "MODEL", "-i", "tsv", "--protect", "urls"], "needs a model with one source"),
        (["export", "MODEL", "model.rnn"], "the engine does not support it: it has several sources"),
        (["contrast", "MODEL", "tsv"], "contrastive evaluation needs a model with one source; this one has aa and cc"),
        (["aligner", "MODEL", "aa", "bb"], "data.source: must be one language for this; got aa and cc"),
        (["candidates", "MODEL", "aa", "bb"], "data.source: must be one language for this; got aa and cc"),
        (["reranker", "MODEL", "aa", "bb", "-o", "reranker"], "reranking needs a model with one source"),
        (["translate", "MODEL", "-i", "wide"], "wide:2: must have at most one column per source (aa, cc); got 3"),
    ],
)
def test_commands_name_the_problem(arguments: list[str], message: str, folder: Path, files: Path) -> None:
    (files / "wide").write_text("a\tb\na\tb\tc\n")
    named = {"MODEL": folder, **{name: files / name for name in ("aa", "bb", "tsv", "wide")}}
    result = run(*(named.get(argument, argument) for argument in arguments))
    assert result.code == 1
    assert message in result.err
