"""A translation model as a Scorer: what the search says of it is what the model says in training."""

import numpy as np
import pytest
import torch

from rnnsearch.search.decode import forced_all, make_sources
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.text.vocabulary import BOS, EOS

CPU = torch.device("cpu")


def test_forced_scores_and_attention_are_those_of_unroll(model):
    target = [5, 9, 4, 11]
    [found] = forced_all(ModelScorer(model), [[7, 8, 9]], [target])
    source = make_sources([[7, 8, 9]], CPU)["source"]
    with torch.no_grad():
        unrolled = model.unroll(torch.tensor([[BOS, *target]]), model.encode({"source": source}))
        log_probs = model.log_probs(unrolled.readout[0])
    expected = log_probs.gather(1, torch.tensor([[*target, EOS]]).T)[:, 0]
    assert found.token_scores == pytest.approx(expected.tolist(), rel=1e-5)
    np.testing.assert_allclose(found.attention["source"], unrolled.reading.alpha[0].numpy(), atol=1e-5)
