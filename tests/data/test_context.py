"""Contexts of training rows and of segmented sentences, compared with loops over documents."""

from random import Random

import numpy as np
import pytest

from rnnsearch.config import BatchConfig
from rnnsearch.data.batches import Batches
from rnnsearch.data.context import ContextRows, context_sizes, in_context, rows_with_context
from rnnsearch.data.id_store import Documents, ParallelIds
from rnnsearch.data.ragged import RaggedArray
from rnnsearch.text.resegmentation import SentenceBySentence
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.text.vocabulary import BOS, EOS
from tests.training.toys import toy_config

DOCUMENTS = [[[5, 6], [7], [8, 9, 10], [11]], [[12, 13]], [[14], [15, 4], [6]]]
"""Source ids of three documents."""
SENTENCES = [sentence for document in DOCUMENTS for sentence in document]
FIRST = [0, 0, 0, 0, 4, 5, 5, 5]
"""Index of the first sentence of the document of each sentence."""
NUMBERS = [number for number, document in enumerate(DOCUMENTS) for _ in document]


def expected(sentences: int, max_length: int | None) -> list[list[int]]:
    """Return the rows with contexts by the definition, one by one."""
    rows = []
    for document in DOCUMENTS:
        for index, sentence in enumerate(document):
            row = list(sentence)
            for previous in document[max(0, index - sentences) : index][::-1]:
                longer = [*previous, BOS, *row]
                if max_length is not None and len(longer) > max_length:
                    break
                row = longer
            rows.append(row)
    return rows


def segmented(rows: list[list[int]]) -> list[Segmented]:
    return [Segmented("x", ids, ["x"] * len(ids), [(0, 1)] * len(ids)) for ids in rows]


def documents() -> Documents:
    place = [place for document in DOCUMENTS for place in range(len(document))]
    return Documents(np.array(NUMBERS, np.uint32), np.array(place, np.uint32))


@pytest.mark.parametrize("max_length", [None, 1, 4, 6])
@pytest.mark.parametrize("sentences", [1, 2, 3, 10])
def test_rows_begin_with_previous_sentences_of_their_document(sentences, max_length):
    rows = RaggedArray.from_rows(SENTENCES)
    context_rows = ContextRows(rows, context_sizes(documents(), rows, sentences, max_length))
    wanted = expected(sentences, max_length)
    assert [context_rows.row(index).tolist() for index in range(len(SENTENCES))] == wanted
    order = np.array([7, 0, 2, 2, 5])
    assert context_rows.lengths(order).tolist() == [len(wanted[index]) for index in order]
    values, owners, positions = context_rows.values(order)
    assert values.tolist() == [id for index in order for id in wanted[index]]
    assert owners.tolist() == [n for n, index in enumerate(order) for _ in wanted[index]]
    assert positions.tolist() == [position for index in order for position in range(len(wanted[index]))]


@pytest.mark.parametrize("max_length", [None, 4, 6])
def test_segmented_sentences_have_the_contexts_of_training_rows(tmp_path, max_length):
    config = toy_config(tmp_path, context_tables(2), {"training": {"max_length": max_length, "max_updates": 1}})
    texts = segmented(SENTENCES)
    results = [in_context(texts[n], texts[first:n], (), config) for n, first in enumerate(FIRST)]
    assert [list(sentence.spelled_ids) for sentence in results] == expected(2, max_length)
    assert [sentence.ids for sentence in results] == SENTENCES
    for sentence in results:
        assert sentence.num_context_ids == len(sentence.spelled_ids) - len(sentence.ids)


