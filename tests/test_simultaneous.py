"""Simultaneous translation: words are written before the sentence is complete, and are those of greedy search."""

from dataclasses import replace

import pytest
import torch

from rnnsearch.errors import ModelError
from rnnsearch.search.options import LengthLimit
from rnnsearch.search.read_write import roll_out
from rnnsearch.systems.ensemble import EnsembleSystem
from rnnsearch.text.vocabulary import EOS, UNK
from rnnsearch.translator import simultaneous
from rnnsearch.translator.simultaneous import (
    SimultaneousTranslation,
    SimultaneousTranslator,
    reads_no_later_words,
)
from rnnsearch.translator.translator import Translator
from tests.untrained import BAHDANAU, OTHER_FAMILIES, untrained, with_context

STACK = {"cell": "gru", "size": 10, "layers": 2}
FORWARD = {
    "embedding": 12,
    "init": {"type": "uniform", "scale": 0.8},
    "encoder": {"type": "stacked", "direction": "forward", **STACK},
    "decoder": {"type": "luong-input-feeding", "readout": 12, "bridge": "zero", **STACK},
}
WAIT_K = FORWARD | {"attention": {"score": "additive", "size": 9, "window": "wait-k", "wait": 2}}
MONOTONIC = FORWARD | {"attention": {"score": "additive", "size": 9, "normaliser": "monotonic"}}
GLOBAL = FORWARD | {"attention": {"score": "additive", "size": 9}}
READ_WRITE = {"type": "read-write", "agent_size": 6, "baseline_size": 4}
CONVOLUTIONAL = {"score": "convolutional", "first": 4, "second": 4, "around": 1, "window": "wait-k", "wait": 2}
TEXTS = ["the small cat sees the dog.", "the dog sees a big bird.", "a bird sees the cat, the dog sees a small cat."]


def translate(translator, words):
    """Return the pieces that are written after each word, the rest of the text, and its sentences."""
    arrived = []
    written = [""]

    def arrive():
        for word in words:
            arrived.append(word)
            yield word
            written.append("")

    pieces = SimultaneousTranslator(translator).translate(arrive())
    while True:
        try:
            piece = next(pieces)
            written[-1] += piece
        except StopIteration as end:
            return written[:-1], written[-1], end.value


@pytest.mark.parametrize("model", [WAIT_K, MONOTONIC], ids=["wait-k", "monotonic"])
@pytest.mark.parametrize("text_type", ["words", "bpe"])
@pytest.mark.parametrize("text", TEXTS)
def test_complete_sentence_has_its_greedy_translation(model, text_type, text):
    translator = Translator(untrained(model, text_type))
    pieces, rest, [sentence] = translate(translator, text.split())
    expected = translator.translate(text, translator.options(beam=1)).text
    assert "".join(pieces) + rest == sentence.text == expected
    assert sentence.source == text
    assert len(sentence.delays) == len(sentence.text.split())
    assert list(sentence.delays) == sorted(sentence.delays)


def test_wait_k_writes_one_token_per_token():
    translator = Translator(untrained(WAIT_K))
    text = "the small cat sees the dog"
    pieces, _, [sentence] = translate(translator, text.split())
    words = translator.translate(text, translator.options(beam=1)).text.split()
    assert not pieces[0] and pieces[1].split() == words[:1] and pieces[2].split() == words[1:2]
    assert sentence.delays[:3] == (2, 3, 4)


def test_written_text_does_not_depend_on_later_words():
    translator = Translator(untrained(WAIT_K, "bpe"))
    first, _, _ = translate(translator, ["the", "small", "cat", "sees", "the", "dog", "."])
    second, _, _ = translate(translator, ["the", "small", "cat", "bird", "red", "it", "is", "a"])
    assert any(first[:3]) and first[:3] == second[:3]


