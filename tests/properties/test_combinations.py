"""Every valid combination builds, learns and translates; every invalid one is rejected with its reason."""

import math
from itertools import product

import torch

from rnnsearch.models.attention.features import FEATURES
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders import DECODERS
from rnnsearch.models.encoders import ENCODERS
from rnnsearch.objectives import penalties
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.decode import make_sources
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.translation import build
from rnnsearch.systems.validation import check
from tests.properties.legality import BLIND, OWN_CELL, right

REASONS = (
    "model.attention: has no effect with the",
    "model.attention: must be given for the",
    "model.attention.features: need a score with a hidden layer, which the",
    "model.attention.score: must have one head with the",
    "model.attention.window: must be global, local-m, wait-k with the",
    "model.attention.window: must be global, wait-k with the",
    'model.decoder.type = "copynet": cannot be combined with model.attention.window = "wait-k"',
    'model.decoder.type = "copynet": cannot be combined with model.encoder.type = "rationale"',
    'model.decoder.bridge: "annotation" needs decoder cells that carry an output',
    'model.decoder.bridge: "annotation" would hide most of the source from the',
    'model.decoder.bridge: "copy" needs',
    'model.decoder.bridge: "zero" would hide the source from the',
    "model.decoder.bridge: has no effect with the",
    "model.decoder.bridge: must be given for the",
    "model.decoder.cell: has no effect with the",
    "model.decoder.cell: must be given for the",
    "model.decoder.residual_from: has no effect with the",
    "model.dropout.state: has no effect with ssru cells",
    "model.encoder.direction: must be forward or bottom for the",
    "model.encoder.type: must be unidirectional, stacked for the",
    "model.lexical: has no effect with the",
)


def test_rules_accept_valid_combinations_and_reject_others_with_reasons(cover, choices):
    faults = {name: cover.problems(whole) for name, whole in cover.asked.items()}
    legal = {name for name, found in faults.items() if not found}
    assert legal == {name for name, whole in cover.asked.items() if right(whole)}
    assert choices["whole"].keys() < legal < faults.keys()
    said = [fault for found in faults.values() for fault in found]
    assert [fault for fault in said if not fault.startswith(REASONS)] == []
    assert {reason for reason in REASONS if any(fault.startswith(reason) for fault in said)} == set(REASONS)


def test_covering_set_has_every_class_with_every_decoder(choices):
    found = {kind: set() for kind in ("encoder", "cell", "encoder cell", "score", "window", "normaliser", "feature")}
    for config in choices["whole"].values():
        tables = config.model.model_dump()
        decoder, encoder, attention = tables["decoder"], tables["encoder"], tables["attention"] or {}
        found["encoder"].add((decoder["type"], encoder["type"]))
        found["encoder cell"].add((decoder["type"], encoder["cell"]))
        found["cell"] |= {(decoder["type"], decoder["cell"])} if "cell" in decoder else set()
        for kind in ("score", "window", "normaliser") if attention else ():
            found[kind].add((decoder["type"], attention[kind]))
        found["feature"] |= {(decoder["type"], feature) for feature in attention.get("features", ())}
    recurrent = ENCODERS.keys() - {"feedforward", "hierarchical"}  # the second reads documents
    attending, celled = DECODERS.keys() - BLIND, DECODERS.keys() - OWN_CELL
    assert found == {
        "encoder": {(d, e) for d, e in product(DECODERS, recurrent) if d not in {"rnnencdec", "cho"}}
        - {("copynet", "rationale")}
        | set(product(("rnnencdec", "cho"), ("unidirectional", "stacked"))),
        "cell": set(product(celled, CELLS)),
        "encoder cell": set(product(DECODERS, CELLS)),
        "score": set(product(attending, SCORES)),
        "window": set(product(attending, WINDOWS)) - {("copynet", "wait-k")},
        "normaliser": set(product(attending, NORMALISERS)),
        "feature": set(product(attending, FEATURES)),
    }


def test_every_combination_builds_learns_and_translates(whole, batch, pairs):
    assert check(whole) == []
    model = build(whole.model, 12, 12, seed=1, objective=whole.objective)
    objective = Likelihood(0.1, penalties(whole.objective))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.005)
    before = objective(model, batch, None).nll.item()
    after = math.inf
    for update in range(10):
        optimiser.zero_grad()
        objective(model, batch, BatchRng(update)).total.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
        optimiser.step()
        after = objective(model, batch, None).nll.item()
        assert math.isfinite(after)
        if update > 0 and after < before:
            break
    assert after < before
    sources = make_sources([source for source, _ in pairs], torch.device("cpu"))
    options = SearchOptions(beam=3, n_best=2, max_extra=2, max_ratio=1.0)
    for found in (
        greedy_search(ModelScorer(model), sources, options),
        beam_search(ModelScorer(model), sources, options),
    ):
        assert len(found) == len(pairs)
        for hypotheses in found:
            assert hypotheses
            assert all(math.isfinite(h.score) and max(h.ids, default=0) < 12 for h in hypotheses)
            assert all(bool(h.attention) == whole.model.decoder.attends for h in hypotheses)


def test_seed_determines_the_parameters(system):
    one, same, other = (dict(build(system.model, 12, 12, seed=s).named_parameters()) for s in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    # Parameters that are not random are constant: biases are 0, gains of layer normalisation 1.
    assert all(torch.equal(one[name], other[name]) == bool(one[name].min() == one[name].max()) for name in one)
