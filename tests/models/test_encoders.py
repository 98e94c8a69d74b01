"""The encoders against the papers, padding or not."""

import numpy as np
import pytest
import torch

from rnnsearch.config import encoders
from rnnsearch.models.cells import CELLS
from rnnsearch.models.encoders import ENCODERS
from rnnsearch.tensors import lengths_mask

LENGTHS = [2, 5, 1]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("name", "both_ways"), [("unidirectional", False), ("bidirectional", True)])
def test_annotations_and_summary(name, both_ways, cell, paper, drawn, numbers):
    encoder, p = drawn(ENCODERS[name](CELLS[cell], 3, 4))
    x, mask = numbers(3, 5, 3), lengths_mask(torch.tensor(LENGTHS), 5)
    annotations, same_mask, summary, finals, origin = encoder(x, mask)
    assert same_mask is mask
    assert origin is None
    assert [(type(state), state.h.shape[1]) for state in finals] == list(encoder.shapes)
    assert annotations.shape == (3, 5, encoder.annotation_size)
    assert summary.shape == (3, encoder.summary_size)
    for b, length in enumerate(LENGTHS):
        # Both directions' last states side by side: that of the last position, that of the first.
        ends = [annotations[b, length - 1, :4], *([annotations[b, 0, 4:]] if both_ways else [])]
        torch.testing.assert_close(finals[0].h[b], torch.cat(ends))
        expected, first = paper.encode(cell, p, x[b, :length].numpy(), 4, both_ways)
        np.testing.assert_allclose(annotations[b, :length].detach().numpy(), expected, atol=1e-12)
        np.testing.assert_allclose(summary[b].detach().numpy(), first, atol=1e-12)


def test_only_an_encoder_that_has_read_everything_gives_one_vector():
    assert {name: kind.one_vector for name, kind in encoders.ENCODERS.items()} == {
        "bidirectional": False,
        "unidirectional": True,
        "stacked": True,
        "pyramid": False,
    }
