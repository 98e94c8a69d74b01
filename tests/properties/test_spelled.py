"""Words read and written by their characters: unknown words with the same id are told apart."""

from itertools import product

import pytest
import torch

from rnnsearch.config import ModelConfig
from rnnsearch.config.encoders import SOURCE_CHARACTERS
from rnnsearch.data.batch import EmbeddingInput
from rnnsearch.data.batches import make_batch
from rnnsearch.data.characters import CHARACTER_PAD, MAX_WORD_CHARACTERS, UNKNOWN_CHARACTER, Characters, WordCharacters
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.decoders import DECODERS
from rnnsearch.models.translation_model import CharacterCounts
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.search.char_decoding import decode_characters, spell_unknown_words
from rnnsearch.search.decode import force_decode_all
from rnnsearch.search.model_scorer import TORCH_PRODUCTS, ModelScorer, fastest_scorer
from rnnsearch.search.ranking import MEAN_LOG_PROB
from rnnsearch.systems.translation import build
from rnnsearch.text.tokenizer import SpelledIds
from rnnsearch.text.vocabulary import EOS, SPECIALS, UNK
from rnnsearch.text.words import train_words
from tests.properties.conftest import lively

WORDS = train_words(["the cat saw the bird", "the bird saw"], 20, 1)
READ, WRITTEN = Characters(WORDS, known=True), Characters(WORDS, known=False)
COUNTS = CharacterCounts(len(READ), len(WRITTEN))
SOURCES = [s.spelled_ids for s in WORDS.segment(["the cebras saw the cat", "the gnu saw", "the cat"])]
TARGETS = [s.spelled_ids for s in WORDS.segment(["the bat saw", "rats the chat saw", "the cat"])]
SIDES = WordCharacters({"source": READ, "target": WRITTEN})


def batch_of(numbers=(0, 1, 2), spellings=SIDES):
    return make_batch([(SOURCES[n], TARGETS[n]) for n in numbers], numbers, spellings=spellings)


def make(sentences, device):
    batch = make_batch(
        [(sentence, [5]) for sentence in sentences], range(len(sentences)), spellings=WordCharacters({"source": READ})
    )
    return {"source": batch.source.to(device)}


@pytest.fixture
def hybrid(plainest):
    """Return a function that builds a model that composes and spells words from characters, with random weights."""

    def made(decoder, composition="lstm", words="all", **spelling):
        config = plainest(decoder, None)
        read = {"type": composition, "words": words}
        written = {"size": 6, "embedding": 4, "layers": 2, **spelling}
        tables = {**config.model.model_dump(), "source_characters": read, "target_characters": written}
        options = ModelConfig.model_validate(tables)
        model = build(options, len(WORDS), len(WORDS), 1, config.objective, COUNTS).eval()
        return lively(model)

    return made


ATTENDING = [name for name, decoder in DECODERS.items() if decoder.component.attends]
SPELLING = [*((name, False) for name in ATTENDING), ("luong-input-feeding", True)]
"""Decoders, and whether characters start from states before attention."""


