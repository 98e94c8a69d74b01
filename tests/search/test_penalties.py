"""Length norms and the coverage penalty of Wu et al. (2016): their formulas, and the laws of search under them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.beam import beam
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import decode_all, forced_all, make_sources
from rnnsearch.search.forced import forced
from rnnsearch.search.greedy import greedy
from rnnsearch.search.ranking import LENGTH_NORMS, Ranking

CPU = torch.device("cpu")
PENALTIES = [
    {"length_penalty": 0.6, "length_norm": "gnmt"},
    {"length_penalty": 0.0, "coverage_penalty": 0.4},
    {"length_penalty": 0.8, "length_norm": "gnmt", "coverage_penalty": 0.2},
]


def plain_score(log_prob, attention, length_penalty, length_norm="power", coverage_penalty=0.0):
    """s(Y, X) of the paper, in loops; attention [I, J] with EOS last in both."""
    length = len(attention)
    divisor = length**length_penalty if length_norm == "power" else (5 + length) ** length_penalty / 6**length_penalty
    covered = 0.0
    for j in range(attention.shape[1] - 1):
        received = 0.0
        for i in range(length):
            received += attention[i, j]
        covered += np.log(min(received, 1.0))
    return log_prob / divisor + coverage_penalty * covered


@pytest.mark.parametrize("options", PENALTIES, ids=str)
@pytest.mark.parametrize("width", [1, 4])
def test_the_score_is_the_papers(toy, sentences, options, width):
    search = SearchOptions(beam=width, n_best=width, **options)
    found = decode_all(toy(seed=3), sentences, search, batch_sentences=4)
    assert any(len(h.ids) > 1 for hypotheses in found for h in hypotheses)
    for hypotheses in found:
        for h in hypotheses:
            assert h.score == pytest.approx(plain_score(h.log_prob, h.attention["source"], **options), rel=1e-5)
        finished = [h.score for h in hypotheses if h.finished]
        assert finished == pytest.approx(sorted(finished, reverse=True), abs=1e-6)


@pytest.mark.parametrize("options", PENALTIES, ids=str)
def test_beam_scores_are_forced_scores(toy, sentences, options):
    scorer = toy(seed=2)
    found = beam(scorer, make_sources(sentences, CPU), SearchOptions(beam=4, n_best=2, **options))
    best = [hypotheses[0] for hypotheses in found]
    again = forced_all(scorer, sentences, [h.ids for h in best], Ranking(**options))
    for h, f in zip(best, again, strict=True):
        assert h.finished and f.score == pytest.approx(h.score, rel=1e-5)


@pytest.mark.parametrize("options", PENALTIES, ids=str)
def test_a_wide_beam_finds_what_exhaustive_search_finds(toy, options):
    """All targets of at most 3 of 3 symbols, scored one by one."""
    scorer, most = toy(symbols=7, seed=5), 3
    targets = [ids for count in range(most + 1) for ids in product((1, 4, 5, 6), repeat=count)]
    sources = make_sources([[7, 8, 9]] * len(targets), CPU)
    every = sorted(forced(scorer, sources, targets, Ranking(**options)), key=lambda h: -h.score)
    search = SearchOptions(beam=400, n_best=8, max_ratio=0.0, max_extra=most, **options)
    [found] = beam(scorer, make_sources([[7, 8, 9]], CPU), search)
    assert [h.ids for h in found] == [h.ids for h in every[:8]]
    assert [h.score for h in found] == pytest.approx([h.score for h in every[:8]], rel=1e-5)


@pytest.mark.parametrize("options", PENALTIES, ids=str)
def test_batches_and_compaction_change_nothing(toy, sentences, options):
    def found(size, compact_at):
        search = SearchOptions(beam=4, n_best=3, compact_at=compact_at, **options)
        return decode_all(toy(seed=1), sentences, search, batch_sentences=size)

    whole = found(6, 0.0)
    for other in (found(1, 0.25), found(6, 1.0), found(4, 0.5)):
        for mine, theirs in zip(whole, other, strict=True):
            assert [h.ids for h in mine] == [h.ids for h in theirs]
            assert [h.score for h in mine] == pytest.approx([h.score for h in theirs], rel=1e-5)


def test_coverage_changes_the_order(toy, sentences):
    plain = decode_all(toy(seed=4), sentences, SearchOptions(beam=6, length_penalty=0.0))
    covered = decode_all(toy(seed=4), sentences, SearchOptions(beam=6, length_penalty=0.0, coverage_penalty=5.0))
    assert [h[0].ids for h in plain] != [h[0].ids for h in covered]
    assert all(len(c[0].ids) >= len(p[0].ids) for p, c in zip(plain, covered, strict=True))


def test_hypotheses_cut_at_the_maximal_length_are_ranked_by_coverage_too(toy):
    options = {"length_penalty": 0.5, "coverage_penalty": 1.0}
    search = SearchOptions(beam=4, n_best=4, max_ratio=0.0, max_extra=2, **options)
    [found] = beam(toy(seed=6, end=-40.0), make_sources([[5, 6, 7, 8]], CPU), search)
    cut = [h for h in found if not h.finished]
    assert len(cut) == 4
    scores = [plain_score(h.log_prob, h.attention["source"], **options) for h in cut]
    assert [h.score for h in cut] == pytest.approx(scores, rel=1e-5) == sorted(scores, reverse=True)


def test_greedy_reports_the_same_score(toy, sentences):
    options = SearchOptions(beam=1, **PENALTIES[2])
    sources = make_sources(sentences, CPU)
    for one, other in zip(greedy(toy(), sources, options), beam(toy(), sources, options), strict=True):
        assert one[0].score == pytest.approx(other[0].score, rel=1e-6)


@pytest.mark.parametrize("norm", LENGTH_NORMS)
def test_norms_do_not_fall_with_the_length(norm):
    """What the beam's early stopping rests on."""
    lengths = np.arange(1, 50)
    for exponent in (0.0, 0.3, 1.0, 2.0):
        assert (np.diff(LENGTH_NORMS[norm](lengths, exponent)) >= 0).all()
    assert LENGTH_NORMS["gnmt"](1, 0.7) == 1.0


