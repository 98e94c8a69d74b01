"""Tags before source sentences: in memory-mapped rows, in segmented sentences and in resampled ones."""

from random import Random

import numpy as np
import pytest

from rnnsearch.config.data import LANGUAGE_TAGS
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.data.ragged import RaggedArray
from rnnsearch.data.tags import AfterTag, TaggedRows, tag_id, tag_of, tagged, tagged_rows
from rnnsearch.errors import ConfigError
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.vocabulary import CONTEXT_END, EOS, PAD
from rnnsearch.text.words import train_words
from tests.untrained import TEXT

BPE = train_bpe(TEXT["en"], 340, 1)


def test_tagged_rows_begin_with_the_tag():
    own = [[5, 6, 7], [], [8]]
    rows = TaggedRows(RaggedArray.from_rows(own), [9, CONTEXT_END])
    assert len(rows) == 3
    assert rows.lengths(np.arange(3)).tolist() == [5, 2, 3]
    assert [rows.row(index).tolist() for index in range(3)] == [[9, CONTEXT_END, *row] for row in own]
    values, owners, positions = rows.values(np.array([2, 0]))
    assert values.tolist() == [9, CONTEXT_END, 8, 9, CONTEXT_END, 5, 6, 7]
    assert owners.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert positions.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]


def test_batches_of_a_tagged_corpus_have_the_tag_on_the_source_only():
    ids = tagged_rows(ParallelIds.from_rows({"en": [[5], None, [6, 7]], "de": [[8], [9], [5]]}), "en", "<0x04>", BPE)
    tag = tag_id("<0x04>", BPE)
    assert ids.lengths(np.arange(3)).tolist() == [[4, 0, 5], [2, 2, 2]]
    source = ids.padded("en", np.array([0, 2])).tolist()
    assert source == [[tag, CONTEXT_END, 5, EOS, PAD], [tag, CONTEXT_END, 6, 7, EOS]]
    assert ids.padded("de", np.array([0])).tolist() == [[8, EOS]]


def test_segmented_sentences_read_the_same_ids():
    [sentence, empty] = BPE.segment(["the cat", ""])
    [with_tag, still_empty] = tagged([sentence, empty], "<0x05>", BPE)
    assert with_tag.spelled_ids == [tag_id("<0x05>", BPE), CONTEXT_END, *sentence.ids]
    assert (with_tag.ids, with_tag.tokens) == (sentence.ids, sentence.tokens)
    assert still_empty.spelled_ids == []


def test_new_segmentation_keeps_the_tag():
    resegment = AfterTag(lambda ids, _: [*reversed(ids)])
    assert resegment([9, CONTEXT_END, 5, 6], Random(1)) == [9, CONTEXT_END, 6, 5]


def test_tags_are_tokens_that_sentences_do_not_contain():
    ids = [tag_id(tag, BPE) for tag in LANGUAGE_TAGS]
    assert len({*ids}) == len(LANGUAGE_TAGS)
    assert not {*ids} & {id for text in TEXT.values() for sentence in BPE.segment(text) for id in sentence.ids}
    # Term marks (`text.terms`).
    assert not {*LANGUAGE_TAGS} & {"<0x01>", "<0x02>", "<0x03>"}
    assert [tag_of(target, ["de", "en"]) for target in ("de", "en")] == ["<0x04>", "<0x05>"]


def test_vocabulary_of_words_has_no_tags():
    with pytest.raises(ConfigError, match="needs a vocabulary with tokens of single bytes"):
        tag_id("<0x04>", train_words(TEXT["en"], 340, 1))
