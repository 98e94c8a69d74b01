"""The C++ implementation of the aligner against NumPy."""

import numpy as np
import pytest
import torch

from rnnsearch.align import hmm, native
from rnnsearch.align.hmm import learn_lexicon, run_rounds
from rnnsearch.align.sentences import Sentences

SIZES = (70, 45)
RNG = np.random.default_rng(8)

pytestmark = pytest.mark.skipif(native.native_library(SIZES) is None, reason="no native code")


def corpus(count, max_length=12):
    """Random sentences, and targets that depend on them."""
    sources = []
    targets = []
    for _ in range(count):
        sources.append(RNG.integers(0, SIZES[0], RNG.integers(0, max_length)))
        targets.append(np.roll(np.append(sources[-1] // 2, 7), RNG.integers(0, 3)))
    return sources, targets


def learners(sources, targets, rows):
    library = native.native_library(SIZES)
    yield hmm._NumpyLearner(sources, targets, SIZES, rows)
    widths, heights = (hmm.sequence_lengths([texts[n] for n in rows]) for texts in (sources, targets))
    ordered = rows[hmm._by_length(widths, heights)]
    yield hmm._NativeLearner(library, sources, targets, SIZES, ordered, 1)


def assert_same_lexicons(found, wanted):
    np.testing.assert_array_equal(found.pairs, wanted.pairs)
    for one, two in ((found.forward, wanted.forward), (found.backward, wanted.backward)):
        for name in one._fields:
            np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=2e-3, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("max_length", [12, 90])
def test_lexicon_equals_numpy(max_length):
    """Both models, and jumps beyond the longest one."""
    sources, targets = corpus(3000 // max_length, max_length)
    rows = np.flatnonzero([len(source) > 0 for source in sources])
    wanted, found = (run_rounds(learner, 5, 3) for learner in learners(sources, targets, rows))
    assert len(found.pairs) > 50
    assert_same_lexicons(found, wanted)


def test_pairs_are_removed_by_count_and_by_fraction():
    sources, targets = corpus(100)
    rows = np.flatnonzero([len(source) > 0 for source in sources])
    definition, fast = learners(sources, targets, rows)
    for learner in (definition, fast):
        learner.run_round(is_hmm=False)
        learner.run_round(is_hmm=False)
    counts = np.zeros(SIZES)
    np.put(counts, definition._pairs, definition._counts.links)
    totals = np.minimum(counts.sum(axis=1, keepdims=True), counts.sum(axis=0))
    wanted = np.flatnonzero((counts > 0) & (counts >= 0.1) & (counts >= 0.2 * totals))
    assert 0 < len(wanted) < len(definition._pairs) / 2
    for learner in (definition, fast):
        learner.prune(0.1, 0.2)
    np.testing.assert_array_equal(definition._pairs, wanted)
    np.testing.assert_array_equal(fast._table.frequent(0.0)[0], wanted)
    for one, two in zip(definition._removed, fast._table._removed, strict=True):
        np.testing.assert_array_equal(one, two)


def test_jumps_are_counted_in_evenly_spaced_sentences():
    sources, targets = corpus(60)
    targets = [np.append(target, 1) for target in targets]
    sources = [np.append(source, 1) for source in sources]
    library = native.native_library(SIZES)
    found, wanted = (
        hmm._NativeLearner(library, sources, targets, SIZES, np.arange(0, 60, row_step), jump_step)
        for row_step, jump_step in ((1, 4), (4, 1))
    )
    for learner in (found, wanted):
        learner.run_round(is_hmm=True)
    for one, two in zip(found._counts.jumps, wanted._counts.jumps, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)


def test_posteriors_equal_numpy(monkeypatch):
    sources, targets = corpus(50, 40)
    lexicon = learn_lexicon(sources[:25], targets[:25], SIZES)
    monkeypatch.setattr(hmm, "MAX_POSTERIOR_CELLS", 1000)
    found = {n: links for n, *links in lexicon.posteriors(sources, targets)}
    monkeypatch.setattr(native, "MAX_SET_WORDS", 1)
    wanted = {n: links for n, *links in lexicon.posteriors(sources, targets)}
    assert found.keys() == wanted.keys()
    for n, links in found.items():
        for one, two in zip(links, wanted[n], strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-6)


def test_results_do_not_depend_on_the_number_of_threads():
    sources, targets = corpus(400, 30)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(learn_lexicon(sources, targets, SIZES))
    finally:
        torch.set_num_threads(threads)
    one, two = results
    np.testing.assert_array_equal(one.pairs, two.pairs)
    for first, second in zip((*one.forward, *one.backward), (*two.forward, *two.backward), strict=True):
        np.testing.assert_array_equal(first, second)


def test_sentences_have_the_tokens_of_their_chunks():
    rows = [np.array(row, dtype=np.int64) for row in ([3, 1, 3], [], [0])]
    sentences = Sentences.from_ids(rows)
    assert [row.tolist() for row in sentences] == [[3, 1, 3], [], [0]]
    assert sentences.lengths().tolist() == [3, 0, 1]
