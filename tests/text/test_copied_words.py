"""A copied word is linked to its copy, by whatever the other links are."""

from dataclasses import replace

import numpy as np
import pytest

from rnnsearch.search.hypothesis import EMPTY
from rnnsearch.search.unknown_words import UnknownWordReplacer
from rnnsearch.text.alignments import with_copy_links
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import train_words
from rnnsearch.translator.translation import make_translation

SOURCE, TARGET = train_words(["now sees."], 20, 1), train_words(["jetzt sieht ,."], 20, 1)


class Links:
    """An aligner that says always the same."""

    def __init__(self, words, tokens=()):
        self.words, self.tokens = words, tokens


def translated(source, target, places, aligned):
    """A translation whose unknown words are copied from these source symbols."""
    source, target = SOURCE.segment([source])[0], TARGET.segment([target])[0]
    unknown = [n for n, id in enumerate(target.ids) if id == UNK]
    joined = TARGET.join_with_offsets(target.ids)
    attention = np.zeros((len(target.ids), len(source.ids) + 1), dtype=np.float32)
    told = dict(zip(unknown, places, strict=True))
    found = UnknownWordReplacer().replace(source, joined, attention, copied_from=told)
    hypothesis = replace(EMPTY, ids=tuple(target.ids), token_scores=(0.0,) * len(target.ids))
    return make_translation(source, found, hypothesis, False, aligned)


def test_copies_replace_other_links():
    wrong = Links(((0, 0), (1, 1), (1, 3), (3, 3)), ((0, 0), (1, 1), (1, 3), (3, 3), (4, 4)))
    one = translated("now Zorro sees Bob.", "jetzt Xo sieht Yo.", [1, 3], wrong)
    assert one.text == "jetzt Zorro sieht Bob."
    assert one.alignment == ((0, 0), (1, 1), (3, 3))
    assert one.token_alignment == ((0, 0), (1, 1), (3, 3), (4, 4))


def test_copies_may_be_reordered_and_repeated():
    one = translated("Zorro sees Bob", "Xo sieht Yo , Zo", [2, 0, 2], Links(((0, 0), (1, 1), (2, 2))))
    assert one.text == "Bob sieht Zorro , Bob"
    assert one.alignment == ((0, 2), (1, 1), (2, 0), (2, 4))


@pytest.mark.parametrize("by", ["dictionary", "spelled"])
def test_only_copies_change_links(by):
    one = translated("now Zorro", "jetzt Xo", [1], Links(((0, 1), (1, 0))))
    target = replace(one.by_attention.target, replaced=tuple(replace(r, by=by) for r in one.replaced))
    links = ((0, 1), (1, 0))
    assert with_copy_links(links, one.by_attention.source, target, "words") == links
    assert one.alignment == ((1, 1),)
