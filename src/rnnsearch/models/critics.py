"""Critics: the critic of actor-critic training with its delayed copies, and those of an actor and of an agent.

`systems/translation.py` (`build`) adds them to `model.auxiliary`. Their parameters are in checkpoints and model folders
under `auxiliary`, but no translation reads them. Tests: tests/objectives/sequence/test_actor_critic.py and
test_greedy_actor.py.

Axes: B sentences, K hypotheses per sentence, N = B * K rows, I target positions, M tokens of all rows, V vocabulary,
Z state and context.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rnnsearch.config import ModelConfig
from rnnsearch.config.sequence import ActorCriticOptions, GreedyActorOptions, ReadWriteOptions, SequenceConfig
from rnnsearch.data.batch import Stream
from rnnsearch.models.agent import AgentBaseline
from rnnsearch.models.cells import GRU
from rnnsearch.models.layers import Linear, set_role
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import CharacterCounts, SourceSize, TranslationModel
from rnnsearch.utils.tensors import at_least_fp32

REFERENCE = "reference"
"""Name of the critic's source stream."""


class Critic(nn.Module):
    """Q(a; y_1..y_{t-1}), the reward to expect from token a on, for every a (Bahdanau et al. 2017, section 3).

    An RNNsearch whose source is the reference, encoded by a bidirectional GRU, and whose decoder reads the generated
    tokens. Its output layer returns values instead of logits. All values are 0 at first, also those of tokens that are
    never sampled.
    """

    def __init__(self, size: int, vocabulary: int) -> None:
        super().__init__()
        self.network = TranslationModel(_network_config(size), vocabulary, vocabulary)
        output = self.network.output
        assert isinstance(output, Output)
        set_role(output.weight, 0.0)

    def forward(
        self, reference: Stream, previous: Int[Tensor, "N I"], positions: Int[Tensor, "M"]
    ) -> Float[Tensor, "M V"]:
        """Return the values of all tokens at some positions of N = B * K translations, in fp32 or wider.

        Args:
            reference: References of B sentences.
            previous: The token before each position, BOS first.
            positions: Indices in [N * I].
        """
        memories = self.network.encode({REFERENCE: reference})
        readout = self.network.unroll(previous, memories).readout.flatten(0, 1)  # [N * I, R]
        values: Tensor = self.network.output.logits(readout.index_select(0, positions))
        return at_least_fp32(values)


def _network_config(size: int) -> ModelConfig:
    return ModelConfig.model_validate(
        {
            "embedding": size,
            "encoder": {"type": "bidirectional", "cell": "gru", "size": size},
            "attention": {"score": "additive", "size": size},
            "decoder": {"type": "bahdanau", "cell": "gru", "size": size, "maxout": size},
        }
    )


class StateCritic(nn.Module):
    """C(z), the reward to expect from the states and contexts z of a translation: w^T h_I + b of a GRU over z.

    (Gu, Cho & Li 2017, section 3.2.)
    """

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.cell = GRU(inputs, size)
        self.value = Linear(size, 1, role=0.0)

    def forward(self, z: Float[Tensor, "N I Z"], mask: Bool[Tensor, "N I"]) -> Float[Tensor, "N"]:
        """Return the values in fp32 or wider."""
        _, last = self.cell.sequence(z, mask)
        return at_least_fp32(self.value(last.h)).squeeze(-1)


class ActorCriticNetworks(nn.Module):
    """The critic, the target critic and the delayed actor, a copy of the translation model.

    The copies are parameters without gradients, so that checkpoints include them.
    """

    def __init__(self, options: ActorCriticOptions, delayed_actor: TranslationModel) -> None:
        """Create the networks.

        Args:
            options: Options of the objective.
            delayed_actor: A model like the one that is trained, without auxiliary modules.
        """
        super().__init__()
        vocabulary = delayed_actor.output.vocabulary
        self.critic = Critic(options.critic_size, vocabulary)
        self.target_critic = Critic(options.critic_size, vocabulary).requires_grad_(False)
        self.delayed_actor = delayed_actor.requires_grad_(False)


def add_critic(
    model: TranslationModel, options: SequenceConfig, source: SourceSize, characters: CharacterCounts
) -> None:
    """Add the critic that a sequence objective needs to a model's auxiliary modules, if it needs one.

    Args:
        model: The model.
        options: Options of the objective.
        source: Number of source tokens.
        characters: Sizes of the character inventories.
    """
    if isinstance(options, ActorCriticOptions):
        assert model.auxiliary is not None
        delayed_actor = TranslationModel(model.config, source, model.output.vocabulary, None, characters)
        model.auxiliary.actor_critic = ActorCriticNetworks(options, delayed_actor)
    elif isinstance(options, GreedyActorOptions):
        assert model.auxiliary is not None
        context_size = model.config.decoder.attended_size(model.encoder.annotation_size)
        model.auxiliary.state_critic = StateCritic(model.decoder.state_size + context_size, options.critic_size)
    elif isinstance(options, ReadWriteOptions):
        assert model.auxiliary is not None and model.agent is not None
        baseline = AgentBaseline(model.agent.observation_size, options.baseline_size, options.moments_decay)
        model.auxiliary.agent_baseline = baseline


def actor_critic_networks(model: TranslationModel) -> ActorCriticNetworks:
    """Return the critic of actor-critic training and the delayed copies."""
    assert model.auxiliary is not None
    networks = model.auxiliary.actor_critic
    assert isinstance(networks, ActorCriticNetworks)
    return networks


def state_critic(model: TranslationModel) -> StateCritic:
    """Return the critic of a model's actor."""
    assert model.auxiliary is not None
    critic = model.auxiliary.state_critic
    assert isinstance(critic, StateCritic)
    return critic


def agent_baseline(model: TranslationModel) -> AgentBaseline:
    """Return the baseline of a model's agent."""
    assert model.auxiliary is not None
    baseline = model.auxiliary.agent_baseline
    assert isinstance(baseline, AgentBaseline)
    return baseline


def trained_critic(model: TranslationModel) -> Critic | StateCritic:
    """Return the critic that a sequence objective trains next to the model."""
    return actor_critic_networks(model).critic if model.actor is None else state_critic(model)


@torch.no_grad()
def interpolate(delayed: nn.Module, current: nn.Module, rate: float) -> None:
    """Set each parameter of `delayed` to rate * current + (1 - rate) * delayed; 1 copies them exactly."""
    values: Mapping[str, Tensor] = dict(current.named_parameters())
    for name, parameter in delayed.named_parameters():
        # In place: the parameter has no gradient, so that no optimiser updates it.
        parameter.lerp_(values[name].detach(), rate)