@pytest.mark.parametrize("words", ["all", "unknown"])
@pytest.mark.parametrize("composition", SOURCE_CHARACTERS)
def test_unknown_words_differ_by_their_characters(composition, words, hybrid):
    model = hybrid("bahdanau", composition, words)
    pairs = [SpelledIds([*SOURCES[1]], [word]) for word in (" gnu", " gnat")]
    target = [4, 5]
    losses = [
        Likelihood()(model, make_batch([(pair, target)], [0], spellings=SIDES), None).nll.item() for pair in pairs
    ]
    found = force_decode_all(ModelScorer(model), pairs, [target] * 2, MEAN_LOG_PROB, make_batch=make)
    assert abs(losses[0] - losses[1]) > 1e-3
    assert losses == pytest.approx([-h.log_prob for h in found], rel=1e-4)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_hidden_states_are_those_before_attention(dropout, plainest):
    """With input feeding, they are recomputed from the readings, with the gradients of the recurrence."""
    tables = plainest("luong-input-feeding", None).model.model_dump()
    tables["dropout"] |= dict.fromkeys(("feeding", "state", "layer_outputs"), dropout)
    model = lively(build(ModelConfig.model_validate(tables), len(WORDS), len(WORDS), 1)).double()
    batch = batch_of()
    rng = BatchRng(3)
    memory = model.encode(batch.sources, rng)["source"]
    x = model.decoder.inputs(model.target_embedding(EmbeddingInput(batch.target.previous())))
    state = model.decoder.start(memory, rng, x.shape[1])
    found = model.decoder.hidden_states(x, state, model.decoder.unroll(x, state, memory))
    expected = model.decoder.unroll_separate(x, state, memory).state
    torch.testing.assert_close(found, expected)
    parameters = list(model.decoder.parameters())
    weights = torch.randn(found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(1))
    gradients = [
        torch.autograd.grad((states * weights).sum(), parameters, retain_graph=True, allow_unused=True)
        for states in (found, expected)
    ]
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("decoder", "reads_hidden"), SPELLING)
def test_loss_is_sum_of_words_and_characters(decoder, reads_hidden, hybrid):
    model, batch = hybrid(decoder, reads_hidden=reads_hidden), batch_of()
    loss, done = Likelihood(spelling_weight=0.3).loss_and_pass(model, batch, None)
    speller, model.speller = model.speller, None
    words = Likelihood()(model, batch, None)
    model.speller = speller
    reading, spelling, of_characters = done.decoder_outputs.reading, batch.target.characters, 0.0
    for n, i in product(*map(range, batch.target.ids.shape)):
        word = spelling.characters[spelling.indices[n, i]][None]
        assert (spelling.indices[n, i] > 0) == (batch.target.ids[n, i] == UNK)
        if batch.target.ids[n, i] == UNK:
            of_characters += speller.losses(
                speller.initial_state(reading.hidden[n, i, None], reading.context[n, i, None]), word
            )[0]
    torch.testing.assert_close(loss.total, words.total + 0.3 * of_characters)
    torch.testing.assert_close(loss.nll, words.nll + of_characters.detach())
    torch.testing.assert_close(done.nll.sum(), loss.nll)


@pytest.mark.parametrize(("decoder", "reads_hidden"), SPELLING)
def test_spelled_word_score_equals_forced_score(decoder, reads_hidden, hybrid):
    model = hybrid(decoder, reads_hidden=reads_hidden)
    found = spell_unknown_words(model, WRITTEN, SOURCES[:2], TARGETS[:2], make, beam=4)
    assert [sorted(words) for words in found] == [[1], [0, 2]]
    batch = batch_of((0, 1))
    reading = model.unroll(batch.target.previous(), model.encode(batch.sources)).reading
    places = (batch.target.ids == UNK).nonzero(as_tuple=True)
    first = model.speller.initial_state(reading.hidden[places], reading.context[places])
    for hypothesis, begin, text in zip(
        decode_characters(model, first, 4), first, [w[p] for w in found for p in sorted(w)], strict=True
    ):
        assert WRITTEN.text(hypothesis.ids) == text != ""
        assert UNK not in hypothesis.ids and len(hypothesis.ids) <= MAX_WORD_CHARACTERS
        if hypothesis.finished:
            forced = model.speller.losses(begin[None], torch.tensor([hypothesis.ids]))[0]
            assert hypothesis.log_prob == pytest.approx(-forced.item(), rel=1e-4, abs=1e-4)


def test_wide_character_beam_finds_the_likeliest_word(hybrid):
    model = hybrid("bahdanau")
    model.speller.output.bias.data[EOS] += 2.0
    first = torch.randn(2, 6, generator=torch.Generator().manual_seed(1))
    letters = range(len(SPECIALS), len(WRITTEN))
    short = [list(word) for length in (1, 2) for word in product(letters, repeat=length)]
    for begin, best in zip(first, decode_characters(model, first, 200), strict=True):
        padded = torch.tensor([word + [0] * (2 - len(word)) for word in short])
        nll = model.speller.losses(begin.expand(len(short), -1), padded)[1]
        assert best.log_prob >= -nll.min().item() - 1e-4


