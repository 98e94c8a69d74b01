"""Language models equal loops over tokens, and each step equals a position of `unroll`."""

from itertools import product

import numpy as np
import pytest
import torch

from rnnsearch.accel.registry import choose
from rnnsearch.accel.search import packed_model
from rnnsearch.config import DropoutConfig
from rnnsearch.config.language_model import LanguageModelConfig
from rnnsearch.data.batch import Direction, EmbeddingInput
from rnnsearch.data.batches import make_batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.language_model import NETWORKS, LanguageModel
from rnnsearch.objectives.likelihood import LanguageModelLikelihood
from rnnsearch.ops.linear import DType
from rnnsearch.ops.native.library import library
from rnnsearch.search.decode import decode_all, force_decode_all, make_sources
from rnnsearch.search.forced import force_decode
from rnnsearch.search.model_scorer import LanguageScorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.sampling import Sampling
from rnnsearch.search.scorer import Step
from rnnsearch.text.vocabulary import BOS, EOS, UNK
from tests.models import reference as paper
from tests.models.reference import close

SYMBOLS, E, D = 9, 3, 4
FORMS = {
    "gru": {"type": "recurrent", "cell": "gru", "size": D},
    "lstm, three layers": {"type": "recurrent", "cell": "lstm", "size": D, "layers": 3, "residual_from": 2},
    "tanh": {"type": "recurrent", "cell": "tanh", "size": D, "layers": 2},
    "bigrams": {"type": "feed-forward", "order": 2, "size": D},
    "4-grams, direct": {"type": "feed-forward", "order": 4, "size": D, "direct": True},
}
TEXTS = [[5, 6, 7, 8, 5, 5], [4], [8, 7]]


def make(form, **more):
    tables = {"embedding": E, "network": FORMS[form], **more}
    return LanguageModel(LanguageModelConfig.model_validate(tables), SYMBOLS).eval()


def batch(texts=TEXTS):
    return make_batch([(ids,) for ids in texts], range(len(texts)), Direction((), "de"))


def test_each_network_has_a_reference_equation():
    assert {form["type"] for form in FORMS.values()} == NETWORKS.keys()


@pytest.mark.parametrize("form", FORMS)
def test_step_equals_one_position_of_the_unrolled_network(form, drawn):
    model, _ = drawn(make(form))
    previous = batch().target.previous()
    whole, state = model.unroll(previous), model.start(len(previous))
    for i, y in enumerate(previous.unbind(1)):
        readout, state = model.step(y, state)
        close(readout, whole[:, i].detach().numpy())


@pytest.mark.parametrize("order", [2, 3, 5])
@pytest.mark.parametrize("direct", [False, True])
def test_feed_forward_network_equals_bengio_et_al(order, direct, drawn):
    """y = b + W x + U tanh(d + H x), x the previous n - 1 vectors, newest first (Bengio et al. 2003, eq. 1)."""
    options = {"type": "feed-forward", "order": order, "size": D, "direct": direct}
    config = LanguageModelConfig.model_validate({"embedding": E, "network": options})
    model, p = drawn(LanguageModel(config, SYMBOLS))
    C, H, d = p["embedding.weight"], p["network.hidden.weight"], p["network.hidden.bias"]
    UW, b = p["output.weight"], p["output.bias"]
    U, W = UW[:, :D], UW[:, D:]
    for text in TEXTS:
        found = model.output.log_probs(model.unroll(torch.tensor([[BOS, *text]])))[0]
        for i in range(len(text) + 1):
            before = [*[BOS] * (order - 1), *text[:i]][::-1]
            x = np.concatenate([C[w] for w in before[: order - 1]])
            y = b + paper.product(U, np.tanh(d + paper.product(H, x)))
            y = y + paper.product(W, x) if direct else y
            close(found[i], y - np.log(np.exp(y).sum()))


@pytest.mark.parametrize("residual_from", [None, 2])
def test_recurrent_network_equals_the_loop_over_layers_and_tokens(residual_from, drawn):
    options = {"type": "recurrent", "cell": "lstm", "size": D, "layers": 2, "residual_from": residual_from}
    model, p = drawn(LanguageModel(LanguageModelConfig.model_validate({"embedding": E, "network": options}), SYMBOLS))
    own = {name.removeprefix("network.stack."): value for name, value in p.items() if "stack" in name}
    states = [(np.zeros(D), np.zeros(D)) for _ in range(2)]
    found = model.unroll(torch.tensor([[BOS, 5, 6, 7]]))[0]
    for i, y in enumerate([BOS, 5, 6, 7]):
        close(found[i], paper.stack("lstm", own, states, p["embedding.weight"][y], residual_from))


