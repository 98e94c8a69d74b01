"""Any number of sentences can be decoded: order, batches, empty sentences, progress and errors; forced decoding."""

import math

import pytest
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.decode import decode_all, force_decode_all, make_sources
from rnnsearch.search.forced import force_decode
from rnnsearch.search.hypothesis import EMPTY, SentenceError
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import Ranking
from rnnsearch.text.vocabulary import EOS, PAD

CPU = torch.device("cpu")


def ids(found):
    return [[h.ids for h in hypotheses] for hypotheses in found]


def test_batch_appends_eos_and_pads():
    batch = make_sources([[5, 6], [], [7]], CPU)["source"]
    assert batch.ids.tolist() == [[5, 6, EOS], [EOS, PAD, PAD], [7, EOS, PAD]]
    assert batch.mask.tolist() == [[True, True, True], [True, False, False], [True, True, False]]


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("batch_sentences", [1, 2, 4, 64])
def test_results_keep_the_input_order(toy, sentences, width, batch_sentences):
    options = SearchOptions(beam=width, n_best=width)
    found = decode_all(toy(seed=2), sentences, options, batch_sentences)
    alone = [decode_all(toy(seed=2), [one], options)[0] for one in sentences]
    assert ids(found) == ids(alone)


def test_empty_sentences_are_not_searched(toy):
    scorer = toy()
    assert decode_all(scorer, [[], []], SearchOptions(n_best=3)) == [[EMPTY], [EMPTY]]
    assert decode_all(scorer, [], SearchOptions()) == []
    assert scorer.starts == 0
    found = decode_all(scorer, [[], [5, 6], []], SearchOptions())
    assert ids(found)[0] == ids(found)[2] == [()]
    assert found[1][0].token_scores
    assert (EMPTY.score, EMPTY.log_prob, EMPTY.token_scores, EMPTY.finished) == (0.0, 0.0, (), True)


def test_progress_reaches_the_number_of_sentences(toy, sentences):
    told = []
    decode_all(toy(), [*sentences, []], SearchOptions(), 4, progress=told.append)
    assert told == [1, 5, 7]
    told.clear()
    force_decode_all(toy(), [*sentences, []], [[4]] * 6 + [[]], batch_sentences=4, progress=told.append)
    assert told == [1, 5, 7]


def test_prefixes_follow_their_sentences(toy, sentences):
    prefix = tuple((4 + n % 3, 7) for n in range(6))
    found = decode_all(toy(), sentences, SearchOptions(prefix=prefix), 2)
    assert [hypotheses[0].ids[:2] for hypotheses in found] == list(prefix)
    with pytest.raises(RnnsearchError, match=r"prefix must have one entry per sentence \(6\); got 5"):
        decode_all(toy(), sentences, SearchOptions(prefix=prefix[:5]))


@pytest.mark.parametrize("width", [1, 4])
def test_error_names_the_input_index(toy, sentences, width):
    with pytest.raises(SentenceError) as error:
        decode_all(toy(nan=(17, 1)), sentences, SearchOptions(beam=width), 2)
    assert (error.value.sentence, "sentence 4 (counting from 0)" in str(error.value)) == (4, True)
    with pytest.raises(SentenceError, match=r"sentence 4 .* NaN at target position 2"):
        force_decode_all(toy(nan=(17, 2)), sentences, [[4, 5]] * 6, batch_sentences=2)


def test_batch_sentences_is_at_least_one(toy):
    with pytest.raises(RnnsearchError, match="batch_sentences must be at least 1; got 0"):
        decode_all(toy(), [[5]], SearchOptions(), 0)


def test_forced_scores_equal_step_scores(toy):
    scorer, target = toy(seed=3), [4, 8, 5]
    sources = make_sources([[9, 10]], CPU)
    memory, state = scorer.start(sources, None)
    expected = []
    for previous, y in zip([2, *target], [*target, EOS], strict=True):
        step = scorer.step(memory, state, torch.tensor([previous]))
        expected.append(float(step.scores[0, y]))
        state = step.state
    [found] = force_decode(scorer, sources, [target], Ranking(0.5))
    assert found.token_scores == pytest.approx(expected)
    assert found.log_prob == pytest.approx(math.fsum(expected), rel=1e-6)
    assert found.score == pytest.approx(found.log_prob / 2)
    assert found.ids == (4, 8, 5)
    assert found.finished
    assert found.attention["source"].shape == (4, 3)


