"""CopyNet's decoder with selective read, and its mixture of words and copies, equal NumPy loops."""

import numpy as np
import pytest
import torch

from rnnsearch.config import AttentionConfig, DropoutConfig, ModelConfig
from rnnsearch.models.cells import CELLS
from rnnsearch.models.copying import NEVER, CopyOutput, TargetWordTable, copy_positions
from rnnsearch.models.decoders.copynet import PSI, CopyNet
from rnnsearch.models.encoders import Encoder
from rnnsearch.models.memory import NO_WORD, Encoded, Hidden, Origin, StateShape
from rnnsearch.text.vocabulary import BOS, EOS, PAD, UNK
from rnnsearch.utils.tensors import lengths_mask, repeat_rows
from tests.models import decoder_equations as equations
from tests.models import reference as paper
from tests.models.reference import close, product, within

E, H, S, D, V = 3, 6, 2, 4, 9
PLACES = [[5, UNK, 7, UNK, NO_WORD], [5, 5, NO_WORD, NO_WORD, NO_WORD]]
PREVIOUS = [[BOS, 7, UNK, 8, 5], [BOS, 5, UNK, 5, 5]]


class Sizes(Encoder):
    """Encoder that declares its sizes and is never run."""

    def __init__(self):
        torch.nn.Module.__init__(self)
        self.annotation_size, self.summary_size, self.shapes = H, S, (StateShape(Hidden, D),)

    def encode(self, x, mask, rng=None):
        raise NotImplementedError


def decoder_of(cell):
    model = ModelConfig(
        embedding=E,
        encoder={"type": "bidirectional", "cell": "gru", "size": 1},
        attention=AttentionConfig(size=5),
        decoder={"type": "copynet", "cell": cell, "size": D},
        dropout=DropoutConfig(),
    )
    return CopyNet(model.decoder, model, Sizes())


def copynet(p, cell, words, previous, annotations, summary, places):
    """Yield s_t, psi_c(j) and the weights of each target position over the J' real positions (section 3)."""
    own, psi = within(p, "cell"), None
    state = paper.start(cell, equations.first(p, summary))
    real = [j for j, word in enumerate(places) if word != NO_WORD]
    for y, y_prev in zip(words, previous, strict=True):
        alpha, c = equations.attend(p, state[0], annotations)
        zeta = np.zeros(H)
        matched = [j for j in real if places[j] == y_prev]
        if psi is not None and matched:
            K = sum(np.exp(psi[j]) for j in matched)
            for j in matched:
                zeta += np.exp(psi[j]) / K * annotations[j]
        gates = product(p["context.weight"], c) + product(p["selective.weight"], zeta)
        state = paper.CELLS[cell](own, paper.inputs(own, y) + gates, state)
        psi = {j: np.tanh(product(p["copy.weight"], annotations[j])) @ state[0] for j in real}
        yield state[0], psi, alpha


@pytest.mark.parametrize("cell", CELLS)
def test_each_position_equals_the_papers_equations(cell, drawn, numbers):
    decoder, p = drawn(decoder_of(cell))
    lengths, previous = [5, 3], torch.tensor(PREVIOUS)
    encoded = Encoded(numbers(2, 5, H), lengths_mask(torch.tensor(lengths), 5), numbers(2, S), ())
    words = numbers(2, 5, E)
    memory = decoder.remember(encoded)
    memory = memory._replace(target_ids=torch.tensor(PLACES))
    x = decoder.append_copy_positions(decoder.inputs(words), copy_positions(previous, memory.target_ids))
    reading = decoder.unroll(x, decoder.start(memory), memory)
    readout = decoder.readout(words, reading)
    for n, length in enumerate(lengths):
        given = [tensor[n].numpy() for tensor in (words, previous, encoded.annotations[:, :length], encoded.summary)]
        for i, (s, psi, alpha) in enumerate(copynet(p, cell, *given, PLACES[n][:length])):
            close(reading.state[n, i], s)
            close(readout[n, i], s)
            close(reading.alpha[n, i, :length], alpha)
            for j, word in enumerate(PLACES[n]):
                close(reading.extras[PSI][n, i, j], NEVER if word == NO_WORD else psi[j])


def test_merged_annotations_copy_from_their_source_positions(drawn, numbers):
    decoder, _ = drawn(decoder_of("gru"))
    position = torch.tensor([[0, 0, 1]])
    origin = Origin(position, torch.tensor([[0.5, 0.5, 1.0]]).double())
    h = numbers(1, 2, H)
    memory = decoder.remember(Encoded(h, lengths_mask(torch.tensor([2]), 2), numbers(1, S), (), origin))
    assert torch.equal(memory.copy_memory.values, h[:, [0, 0, 1]])


