"""The aligner over raw text: cuts, units, folders."""

import json
import random
from dataclasses import replace
from itertools import starmap

import numpy as np
import pytest
import torch

from rnnsearch.align import aligner as module
from rnnsearch.align.aligner import (
    LEARNED_THRESHOLDS,
    TABLES_FILE,
    THRESHOLD,
    Aligner,
    Pair,
    learn_aligner,
    lowercase,
    relative_weights,
)
from rnnsearch.align.sentences import ChunkedText
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.metrics.alignment_error import alignment_error
from rnnsearch.text.alignments import Links, parse_pharaoh
from rnnsearch.utils.weights import read_weights, save_weights

WORDS = {"house": "Haus", "tree": "Baum", "child": "Kind", "water": "Wasser", "street": "Straße", "bread": "Brot"}
ARTICLES = {"the": "Das", "a": "ein", "my": "mein", "no": "kein"}
SEEN = {"sees": "sieht", "buys": "kauft", "finds": "findet", "wants": "will"}


def sentences(count, seed):
    """English and a German that puts the verb last; the links of each."""
    rng, rows = random.Random(seed), []
    for _ in range(count):
        (a, b), (one, two) = rng.sample(list(ARTICLES), 2), rng.sample(list(WORDS), 2)
        verb = rng.choice(list(SEEN))
        target = f"{ARTICLES[a]} {WORDS[one]} {ARTICLES[b]} {WORDS[two]} {SEEN[verb]}."
        rows.append((f"{a} {one} {verb} {b} {two}.".capitalize(), target))
    return rows


GOLD = frozenset({(0, 0), (1, 1), (2, 4), (3, 2), (4, 3)})


@pytest.fixture(scope="module")
def learned():
    return learn_aligner(*zip(*sentences(300, seed=1), strict=True))


def test_unseen_sentences_are_aligned(learned):
    new = sentences(60, seed=2)
    found = learned.links(list(starmap(Pair.from_words, new)))
    assert alignment_error(found, [Links(GOLD, GOLD)] * len(new)).aer < 0.05


def test_links_ignore_case_and_punctuation(learned):
    plain = Pair.from_words("the tree sees a house", "das Baum ein Haus sieht")
    one, two = learned.links([plain, Pair.from_words('"The TREE sees a house!"', "DAS Baum, ein Haus sieht?!")])
    assert one == two == GOLD


def test_tokens_can_be_the_units(learned):
    """The text has no spaces: the characters of a word form one or two units."""
    source, target = "The tree sees a house.", "Das Baum ein Haus sieht."
    ends = [(0, 3), (4, 6), (6, 8), (9, 13), (14, 15), (16, 21)]
    words = Pair.from_words(source, target)
    [found] = learned.links([Pair(source, target, ends, words.target_units)])
    assert {(1, 1), (2, 1)} <= found, "both halves of 'tree'"
    [weights], [halves] = learned.weights([words]), learned.weights([Pair(source, target, ends, words.target_units)])
    np.testing.assert_allclose(weights[:, 0], halves[:, 0], rtol=1e-5)


def test_empty_sentences_have_no_links(learned):
    pairs = list(starmap(Pair.from_words, [("", ""), ("The tree", ""), ("", "Das Baum"), ("  ", "."), ("💧", "水")]))
    assert learned.links(pairs)[:3] == [set(), set(), set()]
    assert [w.shape for w in learned.weights(pairs)] == [(0, 0), (0, 2), (2, 0), (1, 0), (1, 1)]
    assert learned.links([]) == []


def test_reversed_aligner_gives_reversed_links(learned):
    pairs = [Pair.from_words(source, target) for source, target in sentences(5, seed=3)]
    turned = [Pair(p.target, p.source, p.target_units, p.source_units) for p in pairs]
    back = learned.reversed().links(turned)
    assert [{(j, i) for i, j in one} for one in back] == learned.links(pairs)


@pytest.fixture
def absolute(learned):
    """Return an aligner like those of versions that compared weights with a fixed threshold."""
    return replace(learned, threshold=THRESHOLD, relative=False)


