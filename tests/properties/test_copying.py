"""The probability of a word in CopyNet includes copying it, in training and in search."""

import pytest
import torch

from rnnsearch.config import ModelConfig
from rnnsearch.data.batches import make_batch
from rnnsearch.data.characters import CopyFinder, WordCharacters, same_words
from rnnsearch.models.decoders.copynet import PSI
from rnnsearch.models.memory import NO_WORD
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.search import reattend
from rnnsearch.search.decode import decode_all, force_decode_all, make_sources
from rnnsearch.search.model_scorer import ModelScorer, fastest_scorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import MEAN_LOG_PROB
from rnnsearch.search.reattend import copied_attention
from rnnsearch.systems.translation import build
from rnnsearch.text.vocabulary import BOS, EOS, UNK
from rnnsearch.text.words import train_words
from tests.properties.conftest import lively, same_by_columns_and_alone

SOURCE, TARGET = train_words(["we see the cat Bob ."], 20, 1), train_words(["wir sehen die Katze Eva ."], 20, 1)
SPELLINGS = WordCharacters(copies=CopyFinder(SOURCE))
SOURCES = [s.spelled_ids for s in SOURCE.segment(["we see Zoe the Zoe .", "Bob the Eva Ann", "the cat ."])]
TARGETS = [s.spelled_ids for s in TARGET.segment(["wir sehen Zoe .", "Bob die Ann Ida Eva", "die Katze ."])]


def batch_of(numbers=(0, 1, 2)):
    return make_batch([(SOURCES[n], TARGETS[n]) for n in numbers], numbers, spellings=SPELLINGS)


@pytest.fixture(params=["bidirectional", "pyramid"])
def copying(request, plainest):
    """Return a CopyNet model with random weights."""
    options = plainest("copynet", None).model.model_dump()
    if request.param == "pyramid":
        options["encoder"] = {"type": "pyramid", "cell": "gru", "size": 6, "layers": 2, "reduce": 1}
    model = build(ModelConfig.model_validate(options), len(SOURCE), len(TARGET), 1).eval()
    model.target_words.table = torch.tensor(same_words(SOURCE, TARGET))
    return lively(model)


def test_same_words_have_the_same_spelling():
    [dot], [own] = SOURCE.ids(["."]), TARGET.ids(["."])
    table = same_words(SOURCE, TARGET)
    assert len(table) == len(SOURCE) and [table[id] for id in dot] == own
    assert {table[id] for id in SOURCE.ids(["see the cat Bob"])[0]} == {UNK}


def test_loss_covers_generated_and_copied_words(copying):
    batch = batch_of()
    loss, done = Likelihood().loss_and_pass(copying, batch, None)
    log_p = copying.output.log_probs(done.decoder_outputs.readout)
    scores = copying.output.logits(done.decoder_outputs.readout)
    psi, places = done.decoder_outputs.reading.extras[PSI], done.memory.target_ids
    expected, seen = 0.0, set()
    for n, i in batch.target.mask.nonzero().tolist():
        y, norm = int(batch.target.ids[n, i]), scores[n, i].logsumexp(0)
        p, copies = log_p[n, i, y].exp(), (psi[n, i] - norm).exp()
        if y == UNK:
            at = batch.copies[n, i]
            p = copies[at].sum() if at.any() else p - copies[places[n] == UNK].sum()
            seen.add(bool(at.any()))
        expected -= p.log()
    assert seen == {True, False}
    torch.testing.assert_close(loss.nll, expected.detach(), rtol=1e-4, atol=1e-4)
    halves = [Likelihood()(copying, half, None).total for half in batch.split()]
    torch.testing.assert_close(loss.total, sum(halves), rtol=1e-4, atol=1e-4)
    loss.total.backward()
    decoder = copying.decoder
    for p in (*copying.output.parameters(), decoder.copy.weight, decoder.selective.weight):
        assert p.grad.abs().sum() > 0


def test_search_scores_of_known_words_equal_losses(copying):
    nll = Likelihood()(copying, batch_of([2]), None).nll.item()
    for scorer in (ModelScorer(copying), fastest_scorer(copying, "fp32").scorer):
        [found] = force_decode_all(scorer, SOURCES[2:], TARGETS[2:], MEAN_LOG_PROB)
        assert found.log_prob == pytest.approx(-nll, abs=1e-3)


@pytest.mark.parametrize("beam", [1, 4])
def test_search_is_independent_of_columns_and_batch(beam, copying):
    for one in same_by_columns_and_alone(copying, SOURCES, beam, torch.arange(len(TARGET)).flip(0)):
        assert (one.attention["source"].sum(1) <= 1 + 1e-4).all()


def plain_copies(model, source, target, listed=None):
    """Return the copy weights of each output token over source positions, by a loop.

    Positions with the token get exp(psi_c) divided by the sum of all its scores (eq. 4 to 6), and attention
    distributes the rest. If `listed` restricts the columns, <unk> also represents all other tokens.
    """
    memories, found = model.encode(make_sources([source], model.device)), []
    state, before = model.start(memories), BOS
    for y in (*target, EOS):
        readout, state, alpha = model.step(torch.tensor([before]), state, memories)
        own, psi, places = (part[0] for part in model.output.split(readout))
        at = [int(w) == y or (y == UNK and listed is not None and int(w) not in (NO_WORD, *listed)) for w in places]
        reattend = psi.exp() * torch.tensor(at)
        shares = reattend / (reattend.sum() + model.output.words.logits(own)[y].exp())
        found.append(shares + (1 - shares.sum()) * alpha["source"][0])
        before = y
    return torch.stack(found)


@torch.inference_mode()
@pytest.mark.parametrize("lists", [False, True], ids=["all", "lists"])
def test_words_are_copied_from_their_most_probable_positions(lists, copying):
    """The property holds for hypotheses of any rank; the candidate lists omit words that source and target share."""
    options = SearchOptions(beam=6, n_best=6, max_ratio=0.0, max_extra=6)
    both = {int(word) for word in copying.target_words.table[torch.tensor(SOURCES[0])]} - {UNK}
    assert both
    listed = [id for id in range(len(TARGET)) if not lists or id not in both]
    chooser = (lambda _: torch.tensor(listed)) if lists else None
    found = decode_all(ModelScorer(copying), SOURCES, options, candidates=chooser)
    pairs = [(source, best.ids) for source, own in zip(SOURCES, found, strict=True) for best in own]
    assert sum(UNK in ids for _, ids in pairs) > 3
    for batch in (1, 4, 64):
        weights = copied_attention(copying, *zip(*pairs, strict=True), batch_sentences=batch, candidates=chooser)
        for (source, ids), own in zip(pairs, weights, strict=True):
            expected = plain_copies(copying, source, ids, listed if lists else None)
            torch.testing.assert_close(torch.from_numpy(own["source"]), expected, rtol=1e-4, atol=1e-5)


def test_long_pairs_are_not_batched_with_many_short_ones(copying, monkeypatch):
    sizes, once = [], reattend._copied_in_batch
    monkeypatch.setattr(reattend, "MAX_ATTENTION_WEIGHTS", 16 * 900)
    monkeypatch.setattr(
        reattend, "_copied_in_batch", lambda *given: sizes.append(list(map(len, given[1]))) or once(*given)
    )
    sources, targets = [[5] * 25, *[[5, 6]] * 40], [[7] * 30, *[[7]] * 40]
    found = copied_attention(copying, sources, targets)
    assert [own["source"].shape for own in found] == [(31, 26), *[(2, 3)] * 40]
    assert sizes[0] == [25] and max(map(len, sizes)) == 40