@pytest.mark.parametrize("max_length", [None, 1, 3, 4])
@pytest.mark.parametrize("sentences", [1, 2, 3])
def test_streams_have_only_previous_sentences(sentences, max_length):
    rows = RaggedArray.from_rows(SENTENCES)
    sizes = context_sizes(documents(), rows, sentences, max_length, has_own=False)
    context_rows = ContextRows(rows, sizes, has_own=False)
    wanted = []
    for document in DOCUMENTS:
        for index in range(len(document)):
            context: list[int] = []
            for previous in document[max(0, index - sentences) : index][::-1]:
                longer = [*previous, *([BOS] if context else []), *context]
                if max_length is not None and len(longer) > max_length:
                    break
                context = longer
            wanted.append(context)
    assert [context_rows.row(index).tolist() for index in range(len(SENTENCES))] == wanted
    order = np.array([0, 3, 7, 4, 1])
    assert context_rows.lengths(order).tolist() == [len(wanted[index]) for index in order]
    values, owners, positions = context_rows.values(order)
    assert values.tolist() == [id for index in order for id in wanted[index]]
    assert owners.tolist() == [n for n, index in enumerate(order) for _ in wanted[index]]
    assert positions.tolist() == [position for index in order for position in range(len(wanted[index]))]


def context_tables(sentences: int) -> dict:
    return {"data": {"documents": True, "context": {"type": "concatenation", "sentences": sentences}}}


def test_batches_contain_contexts_on_the_source_only(tmp_path):
    targets = [[id, id] for id, *_ in SENTENCES]
    streams = {"aa": RaggedArray.from_rows(SENTENCES), "bb": RaggedArray.from_rows(targets)}
    ids = ParallelIds(streams, documents=documents())
    config = toy_config(tmp_path, context_tables(1), {"training": {"max_updates": 1, "max_length": 5}})
    batches = Batches(rows_with_context(ids, config), BatchConfig(sentences=3), 5, seed=1)
    rows = {}
    for batch in batches.epoch(0):
        for index, source, target in zip(batch.indices, batch.source.ids, batch.target.ids, strict=True):
            rows[index] = (source[source > 0].tolist(), target[target > 0].tolist())
    wanted = expected(1, 5)
    assert rows == {n: ([*wanted[n], EOS], [*targets[n], EOS]) for n in range(len(SENTENCES))}
    assert rows_with_context(ids, toy_config(tmp_path, {"training": {"max_updates": 1}})) is ids


def test_sampled_segmentations_keep_separators():
    resegment = SentenceBySentence(lambda ids, _: [id + 100 for id in ids])
    assert resegment([5, 6, BOS, 7, BOS, 8], Random(1)) == [105, 106, BOS, 107, BOS, 108]
    assert resegment([5], Random(1)) == [105]


def test_batches_have_streams_of_previous_sentences_of_both_languages(tmp_path):
    targets = [[id, id] for id, *_ in SENTENCES]
    streams = {"aa": RaggedArray.from_rows(SENTENCES), "bb": RaggedArray.from_rows(targets)}
    ids = ParallelIds(streams, documents=documents())
    context = {"type": "streams", "sentences": 2, "target": True}
    tables = {"data": {"documents": True, "context": context}, "model": {"sources": {"type": "concatenation"}}}
    config = toy_config(tmp_path, tables, {"training": {"max_updates": 1, "max_length": 5}})
    assert config.data.source_streams == ("aa", "aa@previous", "bb@previous")
    batches = Batches(rows_with_context(ids, config), BatchConfig(sentences=3), 5, seed=1, any_source=True)
    source_texts, target_texts = map(segmented, (SENTENCES, targets))
    seen = set()
    for batch in batches.epoch(0):
        for row, n in enumerate(batch.indices):
            seen.add(n)
            first = FIRST[n]
            sentence = in_context(source_texts[n], source_texts[first:n], target_texts[first:n], config)
            by_source = getattr(sentence.spelled_ids, "by_source", {"aa": SENTENCES[n]})
            for name in config.data.source_streams:
                found = batch.streams[name].ids[row]
                assert found[found > 0].tolist() == ([*by_source[name], EOS] if name in by_source else [])
            assert ("aa@previous" in by_source) == (n != first)
    assert len(seen) == len(SENTENCES)