def test_tuning_selects_the_threshold_by_gold_links(absolute, monkeypatch):
    """The nearest to the usual one of those that err least."""
    weights = np.array([[0.9, 0.3], [0.05, 0.6]])
    monkeypatch.setattr(Aligner, "weights", lambda _self, pairs: [weights] * len(pairs))
    for links, threshold in (("0-0 1-1", 0.31), ("0-0 1-1 1-0", 0.15), ("0-0 1-1 1-0 0-1", 0.05)):
        assert absolute.tuned([Pair.from_words("a b", "c d")], [parse_pharaoh(links, "here")]).threshold == threshold


def test_tuning_keeps_relative_weights(learned, monkeypatch):
    """The link 1-0 has relative weight 0.3004, and 0-1 0.164."""
    weights = np.array([[0.9, 0.3], [0.15, 0.6]])
    monkeypatch.setattr(Aligner, "weights", lambda _self, pairs: [weights] * len(pairs))
    start = replace(learned, threshold=0.5)
    for links, threshold in (("0-0 1-1", 0.5), ("0-0 1-1 1-0", 0.3), ("0-0 1-1 1-0 0-1", 0.16)):
        tuned = start.tuned([Pair.from_words("a b", "c d")], [parse_pharaoh(links, "here")])
        assert tuned.relative and tuned.threshold == threshold


def test_relative_weights_divide_by_rows_and_columns():
    weights = np.array([[0.4, 0.2, 0.0], [0.0, 0.1, 0.0]], dtype=np.float32)
    relative = relative_weights(weights)
    assert relative[0, 1] == pytest.approx(0.2 / np.sqrt((0.6 + 0.05) * (0.3 + 0.05)))
    np.testing.assert_array_equal(relative.T, relative_weights(np.ascontiguousarray(weights.T)))
    # Certain links of one unit do not compete.
    assert relative_weights(np.full((9, 1), 0.9, np.float32)).min() > 0.85
    # Two units without a counterpart do not link each other, although no other weight competes.
    assert relative_weights(np.full((1, 1), 0.001, np.float32))[0, 0] < 0.05
    assert relative_weights(np.zeros((0, 2), np.float32)).shape == (0, 2)


def test_threshold_gives_the_expected_number_of_links(learned, monkeypatch):
    """The directions agree on two links, and each has one more with a probability of 0.4."""
    forward = np.array([[0.9, 0.0, 0.3], [0.0, 0.9, 0.1]], np.float32)
    backward = np.array([[0.9, 0.1, 0.4], [0.0, 0.9, 0.4]], np.float32)
    both = module._Probabilities(forward, backward, 1)
    monkeypatch.setattr(Aligner, "_probabilities", lambda _self, pairs: [both] * len(pairs))
    pairs = [Pair.from_words("a b c", "d e")] * 10
    chosen = learned.with_expected_links(pairs)
    assert chosen.relative
    # 2.45 on average, 2.7 in the union: 2.575 per pair, so that the link with the third highest weight is included.
    assert chosen.links(pairs) == [{(0, 0), (1, 1), (2, 0)}] * 10


@pytest.mark.parametrize(("probability", "threshold"), [(1.0, LEARNED_THRESHOLDS[1]), (0.0, LEARNED_THRESHOLDS[0])])
def test_chosen_threshold_has_limits(learned, monkeypatch, probability, threshold):
    weights = np.full((1, 1), probability, np.float32)
    certain = module._Probabilities(weights, weights, 1)
    monkeypatch.setattr(Aligner, "_probabilities", lambda _self, _pairs: [certain, None])
    assert learned.with_expected_links([]).threshold == threshold


def test_directions_that_disagree_have_more_links():
    """Halfway between the mean of both directions and their union, or more."""
    assert module._expected_links(10.0, 11.0) == pytest.approx(10.5)
    assert module._expected_links(10.0, 12.0) == pytest.approx(10 + 2 * 0.7)
    assert module._expected_links(10.0, 14.0) == 14
    assert module._expected_links(0.0, 0.0) == 0


