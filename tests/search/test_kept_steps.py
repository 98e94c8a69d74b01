"""Search steps are stored in few blocks for any shapes and types."""

import pytest
import torch

from rnnsearch.search.backtrace import BLOCK_BYTES, StepStorage
from rnnsearch.search.beam import BeamSearch
from rnnsearch.search.decode import make_sources
from rnnsearch.search.options import SearchOptions
from rnnsearch.utils.tensors import leaves

CPU = torch.device("cpu")


def blocks(tensors: list[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


@pytest.mark.parametrize("width", [1, 4])
def test_stored_steps_share_one_block(toy, sentences, width):
    options = SearchOptions(beam=width, max_ratio=3.0, coverage_penalty=0.3)
    kept = leaves(tuple(BeamSearch(toy(seed=5), make_sources(sentences, CPU), options).steps()))
    assert len(kept) > 30
    assert len(blocks(kept)) == 1


def test_stored_copies_equal_their_tensors_without_overlap():
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randn(4, 5, generator=generator)
    steps = [
        {"whole": numbers, "part": numbers[1:, ::2], "one for all": numbers[:, :1].expand(4, 3)},
        (numbers > 0, numbers[:0], torch.arange(7), numbers.bfloat16(), numbers.double(), torch.tensor(2.5)),
        {"larger than a block": torch.randn(BLOCK_BYTES // 4 + 1, generator=generator)},
        {"after it": numbers + 1},
    ]
    expected = [[leaf.clone() for leaf in leaves(step)] for step in steps]
    room = StepStorage()
    kept = [room.store(step) for step in steps]
    numbers.zero_()
    for step, values in zip(kept, expected, strict=True):
        for tensor, value in zip(leaves(step), values, strict=True):
            assert tensor.dtype == value.dtype
            torch.testing.assert_close(tensor, value, rtol=0, atol=0)
    assert len(blocks([*leaves(kept[0]), *leaves(kept[1])])) == 1


def test_non_tensors_are_unchanged():
    assert StepStorage().store((None, 3, {"a": "b"})) == (None, 3, {"a": "b"})
