"""A learned read and write policy for simultaneous translation with a frozen model (Gu, Neubig, Cho & Li 2017).

The agent and its baseline are in `models/agent.py`, the steps in `search/read_write.py`. Tests:
tests/objectives/sequence/test_read_write.py.

Axes: B sentences, K translations per sentence, N = B * K, T steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float64
from numpy.typing import NDArray
from torch import Tensor

from rnnsearch.config.registry import implements
from rnnsearch.config.sequence import ReadWriteOptions
from rnnsearch.data.batches import Batch
from rnnsearch.metrics.latency import average_lagging, average_proportion
from rnnsearch.metrics.sentence_scores import smoothed_bleu
from rnnsearch.models.critics import agent_baseline
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.sequence.hypotheses import reference_words
from rnnsearch.objectives.sequence.objective import GenerationObjective, reward_report, reward_statistics
from rnnsearch.objectives.sequence.rewards import Detokenize, Ids
from rnnsearch.search.read_write import Decisions, Uniform, roll_out
from rnnsearch.search.sampling import stream_keys, uniform
from rnnsearch.search.scorer import Sources

Array = NDArray[np.float64]
QUALITY_SUM = "reward.quality"
LAGGING_SUM = "reward.lagging"
PROPORTION_SUM = "reward.proportion"
ADVANTAGE_SUM = "advantage.sum"
ADVANTAGE_SQUARES = "advantage.squares"
NUM_DECISIONS = "advantage.count"


@implements(ReadWriteOptions)
class ReadWrite(GenerationObjective):
    """REINFORCE for the agent's decisions (Gu et al. 2017, section 4).

        L = 1/K sum_k sum_t [ -A_t log P(a_t | o_1..o_t) - entropy H_t + (R_t - b(o_t))^2 ],   R_t = sum_{u >= t} r_u

    over K sampled translations of a sentence and the steps t at which the agent decides. A_t is R_t - b(o_t),
    normalised by moving moments (`AgentBaseline`). Rewards are those of `step_rewards`.
    """

    def sequence_loss(self, model: TranslationModel, batch: Batch, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
        options: ReadWriteOptions = self.options
        K = options.samples
        noise = action_noise(batch.sources, K, seed)
        decisions = roll_out(model, batch.sources, self.generation.limit, K, noise)
        references = [words for words in reference_words(batch) for _ in range(K)]
        rewards, statistics = score_decisions(decisions, references, options, self.generation.detokenize)
        returns = np.flip(np.flip(rewards, 1).cumsum(1), 1).copy()  # R_t [N, T]

        assert model.agent is not None
        logits = model.agent(decisions.observations, decisions.mask)  # [N, T]
        baseline = agent_baseline(model)
        errors = torch.from_numpy(returns).to(logits) - baseline(decisions.observations)
        advantages = baseline.normalise(errors.detach())
        log_p = F.logsigmoid(torch.where(decisions.writes, logits, -logits))
        losses = errors.square() - advantages * log_p - options.entropy * _entropy(logits)
        total = losses[decisions.is_free].sum() / K

        free_errors = errors.detach()[decisions.is_free].double()
        statistics |= {
            ADVANTAGE_SUM: free_errors.sum(),
            ADVANTAGE_SQUARES: free_errors.square().sum(),
            NUM_DECISIONS: decisions.is_free.sum().double(),
        }
        return total, statistics

    def after_update(self, model: TranslationModel, statistics: Mapping[str, Tensor]) -> None:
        count = statistics[NUM_DECISIONS]
        if count > 0:
            mean = statistics[ADVANTAGE_SUM] / count
            agent_baseline(model).update(mean, statistics[ADVANTAGE_SQUARES] / count)

    def report(self, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return means over sampled translations: rewards, BLEU, and average lagging and proportion in tokens."""
        return reward_report(statistics, {"quality": QUALITY_SUM, "lagging": LAGGING_SUM, "proportion": PROPORTION_SUM})


def _entropy(logits: Tensor) -> Tensor:
    """Return H = -sum_a P(a) log P(a) of each decision."""
    p = logits.sigmoid()
    return -(p * F.logsigmoid(logits) + (1 - p) * F.logsigmoid(-logits))


def action_noise(sources: Sources, copies: int, seed: int) -> Uniform:
    """Return the random numbers of sampled actions, which depend on the source, the copy and the seed."""
    keys = stream_keys(sources, copies, seed)
    device = next(iter(sources.values())).ids.device
    return lambda step: torch.from_numpy(uniform(keys, 1, step)[:, 0]).to(device)