@pytest.mark.parametrize("words", ["all", "unknown"])
@pytest.mark.parametrize("decoder", ["bahdanau", "cgru"])
def test_native_search_reads_unknown_words_by_characters(decoder, words, hybrid):
    model = hybrid(decoder, "cnn", words)
    scorer, what = fastest_scorer(model, "fp32")
    if what == TORCH_PRODUCTS:
        pytest.skip("there is no native code here")
    plain, native = (
        force_decode_all(each, SOURCES, [[4, 5, 1], [5], [6, 4]], MEAN_LOG_PROB, make_batch=make)
        for each in (ModelScorer(model), scorer)
    )
    for one, other in zip(plain, native, strict=True):
        assert one.token_scores == pytest.approx(other.token_scores, abs=1e-3)


@pytest.mark.parametrize("composition", SOURCE_CHARACTERS)
def test_precomputed_embeddings_equal_composed_ones(composition, hybrid):
    model = hybrid("bahdanau", composition).double()
    settled = model.with_source_embedding(model.source_embedding.precompute(READ.known))
    assert settled.source_embedding is not model.source_embedding and settled.encoder is model.encoder
    symbols = batch_of().source.embedding_input
    torch.testing.assert_close(settled.source_embedding(symbols), model.source_embedding(symbols))
    for some in ([2], [0, 1]):
        one, other = (m.encode(batch_of(some).sources)["source"].annotations for m in (model, settled))
        torch.testing.assert_close(one, other)


def test_batch_spells_each_token_once():
    texts = ["the zebras saw the gnu", "the gnu", "the cat saw the the"]
    sources = [s.spelled_ids for s in WORDS.segment(texts)]
    for inventory, known in ((READ, True), (WRITTEN, False)):
        rows = [(source, [5]) for source in sources]
        batch = make_batch(rows, [0, 1, 2], spellings=WordCharacters({"source": inventory}))
        words = {f" {word}" for text in texts for word in text.split() if known or word in ("zebras", "gnu")}
        assert len(batch.source.characters.characters) == 1 + len(words)
        for made in (batch, batch.to("cpu"), batch.reversed().reversed(), *batch.split()):
            which, characters = made.source.characters.indices, made.source.characters.characters
            assert which.shape == made.source.ids.shape
            spelled = made.source.ids >= len(SPECIALS) if known else torch.zeros_like(made.source.mask)
            assert torch.equal(which > 0, spelled | (made.source.ids == UNK)), "EOS and padding have no characters"
            for row, index in enumerate(made.indices):
                found = [
                    inventory.text([c for c in characters[n].tolist() if c != UNKNOWN_CHARACTER])
                    for n in which[row]
                    if n
                ]
                each = [f" {word}" for word in texts[index].split() if known or word in ("zebras", "gnu")]
                assert found == ["".join(c for c in word if c in " thecasawbirdn" and c != "n") for word in each]


def test_long_words_are_cut_and_unknown_characters_are_merged():
    ids = torch.tensor([[UNK, UNK, EOS]])
    spelling = WRITTEN.character_table(ids, [["c" * (MAX_WORD_CHARACTERS + 9), " ±t"]])
    assert spelling.characters.shape == (3, MAX_WORD_CHARACTERS) and spelling.indices.tolist() == [[1, 2, 0]]
    assert spelling.characters[2, 1] == UNKNOWN_CHARACTER and spelling.characters[2, 3] == CHARACTER_PAD
    assert not spelling.characters[0].any()


def test_half_batches_have_the_same_gradient(hybrid):
    model, batch = hybrid("bahdanau"), batch_of()
    whole = Likelihood()(model, batch, None)
    halves = [Likelihood()(model, half, None) for half in batch.split()]
    torch.testing.assert_close(whole.total, sum(half.total for half in halves))


def test_character_beam_is_batched_like_sentences(hybrid):
    model = hybrid("bahdanau")
    first = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
    alone = [decode_characters(model, one[None], 3)[0] for one in first]
    for one, other in zip(alone, decode_characters(model, first, 3), strict=True):
        assert one.ids == other.ids and one.log_prob == pytest.approx(other.log_prob, abs=1e-4)
