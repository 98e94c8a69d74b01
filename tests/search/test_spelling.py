"""Search finds the best of all segmentations of text that must follow a prefix."""

from dataclasses import replace

import pytest
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.beam import beam_search, greedy_search, greedy_stream
from rnnsearch.search.decode import decode_all, make_sources
from rnnsearch.search.hypothesis import BLOCKED
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.prefixes import ForcedBytes

CPU = torch.device("cpu")
SIZES = torch.tensor([0, 0, 0, 0, 1, 1, 2, 3, 4])
"""Sizes of the tokens; 4 to 8 are a, b, ab, abc and abcd."""
AB = ((4, 6, 7, 8), (5,))
WAYS = [(4, 5), (6,), (7,), (8,)]
"""All segmentations that start with `ab`."""


def test_best_segmentation_of_the_prefix_is_found(toy, sentences):
    for seed in range(3):
        sources = make_sources(sentences, CPU)
        options = SearchOptions(beam=60, length_penalty=0.0, max_ratio=0.5, max_extra=2)
        ways = [beam_search(toy(seed=seed), sources, replace(options, prefix=(way,) * len(sentences))) for way in WAYS]
        spelling = ForcedBytes((AB,) * len(sentences), SIZES)
        found = beam_search(toy(seed=seed), sources, replace(options, forced_bytes=spelling))
        for n, [best] in enumerate(found):
            expected = max((way[n][0] for way in ways), key=lambda h: h.score)
            assert best.ids == expected.ids
            assert best.score == pytest.approx(expected.score, rel=1e-5)


@pytest.mark.parametrize("width", [1, 4])
def test_prefix_segmentations_are_per_sentence(toy, sentences, width):
    rests = (AB, (), AB, (), AB, ())
    prefix = ((8, 8), (8,), (), (), (5,), (5, 5, 5))
    options = SearchOptions(
        beam=width, prefix=prefix, forced_bytes=ForcedBytes(rests, SIZES), max_ratio=0.0, max_extra=0
    )
    together = decode_all(toy(seed=1), sentences, options, batch_sentences=4)
    for n, ids in enumerate(sentences):
        alone = replace(options, prefix=(prefix[n],), forced_bytes=ForcedBytes((rests[n],), SIZES))
        [[best]] = decode_all(toy(seed=1), [ids], alone)
        assert together[n][0].ids == best.ids
        assert best.ids[: len(prefix[n])] == prefix[n]
        after = best.ids[len(prefix[n]) :]
        assert not rests[n] or any(after[: len(way)] == way for way in WAYS), (
            "the limit leaves capacity for the whole text"
        )


def test_unrepresentable_prefixes_are_rejected(toy, sentences):
    sources = make_sources(sentences[:1], CPU)
    assert greedy_search(toy(), sources, SearchOptions(forced_bytes=ForcedBytes((((),),), SIZES))) == [[BLOCKED]]
    with pytest.raises(RnnsearchError, match=r"forced_bytes must have one entry per sentence \(1\); got 2"):
        beam_search(toy(), sources, SearchOptions(forced_bytes=ForcedBytes(((), ()), SIZES)))


@pytest.mark.parametrize("options", [SearchOptions(beam=1), SearchOptions(beam=1, max_ratio=0.0, max_extra=3)])
def test_stream_equals_greedy_search(toy, sentences, options):
    for seed in range(4):
        for ids in sentences:
            sources = make_sources([ids], CPU)
            for end in (-6.0, 0.0):
                [[expected]] = greedy_search(toy(seed=seed, end=end), sources, options)
                steps = greedy_stream(toy(seed=seed, end=end), sources, options)
                seen = []
                while True:
                    try:
                        seen.append(next(steps))
                    except StopIteration as stopped:
                        whole = stopped.value
                        break
                assert whole == expected
                assert seen == [expected.ids[: n + 1] for n in range(len(expected.ids))]
