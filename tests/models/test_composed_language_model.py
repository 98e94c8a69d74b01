"""Language models over words composed of characters equal loops over tokens; search reads a table of the vectors."""

import numpy as np
import pytest
import torch

from rnnsearch.config import resolve
from rnnsearch.config.encoders import SOURCE_CHARACTERS
from rnnsearch.data.batches import make_batch
from rnnsearch.errors import RnnsearchError
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.language_model import UNKNOWN_TOKEN_RATE
from rnnsearch.objectives.likelihood import LanguageModelLikelihood
from rnnsearch.search.decode import decode_all, force_decode_all
from rnnsearch.systems.folder import load_system, save_system
from rnnsearch.systems.language import LanguageSystem
from rnnsearch.text.vocabulary import BOS, EOS, SPECIALS, UNK
from rnnsearch.text.words import train_words
from rnnsearch.translator.language_model import TextModel
from tests.models import reference as paper
from tests.models.reference import close, within
from tests.models.test_composition import LOOPS, OPTIONS, E

D = 4
WORDS = train_words(["the cat saw the bird", "the bird saw"], 20, 1)
KNOWN = ["the cat saw", "bird", "the bird saw the cat the the"]
UNKNOWN = ["the cats saw the bat", "birds"]
NETWORKS = {
    "lstm": {"type": "recurrent", "cell": "lstm", "size": D},
    "4-grams": {"type": "feed-forward", "order": 4, "size": D, "direct": True},
}


def make(composition, words="all", network="lstm", **more):
    config = resolve(
        {
            "data": {"target": "en", "train": ["x.en"]},
            "text": {"type": "words"},
            "model": {
                "kind": "language-model",
                "embedding": E,
                "characters": {"type": composition, "words": words, **OPTIONS[composition]},
                "network": NETWORKS[network],
                "init": {"type": "uniform", "scale": 0.8},
                **more,
            },
            "training": {"max_updates": 1, "optimiser": {"type": "sgd", "learning_rate": 1.0}},
        }
    )
    return LanguageSystem.make(config, {"en": WORDS}, 3)


def batch(system, texts):
    rows = [(text.spelled_ids,) for text in WORDS.segment(texts)]
    return make_batch(rows, range(len(rows)), system.direction, system.spellings)


def unknown_count(batch):
    return int((batch.target.ids == UNK).sum())


@pytest.mark.parametrize("words", ["all", "unknown"])
@pytest.mark.parametrize("composition", SOURCE_CHARACTERS)
def test_probability_of_a_text_equals_the_loop_over_its_words(composition, words, drawn):
    """x_i is composed of characters, h_i = LSTM(x_i, h_{i-1}), p(y_i) = softmax(W h_i + b)."""
    system = make(composition, words)
    model, p = drawn(system.model)
    letters = {letter: id for id, letter in enumerate(dict.fromkeys(spelled_vocabulary()), len(SPECIALS))}
    expected = []
    for text in WORDS.segment(KNOWN + UNKNOWN):
        states = [(np.zeros(D), np.zeros(D))]
        pieces = ["", *(f" {piece}" for piece in text.text.split())]
        for previous, piece, following in zip([BOS, *text.ids], pieces, [*text.ids, EOS], strict=True):
            x = p["embedding.weight"][previous] if previous < len(p["embedding.weight"]) else None
            if piece and (words == "all" or previous == UNK):
                characters = [letters.get(letter, UNK) for letter in piece]
                x = LOOPS[composition](within(p, "embedding.composition"), characters)
            h = paper.stack("lstm", within(p, "network.stack"), states, x)
            scores = paper.product(p["output.weight"], h) + p["output.bias"]
            expected.append(np.log(np.exp(scores).sum()) - scores[following])
    some = batch(system, KNOWN + UNKNOWN)
    assert unknown_count(some) == 3
    close(LanguageModelLikelihood().token_losses(model, some, None)[1], np.array(expected))


def spelled_vocabulary():
    """Return the characters of all words, in the order of the vocabulary."""
    return "".join(word.decode() for word in WORDS.token_bytes()[len(SPECIALS) :])


