"""Required phrases are in every translation, and an exhaustive beam finds the best translation that has them."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.candidates import Columns
from rnnsearch.search.decode import decode_all, force_decode_all, make_sources
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.phrases import PhraseState, PhraseTable, WordPhrase, select_by_banks
from rnnsearch.search.ranking import Ranking
from rnnsearch.search.topk import ScoredRows, best_continuations
from rnnsearch.text.vocabulary import EOS, UNK

CPU = torch.device("cpu")
PHRASES = (((5, 6),), (), ((4,), (7, 8, 4)), ((5, 5, 6), (6, 7)), ((8,), (8, 8)), ((4, 5, 4, 6),))
"""Phrases of the six sentences of the fixture."""


GOES_ON = np.array([False] * 5 + [True, False, False, True])
"""True if a token continues the preceding word: 5 and 8."""
WORDS = (((6, 5),), (), ((4,), (4, 8, 5)), ((4,), (6, 8)), ((4,), (4, 8)), ((4, 5, 4, 8),))


def words(phrases):
    return tuple(tuple(WordPhrase(ids, GOES_ON) for ids in own) for own in phrases)


def holds(ids, phrase) -> bool:
    return any(tuple(ids[at : at + len(phrase)]) == phrase for at in range(len(ids)))


def holds_word(ids, phrase) -> bool:
    """Return True if an occurrence of the phrase ends at a word boundary."""
    starts = [at for at in range(len(ids)) if tuple(ids[at : at + len(phrase)]) == phrase]
    return any(at + len(phrase) == len(ids) or not GOES_ON[ids[at + len(phrase)]] for at in starts)


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("room", [0, 3, 20])
def test_all_phrases_appear_even_within_short_limits(toy, sentences, width, room):
    for seed in range(4):
        options = SearchOptions(beam=width, n_best=width, phrases=PHRASES, max_ratio=0.0, max_extra=room)
        found = decode_all(toy(seed=seed, end=1.0), sentences, options, batch_sentences=4)
        for phrases, hypotheses in zip(PHRASES, found, strict=True):
            assert hypotheses
            for h in hypotheses:
                assert all(holds(h.ids, phrase) for phrase in phrases), (phrases, h.ids)


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("room", [0, 1, 2, 3, 20])
def test_all_words_appear_as_whole_words(toy, sentences, width, room):
    longer = 0
    for seed in range(6):
        options = SearchOptions(beam=width, n_best=width, phrases=words(WORDS), max_ratio=0.0, max_extra=room)
        found = decode_all(toy(seed=seed, end=1.0), sentences, options, batch_sentences=4)
        for phrases, hypotheses in zip(WORDS, found, strict=True):
            assert hypotheses
            for h in hypotheses:
                assert all(holds_word(h.ids, phrase) for phrase in phrases), (phrases, h.ids)
        plain = decode_all(toy(seed=seed, end=1.0), sentences, replace(options, phrases=WORDS), batch_sentences=4)
        longer += sum(
            not all(holds_word(h.ids, phrase) for phrase in phrases)
            for phrases, hypotheses in zip(WORDS, plain, strict=True)
            for h in hypotheses
        )
    assert longer, "without boundaries, phrases may be part of longer words"


def test_wide_beam_finds_the_best_translation_with_the_words(toy):
    sentence, symbols, most = [5, 6, 7], (4, 5, 7), 5
    for seed, phrases in product(range(3), [((4, 5),), ((4,), (4, 5)), ((4, 4),)]):
        scorer = toy(symbols=8, seed=seed, end=0.5)
        every = [ids for size in range(most + 1) for ids in product(symbols, repeat=size)]
        fitting = [ids for ids in every if all(holds_word(ids, phrase) for phrase in phrases)]
        scored = force_decode_all(scorer, [sentence] * len(fitting), fitting, Ranking(0.0, "power", 0.0))
        wanted = max(scored, key=lambda h: h.score)
        options = SearchOptions(
            beam=800,
            phrases=words((phrases,)),
            banned=frozenset({UNK, 6}),
            length_penalty=0.0,
            max_ratio=0.0,
            max_extra=most,
        )
        [[found]] = decode_all(scorer, [sentence], options)
        assert found.ids == wanted.ids
        assert found.score == pytest.approx(wanted.score, rel=1e-4)


def test_wide_beam_finds_the_best_translation_with_the_phrases(toy):
    """The reference is the best of all translations of up to four tokens with forced scores."""
    sentence, symbols, most = [5, 6, 7], (UNK, 4, 5, 6), 4
    for seed, phrases in product(range(3), [((5, 6),), ((4,), (6, 6)), ((6, 4, 6),)]):
        scorer = toy(symbols=7, seed=seed, end=0.5)
        every = [ids for size in range(most + 1) for ids in product(symbols, repeat=size)]
        fitting = [ids for ids in every if all(holds(ids, phrase) for phrase in phrases)]
        scored = force_decode_all(scorer, [sentence] * len(fitting), fitting, Ranking(0.0, "power", 0.0))
        wanted = max(scored, key=lambda h: h.score)
        options = SearchOptions(beam=600, phrases=(phrases,), length_penalty=0.0, max_ratio=0.0, max_extra=most)
        [[found]] = decode_all(scorer, [sentence], options)
        assert found.ids == wanted.ids
        assert found.score == pytest.approx(wanted.score, rel=1e-4)


def test_empty_constraints_change_nothing(toy, sentences):
    options = SearchOptions(beam=4, n_best=4)
    free = decode_all(toy(seed=2), sentences, options)
    found = decode_all(toy(seed=2), sentences, replace(options, phrases=((),) * len(sentences)))
    assert [[h.ids for h in own] for own in found] == [[h.ids for h in own] for own in free]


@pytest.mark.parametrize("width", [1, 5])
def test_phrases_do_not_depend_on_the_batch(toy, sentences, width):
    options = SearchOptions(beam=width, phrases=PHRASES)
    together = decode_all(toy(seed=1), sentences, options, batch_sentences=4)
    for n, ids in enumerate(sentences):
        [[alone]] = decode_all(toy(seed=1), [ids], replace(options, phrases=(PHRASES[n],)))
        assert together[n][0].ids == alone.ids


def test_prefix_and_candidate_lists_work_with_phrases(toy, sentences):
    prefix = ((8, 7),) * len(sentences)
    options = SearchOptions(beam=4, phrases=PHRASES, prefix=prefix)
    columns = torch.tensor([EOS, 5])
    for choose in (None, lambda _: columns):
        for phrases, [h] in zip(PHRASES, decode_all(toy(seed=3), sentences, options, candidates=choose), strict=True):
            assert h.ids[:2] == (8, 7)
            assert all(holds(h.ids, phrase) for phrase in phrases)


def test_matched_tokens_equal_a_text_search():
    """The state after each token is the length of the longest phrase prefix that is a suffix of the text."""
    draw = np.random.default_rng(4)
    for _ in range(60):
        phrases = [tuple(draw.integers(4, 6, draw.integers(1, 6)).tolist()) for _ in range(3)]
        table = PhraseTable([phrases], np.array([9]), Columns(None, 7))
        progress, text = torch.zeros(1, 3, dtype=torch.int64), []
        for _ in range(12):
            text.append(int(draw.integers(4, 7)))
            progress = table.advance(progress, torch.tensor(text[-1:]), torch.tensor([0]))
            for phrase, met in zip(phrases, progress[0].tolist(), strict=True):
                ends = [size for size in range(len(phrase) + 1) if text[len(text) - size :] == list(phrase[:size])]
                assert met == (len(phrase) if holds(text, phrase) else max(ends))


def test_word_is_matched_once_the_next_token_ends_it():
    draw = np.random.default_rng(5)
    for _ in range(200):
        phrases = [tuple(draw.choice([4, 5, 6, 8], draw.integers(1, 5)).tolist()) for _ in range(3)]
        table = PhraseTable(words([phrases]), np.array([9]), Columns(None, 9))
        progress, text = torch.zeros(1, 3, dtype=torch.int64), []
        for _ in range(12):
            text.append(int(draw.integers(4, 9)))
            progress = table.advance(progress, torch.tensor(text[-1:]), torch.tensor([0]))
            for phrase, met in zip(phrases, progress[0].tolist(), strict=True):
                ends = [size for size in range(len(phrase)) if text[len(text) - size :] == list(phrase[:size])]
                for_good = any(holds_word(text[:n], phrase) and not GOES_ON[text[n]] for n in range(len(text)))
                assert met == (len(phrase) + for_good if holds_word(text, phrase) else max(ends))


def test_beam_is_divided_by_matched_tokens(toy, sentences):
    """Half of the beam continues a phrase even if the model would never start it."""
    sources, seen = make_sources(sentences[:1], CPU), []

    class Watched(type(toy())):
        def step(self, memory, state, y):
            seen.append(y.tolist())
            return super().step(memory, state, y)

    scorer = Watched(seed=5)
    beam_search(scorer, sources, SearchOptions(beam=4, phrases=(((7, 7, 7),),), max_ratio=0.0, max_extra=9))
    assert 7 in seen[1]
    assert len(set(seen[1])) > 1, "the rest of the beam must follow the model"


def test_choices_are_distinct_with_the_best_first_in_the_second_half():
    random = torch.Generator().manual_seed(1)
    table = PhraseTable([((5, 6),), ((7,), (8,))], np.array([9, 9]), Columns(None, 9))
    progress, sentences = torch.tensor([[1, 0], [0, 0], [0, 1], [0, 0]]), torch.tensor([0, 0, 1, 1])
    state = PhraseState(None, progress, sentences, sentences, table)
    for _ in range(20):
        scores = torch.randn(2, 2, 9, generator=random).log_softmax(2)
        scores[0, 1] = -torch.inf
        log_probs = -torch.rand(2, 2, generator=random)
        chosen = select_by_banks(scores, log_probs, 6, ScoredRows(1, torch.arange(2), 2), state)
        top = best_continuations(scores, log_probs, 6)
        assert chosen.shape == top.shape
        assert all(len(set(row)) == 6 for row in chosen.tolist())
        assert 6 in chosen[0, :3].tolist(), "6 continues (5, 6)"
        assert top[0, 0] in chosen[0]


def test_impossible_phrases_are_rejected(toy, sentences):
    sources = make_sources(sentences[:1], CPU)
    with pytest.raises(RnnsearchError, match=r"phrases must have one entry per sentence \(1\); got 2"):
        greedy_search(toy(), sources, SearchOptions(phrases=((), ())))
    with pytest.raises(RnnsearchError, match="must consist of token ids without EOS, and must not be empty"):
        SearchOptions(phrases=(((EOS,),),))
    with pytest.raises(RnnsearchError, match="must consist of tokens that are scored; got 99"):
        beam_search(toy(), sources, SearchOptions(phrases=(((5, 99),),)))