def test_copied_tokens_are_target_tokens_with_the_same_text():
    same = TargetWordTable(8, 6)
    ids, mask = torch.tensor([[5, 7, UNK, EOS, PAD], [4, EOS, 5, 5, 5]]), lengths_mask(torch.tensor([4, 2]), 5)
    none = [NO_WORD] * 3
    assert same.lookup(ids, mask).tolist() == [[5, UNK, UNK, NO_WORD, NO_WORD], [4, NO_WORD, *none]]
    same.table = torch.tensor([0, UNK, 2, 3, 5, 4, UNK, UNK])
    assert same.lookup(ids, mask).tolist() == [[4, UNK, UNK, NO_WORD, NO_WORD], [5, NO_WORD, *none]]


def readouts(layer, numbers, places):
    """Return four random readouts, psi_c of five positions in two sentences, and both combined."""
    own, psi = numbers(4, layer.width), numbers(4, 5)
    places = torch.tensor(places)
    psi = psi.masked_fill(repeat_rows(places, 4) == NO_WORD, NEVER)
    return own, psi, CopyOutput.append_copy_scores(own, psi, places)


@pytest.mark.parametrize("rows", [None, [3, UNK, 8, 5]])
def test_generation_and_copying_share_one_normaliser(rows, drawn, numbers):
    layer, p = drawn(CopyOutput(4, V))
    own, psi, readout = readouts(layer, numbers, PLACES)
    some, words = list(range(V)) if rows is None else rows, within(p, "words")
    scores = layer.logits_function(None if rows is None else torch.tensor(rows))(readout)
    log_p = torch.log_softmax(scores, 1)
    for n in range(4):
        generated = np.exp(product(words["weight"], own[n].numpy()) + words["bias"])[some]
        mass, copied = dict(zip(some, generated, strict=True)), dict[int, np.ndarray]()
        for j, word in enumerate(PLACES[n // 2]):
            if word != NO_WORD:
                symbol = word if word in mass else UNK
                copied.setdefault(symbol, np.zeros(5))[j] = np.exp(psi[n, j].item())
                mass[symbol] += copied[symbol][j]
        total = sum(mass.values())
        close(log_p[n].exp(), [mass[word] / total for word in some])
        for symbol in range(V) if rows is None else ():
            expected = copied.get(symbol, np.zeros(5)) / mass[symbol]
            close(layer.copy_fractions(readout[n : n + 1], torch.tensor([symbol]))[0], expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [None, [UNK, 3, 5, 7]])
def test_loss_covers_generated_and_copied_words(rows, smoothing, drawn, numbers):
    layer, p = drawn(CopyOutput(4, V))
    own, psi, readout = readouts(layer, numbers, PLACES)
    target, copied = torch.tensor([5, UNK, UNK, 3]), torch.zeros(4, 5, dtype=torch.bool)
    copied[1, 3] = True
    total, nll = layer.losses(readout, target, smoothing, None if rows is None else torch.tensor(rows), copied)
    some, words, expected, whole = list(range(V)) if rows is None else rows, within(p, "words"), [], 0.0
    for n, y in enumerate(target.tolist()):
        scores = (product(words["weight"], own[n].numpy()) + words["bias"])[some]
        places = PLACES[n // 2]
        e = {j: np.exp(psi[n, j].item()) for j, word in enumerate(places) if word != NO_WORD}
        Z = np.exp(scores).sum() + sum(e.values())
        if copied[n].any():
            mass = e[3]
        else:
            mass = np.exp(scores[some.index(y)]) + sum(e[j] for j in e if places[j] == y != UNK)
        expected.append(-np.log(mass / Z))
        whole += (1 - smoothing) * expected[-1] + smoothing * np.mean(np.log(Z) - scores)
    close(nll, expected)
    close(total, whole)
    total.backward()
    assert layer.words.weight.grad.isfinite().all() and layer.words.weight.grad.abs().sum() > 0


def test_loss_without_copies_equals_the_softmax(drawn, numbers):
    layer, _ = drawn(CopyOutput(4, V))
    own, _, readout = readouts(layer, numbers, [[NO_WORD] * 5] * 2)
    readout.requires_grad_()
    target = torch.tensor([5, UNK, 4, 3])
    found = layer.losses(readout, target, 0.1)
    for one, other in zip(found, layer.words.losses(own, target, 0.1), strict=True):
        close(one, other.detach())
    found[0].backward()
    assert readout.grad.isfinite().all()
    close(layer.log_probs(readout), layer.words.log_probs(own).detach())