@pytest.mark.parametrize("composition", SOURCE_CHARACTERS)
def test_gradients_equal_differences_of_the_loss(composition, drawn):
    system = make(composition)
    model, _ = drawn(system.model)
    objective, some = LanguageModelLikelihood(), batch(system, KNOWN + UNKNOWN)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(objective(model, some, None).total, parameters)
    generator = torch.Generator().manual_seed(2)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        direction = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
        losses = []
        for step in (1e-6, -2e-6):
            parameter.data += step * direction
            losses.append(objective(model, some, None).total.item())
        parameter.data += 1e-6 * direction
        difference = (losses[0] - losses[1]) / 2e-6
        assert difference == pytest.approx((gradient * direction).sum().item(), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("words", ["all", "unknown"])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("composition", SOURCE_CHARACTERS)
def test_steps_with_the_table_equal_the_unrolled_model(composition, network, words, drawn):
    system = make(composition, words, network)
    model, _ = drawn(system.model)
    some = batch(system, KNOWN)
    whole = model.unroll(some.target.previous(), characters=some.target.previous_characters())
    table = system.search_model
    assert table.embedding.weight.shape == (len(WORDS), E) and table.output is model.output
    state = table.start(len(KNOWN))
    for i, y in enumerate(some.target.previous().unbind(1)):
        readout, state = table.step(y, state)
        close(readout, whole[:, i].detach().numpy())


def test_unknown_words_are_read_by_characters_if_these_are_known(drawn):
    system = make("bilstm")
    model, p = drawn(system.model)
    losses = []
    for text in ("the bats saw", "the cats saw"):
        some = batch(system, [text])
        assert unknown_count(some) == 1
        losses.append(LanguageModelLikelihood().token_losses(model, some, None)[1])
    assert torch.equal(losses[0][:2], losses[1][:2]) and (losses[0][2:] != losses[1][2:]).all()
    # Search has no characters of unknown words.
    close(system.search_model.embedding.weight[: len(SPECIALS)], p["embedding.weight"])


def test_some_unknown_words_are_read_as_unk_in_training(drawn):
    system = make("ngrams")
    model, _ = drawn(system.model)
    some = batch(system, ["cats bats rats gnus " * 20] * 4)
    previous, characters = some.target.previous(), some.target.previous_characters()
    captured = []
    model.embedding.register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0].characters.indices))
    for rng in (BatchRng(1), BatchRng(1), None):
        model.unroll(previous, rng, characters=characters)
    is_unknown = previous == UNK
    rate = (captured[0][is_unknown] == 0).float().mean().item()
    assert rate == pytest.approx(UNKNOWN_TOKEN_RATE, abs=0.1)
    assert torch.equal(captured[0], captured[1]) and torch.equal(captured[2], characters.indices)
    LanguageModelLikelihood()(model, some, BatchRng(1)).total.backward()
    assert model.embedding.weight.grad[UNK].abs().sum() > 0


def test_halves_of_a_batch_have_the_loss_of_the_whole(drawn):
    system = make("cnn")
    model, _ = drawn(system.model)
    some = batch(system, KNOWN + UNKNOWN)
    halves = [LanguageModelLikelihood()(model, half, None).total for half in some.split()]
    torch.testing.assert_close(sum(halves), LanguageModelLikelihood()(model, some, None).total)


@pytest.mark.parametrize("words", ["all", "unknown"])
def test_loaded_model_has_the_same_scores(words, tmp_path):
    system = make("cnn", words)
    save_system(tmp_path, system)
    loaded = load_system(tmp_path)
    texts = [*KNOWN, "", *UNKNOWN]
    before, after = (TextModel(one).score(texts) for one in (system, loaded))
    assert before == after
    some = batch(system, texts)
    nll = LanguageModelLikelihood()(system.model, some, None).nll.item()
    assert -sum(text.log_prob for text in after) == pytest.approx(nll, rel=1e-5)
    assert [len(text.token_scores) for text in after] == [len(text.split()) + 1 for text in texts]
    # Steps of a search score texts of known words alike.
    forced = force_decode_all(loaded.reference_scorer(), [[4]] * len(KNOWN), [t.ids for t in WORDS.segment(KNOWN)])
    np.testing.assert_allclose([h.log_prob for h in forced], [text.log_prob for text in before[:3]], rtol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_native_search_reads_the_table(precision):
    system = make("cnn", network="4-grams")
    try:
        scorer = system.fast_scorer(precision).scorer
    except RnnsearchError:
        pytest.skip("there is no native code here")
    options = TextModel(system).options(beam=5, n_best=5, max_length=4)
    [found] = decode_all(scorer, [[4]], options)
    forced = force_decode_all(system.reference_scorer(), [[4]] * 5, [h.ids for h in found])
    tolerance = 1e-4 if precision == "fp32" else 0.1
    for one, other in zip(found, forced, strict=True):
        np.testing.assert_allclose(one.token_scores, other.token_scores[: len(one.token_scores)], atol=tolerance)


def test_the_vectors_of_the_vocabulary_are_composed_once():
    system = make("lstm")
    composed = []
    system.model.embedding.composition.register_forward_hook(lambda *_: composed.append(None))
    model = TextModel(system)
    for _ in range(2):
        model.sample(3, model.options(max_length=5))
    assert len(composed) == 1


def test_highway_output_is_read_without_projection(drawn):
    options = {"embedding": 3, "widths": 3, "filters": 2, "max_filters": 5, "highway": 1, "projection": False}
    model, p = drawn(make("cnn", characters={"type": "cnn", **options}, embedding=11).model)
    assert [len(layer.bias) for layer in model.embedding.composition.filters.layers] == [2, 4, 5]
    assert not any("join" in name for name in p)
    assert model.embedding.composition(torch.tensor([[4, 5, 6]])).shape == (1, 11)
