"""A zero BOS embedding is zero and has no gradient."""

import torch

from rnnsearch.data.batch import EmbeddingInput
from rnnsearch.models.layers import Embedding
from rnnsearch.text.vocabulary import BOS


def test_zero_bos_embedding_is_zero_without_gradient(drawn):
    table, p = drawn(Embedding(7, 3, zero_bos=True))
    ids = torch.tensor([[BOS, 5]])
    x = table(EmbeddingInput(ids))
    assert not x[0, 0].any()
    assert torch.equal(x[0, 1], torch.from_numpy(p["weight"])[5])
    x.sum().backward()
    assert not table.weight.grad[BOS].any()
    assert table.weight.grad[5].all()