def test_forced_scores_do_not_depend_on_the_batch(toy, sentences):
    targets = [[4, 5], [], [6, 7, 8, 4, 5, 6], [4], [8, 8], [5]]
    found = force_decode_all(toy(), sentences, targets, batch_sentences=4)
    for sentence, target, h in zip(sentences, targets, found, strict=True):
        [alone] = force_decode_all(toy(), [sentence], [target])
        assert h.ids == alone.ids == tuple(target)
        assert h.token_scores == pytest.approx(alone.token_scores, rel=1e-4)
        assert h.attention["source"].shape == (len(target) + 1, len(sentence) + 1)


def test_forced_scores_of_empty_sentences(toy):
    scorer = toy()
    assert force_decode_all(scorer, [[]], [[]]) == [EMPTY]
    assert scorer.starts == 0
    no_source, no_target = force_decode_all(scorer, [[], [5]], [[4], []])
    assert (no_source.ids, len(no_source.token_scores)) == ((4,), 2)
    assert (no_target.ids, len(no_target.token_scores)) == ((), 1)


def test_unscored_target_has_zero_probability(toy):
    class Clamping(type(toy())):
        def step(self, memory, state, y):
            return super().step(memory, state, y.clamp(max=8))

    sources = make_sources([[9]], CPU)
    [found], [full] = force_decode(Clamping(), sources, [[4, 9, 5]]), force_decode(toy(), sources, [[4, 8, 5]])
    assert found.token_scores == pytest.approx([full.token_scores[0], -math.inf, *full.token_scores[2:]])
    assert found.log_prob == -math.inf


def test_number_of_targets_must_equal_sources(toy):
    with pytest.raises(RnnsearchError, match=r"targets must be as many as the sources \(1\); got 2"):
        force_decode_all(toy(), [[5]], [[4], [4]])
    with pytest.raises(RnnsearchError, match=r"targets must be one per sentence of source \(1\); got 2"):
        force_decode(toy(), make_sources([[5]], CPU), [[4], [4]])


def test_results_do_not_depend_on_threads(toy, sentences):
    alone = decode_all(toy(), sentences, SearchOptions(beam=2), 2)
    seen = []
    torch.set_num_threads(3)
    together = decode_all(toy(), sentences, SearchOptions(beam=2), 2, progress=seen.append)
    assert together == alone
    assert seen == sorted(seen)
    assert seen[-1] == len(sentences)
    with pytest.raises(SentenceError, match=r"sentence 4 \(counting from 0\)"):
        decode_all(toy(nan=(17, 1)), sentences, SearchOptions(beam=2), 1)


def test_batches_of_long_sentences_are_smaller(toy, monkeypatch):
    """The attention weights that a search stores grow with the square of the length."""
    sentences = [[4 + n % 5] * (20 if n < 4 else 2) for n in range(20)]

    def done(threads):
        seen = []
        torch.set_num_threads(threads)
        found = decode_all(toy(), sentences, SearchOptions(beam=2, max_ratio=1.0, max_extra=1), progress=seen.append)
        return seen, [[h.ids for h in hypotheses] for hypotheses in found]

    whole, expected = done(1)
    assert whole == [0, 20]
    monkeypatch.setattr("rnnsearch.search.decode.MAX_ATTENTION_WEIGHTS", 2 * 2 * 21 * 22)
    assert done(1) == ([0, 2, 4, 20], expected)
    assert done(4) == ([0, 2, 4, 20], expected), "long sentences must not be distributed over threads"


def test_batches_of_long_targets_are_smaller(toy, monkeypatch):
    pairs = [[4 + n % 3] * (20 if n < 4 else 2) for n in range(20)]

    def done():
        seen = []
        return seen, force_decode_all(toy(), pairs, pairs, progress=seen.append)

    whole, expected = done()
    assert whole == [0, 20]
    monkeypatch.setattr("rnnsearch.search.decode.MAX_ATTENTION_WEIGHTS", 2 * 21 * 21)
    few, found = done()
    assert few == [0, 2, 4, 20] and [h.ids for h in found] == [h.ids for h in expected]
    assert [h.log_prob for h in found] == pytest.approx([h.log_prob for h in expected])


def test_large_batch_is_split_over_threads(toy, sentences):
    many = [[*sentence, 4 + n % 5] for n in range(3) for sentence in sentences]  # 18 sentences
    alone = decode_all(toy(), many, SearchOptions(beam=2))
    torch.set_num_threads(3)
    seen = []
    assert decode_all(toy(), many, SearchOptions(beam=2), progress=seen.append) == alone
    assert seen == [0, 6, 12, 18]
    few = []
    assert decode_all(toy(), many[:7], SearchOptions(beam=2), progress=few.append) == alone[:7]
    assert few == [0, 7], "there are too few sentences for two threads"
