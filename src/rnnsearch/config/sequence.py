"""`[objective.sequence]` of a run file: training on translations that the model itself generates.

Implemented in `objectives/sequence`, with parameters in `models/auxiliary.py`. Names and options are stored in model
folders: never rename them. docs/configuration.md is generated from the docstrings. Tests: tests/objectives/sequence.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from rnnsearch.config.options import Family, NonNegative, OneOf, Options, Positive, Size


class RewardOptions(Options):
    """`[objective.sequence.reward]`: the score of a translation against the reference, which training raises."""

    type: str


REWARDS = Family[RewardOptions]("reward")


@REWARDS.register
class BleuRewardOptions(RewardOptions):
    """Smoothed BLEU of the sentence, between 0 and 1: 1 is added to the counts of all n-grams but single words
    (Lin & Och 2004).
    """

    type: Literal["bleu"] = "bleu"


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


class RewardConfig(SequenceConfig):
    """Declaration of a method that scores translations by a reward."""

    uses_reward: ClassVar[bool] = True
    reward: Annotated[RewardOptions, OneOf(REWARDS)] = BleuRewardOptions()
    """Score of a translation, see below."""


SEQUENCES = Family[SequenceConfig]("sequence objective")


@SEQUENCES.register
class MinimumRiskOptions(RewardConfig):
    """Minimum risk training: lowers the expected risk, 1 - reward, over a set of translations (Shen et al. 2016).

    The set has the reference and `samples` translations; equal ones count once.
    """

    type: Literal["mrt"] = "mrt"
    samples: Size = 20
    """Number of translations per sentence in addition to the reference (100 in the paper)."""
    alpha: Positive = 5e-3
    """Exponent of the probabilities: the distribution over the set is proportional to p(y | x)^alpha."""
    candidates: Literal["samples", "n-best"] = "samples"
    """Source of the translations: sampling, or a beam search of this width."""