def score_decisions(
    decisions: Decisions, references: Sequence[Ids], options: ReadWriteOptions, detokenize: Detokenize
) -> tuple[Float64[np.ndarray, "N T"], dict[str, Tensor]]:
    """Return the reward of each step, 0 on padding, and the sums that `ReadWrite.report` needs.

    Args:
        decisions: Steps of N translations.
        references: Token ids of the reference of each.
        options: Targets and penalties.
        detokenize: Returns the text of token ids.
    """
    words = decisions.words()
    prefixes, finals = prefix_scores(words, references, detokenize)
    lengths = decisions.source_lengths.tolist()
    delays = decisions.delays()
    lagging = [average_lagging(delay, length) for delay, length in zip(delays, lengths, strict=True)]
    proportions = [average_proportion(delay, length) for delay, length in zip(delays, lengths, strict=True)]
    rewards = np.zeros(decisions.writes.shape)
    steps = decisions.mask.sum(1).tolist()
    for n, writes in enumerate(decisions.writes.tolist()):
        rewards[n, : steps[n]] = step_rewards(writes[: steps[n]], prefixes[n], finals[n], proportions[n], options)
    statistics = reward_statistics(torch.from_numpy(rewards.sum(1)).to(decisions.writes.device))
    for name, values in ((QUALITY_SUM, finals), (LAGGING_SUM, lagging), (PROPORTION_SUM, proportions)):
        statistics[name] = torch.tensor(float(np.sum(values)), dtype=torch.float64, device=decisions.writes.device)
    return rewards, statistics


def prefix_scores(words: Sequence[Ids], references: Sequence[Ids], detokenize: Detokenize) -> tuple[list[Array], Array]:
    """Return BLEU without brevity penalty of all prefixes of each translation, and BLEU of the translations.

    Both are smoothed. The scores of a translation of n words are those of its prefixes with 0 to n words.
    """
    pairs = [(tuple(ids[:length]), tuple(reference)) for ids, reference in zip(words, references, strict=True)
             for length in range(len(ids) + 1)]  # fmt: skip
    distinct = list(dict.fromkeys(pairs))
    texts = {ids: detokenize(ids) for ids in dict.fromkeys(ids for pair in distinct for ids in pair)}
    hypotheses = [texts[pair[0]] for pair in distinct]
    targets = [texts[pair[1]] for pair in distinct]
    scores = dict(zip(distinct, smoothed_bleu(hypotheses, targets, brevity_penalty=False).tolist(), strict=True))
    ends = np.cumsum([len(ids) + 1 for ids in words])
    prefixes = np.split(np.array([scores[pair] for pair in pairs]), ends[:-1])
    finals = [pairs[end - 1] for end in ends]
    return prefixes, smoothed_bleu([texts[pair[0]] for pair in finals], [texts[pair[1]] for pair in finals])


def step_rewards(
    writes: Sequence[bool], prefixes: Array, final: float, proportion: float, options: ReadWriteOptions
) -> Array:
    """Return the rewards r_t = r_t^Q + r_t^D of the T steps of a translation (Gu et al. 2017, section 4).

        r_t^Q = BLEU0(y_1..t) - BLEU0(y_1..t-1) for t < T, and BLEU(y) for t = T
        r_t^D = alpha (sgn(c_t - c*) + 1) + beta max(0, d_t - d*)

    BLEU0 has no brevity penalty. c_t is the number of tokens that have been read in a row, 0 after a write; the first
    token, which is read before the first step, counts. d_t is the average proportion at t = T, and 0 before.

    Args:
        writes: True for each step that writes.
        prefixes: BLEU0 of the prefixes of 0, 1, ... words.
        final: BLEU of the translation.
        proportion: Average proportion of the translation.
        options: Targets and penalties.
    """
    rewards = np.zeros(len(writes))
    increments = iter(np.diff(prefixes))
    wait = 1
    for t, is_write in enumerate(writes):
        wait = 0 if is_write else wait + 1
        rewards[t] = -options.wait_penalty * (np.sign(wait - options.target_wait) + 1)
        if is_write and t < len(writes) - 1:
            rewards[t] += next(increments)
    excess = max(0.0, proportion - options.target_proportion)
    rewards[-1] += final - options.proportion_penalty * excess
    return rewards