@pytest.mark.parametrize("form", FORMS)
def test_objective_sums_over_tokens_including_eos(form, drawn):
    model, _ = drawn(make(form))
    loss, expected = LanguageModelLikelihood()(model, batch(), None), 0.0
    for text in TEXTS:
        state = model.start(1)
        for y, following in zip([BOS, *text], [*text, EOS], strict=True):
            readout, state = model.step(torch.tensor([y]), state)
            expected -= model.output.log_probs(readout)[0, following].item()
    close(loss.nll, np.array(expected))
    close(loss.total.detach(), np.array(expected))


@pytest.mark.parametrize("form", FORMS)
def test_fast_implementations_equal_the_definition_with_dropout_and_gradients(form, drawn):
    shares = {"embedding": 0.3, "word": 0.2, "readout": 0.3}
    if FORMS[form]["type"] == "recurrent":
        shares |= {"state": 0.3, "layer_outputs": 0.2, "layers": 0.3 if FORMS[form].get("layers") else 0.0}
    model, _ = drawn(make(form, dropout=DropoutConfig(**shares)))
    found = []
    for fast in (True, False):
        choose(model, fast)
        loss = LanguageModelLikelihood(0.1)(model, batch(), BatchRng(5)).total
        found.append((loss, *torch.autograd.grad(loss, [*model.parameters()])))
    for fast, plain in zip(*found, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-11)
    assert LanguageModelLikelihood(0.1)(model, batch(), BatchRng(6)).total != found[1][0]


def test_tied_output_rows_are_the_embedding():
    model = make("gru", tie="target", embedding=D)
    assert model.output.weight is model.embedding.weight
    close(model.embedding(EmbeddingInput(torch.tensor([3])))[0].detach(), model.output.weight[3].detach().numpy())


def test_scoring_search_and_sampling_use_one_distribution(drawn):
    """Forced decoding, an exhaustive beam and sample frequencies agree over all texts of up to three tokens."""
    model, _ = drawn(make("gru"))
    model.embedding.weight.data *= 0.5
    model.output.bias.data[[5, 6, EOS]] += 3.0
    scorer = LanguageScorer(model.float())
    texts = [list(ids) for count in range(3) for ids in product(range(4, SYMBOLS), repeat=count)]
    scores = [h.log_prob for h in force_decode_all(scorer, [[4]] * len(texts), texts)]
    options = SearchOptions(
        beam=1000, n_best=20, max_ratio=0.0, max_extra=2, length_penalty=0.0, banned=frozenset({UNK})
    )
    found = [h for h in decode_all(scorer, [[4]], options)[0] if h.finished]
    best = sorted(zip(scores, texts, strict=True), reverse=True)[: len(found)]
    assert [list(h.ids) for h in found] == [ids for _, ids in best] and len(found) > 5
    np.testing.assert_allclose([h.log_prob for h in found], [score for score, _ in best], rtol=1e-5)
    sampling = SearchOptions(beam=1, max_ratio=0.0, max_extra=2, variant=Sampling(seed=2))
    drawn_texts = [h[0] for h in decode_all(scorer, [[4 + n] for n in range(2000)], sampling)]
    for score, text in sorted(zip(scores, texts, strict=True), reverse=True)[:5]:
        count = sum(list(h.ids) == text and h.finished for h in drawn_texts)
        p = np.exp(score)
        assert abs(count - 2000 * p) < 5 * (2000 * p * (1 - p)) ** 0.5, text


def test_selected_columns_are_renormalised(drawn):
    model, _ = drawn(make("4-grams, direct"))
    scorer, columns = LanguageScorer(model), torch.tensor([EOS, 5, 8])
    sources, y = make_sources([[4], [4]], torch.device("cpu")), torch.tensor([BOS, 6])
    all_of, some = (step(scorer, sources, which, y).log_probs() for which in (None, columns))
    torch.testing.assert_close(some, all_of[:, columns].log_softmax(1))


@pytest.mark.skipif(library() is None, reason="no native code")
@pytest.mark.parametrize("form", FORMS)
def test_native_products_equal_the_definition(form, drawn):
    model, _ = drawn(make(form))
    model = model.float()
    twin, y = packed_model(model, DType.FP32), torch.tensor([BOS, 6, 8])
    assert twin is not None
    sources, found = make_sources([[4], [4], [4]], torch.device("cpu")), []
    for scorer in (LanguageScorer(model), LanguageScorer(twin)):
        with torch.no_grad():
            memory, state = scorer.start(sources, None)
            first = scorer.step(memory, state, torch.full_like(y, BOS))
            found.append(scorer.step(memory, first.state, y).log_probs())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def step(scorer, sources, columns, y) -> Step:
    with torch.no_grad():
        memory, state = scorer.start(sources, columns)
        return scorer.step(memory, state, y)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