def test_threshold_is_chosen_on_tokens_if_there_are_no_spaces(learned):
    tokenizer = learned.segmentations[0].source
    spaced, joined = tokenizer.segment(["the tree sees a house.", "treeshousesbreadstreets sees"])
    assert module._words_or_tokens(spaced) == [(0, 3), (4, 8), (9, 13), (14, 15), (16, 21)]
    assert len(joined.offsets) > 2 * module.MAX_TOKENS_PER_WORD
    assert module._words_or_tokens(joined) == joined.offsets


def test_threshold_is_chosen_on_a_sample(learned, monkeypatch):
    monkeypatch.setattr(module, "THRESHOLD_PAIRS", 10)
    texts = (ChunkedText(), ChunkedText())
    for pair in sentences(95, seed=9):
        for text, sentence in zip(texts, pair, strict=True):
            text.add(sentence)
    assert len(module._threshold_pairs(learned, *texts)) == 10
    monkeypatch.setattr(module, "MAX_THRESHOLD_CELLS", 5_000)
    assert sum(len(pair.source) * len(pair.target) for pair in module._threshold_pairs(learned, *texts)) < 8_000


def test_short_texts_have_one_segmentation():
    """A text with too few tokens for the larger sizes gives no duplicate segmentations."""
    assert len(learn_aligner(["a b c"], ["x y z"]).segmentations) == 1


@pytest.mark.parametrize(("words", "sizes", "rounds"), [(1500, (1000, 2000, 5000), 5), (1499, (2000, 5000), 4)])
def test_large_texts_have_fewer_segmentations_and_rounds(monkeypatch, words, sizes, rounds):
    calls = []

    def record(name):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: calls.append((name, args)) or original(*args))

    record("bpe_of_sizes")
    record("learn_lexicon")
    monkeypatch.setattr(module, "LARGE_TEXT_WORDS", words)
    learn_aligner(*zip(*sentences(300, seed=1), strict=True))
    assert {args[1] for name, args in calls if name == "bpe_of_sizes"} == {sizes}
    assert {args[3] for name, args in calls if name == "learn_lexicon"} == {rounds}


def test_large_texts_are_sampled(monkeypatch):
    seen = []
    original = module.learn_from_pairs
    monkeypatch.setattr(module, "MAX_PAIRS", 30)
    monkeypatch.setattr(module, "learn_from_pairs", lambda pairs, _: original(seen.extend(pairs) or seen))
    pairs = [(f"a{n}", f"b{n}") for n in range(100)]
    learn_aligner(*zip(*pairs, strict=True))
    assert seen == pairs[::4]


def test_pairs_without_text_raise():
    with pytest.raises(RnnsearchError, match="must be learned from sentence pairs with text on both sides; got none"):
        learn_aligner(["a", " "], ["", "b"])


@pytest.mark.parametrize("text", ["Straße ÄÖ", "İstanbul DİYARBAKIR", "ΣΊΣΥΦΟΣ", "ﬁ Ǆ 漢字 💧", ""])
def test_lowercase_keeps_offsets(text):
    assert len(lowercase(text)) == len(text)
    assert [low for low, c in zip(lowercase(text), text, strict=True) if len(c.lower()) == 1] == [
        c.lower() for c in text if len(c.lower()) == 1
    ]


@pytest.mark.parametrize("relative", [True, False])
def test_save_and_load_round_trip(learned, absolute, tmp_path, relative):
    stored = (learned if relative else absolute).tuned([Pair.from_words("The tree", "Das Baum")], [Links(GOLD, GOLD)])
    stored.save(tmp_path / "a")
    again = Aligner.load(tmp_path / "a")
    pairs = list(starmap(Pair.from_words, sentences(20, seed=6)))
    for one, two in zip(stored.weights(pairs), again.weights(pairs), strict=True):
        np.testing.assert_array_equal(one, two)
    assert (again.relative, again.threshold) == (relative, pytest.approx(stored.threshold))
    assert again.links(pairs) == stored.links(pairs)
    # Folders of versions without relative weights have no such table, and are written as they were.
    assert ("relative" in read_weights(tmp_path / "a" / TABLES_FILE)) == relative


def changed(name, change):
    def write(folder):
        tables = read_weights(folder / TABLES_FILE)
        save_weights(folder / TABLES_FILE, tables | {name: change(tables[name])})

    return write


