"""Unknown words that say where they come from: against plain loops written from Luong et al. 2015 (ACL), section 3."""

from random import Random

import pytest

from rnnsearch.config import TextConfig
from rnnsearch.text.annotation import ANNOTATIONS, annotation_tokens, build_annotation
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.words import train_words

SOURCES = ["The ecotax portico in Pont-de-Buis", "Ada sees Bob and Ada", "one two three"]
TARGETS = ["Le portique écotaxe de Pont-de-Buis", "Ada voit Bob et Ada", "un deux trois"]


def made(kind, source_words, target_words, **options):
    config = TextConfig.model_validate({"type": "words", "annotation": {"type": kind, **options}})
    added = annotation_tokens(config)
    each = zip((source_words, target_words), added, strict=True)
    sides = [train_words([words], 50, 1).with_annotation_tokens(own) for words, own in each]
    return build_annotation(config, *sides), *sides


def both(kind, source, target, known, links, **options):
    """A pair as a model reads and writes it, of which it knows some words."""
    how, *sides = made(kind, *known, **options)
    [read], [written] = sides[0].segment([source]), sides[1].segment([target])
    read = how.annotate_source(read)
    return how, read, how.annotate_target(written, links, read)


@pytest.mark.parametrize(
    ("kind", "source", "target"),
    [
        ("posunk", "▁The <unk> ▁portico ▁in <unk>", "▁Le <unk+1> <unk-1> ▁de <unk+0>"),
        ("copyable", "▁The <unk1> ▁portico ▁in <unk2>", "▁Le <unk?> <unk1> ▁de <unk2>"),
        ("posall", "▁The <unk> ▁portico ▁in <unk>", "▁Le <at+0> <unk> <at+1> <unk> <at-1> ▁de <at+0> <unk> <at+0>"),
    ],
)
def test_schemes_reproduce_the_tutorial_example(kind, source, target):
    """Examples of the ACL 2016 tutorial, "Training annotation"; of the copyable model, `portico` is a known word."""
    links = {(0, 0), (2, 1), (1, 2), (3, 3), (4, 4)}
    texts = "The ecotax portico in Buis", "Le portique écotaxe de Buis"
    how, read, written = both(kind, *texts, ("The portico in", "Le de"), links)
    assert " ".join(read.tokens) == source and " ".join(written.tokens) == target
    each = how.tokens_per_word
    wanted = {each * i: j for j, i in links if i in (1, 2, 4) and not (kind == "copyable" and i == 1)}
    assert how.source_positions(written, read) == wanted
    assert written.text == texts[1], "what it stands for is as it was"


@pytest.mark.parametrize("kind", ANNOTATIONS)
def test_annotations_equal_loops_for_random_pairs(kind):
    random, words = Random(3), [f"w{n}" for n in range(12)]
    how, source, target = made(kind, " ".join(words[:6]), " ".join(words[:6]), **WINDOWS[kind])
    for _ in range(200):
        texts = [[random.choice(words) for _ in range(random.randint(0, 9))] for _ in range(2)]
        links = {(j, i) for j in range(len(texts[0])) for i in range(len(texts[1])) if random.random() < 0.15}
        [read], [plain] = source.segment([" ".join(texts[0])]), target.segment([" ".join(texts[1])])
        read = how.annotate_source(read)
        written = how.annotate_target(plain, links, read)
        symbols, wanted = PLAIN[kind](texts, words[:6], links)
        assert [symbol.lstrip("▁") for symbol in written.tokens] == symbols
        assert how.source_positions(written, read) == wanted
        assert [target.token(id) for id in written.ids] == written.tokens
        assert [source.token(id) for id in read.ids] == read.tokens
        # What a model writes so is a text with <unk> for each unknown word, and nothing for positions.
        assert target.join(written.ids) == " ".join(word if word in words[:6] else "<unk>" for word in texts[1])


def nearest(links, i):
    return min((j for j, other in links if other == i), key=lambda j: (abs(j - i), j), default=None)


def plain_posunk(texts, known, links):
    symbols, places = [], {}
    for i, word in enumerate(texts[1]):
        j = nearest(links, i)
        if word in known:
            symbols.append(word)
        elif j is None or abs(j - i) > 2:
            symbols.append("<unk?>")
        else:
            symbols.append(f"<unk{j - i:+d}>")
            places[i] = j
    return symbols, places


def plain_posall(texts, known, links):
    symbols, places = [], {}
    for i, word in enumerate(texts[1]):
        j = nearest(links, i)
        symbols.append(word if word in known else "<unk>")
        if j is None or abs(j - i) > 2:
            symbols.append("<at?>")
        else:
            symbols.append(f"<at{j - i:+d}>")
            if word not in known:
                places[2 * i] = j
    return symbols, places


def plain_copyable(texts, known, links):
    order = list(dict.fromkeys(word for word in texts[0] if word not in known))
    symbols, places = [], {}
    for i, word in enumerate(texts[1]):
        j = nearest(links, i)
        if word in known:
            symbols.append(word)
        elif j is None or texts[0][j] not in order[:3]:
            symbols.append("<unk?>")
        else:
            symbols.append(f"<unk{order.index(texts[0][j]) + 1}>")
            places[i] = texts[0].index(texts[0][j])
    return symbols, places


PLAIN = {"posunk": plain_posunk, "posall": plain_posall, "copyable": plain_copyable}
WINDOWS = {"posunk": {"window": 2}, "posall": {"window": 2}, "copyable": {"numbers": 3}}


def test_links_between_words_precede_links_to_punctuation():
    """Links by hand are between words with their punctuation: each symbol of `Bob.` is then linked to each."""
    links = {(j, i) for j in (1, 2) for i in (2, 3)}
    how, read, written = both("posunk", "sees Bob.", "er sieht Bob.", ("sees a.", "er sieht a."), links)
    assert written.tokens[2] == "<unk-1>" and how.source_positions(written, read) == {2: 1}


@pytest.mark.parametrize("kind", ANNOTATIONS)
def test_raw_text_never_produces_annotation_tokens(kind, tmp_path):
    _, source, target = made(kind, "a b", "a b")
    for side, name in ((source, "source"), (target, "target")):
        told = " ".join([*side.annotation_ids, "<unk>", "<unk+1>", "<at?>"])
        assert not set(side.ids([told])[0]) & set(side.annotation_ids.values())
        side.save(tmp_path / name)
        again = Tokenizer.load(tmp_path / name)
        assert (
            again.annotation_ids == side.annotation_ids
            and again.unknown_ids == side.unknown_ids
            and len(again) == len(side)
        )
    assert made("posunk", "a", "a")[2].unknown_ids == {1, *range(5, 21)}, "15 distances, and nothing"


@pytest.mark.parametrize("kind", ANNOTATIONS)
def test_arbitrary_model_output_is_read(kind):
    how, source, target = made(kind, "a b", "a b")
    random, [read] = Random(5), map(how.annotate_source, source.segment(["a X b"]))
    for _ in range(300):
        ids = [random.randrange(1, len(target)) for _ in range(random.randint(0, 6))]
        written = target.join_with_offsets(ids)
        found = how.source_positions(written, read)
        assert all(ids[i] in target.unknown_ids and 0 <= j < 3 for i, j in found.items())
