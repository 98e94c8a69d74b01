"""Simultaneous translation with an agent: at each step, it reads a source token or writes a target token.

    candidate y_t^h = argmax_y p(y | y_1..y_{t-1}, x_1..x_h),  o = [c_t^h; z_t^h; E y_t^h]   (Gu et al. 2017, section 3)

c_t^h is the context and z_t^h the decoder's state for the next token, from the first h source tokens. If the agent
(`models/agent.py`) writes, the candidate becomes token t; if it reads, candidate and state are forgotten, and h grows.
The first source token is read without a decision, and after the end token of the source everything is written.

`objectives/sequence/read_write.py` trains the agent with `roll_out`, and `translator/simultaneous.py` takes the same
steps while words arrive. The model must not read ahead (`config.rules`). Tests:
tests/objectives/sequence/test_read_write.py.

Axes: B sentences, N translations, T steps, J source positions, O observation.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rnnsearch.data.batch import EmbeddingInput
from rnnsearch.models.decoders.decoder import State
from rnnsearch.models.memory import CellState
from rnnsearch.models.translation_model import Memories, TranslationModel
from rnnsearch.search.constraints import NEVER_PRODUCED
from rnnsearch.search.options import LengthLimit
from rnnsearch.search.scorer import Sources
from rnnsearch.text.vocabulary import BOS, EOS, PAD
from rnnsearch.utils.tensors import leaves, lengths_mask, select, with_leaves

Uniform = Callable[[int], Tensor]
"""Returns random numbers [N] in (0, 1) for a step from 0."""


class Progress(NamedTuple):
    """Translations in progress; a tree of tensors with one row per translation."""

    decoder: State
    agent: CellState
    previous: Int[Tensor, "N"]
    """The last token that was written, BOS first."""
    num_read: Int[Tensor, "N"]
    num_written: Int[Tensor, "N"]


class Step(NamedTuple):
    """Everything that one step depends on."""

    candidate: Int[Tensor, "N"]
    """The token that would be written."""
    log_prob: Float[Tensor, "N"]
    """log p of the candidate."""
    alpha: Float[Tensor, "N J"]
    """Attention of the candidate over annotations."""
    decoder: State
    """The decoder's state if the candidate is written."""
    observation: Float[Tensor, "N O"]
    agent: CellState
    """The agent's state after the observation."""
    logit: Float[Tensor, "N"]
    """log P(write) / P(read)."""
    is_full: Bool[Tensor, "N"]
    """True if the translation has its maximum length for the source tokens that have been read."""

    def writes(self, has_read_all: Bool[Tensor, "N"], threshold: Tensor | float = 0.5) -> Bool[Tensor, "N"]:
        """Return True where a token is written: after the whole source, or if P(write) is above a threshold."""
        return has_read_all | (~self.is_full & (self.logit.sigmoid() > threshold))


class Interpreter:
    """A model and its agent, step by step."""

    def __init__(self, model: TranslationModel, limit: LengthLimit, banned: Set[int] = frozenset()) -> None:
        """Create it for translations of limited length.

        Args:
            model: A model with an agent.
            limit: Maximum length, of which the source tokens that have been read are the source.
            banned: Tokens that are not written.
        """
        assert model.agent is not None
        self.model = model
        self.agent = model.agent
        self.limit = limit
        self._never = torch.tensor(sorted(banned | NEVER_PRODUCED), device=model.device)

    def start(self, memories: Memories) -> Progress:
        """Return translations of which the first source token has been read."""
        state = self.model.start(memories)
        rows = len(next(iter(memories.values())).mask)
        ones = torch.ones(rows, dtype=torch.long, device=self.model.device)
        return Progress(state, self.agent.start(rows), ones * BOS, ones, ones * 0)

    def observe(self, progress: Progress, memories: Memories, num_words: Int[Tensor, "N"]) -> Step:
        """Return the candidates, the observations and the agent's scores.

        Args:
            progress: The translations.
            memories: Memories with one row per translation.
            num_words: Number of source tokens without EOS.
        """
        ((name, memory),) = memories.items()
        is_read = lengths_mask(progress.num_read, memory.mask.shape[1])  # [N, J]
        visible = {name: memory._replace(mask=memory.mask & is_read)}
        readout, decoder, reading = self.model.read(progress.previous, progress.decoder, visible)
        log_probs = self.model.log_probs(readout).index_fill(1, self._never, -torch.inf)
        log_prob, candidate = log_probs.max(1)
        y = self.model.target_embedding(EmbeddingInput(candidate))
        observation = torch.cat([reading.context.to(y), reading.state.to(y), y], dim=-1)
        logit, agent = self.agent.step(observation, progress.agent)

        words_read = torch.minimum(progress.num_read, num_words)
        max_length = (words_read.double() * self.limit.max_ratio).floor() + self.limit.max_extra
        is_full = progress.num_written >= max_length.clamp_min(1)
        assert reading.alpha is not None, "`check` requires attention"
        return Step(candidate, log_prob, reading.alpha, decoder, observation, agent, logit, is_full)

    def advance(self, progress: Progress, step: Step, writes: Bool[Tensor, "N"]) -> Progress:
        """Return the translations after a step, in which some rows write and the others read."""
        return Progress(
            decoder=_where(writes, step.decoder, progress.decoder),
            agent=step.agent,
            previous=torch.where(writes, step.candidate, progress.previous),
            num_read=progress.num_read + ~writes,
            num_written=progress.num_written + writes,
        )


