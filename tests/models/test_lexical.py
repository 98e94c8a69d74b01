"""The lexical model beside the decoder against a loop from the paper (Nguyen & Chiang 2018, eq. 4-6)."""

import numpy as np
import pytest
import torch

from rnnsearch.backend.twins import choose
from rnnsearch.config import resolve
from rnnsearch.data.batches import make_batch
from rnnsearch.models.draws import Draws
from rnnsearch.symbols import Symbols
from rnnsearch.systems.build import build
from rnnsearch.systems.model_checks import check_model as check

PAIRS = [([5, 6, 7, 8], [4, 5]), ([9], [6, 7, 8, 9]), ([10, 4], [11])]
E, V = 4, 12


def config_of(tie="none", decoder="cgru", lexical=True, **encoder):
    options = {"cell": "gru", "readout": E} if decoder == "cgru" else {"cell": "gru", "maxout": E}
    model = {
        "embedding": E,
        "encoder": {"type": "bidirectional", "cell": "gru", "size": 3} | encoder,
        "attention": {"size": 4},
        "decoder": {"type": decoder, "size": 5, **options},
        "tie": tie,
        "lexical": lexical,
    }
    if decoder == "rnnencdec":
        del model["attention"]
        model["encoder"]["type"] = "unidirectional"
    data = {"source": "en", "target": "de", "corpus": "x"}
    return resolve({"data": data, "model": model, "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}}})


@pytest.fixture
def whole(drawn):
    def make(tie="none", **encoder):
        config = config_of(tie, **encoder)
        assert check(config) == []
        return drawn(build(config.model, V, V, seed=None))

    return make


@pytest.mark.parametrize("tie", ["none", "target"])
def test_attended_source_words_speak_beside_the_decoder(tie, whole):
    model, p = whole(tie)
    batch = make_batch(PAIRS, range(len(PAIRS)))
    memory = model.encode(batch.sources)
    unrolled = model.unroll(batch.target.previous(), memory)
    log_p = model.output.log_probs(unrolled.readout).detach().numpy()
    alpha = unrolled.reading.alpha.detach().numpy()
    decoder = (
        model.decoder.readout(model.target_embedding(Symbols(batch.target.previous())), unrolled.reading)
        .detach()
        .numpy()
    )
    W_o = p["target_embedding.weight"] if tie == "target" else p["output.weight"]
    for row, (source, target) in enumerate(PAIRS):
        words = [*source, 3]
        for i in range(len(target) + 1):
            attended = np.zeros(E)
            for s, word in enumerate(words):
                attended += alpha[row, i, s] * p["source_embedding.weight"][word]
            f = np.tanh(attended)
            h = [np.tanh(p["lexical.hidden.weight"][k] @ f + p["lexical.hidden.bias"][k]) + f[k] for k in range(E)]
            logits = np.array(
                [W_o[v] @ decoder[row, i] + p["output.lexical"][v] @ h + p["output.bias"][v] for v in range(V)]
            )
            expected = logits - np.log(np.exp(logits).sum())
            np.testing.assert_allclose(log_p[row, i], expected, atol=1e-12)


@pytest.mark.parametrize("tie", ["none", "target"])
def test_chunked_loss_is_the_plain_one_and_every_parameter_learns(tie, whole):
    batch = make_batch(PAIRS, range(len(PAIRS)))
    results = []
    for fast in (True, False):
        model, _ = whole(tie)
        choose(model, fast)
        unrolled = model.unroll(batch.target.previous(), model.encode(batch.sources, Draws(1)), Draws(2))
        loss = model.output.losses(unrolled.readout[batch.target.mask], batch.target.ids[batch.target.mask], 0.1)
        loss[0].backward()
        results.append((loss[0], {n: p.grad for n, p in model.named_parameters()}))
    (total, gradients), (plain, gradients_plain) = results
    torch.testing.assert_close(total, plain)
    for name, gradient in gradients.items():
        assert gradient.any(), name
        torch.testing.assert_close(gradients_plain[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("encoder", [{}, {"type": "pyramid", "layers": 2, "reduce": 1}])
def test_step_is_unroll_for_several_hypotheses(encoder, whole):
    model, _ = whole(**encoder)
    batch = make_batch(PAIRS, range(len(PAIRS)))
    memory = model.encode(batch.sources)
    expected = model.unroll(batch.target.previous(), memory).readout
    state = model.start(memory)
    for i, y in enumerate(batch.target.previous().unbind(1)):
        readout, state, alpha = model.step(y, state, memory)
        torch.testing.assert_close(readout, expected[:, i], rtol=1e-10, atol=1e-10)
        assert alpha["source"].shape == batch.source.ids.shape
        rows = torch.tensor([6, 11])
        some = model.log_probs(readout, rows)
        whole_rows = model.output.logits(readout)[:, rows]
        torch.testing.assert_close(some, torch.log_softmax(whole_rows, dim=-1))


def test_it_needs_attention():
    assert check(config_of(decoder="rnnencdec")) == [
        "model.lexical: has no effect with the rnnencdec decoder, which does not attend; remove it"
    ]
    assert check(config_of(decoder="rnnencdec", lexical=False)) == []
