"""Every legal combination builds, learns and translates; every illegal one is refused with its reason."""

import math
from itertools import product

import pytest
import torch

from rnnsearch.models.attention.features import FEATURES
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.build import check
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.table import DECODERS
from rnnsearch.models.draws import Draws
from rnnsearch.models.encoders import ENCODERS
from rnnsearch.objectives.build import check as check_objective
from rnnsearch.objectives.build import penalties
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.search.beam import beam
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import make_sources
from rnnsearch.search.greedy import greedy
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.systems.build import build

REASONS = (
    "model.attention: has no effect with the",
    "model.attention: must be given for the",
    "model.attention.features: enter the score's hidden layer, which the",
    "model.attention.score: must have one head with the",
    "model.attention.window: must be global, local-m with the",
    'model.decoder.bridge: "copy" needs',
    'model.decoder.bridge: "zero" would leave the',
    "model.decoder.bridge: has no effect with the",
    "model.decoder.bridge: must be given for the",
    "model.decoder.cell: has no effect with the",
    "model.decoder.cell: must be given for the",
    "model.decoder.residual_from: has no effect with the",
    "model.encoder.direction: must be forward or bottom for the",
    "model.encoder.type: must be unidirectional, stacked for the",
    "model.lexical: has no effect with the",
)


ATTENDING = {"bahdanau", "bahdanau-tanh", "cgru", "deep-transition", "bideep", "memory"}
BRIDGED = {"luong", "luong-input-feeding", "neubig", "rnmt-plus"}
"""These attend, too."""
WITHOUT = {"rnnencdec", "cho", "sutskever"}
RESIDUAL = {*BRIDGED, "sutskever", "bideep"}
LSTMS = {"lstm", "layer-norm-lstm", "gate-norm-lstm"}
WITH_HIDDEN_LAYER = {"additive", "concat", "multi-head-additive"}


def right(model) -> bool:
    """Written out beside `check`, from the papers and from no class: attention and its parts where the decoder attends,
    a cell and a bridge where it has one, one vector of the whole sentence where nothing else tells it of the source."""
    decoder, options = model.decoder.type, model.decoder
    assert decoder in ATTENDING | BRIDGED | WITHOUT
    attends = decoder not in WITHOUT
    right_options = (
        (options.cell is not None) == (decoder != "cho")
        and (options.bridge is not None) == (decoder in BRIDGED | {"sutskever"})
        and (options.residual_from is None or decoder in RESIDUAL)
    )
    right_attention = (model.attention is not None) == attends >= model.lexical and right_parts(model.attention)
    right_bridge = (options.bridge != "zero" or attends) and (options.bridge != "copy" or right_copy(model))
    one_vector = model.encoder.type in {"unidirectional", "stacked"} and model.encoder.direction != "both"
    told = attends or options.bridge is not None or one_vector
    return right_options and right_attention and right_bridge and told


def right_parts(attention) -> bool:
    if attention is None:
        return True
    hard = attention.normaliser == "hard"
    right_hard = not hard or (attention.window != "local-p" and attention.score != "multi-head-additive")
    return right_hard and (attention.score in WITH_HIDDEN_LAYER or not attention.features)


def right_copy(model) -> bool:
    """As many layers of one size and one kind of state; the sizes here are made to fit wherever they can."""
    same_kind = (model.encoder.cell in LSTMS) == (model.decoder.cell in LSTMS)
    return same_kind and model.encoder.layers == model.decoder.layers and model.encoder.direction != "bottom"


def test_what_is_legal(choices):
    expected = {name for name, config in choices["all"].items() if right(config.model)}
    assert choices["legal"].keys() == expected
    assert choices["whole"].keys() < expected < choices["all"].keys()


def test_illegal_combinations_are_refused_with_reasons(choices):
    met = set()
    for name in choices["all"].keys() - choices["legal"].keys():
        faults = check(choices["all"][name])
        assert faults, name
        for fault in faults:
            assert fault.startswith(REASONS), fault
            met |= {reason for reason in REASONS if fault.startswith(reason)}
    assert met == set(REASONS)


def test_the_set_covers_every_class_beside_every_decoder(choices):
    found = {kind: set() for kind in ("encoder", "cell", "encoder cell", "score", "window", "normaliser", "feature")}
    for config in choices["whole"].values():
        model, attention = config.model, config.model.attention
        name = model.decoder.type
        found["encoder"].add((name, model.encoder.type))
        found["encoder cell"].add((name, model.encoder.cell))
        found["cell"] |= {(name, model.decoder.cell)} if model.decoder.cell else set()
        for kind in ("score", "window", "normaliser") if attention else ():
            found[kind].add((name, getattr(attention, kind)))
        found["feature"] |= {(name, feature) for feature in (attention.features if attention else ())}
    attending = [name for name, kind in DECODERS.items() if kind.attends]
    free = [name for name, kind in DECODERS.items() if kind.attends or "bridge" in kind.options]
    assert found == {
        "encoder": {(d, e) for d, e in product(DECODERS, ENCODERS) if d in free or ENCODERS[e].one_vector},
        "cell": {(d, c) for d, c in product(DECODERS, CELLS) if "cell" in DECODERS[d].options},
        "encoder cell": set(product(DECODERS, CELLS)),
        "score": set(product(attending, SCORES)),
        "window": set(product(attending, WINDOWS)),
        "normaliser": set(product(attending, NORMALISERS)),
        "feature": set(product(attending, FEATURES)),
    }


def test_builds_learns_and_translates(whole, batch, pairs):
    assert not check_objective(whole)
    model = build(whole.model, 12, 12, seed=1, objective=whole.objective)
    objective = likelihood(0.1, penalties(whole.objective))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.005)
    before = objective(model, batch, None).nll.item()
    after = math.inf
    for update in range(10):
        optimiser.zero_grad()
        objective(model, batch, Draws(update)).total.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimiser.step()
        after = objective(model, batch, None).nll.item()
        assert math.isfinite(after)
        if update > 0 and after < before:
            break
    assert after < before
    sources = make_sources([source for source, _ in pairs], torch.device("cpu"))
    options = SearchOptions(beam=3, n_best=2, max_extra=2, max_ratio=1.0)
    for found in (greedy(ModelScorer(model), sources, options), beam(ModelScorer(model), sources, options)):
        assert len(found) == len(pairs)
        for hypotheses in found:
            assert hypotheses
            assert all(math.isfinite(h.score) and max(h.ids, default=0) < 12 for h in hypotheses)
            assert all(bool(h.attention) == DECODERS[whole.model.decoder.type].attends for h in hypotheses)


def test_another_seed_is_another_model(system):
    one, same, other = (dict(build(system.model, 12, 12, seed=s).named_parameters()) for s in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    # What is not drawn has one value throughout: biases 0, the gains of layer normalisation 1.
    assert all(torch.equal(one[name], other[name]) == bool(one[name].min() == one[name].max()) for name in one)


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_says_whether_it_attends(name, choices):
    attending = {
        config.model.attention is not None for config in choices["legal"].values() if name == config.model.decoder.type
    }
    assert attending == {DECODERS[name].attends}