def test_sentences_end_where_the_next_one_begins_and_at_the_limit(monkeypatch):
    translator = Translator(untrained(WAIT_K))
    texts = ["the cat sees the dog.", "A bird sees the cat!"]
    pieces, rest, sentences = translate(translator, " ".join(texts).split())
    assert [sentence.source for sentence in sentences] == texts
    assert "".join(pieces) + rest == " ".join(sentence.text for sentence in sentences)
    monkeypatch.setattr(simultaneous, "MAX_SENTENCE_TOKENS", 12)
    _, _, sentences = translate(translator, ["cat"] * 17)
    assert [len(sentence.source.split()) for sentence in sentences] == [12, 5]


def with_agent(model=GLOBAL, text_type="words", search=None):
    """Return the translator of a model with an agent that sometimes reads and sometimes writes."""
    system = untrained(model, text_type, search=search, sequence=READ_WRITE)
    generator = torch.Generator().manual_seed(5)
    for parameter in system.model.agent.parameters():
        parameter.data.normal_(std=0.5, generator=generator)
    return Translator(system)


@pytest.mark.parametrize("search", [None, {"max_ratio": 0.3, "max_extra": 1}], ids=["whole", "cut"])
@pytest.mark.parametrize("text_type", ["words", "bpe"])
@pytest.mark.parametrize(
    "model",
    [
        GLOBAL,
        GLOBAL | {"attention": {"score": "general", "window": "local-p", "width": 3}},
        GLOBAL | {"encoder": GLOBAL["encoder"] | {"reads_end": False}},
    ],
    ids=["global", "local-p", "no end token"],
)
def test_agent_takes_the_decisions_of_training(model, text_type, search):
    translator = with_agent(model, text_type, search)
    system = translator.system
    limit = LengthLimit(system.config.search.max_ratio, system.config.search.max_extra)
    has_waited = False
    for text in TEXTS:
        pieces, rest, [sentence] = translate(translator, text.split())
        [source] = system.segment_sources([text])
        decisions = roll_out(system.model, system.make_sources([source.spelled_ids], translator.device), limit)
        [words] = decisions.words()
        target = translator.target.join_with_offsets(words)
        assert "".join(pieces) + rest == sentence.text == target.text
        # A source token arrives with its word, the end token with the last word, and a target token completes its word.
        arrivals = [len(text[:end].split()) for _, end in source.offsets] + [len(text.split())]
        delays = {}
        for num_read, (_, end) in zip(decisions.delays()[0], target.offsets, strict=False):
            delays[len(target.text[:end].split())] = arrivals[num_read - 1]
        # A subword may end within a character, which is written later.
        assert text_type == "bpe" or sentence.delays == tuple(delays.values())
        has_waited = has_waited or len({*decisions.delays()[0]}) > 1
    assert has_waited


def test_config_shows_that_an_agent_can_translate_simultaneously():
    assert reads_no_later_words(with_agent().system.config)
    assert not reads_no_later_words(untrained(GLOBAL).config)


def test_agent_rejects_constraints_of_the_search():
    translator = with_agent()
    with pytest.raises(ModelError, match="with an agent needs a search without min_length, no_repeat_ngram and banned"):
        SimultaneousTranslator(translator, translator.options(no_repeat_ngram=2))


def test_agent_that_reads_first_translates_like_greedy_search():
    translator = with_agent()
    translator.system.model.agent.write.bias.data.fill_(-50.0)
    for text in TEXTS:
        pieces, rest, [sentence] = translate(translator, text.split())
        expected = translator.translate(text, translator.options(beam=1)).text
        assert not any(pieces) and rest == sentence.text == expected
        assert {*sentence.delays} == {len(text.split())}


def test_other_translations_do_not_use_the_agent():
    translator = with_agent()
    system = untrained(GLOBAL)
    weights = {
        name: tensor for name, tensor in translator.model.state_dict().items() if name in system.model.state_dict()
    }
    system.model.load_state_dict(weights)
    results = [(one.text, one.score) for one in translator.translate(TEXTS)]
    assert results == [(one.text, one.score) for one in Translator(system).translate(TEXTS)]


