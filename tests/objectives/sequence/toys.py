"""A tiny model without PAD and BOS in its distribution, and every translation of limited length."""

from __future__ import annotations

from itertools import product

import torch

from rnnsearch.data.batches import Batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.translation_model import Memories, TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.loss import Loss, Objective
from rnnsearch.objectives.sequence.hypotheses import Hypotheses
from rnnsearch.objectives.sequence.objective import Generation
from rnnsearch.search.options import LengthLimit
from rnnsearch.text.vocabulary import BOS, EOS, PAD

WORDS = (4, 5, 6)
"""Words that the model can produce, in addition to EOS."""
MAX_WORDS = 3
GENERATION = Generation(lambda ids: " ".join(map(str, ids)), LengthLimit(0.0, MAX_WORDS))


def restrict_vocabulary(model: TranslationModel) -> TranslationModel:
    """Give all tokens but EOS and WORDS a probability of about 0."""
    with torch.no_grad():
        excluded = [token for token in range(model.output.vocabulary) if token not in (EOS, *WORDS)]
        model.output.bias[excluded] = -1e4
    return model


def all_translations() -> list[list[int]]:
    """Return every translation of at most MAX_WORDS words; those of MAX_WORDS are cut, without EOS."""
    translations = []
    for length in range(MAX_WORDS + 1):
        for words in product(WORDS, repeat=length):
            translations.append([*words] if length == MAX_WORDS else [*words, EOS])
    return translations


def hypotheses_of(translations: list[list[int]], sentences: int = 1) -> Hypotheses:
    """Return the same translations for each sentence, without log-probabilities."""
    width = max(map(len, translations))
    rows = [[*tokens, *[PAD] * (width - len(tokens))] for tokens in translations]
    ids = torch.tensor(rows * sentences)
    return Hypotheses(ids, torch.zeros(ids.shape))


def differentiable_log_probs(model: TranslationModel, hypotheses: Hypotheses, memories: Memories) -> torch.Tensor:
    """Return log p(y | x) [N] by the definition of the output layer."""
    previous = torch.cat([torch.full_like(hypotheses.ids[:, :1], BOS), hypotheses.ids[:, :-1]], dim=1)
    log_p = model.output.log_probs(model.unroll(previous, memories).readout)  # [N, I, V]
    return (log_p.gather(2, hypotheses.ids[:, :, None])[:, :, 0] * hypotheses.mask).sum(1)


def likelihood() -> Likelihood:
    return Likelihood()


def assert_splitting_changes_nothing(
    objective: Objective[TranslationModel], model: TranslationModel, batch: Batch
) -> tuple[Loss, list[Loss]]:
    """Check that the halves of a batch have the statistics and gradients of the whole; return the losses of both."""
    whole = objective(model, batch, BatchRng(7))
    halves = []
    num_rows = len(batch.target.ids)
    start = 0
    for half in batch.split():
        end = start + len(half.target.ids)
        rng = BatchRng(7)
        rng.select_rows(list(range(start, end)), num_rows)
        halves.append(objective(model, half, rng))
        start = end
    parameters = [p for p in model.parameters() if p.requires_grad]
    expected = torch.autograd.grad(whole.total, parameters, materialize_grads=True, retain_graph=True)
    total = halves[0].total + halves[1].total
    for result, gradient in zip(torch.autograd.grad(total, parameters, materialize_grads=True), expected, strict=True):
        torch.testing.assert_close(result, gradient)
    assert whole.statistics.keys() == halves[0].statistics.keys()
    for name, value in whole.statistics.items():
        torch.testing.assert_close(halves[0].statistics[name] + halves[1].statistics[name], value)
    return whole, halves
