"""Dropout on states, layers and attention, and residual connections, have an effect in every decoder."""

import pytest
import torch

from rnnsearch.config import DropoutConfig
from rnnsearch.config.decoders import StackOptions
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.decoders import DECODERS


def draws_noise(config):
    attention = config.model.attention
    return attention is not None and NORMALISERS[attention.normaliser].component.needs_noise


@pytest.mark.parametrize("name", DECODERS)
def test_every_option_has_an_effect(name, choices, make, batch):
    drops = (config for config in choices["whole"].values() if not draws_noise(config))
    config = next(config for config in drops if config.model.decoder.type == name)
    decoder = config.model.decoder
    layered, own = decoder.depth > 1, type(decoder).option_fields()

    def readout(more=None, **dropout):
        changed = {"decoder": decoder.model_copy(update=more or {}), "dropout": DropoutConfig(**dropout)}
        model = make(config.model_copy(update={"model": config.model.model_copy(update=changed)}))
        return model.unroll(batch.target.previous(), model.encode(batch.sources), BatchRng(1)).readout

    plain = readout()
    assert torch.equal(readout(), plain)
    assert not torch.allclose(readout(state=0.5), plain)
    assert torch.allclose(readout(layers=0.5), plain) != layered
    assert torch.allclose(readout(layer_outputs=0.5), plain) != isinstance(decoder, StackOptions)
    assert torch.allclose(readout(attention=0.5), plain) != DECODERS[name].component.attends
    if "residual_from" in own:
        first = 2 if decoder.residual_from is None else None
        assert not torch.allclose(readout({"residual_from": first}), plain)
