"""`[objective.sequence]` of a run file: training on translations that the model itself generates.

Implemented in `objectives/sequence`, with parameters in `models/auxiliary.py`. Names and options are stored in model
folders: never rename them. docs/configuration.md is generated from the docstrings. Tests: tests/objectives/sequence.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from rnnsearch.config.options import Count, Family, Fraction, NonNegative, OneOf, Options, Positive, Size, raise_problem


def _require_function_name(name: str) -> str:
    if not re.fullmatch(FUNCTION, name):
        raise ValueError('must be "module:name"')
    return name


class RewardOptions(Options):
    """`[objective.sequence.reward]`: the score of a translation against the reference, which training raises.

    Without this table, it is `bleu`.
    """

    type: str
    """Score, see below."""


FUNCTION = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
"""Pattern of the name of a function: `module:name`."""
REWARDS = Family[RewardOptions]("reward")


@REWARDS.register
class BleuRewardOptions(RewardOptions):
    """Smoothed BLEU of the sentence, between 0 and 1: 1 is added to the counts of all n-grams but single words
    (Lin & Och 2004).
    """

    type: Literal["bleu"] = "bleu"


@REWARDS.register
class ChrfRewardOptions(RewardOptions):
    """chrF2 of the sentence, between 0 and 1 (Popović 2015, 2017)."""

    type: Literal["chrf"] = "chrf"


@REWARDS.register
class TerRewardOptions(RewardOptions):
    """1 - TER of the sentence (Snover et al. 2006), or 0 if TER is above 1."""

    type: Literal["ter"] = "ter"


@REWARDS.register
class FunctionRewardOptions(RewardOptions):
    """A Python function `name(hypothesis, reference)` of two texts that returns a finite number, the higher the better.

    Several processes import its module, which must be installed or in a folder of `PYTHONPATH`.
    """

    type: Literal["function"] = "function"
    function: Annotated[str, AfterValidator(_require_function_name)]
    """Name of the function, as `module:name`."""


class SequenceConfig(Options):
    """`[objective.sequence]`: training on the model's translations instead of the references only.

    Begin from a trained model (`training.begin_from`), because random translations teach little.
    """

    type: str
    """Method, see below."""
    likelihood: NonNegative = 0.0
    """Weight of the negative log-likelihood of the references, with the other terms of `[objective]`, in addition to
    the method's loss. With 0, that loss is computed only for reports."""
    uses_reward: ClassVar[bool] = False
    """True if translations are scored by `reward`."""
    includes_likelihood: ClassVar[bool] = False
    """True if the method's loss is, in part, the likelihood of the references."""
    normalised: ClassVar[bool] = True
    """False if the model's scores of tokens are no log-probabilities."""
    generates: ClassVar[bool] = True
    """True if the loss is that of translations which the model generates from each source."""

    @property
    def needs_trained_model(self) -> bool:
        """True if nothing but the model's translations is trained on from the start."""
        return self.generates and self.likelihood == 0


class RewardConfig(SequenceConfig):
    """Declaration of a method that scores translations by a reward."""

    uses_reward: ClassVar[bool] = True
    reward: Annotated[RewardOptions, OneOf(REWARDS)] = BleuRewardOptions()
    """Score of a translation, see below."""


class CriticConfig(RewardConfig):
    """Declaration of a method with a critic, a network that predicts rewards."""

    critic_size: Size = 256
    """Size of the critic's layers and embeddings."""
    critic_updates: Count = 1000
    """Number of updates at the start that train only the critic; an untrained critic destroys the model."""
    critic_learning_rate: Positive = 10.0
    """Factor of the learning rate for the critic."""


SEQUENCES = Family[SequenceConfig]("sequence objective")


@SEQUENCES.register
class MinimumRiskOptions(RewardConfig):
    """Minimum risk training: lowers the expected risk, 1 - reward, over a set of translations (Shen et al. 2016).

    The set has the reference and `samples` translations; equal ones count once.
    """

    type: Literal["mrt"] = "mrt"
    samples: Size = 20
    """Number of generated translations per sentence (Shen et al. 2016 use 100)."""
    alpha: Positive = 5e-3
    """Exponent of the probabilities: the distribution over the set is proportional to p(y | x)^alpha."""
    candidates: Literal["samples", "n-best"] = "samples"
    """Source of the translations: sampling, or a beam search of this width."""


class DecayOptions(Options):
    """`[objective.sequence.decay]`: the probability that the decoder reads the reference's token, by update.

    The schedules are those of Bengio et al. (2015, section 2.4); updates are counted from 1 in each run.
    """

    type: str
    """Schedule, see below."""


DECAYS = Family[DecayOptions]("decay")
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


