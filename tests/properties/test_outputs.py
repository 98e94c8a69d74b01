"""Class-based output layers in whole systems: search, forced scores, candidate lists and model folders."""

import numpy as np
import pytest
import torch

from rnnsearch.config import ModelConfig
from rnnsearch.data.batches import make_batch
from rnnsearch.data.word_classes import huffman_parents
from rnnsearch.models.class_outputs import OUTPUTS
from rnnsearch.models.decoders import DECODERS
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.search.decode import decode_all, force_decode_all
from rnnsearch.search.model_scorer import ModelScorer, fastest_scorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import MEAN_LOG_PROB
from rnnsearch.systems.translation import build
from rnnsearch.utils.weights import load_weights, named_weights, save_weights
from tests.properties import conftest
from tests.properties.conftest import SYMBOLS

OPTIONS = {"hierarchical": {"classes": 4}, "tree": {}, "adaptive": {"cutoffs": [5, 8], "factor": 2.0}}
SOURCES, TARGETS = [[5, 6, 7], [9], [10, 4]], [[4, 5], [6, 7, 8, 9], []]
SEARCH = SearchOptions(beam=3, max_ratio=1.0, max_extra=3)


@pytest.fixture(params=OPTIONS)
def lively(request, plainest):
    """Return a function that builds a model with this output layer and random weights."""

    def made(decoder):
        config = plainest(decoder, None)
        output = {"output": {"type": request.param, **OPTIONS[request.param]}}
        options = ModelConfig.model_validate(config.model.model_dump() | output)
        model = conftest.lively(build(options, SYMBOLS, SYMBOLS, 1, config.objective).eval())
        if request.param == "hierarchical":
            model.output.assign_classes(torch.arange(SYMBOLS) % 3)
        if request.param == "tree":
            model.output.assign_parents(torch.from_numpy(huffman_parents(2 ** np.arange(SYMBOLS))))
        return model

    return made


def test_every_output_layer_is_tested():
    assert OPTIONS.keys() | {"softmax"} == set(OUTPUTS)  # the softmax is the output of the tests by decoder


@pytest.mark.parametrize("decoder", [name for name in DECODERS if name != "copynet"])  # CopyNet has its own output
def test_losses_equal_search_scores(decoder, lively):
    model = lively(decoder)
    nll = Likelihood().loss_and_pass(model, make_batch(list(zip(SOURCES, TARGETS, strict=True)), range(3)), None)[1].nll
    for scorer in (ModelScorer(model), fastest_scorer(model, "fp32").scorer):
        found = force_decode_all(scorer, SOURCES, TARGETS, MEAN_LOG_PROB)
        for one, expected in zip(found, nll.sum(1).tolist(), strict=True):
            assert one.log_prob == pytest.approx(-expected, abs=1e-3)


@pytest.mark.parametrize("decoder", ["bahdanau", "luong", "sutskever"])
def test_beam_scores_equal_forced_scores_with_and_without_candidates(decoder, lively):
    model = lively(decoder)
    scorer = fastest_scorer(model, "fp32").scorer
    found = decode_all(scorer, SOURCES, SEARCH)
    everything = decode_all(scorer, SOURCES, SEARCH, candidates=lambda _: torch.arange(SYMBOLS))
    for source, beam, other in zip(SOURCES, found, everything, strict=True):
        assert [one.ids for one in beam] == [one.ids for one in other]
        for one in (one for one in beam if one.finished):
            forced = force_decode_all(ModelScorer(model), [source], [one.ids], MEAN_LOG_PROB)[0]
            assert one.log_prob == pytest.approx(forced.log_prob, abs=1e-3)
    some = decode_all(scorer, SOURCES, SEARCH, candidates=lambda _: torch.tensor([2, 3, 4, 6, 9]))
    assert {id for beam in some for one in beam for id in one.ids} <= {4, 6, 9}


def test_weights_file_stores_the_classes(lively, tmp_path):
    model, other = lively("bahdanau"), lively("bahdanau")
    if "output.classes" in named_weights(model):
        other.output.assign_classes(torch.zeros(SYMBOLS, dtype=torch.int64))
    if "output.parents" in named_weights(model):
        other.output.assign_parents(torch.from_numpy(huffman_parents(np.ones(SYMBOLS, np.int64))))
    save_weights(tmp_path / "w", named_weights(model))
    load_weights(tmp_path / "w", other)
    t = torch.randn(2, model.decoder.readout_size)
    torch.testing.assert_close(other.output.log_probs(t), model.output.log_probs(t))
