"""Every parameter of every system is initialised once, according to its role."""

import math
import re

import pytest
import torch
from torch import nn

from rnnsearch.config import ModelConfig, ObjectiveConfig
from rnnsearch.config.outputs import GlorotOptions
from rnnsearch.models.composition import COMPOSITIONS
from rnnsearch.models.fusion import FUSIONS
from rnnsearch.models.layers import Init, generator, initialise
from rnnsearch.models.translation_model import CharacterCounts
from rnnsearch.systems.translation import build

IS = [
    (r"\.score\.((query|key|first|filter)\.)?weight$|\.feature_weights\.\d\.weight$", "alignment"),
    (r"\.score\.vector$", "alignment_vector"),
    (r"\.recurrent(_gates)?\.weight$|^decoder\.(fast|down|slow)\.weight$", "recurrent"),
    (r"^language_model\.bias$", -1.0),
    (r"(_|\.)embedding\.weight$|(^|\.)output\.(words\.)?weight$|\.(characters|vectors)$", "embedding"),
    (r"\.gate_bias$", -2.0),
    (r"\.gain$", 1.0),
    (r"\.norm\w*\.(\d\.)?bias$", 0.0),
    (r"^auxiliary\.fertility\.moments\.weight$|^auxiliary\.baseline\.linear\.weight$", 0.0),
    (r"^auxiliary\.(baseline\.(linear\.bias|value)|rationale\.value)$", -math.log(12)),
    (r"\.normaliser\.transitions$", 0.0),
    (r"\.normaliser\.offset$", -1.0),
    (r"^encoder\.choice\.bias$", 2.0),
    (r"^decoder\.noise$", "noise"),
    (r"bias$", "bias"),
]
"""Role of a parameter by its name; all others are weights."""
CODES = {
    "weight": 21.0,
    "embedding": 22.0,
    "bias": 23.0,
    "recurrent": 24.0,
    "alignment": 25.0,
    "alignment_vector": 26.0,
    "noise": 27.0,
}


class Marks(Init):
    """Initialiser that fills each parameter with the number of its role and counts the calls."""

    drawn = 0

    def weight(self, weight):
        self.mark(weight, "weight")

    def embedding(self, weight):
        self.mark(weight, "embedding")

    def bias(self, bias):
        self.mark(bias, "bias")

    def recurrent(self, weight):
        self.mark(weight, "recurrent")

    def alignment(self, weight):
        self.mark(weight, "alignment")

    def alignment_vector(self, vector):
        self.mark(vector, "alignment_vector")

    def noise(self, weight):
        self.mark(weight, "noise")

    def mark(self, tensor, role):
        assert tensor.ndim == 2
        tensor.fill_(CODES[role])
        self.drawn += 1


def assert_drawn(model):
    init = Marks(GlorotOptions(), generator(1))
    for own in model.parameters():
        own.data.fill_(math.nan)
    initialise(model, init)
    constant = 0
    for name, own in model.named_parameters():
        role = next((role for pattern, role in IS if re.search(pattern, name)), "weight")
        constant += not isinstance(role, str)
        assert torch.allclose(own, torch.tensor(float(CODES.get(role, role)))), (name, role)
    assert init.drawn + constant == len(list(model.parameters()))


def test_roles_of_every_combination(whole):
    assert_drawn(build(whole.model, 12, 12, seed=None, objective=whole.objective))


def test_roles_of_objective_parameters(choices):
    config = choices["whole"][next(iter(choices["whole"]))]
    for baseline in ({"baseline": "average", "decay": 0.9}, {"baseline": "learned"}):
        objective = ObjectiveConfig.model_validate({"fertility": {"size": 3}, "reinforce": baseline})
        assert_drawn(build(config.model, 12, 12, seed=None, objective=objective))


def test_tied_table_is_initialised_once(choices):
    config = choices["whole"]["bahdanau gru bidirectional gru additive global softmax"]
    decoder = config.model.decoder.model_copy(update={"maxout": config.model.embedding})
    model = config.model.model_copy(update={"tie": "all", "decoder": decoder})
    assert_drawn(build(model, 12, 12, seed=None))


def test_parameter_without_role_is_rejected(choices):
    model = build(next(iter(choices["whole"].values())).model, 12, 12, seed=None)
    model.decoder.more = nn.Linear(2, 3)
    with pytest.raises(AssertionError, match=r"decoder\.more\.weight has no role"):
        initialise(model, Marks(GlorotOptions(), generator(1)))


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_roles_of_character_parameters(composition, plainest):
    config = plainest("bahdanau", None)
    tables = {"source_characters": {"type": composition}, "target_characters": {"size": 5}}
    model = ModelConfig.model_validate(config.model.model_dump() | tables)
    assert_drawn(build(model, 12, 12, seed=1, characters=CharacterCounts(9, 9)))


@pytest.mark.parametrize("fusion", FUSIONS)
def test_roles_of_fused_language_model(fusion, plainest):
    inside = {"kind": "language-model", "embedding": 3, "network": {"type": "recurrent", "cell": "gru", "size": 4}}
    tables = {"language_model": {"type": fusion, "folder": "x", "model": inside}}
    model = ModelConfig.model_validate(plainest("luong", None).model.model_dump() | tables)
    assert_drawn(build(model, 12, 12, seed=1))


def test_roles_of_pointer_parameters(plainest):
    model = ModelConfig.model_validate(
        plainest("bahdanau", None).model.model_dump() | {"pointer": {"size": 5, "layers": 2}}
    )
    assert_drawn(build(model, 12, 12, seed=1))