@DECAYS.register
class LinearDecayOptions(DecayOptions):
    """max(minimum, start - c i) at update i, where c is such that the minimum is reached at update `updates`."""

    type: Literal["linear"] = "linear"
    start: Probability = 1.0
    """Probability before the first update (k in the paper)."""
    minimum: Probability = 0.75
    """Lower limit (epsilon in the paper); at most `start`."""
    updates: Size = 10_000
    """Updates until the minimum."""

    @model_validator(mode="after")
    def _validate(self) -> LinearDecayOptions:
        if self.minimum > self.start:
            raise_problem("minimum", f"must be at most `start` ({self.start:g}); got {self.minimum:g}")
        return self


@DECAYS.register
class ExponentialDecayOptions(DecayOptions):
    """base^i at update i."""

    type: Literal["exponential"] = "exponential"
    base: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.9999
    """k in the paper."""


@DECAYS.register
class InverseSigmoidDecayOptions(DecayOptions):
    """k / (k + exp(i / k)) at update i: close to 1 at first, 1/2 at update k log k, then close to 0."""

    type: Literal["inverse-sigmoid"] = "inverse-sigmoid"
    k: Annotated[float, Field(ge=1.0)] = 2000.0
    """A higher value decays later and more slowly."""


@SEQUENCES.register
class ScheduledSamplingOptions(SequenceConfig):
    """Scheduled sampling: the decoder reads some of the model's tokens instead of the reference's (Bengio et al. 2015).

    The loss is the negative log-likelihood of the references given these inputs, with the dropout, the label smoothing
    and the other terms of `[objective]`; so is the training NLL in the log. `likelihood` adds that of the usual inputs.
    """

    includes_likelihood: ClassVar[bool] = True
    generates: ClassVar[bool] = False
    type: Literal["scheduled-sampling"] = "scheduled-sampling"
    decay: Annotated[DecayOptions, OneOf(DECAYS)] = LinearDecayOptions()
    """Probability that the decoder reads the reference's token, see below."""
    per: Literal["token", "sentence"] = "token"
    """Choose between the reference and the model for each `token`, or once for the whole `sentence`."""
    choice: Literal["sample", "argmax"] = "sample"
    """The model's token: sampled from its distribution, or the most probable one."""


class PolicyBaselineOptions(Options):
    """`[objective.sequence.baseline]`: the expected reward, which reduces the variance of the gradient."""

    type: str
    """Baseline, see below."""
    uses_greedy: ClassVar[bool] = False
    """True if greedy translations are scored."""


POLICY_BASELINES = Family[PolicyBaselineOptions]("policy baseline")


@POLICY_BASELINES.register
class AverageRewardOptions(PolicyBaselineOptions):
    """A moving average of the rewards."""

    type: Literal["average"] = "average"
    decay: Fraction = 0.9
    """Decay rate of the moving average per update."""


@POLICY_BASELINES.register
class LearnedRewardOptions(PolicyBaselineOptions):
    """A prediction from the readout at each position, learned by least squares (Ranzato et al. 2016)."""

    type: Literal["learned"] = "learned"


@POLICY_BASELINES.register
class SelfCriticalOptions(PolicyBaselineOptions):
    """The reward of the model's greedy translation (Rennie et al. 2017)."""

    type: Literal["self-critical"] = "self-critical"
    uses_greedy: ClassVar[bool] = True


class PolicyGradientConfig(RewardConfig):
    """Declaration of a method that reinforces sampled translations."""

    samples: Size = 1
    """Number of generated translations per sentence."""
    baseline: Annotated[PolicyBaselineOptions, OneOf(POLICY_BASELINES)] = SelfCriticalOptions()
    """Expected reward, see below."""


@SEQUENCES.register
class ReinforceOptions(PolicyGradientConfig):
    """REINFORCE: sampled translations become more probable if their reward is higher than expected (Williams 1992).

    The default baseline is `self-critical`.
    """

    type: Literal["reinforce"] = "reinforce"


@SEQUENCES.register
class MixerOptions(PolicyGradientConfig):
    """MIXER: cross-entropy for the first words of a translation and REINFORCE for the rest, which grows with the
    epochs (Ranzato et al. 2016).

    The default baseline is `learned`.
    """

    includes_likelihood: ClassVar[bool] = True
    type: Literal["mixer"] = "mixer"
    baseline: Annotated[PolicyBaselineOptions, OneOf(POLICY_BASELINES)] = LearnedRewardOptions()
    """Expected reward, see below."""
    cross_entropy_epochs: NonNegative = 0.0
    """Number of epochs, of all words, before the first step. Zero suits a trained model."""
    epochs_per_step: Positive = 1.0
    """Number of epochs per step."""
    step: Size = 3
    """Number of words, counted from the end of the reference, that REINFORCE takes over in each step."""

    @property
    def needs_trained_model(self) -> bool:
        return super().needs_trained_model and self.cross_entropy_epochs == 0