def test_what_was_never_attended_to_costs_much_but_not_all():
    attention = {"source": np.array([[1.0, 0.0, 0.0], [0.5, 0.0, 0.5]], dtype=np.float32)}
    assert Ranking(coverage_penalty=0.5).coverage(attention) == pytest.approx(0.5 * np.log(1e-6))


def test_coverage_needs_attention(toy):
    class Blind:
        normalised, device, vocabulary = True, CPU, 9

        def start(self, sources, columns):
            return toy().start(sources, columns)

        def step(self, memory, state, y):
            return toy().step(memory, state, y)._replace(attention={})

    for search in (beam, greedy):
        with pytest.raises(RnnsearchError, match="coverage_penalty must be 0 for a model without attention"):
            search(Blind(), make_sources([[5, 6]], CPU), SearchOptions(coverage_penalty=0.1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coverage_penalty": -0.1}, "coverage_penalty must be at least 0; got -0.1"),
        ({"length_norm": "wu"}, 'length_norm must be one of power, gnmt; got "wu"'),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(RnnsearchError, match=message):
        SearchOptions(**options)


def test_a_models_config_says_how_it_ranks():
    """`[search]` reaches the translator's options."""
    from rnnsearch.config import resolve
    from rnnsearch.systems.translation import TranslationSystem
    from rnnsearch.text.words import train_words
    from rnnsearch.translate import Translator

    tables = {
        "data": {"source": "aa", "target": "bb", "train": ["a|b"]},
        "model": {
            "embedding": 4,
            "encoder": {"type": "bidirectional", "cell": "gru", "size": 4},
            "attention": {"score": "additive", "size": 4},
            "decoder": {"type": "bahdanau", "cell": "gru", "size": 4, "maxout": 4},
        },
        "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
        "search": {"length_penalty": 0.3, "length_norm": "gnmt", "coverage_penalty": 0.2, "beam": 3},
    }
    config, words = resolve(tables), train_words(["a b c d"], 20, 1)
    system = TranslationSystem.make(config, {"aa": words, "bb": words}, seed=1)
    system.model.eval()
    translator = Translator(system)
    assert translator.options().ranking == Ranking(0.3, "gnmt", 0.2)
    [found] = translator.n_best(["a b c"])
    [scored] = translator.score(["a b c"], [found[0].text])
    attention = scored.attention
    assert scored.score == pytest.approx(plain_score(scored.log_prob, attention, 0.3, "gnmt", 0.2), rel=1e-5)
