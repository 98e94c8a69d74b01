"""Translation of documents by models that read previous sentences."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rnnsearch
from rnnsearch.cli import translate_lines
from rnnsearch.errors import ConfigError, ModelError, RnnsearchError
from rnnsearch.search.decode import decode_all
from rnnsearch.search.scorer import Scorer
from rnnsearch.systems.ensemble import EnsembleSystem
from rnnsearch.systems.folder import save_system
from rnnsearch.text.alignments import format_pharaoh
from rnnsearch.text.several_sources import text_list
from rnnsearch.text.tokenizer import SourceIds, SpelledIds
from rnnsearch.text.vocabulary import BOS
from rnnsearch.translator.translator import Translator
from tests.command_line import run
from tests.untrained import BAHDANAU, TEXT, untrained, with_context, write_model

DOCUMENTS = [
    ["the small cat sees the dog.", "A bird sees the cat!", "Is it red?"],
    ["the dog sees a big bird."],
    ["Is it red?", "the dog sees a big bird.", "---", "a cat sees it."],
]


CONTEXTS: dict[str, dict[str, Any]] = {
    "concatenation": {},
    "streams": {"type": "streams"},
    "both languages": {"type": "streams", "target": True},
    "translations": {"type": "streams", "source": False, "target": True},
}


@pytest.fixture(scope="module", params=CONTEXTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("context") / "en-de"
    save_system(path, with_context(untrained(BAHDANAU, "bpe"), **CONTEXTS[request.param]))
    return path


@pytest.fixture(scope="module")
def translator(folder: Path) -> Translator:
    return rnnsearch.load(folder)


def texts(translations):
    return [[translation.text for translation in document] for document in translations]


def test_translations_are_those_of_sources_with_previous_sentences(translator):
    """The definition: each sentence by itself, with the ids of previous sentences and their translations."""
    results = translator.translate_documents(DOCUMENTS)
    assert [len(document) for document in results] == [len(document) for document in DOCUMENTS]
    scorer: Scorer = translator.system.reference_scorer()
    options = translator.options()
    data = translator.config.data
    num_different = 0
    for document, translations in zip(DOCUMENTS, results, strict=True):
        ids = translator.source.ids(document)
        targets = translator.target.ids([translation.text for translation in translations])
        for index, translation in enumerate(translations):
            assert translation.source == document[index]
            if document[index] == "---":
                assert translation.text == "---"
                continue
            before = slice(max(0, index - 2), index)
            if data.context.type == "concatenation":
                sentence = [id for previous in ids[before] for id in (*previous, BOS)] + ids[index]
            else:
                texts = {"en": [ids[index]], "en@previous": ids[before], "de@previous": targets[before]}
                streams = {}
                for name in data.source_streams:
                    joined = [id for text in texts[name] if text for id in (BOS, *text)][1:]
                    if joined:
                        streams[name] = SpelledIds(joined)
                sentence = SourceIds(streams)
            [[hypothesis]] = decode_all(scorer, [sentence], options, make_batch=translator.system.make_sources)
            assert translation.text == translator.target.join(hypothesis.ids)
            assert translation.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-3)
            weights = hypothesis.weights[:, -len(ids[index]) - 1 :]
            np.testing.assert_allclose(translation.attention, weights, atol=1e-3)
            num_different += translation.text != translator.translate(document[index]).text
    assert num_different > 0, "the context must have an effect"


def test_inspect_shows_the_vocabularies_of_all_streams(translator, folder):
    streams = translator.config.data.context_streams
    shown = run("inspect", folder).out
    assert shown.split(" source and ")[0].count(" and ") == len(streams)


def test_document_of_one_sentence_equals_the_sentence(translator):
    sentences = [sentence for document in DOCUMENTS for sentence in document]
    by_sentence = translator.translate_documents([[sentence] for sentence in sentences])
    for [one], other in zip(by_sentence, translator.translate(sentences), strict=True):
        assert (one.text, one.log_prob, one.tokens) == (other.text, pytest.approx(other.log_prob), other.tokens)


def test_texts_that_are_not_strings_are_rejected(translator):
    for value in (None, 5, "a sentence", b"a", {"en": "a"}, ["a", None]):
        with pytest.raises(RnnsearchError, match=r"must be a (string|list, such as \[text\] for one text); got"):
            text_list(value)
    with pytest.raises(RnnsearchError, match="text must be a sentence or a list of sentences; got int"):
        translator.is_sentence(5)
    with pytest.raises(RnnsearchError, match="a sentence must be a string; got NoneType"):
        translator._named([None])
    with pytest.raises(RnnsearchError, match="a document must be a list of sentences; got a text"):
        translator.translate_documents(["a sentence"])


def test_late_averaging_is_rejected(translator):
    with pytest.raises(ConfigError, match="needs a model with several sources"):
        rnnsearch.load(translator.folder, averaging="late")


def test_order_of_documents_does_not_matter(translator):
    results = texts(translator.translate_documents(DOCUMENTS))
    assert texts(translator.translate_documents(DOCUMENTS[::-1]))[::-1] == results
    assert [texts(translator.translate_documents([document]))[0] for document in DOCUMENTS] == results


def test_documents_in_several_calls_equal_whole_documents(translator):
    sentences = [sentence for document in DOCUMENTS for sentence in document]
    numbers = [number for number, document in enumerate(DOCUMENTS) for _ in document]
    targets = [translation.text for document in translator.translate_documents(DOCUMENTS) for translation in document]
    whole = [source.spelled_ids for source in translator.with_context(sentences, numbers, targets)]
    for size in (1, 2, 3):
        order = translator.document_order()
        parts = []
        for start in range(0, len(sentences), size):
            part = slice(start, start + size)
            parts += order.with_context(sentences[part], numbers[part], targets[part])
        assert [part.spelled_ids for part in parts] == whole
        translated = []
        order = translator.document_order()
        for start in range(0, len(sentences), size):
            part = slice(start, start + size)
            translated += order.n_best(sentences[part], numbers[part], translator.n_best)
        assert [n_best[0].text for n_best in translated] == targets


def test_texts_of_several_sentences_are_documents(translator):
    [document] = translator.translate_documents([DOCUMENTS[0]])
    text = translator.translate_text(" ".join(DOCUMENTS[0]))
    assert [sentence.text for sentence in text.sentences] == [translation.text for translation in document]


def test_model_without_context_translates_sentences():
    translator = Translator(untrained(BAHDANAU, "bpe"))
    sentences = [sentence for document in DOCUMENTS for sentence in document]
    results = [text for document in texts(translator.translate_documents(DOCUMENTS)) for text in document]
    assert results == [translation.text for translation in translator.translate(sentences)]
    with pytest.raises(ModelError, match="reads previous sentences"):
        translator.require_context()


def test_scores_depend_on_the_context(translator):
    document, targets = DOCUMENTS[0], TEXT["de"]
    in_order = translator.score(translator.with_context(document, [0, 0, 0], targets), targets)
    alone = translator.score(document, targets)
    assert in_order[0].log_prob == pytest.approx(alone[0].log_prob)
    assert in_order[1].log_prob != pytest.approx(alone[1].log_prob)
    assert in_order[1].attention.shape == alone[1].attention.shape


def test_members_of_an_ensemble_read_their_contexts():
    plain = untrained(BAHDANAU, "bpe")
    one = with_context(plain)
    wanted = Translator(one).with_context(DOCUMENTS[0], [0, 0, 0])[1].spelled_ids
    for members, index in (((one, plain), 0), ((plain, one), 1)):
        ensemble = Translator(EnsembleSystem.combine(members))
        source = ensemble.with_context(DOCUMENTS[0], [0, 0, 0])[1]
        by_member = source.spelled_ids.per_member
        assert by_member[index] == wanted
        assert by_member[1 - index] == plain.source.ids([DOCUMENTS[0][1]])[0]
        assert ensemble.translate_documents(DOCUMENTS)[0][1].attention.shape[1] == len(source.ids) + 1


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_command_translates_documents_line_by_line(translator, folder, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(translate_lines, "BATCHES_PER_CHUNK", chunk)
    source = tmp_path / "source.txt"
    lines = "\n\n".join("\n".join(document) for document in DOCUMENTS)
    source.write_text(lines + "\n")
    result = run("translate", folder, "--documents", "-i", source, "--split", "lines", "--batch", "1")
    assert result.code == 0
    wanted = "\n\n".join("\n".join(document) for document in texts(translator.translate_documents(DOCUMENTS)))
    assert result.out == wanted + "\n"
    assert run("translate", folder, "-i", source, "--split", "lines").out != result.out
    assert "2 previous sentences" in run("inspect", folder).out


@pytest.fixture
def pair_files(tmp_path: Path) -> tuple[Path, Path, list[str], list[str], list[int]]:
    """Return files of documents and of their translations, the lines with text, and the document of each."""
    sources = [sentence for document in DOCUMENTS for sentence in document]
    numbers = [number for number, document in enumerate(DOCUMENTS) for _ in document]
    targets = [TEXT["de"][index % 3] for index in range(len(sources))]
    files = []
    for name, lines in (("source", sources), ("target", targets)):
        path = tmp_path / name
        text = ""
        for index, line in enumerate(lines):
            text += "\n" if index and numbers[index] != numbers[index - 1] else ""
            text += line + "\n"
        path.write_text(text)
        files.append(path)
    return files[0], files[1], sources, targets, numbers


@pytest.mark.parametrize("squared_characters", [1, 2000, 1 << 20])
def test_commands_score_and_align_documents(translator, folder, pair_files, monkeypatch, squared_characters):
    source, target, sources, targets, numbers = pair_files
    monkeypatch.setattr("rnnsearch.cli.io.MAX_CHUNK_SQUARED_CHARACTERS", squared_characters)
    expected = translator.score(translator.with_context(sources, numbers, targets), targets)
    lines = run("score", folder, source, target, "--documents").lines
    assert [lines[3], lines[5]] == ["0.000000"] * 2, "the empty lines"
    scores = [float(line) for index, line in enumerate(lines) if index not in (3, 5)]
    assert scores == pytest.approx([pair.log_prob for pair in expected], abs=1e-4)
    alone = [float(line) for line in run("score", folder, source, target).lines]
    assert scores[0] == pytest.approx(alone[0], abs=1e-4) and abs(scores[1] - alone[1]) > 1e-3
    for by in ("attention", "posterior") if translator.system.can("posterior") else ("attention",):
        links = run("align", folder, source, target, "--documents", "--by", by).lines
        aligned = translator.score(translator.with_context(sources, numbers, targets), targets, by)
        assert [line for index, line in enumerate(links) if index not in (3, 5)] == [
            format_pharaoh(pair.alignment) for pair in aligned
        ]


def test_forced_decoding_reads_sentences_in_their_letter_case(translator):
    source, target = "THE SMALL CAT SEES THE DOG.", TEXT["de"][0].upper()
    [alone] = translator.score([source], [target])
    [in_order] = translator.score(translator.with_context([source], [0]), [target])
    assert in_order.log_prob == pytest.approx(alone.log_prob)
    assert in_order.source_tokens == alone.source_tokens


def test_lines_that_are_too_long_are_no_context_of_scores(folder, pair_files):
    source, target, *_ = pair_files
    lines = source.read_text().splitlines()
    scores = run("score", folder, source, target).lines
    lines[0] = "cat " * 99
    source.write_text("".join(f"{line}\n" for line in lines))
    result = run("score", folder, source, target, "--documents", "--max-symbols", "60")
    assert result.lines[0] == "" and f"{source}:1: must have at most 60 tokens" in result.err
    assert float(result.lines[1]) == pytest.approx(float(scores[1]), abs=1e-4)


def test_both_directions_read_their_contexts(folder, pair_files, tmp_path):
    source, target, sources, targets, numbers = pair_files
    reverse = with_context(untrained(BAHDANAU, "bpe", ("de", "en")))
    save_system(tmp_path / "reverse", reverse)
    options = ("--by", "attention", "--reverse", tmp_path / "reverse", "--symmetrise", "union")
    links = run("align", folder, source, target, "--documents", *options)
    assert links.code == 0, links.err
    forward, backward = rnnsearch.load(folder), rnnsearch.load(tmp_path / "reverse")
    there = forward.score(forward.with_context(sources, numbers, targets), targets, "attention")
    back = backward.score(backward.with_context(targets, numbers, sources), sources, "attention")
    union = []
    for one, other in zip(there, back, strict=True):
        union.append(format_pharaoh({*one.alignment, *((s, t) for t, s in other.alignment)}))
    assert [line for line in links.lines if line] == union


def test_documents_of_pairs_must_be_those_of_a_model_that_reads_them(folder, pair_files, tmp_path):
    source, target, *_ = pair_files
    plain = write_model(tmp_path / "plain", BAHDANAU, "bpe")
    for command in ("score", "align"):
        result = run(command, plain, source, target, "--documents")
        assert result.code == 1 and "reads previous sentences (data.context)" in result.err
    target.write_text(target.read_text().replace("\n\n", "\ntext\n"))
    result = run("score", folder, source, target, "--documents")
    assert result.code == 1
    assert f"{target}:4: must be empty, because the line of {source}, which ends a document, is" in result.err


def test_aligner_has_no_context(folder, pair_files, tmp_path):
    source, target, *_ = pair_files
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert run("aligner", copy, source, target).code == 0
    result = run("align", copy, source, target, "--documents")
    assert result.code == 2 and "--documents has no effect on the aligner" in result.err
    translator = rnnsearch.load(copy)
    lines = TEXT["en"], TEXT["de"]
    in_context = translator.with_context(lines[0], [0] * 3, lines[1])
    assert translator.align(in_context, lines[1]) == translator.align(*lines)


def test_evaluation_aligns_references_in_context(folder, pair_files, tmp_path):
    source, target, *_ = pair_files
    gold = tmp_path / "gold"
    links = run("align", folder, source, target, "--documents", "--by", "attention").lines
    gold.write_text("".join(f"{line}\n" for line in links if line))
    scores = tmp_path / "scores.json"
    options = ("--alignments", gold, "--by", "attention", "--no-card", "-o", scores)
    assert run("evaluate", folder, source, target, "--documents", *options).code == 0
    assert json.loads(scores.read_text())["alignment"]["aer"] == 0


def test_command_rejects_models_and_options_without_documents(folder, tmp_path):
    plain = write_model(tmp_path / "plain", BAHDANAU, "bpe")
    source = tmp_path / "source.txt"
    source.write_text("a cat\n")
    result = run("translate", plain, "--documents", "-i", source)
    assert result.code == 1 and "reads previous sentences (data.context)" in result.err
    result = run("translate", folder, "--documents", "-i", source, "-o", tmp_path / "out", "--engine", "local")
    assert result.code == 2 and "--documents cannot be combined with --engine" in result.err


def test_context_is_rejected_where_it_would_have_no_effect(problems):
    data = {"source": "en", "target": "de", "train": ["a|b"], "context": {"type": "concatenation"}}
    model = {"model": BAHDANAU, "text": {"type": "words"}}
    assert any("context: needs `documents = true`" in problem for problem in problems({"data": data, **model}))
    data = {**data, "documents": True}
    assert problems({"data": data, **model}) == []
    assert problems({"data": data, **model, "search": {"coverage_penalty": 0.1}}) == [
        'data.context.type = "concatenation": cannot be combined with search.coverage_penalty, which would require '
        "translations of the context; remove one"
    ]
    streams = {**data, "context": {"type": "streams"}}
    assert problems({"data": streams, **model}) == [
        'data.context.type: "streams" needs [model.sources], which combines the sentence with its context'
    ]
    model = {"model": {**BAHDANAU, "sources": {"type": "mean"}}, "text": {"type": "words"}}
    assert problems({"data": streams, **model}) == []
    none = {**data, "context": {"type": "streams", "source": False}}
    assert any("there is no context" in problem for problem in problems({"data": none, **model}))
    model["model"]["encoder"] = {"type": "hierarchical", "cell": "gru", "size": 10}
    assert [problem for problem in problems({"data": streams, **model}) if "hierarchical" in problem] == [
        'model.encoder.type: "hierarchical" is only for streams of previous sentences, in '
        '[model.sources.encoders."NAME@previous"]'
    ]