def _where(condition: Bool[Tensor, "N"], tree: State, other: State) -> State:
    """Return a tree with the rows of `tree` where a condition is true, and those of `other` elsewhere."""
    chosen = []
    for one, two in zip(leaves(tree), leaves(other), strict=True):
        chosen.append(torch.where(condition.view(-1, *[1] * (one.dim() - 1)), one, two.to(one)))
    return with_leaves(tree, chosen)


class Decisions(NamedTuple):
    """The steps of N translations, padded with reads of PAD after their ends."""

    candidates: Int[Tensor, "N T"]
    writes: Bool[Tensor, "N T"]
    """True where the candidate is written."""
    num_read: Int[Tensor, "N T"]
    """Number of source tokens that have been read before the step."""
    observations: Float[Tensor, "N T O"]
    is_free: Bool[Tensor, "N T"]
    """True where the agent decides; False at steps without a choice, and on padding."""
    mask: Bool[Tensor, "N T"]
    """True at steps, False on padding."""
    source_lengths: Int[Tensor, "N"]
    """Number of source tokens, including EOS if it is read."""

    def words(self) -> list[list[int]]:
        """Return the tokens of each translation without EOS."""
        is_word = self.writes & (self.candidates != EOS)
        return [row[words].tolist() for row, words in zip(self.candidates, is_word, strict=True)]

    def delays(self) -> list[list[int]]:
        """Return the number of source tokens that had been read when each token was written, including EOS."""
        return [row[writes].tolist() for row, writes in zip(self.num_read, self.writes, strict=True)]


@torch.no_grad()
def roll_out(
    model: TranslationModel, sources: Sources, limit: LengthLimit, copies: int = 1, uniform: Uniform | None = None
) -> Decisions:
    """Return the decisions of the agent for K translations of each sentence.

    Args:
        model: A model with an agent.
        sources: B sentences.
        limit: Maximum length of translations.
        copies: K; the K translations of a sentence are consecutive.
        uniform: Random numbers, by which actions are sampled; by default, the more probable action is taken.
    """
    interpreter = Interpreter(model, limit)
    [source] = sources.values()
    rows = torch.arange(len(source.mask), device=model.device).repeat_interleave(copies)
    memories = select(model.encode(sources), rows)
    [memory] = memories.values()
    source_lengths = memory.mask.sum(1)
    num_words = source.num_words.index_select(0, rows)
    progress = interpreter.start(memories)
    is_done = torch.zeros_like(rows, dtype=torch.bool)
    columns: list[tuple[Tensor, ...]] = []
    while not is_done.all():
        step = interpreter.observe(progress, memories, num_words)
        has_read_all = progress.num_read >= source_lengths
        is_done = is_done | (has_read_all & step.is_full)
        threshold = 0.5 if uniform is None else uniform(len(columns)).to(step.logit)
        writes = step.writes(has_read_all, threshold) & ~is_done
        candidate = step.candidate.masked_fill(is_done, PAD)
        is_free = ~(is_done | has_read_all | step.is_full)
        columns.append((candidate, writes, progress.num_read, step.observation, is_free, ~is_done))
        progress = interpreter.advance(progress, step, writes)
        is_done = is_done | (writes & (candidate == EOS))
    candidates, all_writes, num_read, observations, free, mask = (
        torch.stack(values, dim=1) for values in zip(*columns, strict=True)
    )
    return Decisions(candidates, all_writes, num_read, observations, free, mask, source_lengths)