@SEQUENCES.register
class ActorCriticOptions(CriticConfig):
    """Actor-critic: a second network, the critic, reads the reference and predicts the reward of each possible next
    token; tokens become more probable according to these values (Bahdanau et al. 2017).

    Translations are sampled from a delayed copy of the model. Critic and copies are part of the model folder.
    """

    type: Literal["actor-critic"] = "actor-critic"
    samples: Size = 1
    """Number of generated translations per sentence."""
    shaping: bool = True
    """Give a token the difference that it makes to the reward of the prefix. If false, the last token gets the reward
    of the translation, and the others 0."""
    lambda_c: NonNegative = 1e-3
    """Weight of the variance of the critic's values, whose penalty lowers values of tokens that are rarely sampled."""
    gamma_theta: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    """Rate per update at which the delayed copy of the model approaches the model. Its samples are those whose reward
    is reported."""
    gamma_phi: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    """Rate per update at which the target critic approaches the critic. 1 / rate must be far below `critic_updates`:
    values move from each token to the one before at this rate."""


@SEQUENCES.register
class GreedyActorOptions(CriticConfig):
    """Trainable greedy decoding: a small network, the actor, changes the decoder's state before each step, so that
    greedy translations get a higher reward (Gu, Cho & Li 2017).

    The translation model itself is not trained. The actor is part of the model and is used by every search.
    """

    type: Literal["greedy-actor"] = "greedy-actor"
    actor_size: Size = 256
    """Number of hidden units of the actor."""
    samples: Size = 4
    """Number of generated translations per sentence with noise in the actions, in addition to one without."""
    sigma: Positive = 0.3
    """Standard deviation of the noise."""
    tau: Positive = 0.1
    """Temperature of the critic-aware weights: a lower value trusts the critic only where its error is smallest."""


@SEQUENCES.register
class ReadWriteOptions(SequenceConfig):
    """A learned policy for simultaneous translation: an agent decides at each step to read a source token or to write a
    target token (Gu, Neubig, Cho & Li 2017).

    The translation model itself is not trained. The agent is part of the model: `translate --stream` uses it; other
    translations read the whole source first. Needs an encoder that reads forward and `training.metric = "reward"`.
    """

    type: Literal["read-write"] = "read-write"
    samples: Size = 5
    """Number of generated translations per sentence."""
    agent_size: Size = 512
    """Number of hidden units of the agent."""
    baseline_size: Size = 128
    """Number of hidden units of the network that predicts the rewards that are still to come."""
    wait_penalty: NonNegative = 0.025
    """Penalty of a source token with which `target_wait` tokens have been read in a row (-alpha in the paper); each
    further one costs twice as much."""
    target_wait: Size = 5
    """Number of source tokens read in a row at which the penalty begins (c* in the paper)."""
    proportion_penalty: NonNegative = 1.0
    """Penalty per unit of the average proportion above `target_proportion` (-beta in the paper)."""
    target_proportion: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """Average fraction of the source that may have been read when a target token is written (d* in the paper)."""
    entropy: NonNegative = 0.0
    """Weight of the entropy of the decisions, which keeps the agent from being certain too early."""
    moments_decay: Fraction = 0.9
    """Decay rate per update of the moving mean and variance by which advantages are normalised."""


@SEQUENCES.register
class BeamSearchOptimisationOptions(SequenceConfig):
    """Beam-search optimisation: the reference stays in the beam of a search, by a margin (Wiseman & Rush 2016).

    The scores of translations are sums of output scores without a softmax, in search, too, so that they are no
    probabilities. Needs `search.length_penalty = 0.0`, `search.stop = "top"` and `training.metric = "bleu"`.
    """

    type: Literal["bso"] = "bso"
    beam: Annotated[int, Field(ge=2, le=100)] = 6
    """Maximum beam of the search in training; 1 more than `search.beam` in the paper."""
    first_beam: Annotated[int, Field(ge=2, le=100)] = 2
    """Beam of the first epochs; at most `beam`."""
    epochs_per_beam: Positive = 2.0
    """Epochs after which the beam grows by 1."""
    cost: Literal["constant", "bleu"] = "constant"
    """Factor of each violation of the margin: 1, or 1 - smoothed BLEU of the tokens since the last one."""
    normalised: ClassVar[bool] = False

    @model_validator(mode="after")
    def _validate(self) -> BeamSearchOptimisationOptions:
        if self.first_beam > self.beam:
            raise_problem("first_beam", f"must be at most `beam` ({self.beam}); got {self.first_beam}")
        return self