def without(name):
    def write(folder):
        tables = read_weights(folder / TABLES_FILE)
        save_weights(folder / TABLES_FILE, {key: table for key, table in tables.items() if key != name})

    return write


def empty_tokenizer(folder):
    (folder / "target.0.json").write_text(json.dumps({"model": {}}))


DAMAGE = {
    "no tables": lambda folder: (folder / TABLES_FILE).unlink(),
    "not tables": lambda folder: (folder / TABLES_FILE).write_bytes(b"no"),
    "another tokenizer": empty_tokenizer,
    "no tokenizer": lambda folder: (folder / "source.0.json").unlink(),
    "no threshold": without("threshold"),
    "no pairs": without("0.pairs"),
    "no forward model": without("0.forward.seen"),
    "fewer probabilities": changed("0.forward.seen", lambda table: table[:-1]),
    "pairs beyond the vocabulary": changed("0.pairs", lambda table: table + 10**9),
    "pairs in disorder": changed("0.pairs", lambda table: table.flip(0)),
    "pairs of floats": changed("0.pairs", lambda table: table.double()),
    "not probabilities": changed("0.backward.none", lambda table: table - 1),
    "not numbers": changed("0.forward.jumps", lambda table: table * torch.nan),
    "thresholds": changed("threshold", lambda table: table.repeat(2)),
    "a threshold that links everything": changed("threshold", lambda table: table * 0),
    "a threshold that is no number": changed("threshold", lambda table: table * torch.nan),
    "a threshold of another type": changed("threshold", lambda table: table.to(torch.complex64)),
    "a rule of another type": changed("relative", lambda table: table.double()),
    "rules": changed("relative", lambda table: table.repeat(2)),
    "probabilities in few bits": changed("0.forward.seen", lambda table: table.bfloat16()),
    "pairs in a square": changed("0.pairs", lambda table: table[None]),
    "one pair": changed("0.pairs", lambda table: table[0]),
    "pairs without a sign": changed("0.pairs", lambda table: table.to(torch.uint64)),
    "no jumps": changed("0.backward.jumps", torch.zeros_like),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_folders_raise_model_error(learned, tmp_path, damage):
    learned.save(tmp_path / "a")
    DAMAGE[damage](tmp_path / "a")
    with pytest.raises(ModelError) as error:
        Aligner.load(tmp_path / "a")
    assert str(tmp_path / "a") in str(error.value) and "\n" not in str(error.value)


def test_too_long_pairs_have_no_links(learned, monkeypatch):
    monkeypatch.setattr("rnnsearch.align.aligner.MAX_LENGTH", 50)
    monkeypatch.setattr("rnnsearch.align.hmm.MAX_LENGTH", 60)
    words, letters = " ".join(["tree"] * 60), "q" * 500
    pairs = [Pair.from_words(*pair) for pair in ((words, words), (letters, "Baum"), ("tree", "Baum"), ("", "Baum"))]
    found = list(learned.weights(pairs))
    assert [None if w is None else w.shape for w in found] == [None, None, (1, 1), (1, 0)]
    assert [len(links) for links in learned.links(pairs)] == [0, 0, 1, 0]


def test_pairs_are_aligned_in_bounded_batches(learned, monkeypatch):
    pairs = list(starmap(Pair.from_words, sentences(40, seed=7)))
    together, portions = learned.links(pairs), []
    monkeypatch.setattr("rnnsearch.align.aligner.MAX_BATCH_SIZE", 60)
    original = Aligner._batch_probabilities
    monkeypatch.setattr(
        Aligner, "_batch_probabilities", lambda self, some: portions.append(len(some)) or original(self, some)
    )
    assert learned.links(pairs) == together
    assert sum(portions) == 40 and max(portions) < 10


def test_any_white_space_separates_words(learned):
    plain, other = (
        Pair.from_words("The tree", "Das Baum"),
        Pair("\tThe\u3000tree", "Das\u00a0Baum", ((1, 4), (5, 9)), ()),
    )
    other = other._replace(target_units=plain.target_units)
    assert learned.links([other]) == learned.links([plain]) == [{(0, 0), (1, 1)}]