def test_agent_does_not_write_banned_tokens():
    translator = with_agent()
    translator.system.model.output.bias.data[UNK] += 20.0
    assert "<unk>" in translate(translator, TEXTS[0].split())[2][0].text
    options = replace(translator.options(beam=1), banned=frozenset({UNK}))
    pieces = "".join(SimultaneousTranslator(translator, options).translate(TEXTS[0].split()))
    assert pieces and "<unk>" not in pieces


def test_other_systems_are_rejected():
    system = untrained(WAIT_K)
    ensemble = EnsembleSystem.combine([system, system])
    for translator in (Translator(with_context(system)), Translator(ensemble)):
        with pytest.raises(ModelError, match="simultaneous translation needs a"):
            SimultaneousTranslator(translator)


def test_text_is_not_longer_than_the_models_maximum():
    translator = Translator(untrained(WAIT_K, search={"max_ratio": 0.3, "max_extra": 1}))
    pieces, rest, _ = translate(translator, TEXTS[2].split())
    assert "".join(pieces) + rest == translator.translate(TEXTS[2], translator.options(beam=1)).text


def test_limit_counts_words_after_an_early_end_and_without_letters(monkeypatch):
    monkeypatch.setattr(simultaneous, "MAX_SENTENCE_TOKENS", 12)
    system = untrained(WAIT_K)
    system.model.output.bias.data[EOS] += 20.0
    for translator, word in ((Translator(system), "cat"), (Translator(untrained(WAIT_K)), "5")):
        _, _, sentences = translate(translator, [word] * 30)
        assert [len(sentence.source.split()) for sentence in sentences] == [12, 12, 6]


def test_changes_of_written_text_lose_no_later_text():
    """Words in capitals are a sentence in capitals until another word arrives."""
    translator = Translator(untrained(WAIT_K, "bpe"))
    for words in ("THE SMALL CAT sees the dog.", "THE DOG SEES a big bird."):
        pieces, rest, _ = translate(translator, words.split())
        expected = translator.translate(words, translator.options(beam=1)).text
        assert ("".join(pieces) + rest).lower() == expected.lower()


def test_first_word_never_ends_a_sentence():
    _, _, sentences = translate(Translator(untrained(WAIT_K)), ["cat.Dog!It", "sees"])
    assert [sentence.source for sentence in sentences] == ["cat.Dog!It sees"]


def test_text_without_letters_is_copied_and_no_words_have_no_sentences():
    translator = Translator(untrained(WAIT_K))
    assert translate(translator, ["5"]) == ([""], "5", [SimultaneousTranslation("5", "5", (1,))])
    assert translate(translator, []) == ([], "", [])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (BAHDANAU, "simultaneous translation needs a model with model.attention.window"),
        (OTHER_FAMILIES["sutskever"], "simultaneous translation needs a model with model.attention.window"),
        (
            WAIT_K | {"encoder": {"type": "bidirectional", "cell": "gru", "size": 10}},
            'model.encoder.direction = "forward"',
        ),
        (WAIT_K | {"decoder": WAIT_K["decoder"] | {"bridge": "learned"}}, 'model.decoder.bridge = "zero"'),
        (WAIT_K | {"encoder": WAIT_K["encoder"] | {"reverse": True}}, 'model.encoder.direction = "forward"'),
        (
            WAIT_K | {"attention": WAIT_K["attention"] | {"features": ["position"]}},
            "without position, which reads later",
        ),
        (WAIT_K | {"attention": CONVOLUTIONAL}, "without convolutional, which reads later words"),
    ],
)
def test_models_that_need_the_whole_sentence_are_rejected(model, message):
    with pytest.raises(ModelError, match=message):
        SimultaneousTranslator(Translator(untrained(model)))