CONTEXTS = {
    "early": ({"type": "recurrent", "cell": "gru", "size": D}, "early"),
    "late": ({"type": "recurrent", "cell": "lstm", "size": D}, "late"),
    "late, two layers": ({"type": "recurrent", "cell": "lstm", "size": D, "layers": 2}, "late"),
}
PREVIOUS = [[8, 6, BOS, 5], [], [7, UNK, 7]]
"""Tokens of the previous sentences of `TEXTS`."""


def make_with_context(form):
    network, fusion = CONTEXTS[form]
    return make("gru", network=network, context={"fusion": fusion, "size": 5})


def batch_with_context(previous=PREVIOUS):
    rows = list(zip(previous, TEXTS, strict=True))
    return make_batch(rows, range(len(rows)), Direction(("de@previous",), "de"))


@pytest.mark.parametrize("form", CONTEXTS)
def test_larger_context_equals_wang_and_cho(form, drawn):
    """s = tanh(W sum_j E x_j + b); early: [x_i; s]; late: h = o * tanh(c + r * p), r = sigma(W_r p + U_r c + b_r)."""
    model, p = drawn(make_with_context(form))
    found = model.unroll(batch().target.previous(), context=batch_with_context().source.ids).detach().numpy()
    embedding, layers = p["embedding.weight"], len(model.network.stack.layers)

    def cell(l, x, h, c, context):
        gates = paper.product(p[f"network.stack.cells.{l}.input.weight"], x) + p[f"network.stack.cells.{l}.input.bias"]
        gates = gates + paper.product(p[f"network.stack.cells.{l}.recurrent.weight"], h)
        i, f, o, candidate = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(candidate)
        if l + 1 < layers:
            return sigmoid(o) * np.tanh(c), c
        r = paper.product(p["network.influence.weight"], context) + p["network.influence.bias"]
        r = sigmoid(r + paper.product(p[f"network.stack.cells.{l}.influence.weight"], c))
        return sigmoid(o) * np.tanh(c + r * context), c

    for n, (text, previous) in enumerate(zip(TEXTS, PREVIOUS, strict=True)):
        bag = sum((embedding[word] for word in previous if word > EOS), np.zeros(E))
        s = np.tanh(paper.product(p["context.projection.weight"], bag) + p["context.projection.bias"])
        if form == "early":
            x = np.stack([np.concatenate([embedding[word], s]) for word in (BOS, *text)])
            outputs, _ = model.network.stack.bottom.sequence(torch.tensor(x)[None])
            close(torch.tensor(found[n, : len(text) + 1]), outputs[0].detach().numpy())
            continue
        context = paper.product(p["network.projection.weight"], s)
        h, c = np.zeros((layers, D)), np.zeros((layers, D))
        for i, word in enumerate((BOS, *text)):
            below = embedding[word]
            for l in range(layers):
                h[l], c[l] = cell(l, below, h[l], c[l], context)
                below = h[l]
            close(torch.tensor(found[n, i]), below)


@pytest.mark.parametrize("form", CONTEXTS)
def test_step_with_context_equals_one_position_of_the_unrolled_network(form, drawn):
    model, _ = drawn(make_with_context(form))
    previous, context = batch().target.previous(), batch_with_context().source.ids
    whole, state = model.unroll(previous, context=context), model.start(len(previous), context)
    for i, y in enumerate(previous.unbind(1)):
        readout, state = model.step(y, state)
        close(readout, whole[:, i].detach().numpy())


@pytest.mark.parametrize("form", CONTEXTS)
def test_context_reaches_loss_and_forced_decoding(form, drawn):
    model, _ = drawn(make_with_context(form))
    model.context_stream = "de@previous"
    loss = LanguageModelLikelihood()(model, batch_with_context(), None)
    sources = batch_with_context().sources
    forced = force_decode(LanguageScorer(model), sources, TEXTS)
    assert -sum(one.log_prob for one in forced) == pytest.approx(loss.nll.item(), rel=1e-5)
    without = LanguageModelLikelihood()(model, batch_with_context([[], [], []]), None).nll.item()
    assert without != pytest.approx(loss.nll.item(), rel=1e-4)
    # Without a stream of previous sentences, there are none.
    assert LanguageModelLikelihood()(model, batch(), None).nll.item() == pytest.approx(without, rel=1e-6)
    loss.total.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
