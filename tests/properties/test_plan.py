"""Decoding plans: sentences whose source contains the translations of other sentences."""

import pytest

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.decode import DecodePlan, decode_all
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.search.options import SearchOptions

OPTIONS = SearchOptions(beam=2, max_ratio=1.0, max_extra=3)
DOCUMENTS = [[5, 6, 7], [8, 9], [10, 4, 11], [7, 7, 5, 6], [9, 9], [11]]
"""Three documents of two sentences each."""
WAITS = {1: [0], 3: [2], 5: [4]}


def joined(number, before):
    """Return the ids of the preceding translations followed by those of the sentence."""
    return [*(y for hypothesis in before for y in hypothesis.ids), *DOCUMENTS[number]]


def test_waiting_sentence_receives_the_translation_in_its_source(plain, make):
    scorer, made, told = ModelScorer(make(plain)), [], []

    class Counting(ModelScorer):
        def start(self, sources, columns):
            made.append(len(sources["source"].ids))
            return super().start(sources, columns)

    plan = DecodePlan(WAITS, joined)
    found = decode_all(Counting(make(plain)), DOCUMENTS, OPTIONS, plan=plan, progress=told.append)
    for first, second in ((0, 1), (2, 3), (4, 5)):
        [alone] = decode_all(scorer, [DOCUMENTS[first]], OPTIONS)
        [after] = decode_all(scorer, [[*alone[0].ids, *DOCUMENTS[second]]], OPTIONS)
        assert [h.ids for h in found[first]] == [h.ids for h in alone]
        assert [h.ids for h in found[second]] == [h.ids for h in after]
    assert made == [3, 3], "each wave must be one batch over all documents"
    assert told == [0, 3, 3, 6]


def test_sentence_can_wait_for_several_and_for_empty_ones():
    plan = DecodePlan({2: [1, 0], 0: [1]}, joined)
    assert list(plan.waves(4)) == [[1, 3], [0], [2]]
    assert list(DecodePlan({}, joined).waves(2)) == [[0, 1]]


@pytest.mark.parametrize(
    ("waits", "message"),
    [
        ({0: [1], 1: [0]}, "the sentences of a plan must not wait for each other; got the cycle"),
        ({0: [2]}, r"a plan must refer to the 2 sentences \(counting from 0\); got 2"),
    ],
)
def test_impossible_plan_is_rejected(waits, message):
    with pytest.raises(RnnsearchError, match=message):
        list(DecodePlan(waits, joined).waves(2))
