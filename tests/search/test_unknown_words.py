"""Unknown words are replaced from the source or a dictionary, and invalid dictionaries and configs are rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rnnsearch.config import RunConfig, resolve
from rnnsearch.config.rules import check_unknown_words
from rnnsearch.errors import DataError
from rnnsearch.search.unknown_words import UnknownWordReplacer, read_dictionary, unknown_word_replacer
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.vocabulary import POSITION_PREFIX, SPACE_MARKER, UNK
from rnnsearch.text.words import train_words
from tests.untrained import BAHDANAU, RNNENCDEC

SOURCE = train_words(["the portico in", "the"], 50, 1)
TARGET = train_words(["le de portique,."], 50, 1)
TARGET_OF_MARKS = train_words(["le de-."], 50, 1)


def segmented(tokenizer: Tokenizer, text: str) -> Segmented:
    return tokenizer.segment([text])[0]


def translated(text: str) -> Segmented:
    """Return a hypothesis of these words; `<unk>` is the unknown token."""
    known = {symbol.removeprefix(SPACE_MARKER): id for id, symbol in enumerate(TARGET.tokens())}
    return TARGET.join_with_offsets([known[word] for word in text.split()])


def attention(*best: int, columns: int) -> np.ndarray:
    """Return weights whose largest value in row i is in column best[i], ignoring the last column, EOS."""
    weights = np.full((len(best), columns), 0.1, dtype=np.float32)
    weights[range(len(best)), best] = 0.4
    weights[:, -1] = 0.5
    return weights


def test_tutorial_example() -> None:
    """The <unk> portico in <unk> -> Le <unk> <unk> de <unk>, with the alignment of the ACL 2016 tutorial."""
    source = segmented(SOURCE, "the ecotax portico in Pont-de-Buis")
    target = translated("le <unk> <unk> de <unk> .")
    weights = attention(0, 2, 1, 3, 4, 5, columns=len(source.ids) + 1)
    found = UnknownWordReplacer({"portico": "portique"}).replace(source, target, weights)
    assert found.text == "le portique ecotax de Pont."
    assert (found.ids, found.tokens) == (target.ids, target.tokens)
    assert [found.text[a:b] for a, b in found.offsets] == ["le", "portique", "ecotax", "de", "Pont", "."]
    told = [(r.token, r.source_token, r.source, r.by) for r in found.replaced]
    assert told == [(1, 2, "portico", "dictionary"), (2, 1, "ecotax", "copy"), (4, 4, "Pont", "copy")]
    assert target.replaced == ()


def test_offsets_equal_a_loop_over_tokens() -> None:
    draw = np.random.default_rng(1)
    source = segmented(SOURCE, "the Ecotax, portico  in B!")
    shown = [j for j, (start, end) in enumerate(source.offsets) if end > start]
    assert len(shown) < len(source.ids), "the second of two spaces is a token without text"
    words = ["<unk>", "le", "de", "portique", ","]
    for _ in range(50):
        target = translated(" ".join(draw.choice(words, size=draw.integers(1, 9))))
        weights = draw.random((len(target.ids), len(source.ids) + 1)).astype(np.float32)
        found = UnknownWordReplacer({"in": "dans la", "ecotax": "écotaxe"}).replace(source, target, weights)
        expected = []
        for i, (start, end) in enumerate(target.offsets):
            word = target.text[start:end]
            if target.ids[i] == UNK:
                a, b = source.offsets[max(shown, key=lambda j, i=i: weights[i, j])]
                word = {"in": "dans la", "Ecotax": "écotaxe"}.get(source.text[a:b], source.text[a:b])
            expected.append(word)
        assert [found.text[a:b] for a, b in found.offsets] == expected
        assert "<unk>" not in found.text
        parts = [target.text[b:c] for (_, b), (c, _) in zip(target.offsets, target.offsets[1:], strict=False)]
        assert found.text == "".join(w + gap for w, gap in zip(expected, [*parts, ""], strict=True))


@pytest.mark.parametrize(
    ("target", "best", "expected"),
    [
        ("le <unk> de", (0, 1, 4), "le E-Post de"),
        ("le <unk> de", (0, 3, 4), "le E-Post de"),  # attention to any token of the word
        ("le <unk> <unk> <unk> de", (0, 1, 2, 3, 4), "le E-Post de"),  # adjacent copies are written once
        ("le <unk> de <unk>", (0, 1, 0, 3), "le E-Post de E-Post"),
        ("le <unk> <unk> de", (0, 1, 0, 4), "le E-Post the de"),
        ("le <unk> - <unk> de", (0, 1, 2, 3, 4), "le E- mail de"),  # the translation contains the other parts
        ("le <unk> - de", (0, 1, 2, 4), "le E-Post- de"),
        ("le <unk> de", (0, 5, 4), "le Pont-Ile de"),
        ("le <unk> <unk> .", (0, 5, 8, 3), "le Pont-Ile Nord."),  # only the longest match at the position
        ("le <unk> .", (0, 8, 3), "le Nord."),
        ("le <unk> .", (0, 9, 3), "le ,."),  # surrounding characters are not copied
    ],
)
def test_words_of_several_tokens_are_looked_up_whole(target: str, best: tuple[int, ...], expected: str) -> None:
    source = segmented(SOURCE, "the E-mail in Pont-de-Buis-Nord, in New York")
    pieces = [source.text[a:b] for a, b in source.offsets]
    assert pieces == [
        "the",
        "E",
        "-",
        "mail",
        "in",
        "Pont",
        "-",
        "de",
        "-",
        "Buis",
        "-",
        "Nord",
        ",",
        "in",
        "New",
        "York",
    ]
    places = [{8: 11, 9: 12}.get(place, place) for place in best]
    symbols = TARGET_OF_MARKS.tokens()
    known = {symbol.removeprefix(SPACE_MARKER): id for id, symbol in enumerate(symbols)}
    weights = attention(*places, columns=len(source.ids) + 1)
    unknown = UnknownWordReplacer(
        {"e-mail": "E-Post", "Pont-de": "Pont-De", "Pont-de-Buis": "Pont-Ile", "New York": "Nowhere"}
    )
    found = unknown.replace(
        source, TARGET_OF_MARKS.join_with_offsets([known[word] for word in target.split()]), weights
    )
    assert found.text == expected
    assert all(0 <= a <= b <= len(found.text) for a, b in found.offsets)
    assert len(found.replaced) == target.count("<unk>")


def test_marker_between_tokens_keeps_the_word_together() -> None:
    source = segmented(SOURCE, "the e-mail")
    marked = train_words(["le"], 50, 1).with_annotation_tokens([f"{POSITION_PREFIX}+0>"])
    [le, mark] = [marked.tokens().index(symbol) for symbol in ("▁le", f"{POSITION_PREFIX}+0>")]
    target = marked.join_with_offsets([le, mark, UNK, mark, UNK, mark])
    told = {2: 1, 4: 3}
    found = UnknownWordReplacer({"e-mail": "courriel"}).replace(source, target, None, copied_from=told)
    assert found.text == "le courriel"
    assert [one.by for one in found.replaced] == ["dictionary", "dictionary"]


def test_no_replacement_without_unknown_or_source_words() -> None:
    source, known = segmented(SOURCE, "the portico"), translated("le portique")
    weights = attention(0, 1, columns=3)
    assert UnknownWordReplacer().replace(source, known, weights) is known
    unknown = translated("<unk>")
    assert UnknownWordReplacer().replace(segmented(SOURCE, ""), unknown, attention(0, columns=1)).text == "<unk>"


def test_words_are_looked_up_as_written_and_in_lower_case() -> None:
    unknown = UnknownWordReplacer({"apple": "pomme", "Apple": "Apple SA"})
    assert [unknown.entry(w) for w in ("apple", "Apple", "APPLE", "pear")] == ["pomme", "Apple SA", "pomme", None]


def test_dictionary_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "words.tsv"
    path.write_text("dog\tchien\t0.9\n\ndog\ttoutou\nin\tdans la \n", encoding="utf-8")
    assert read_dictionary(path) == {"dog": "chien", "in": "dans la"}
    for line in ("dog", "dog\t", "\tchien"):
        path.write_text(f"cat\tchat\n{line}\n", encoding="utf-8")
        with pytest.raises(DataError, match=r"words\.tsv:2: must be a source word, a tab and its translation; got"):
            read_dictionary(path)
    with pytest.raises(DataError, match="no such file"):
        read_dictionary(tmp_path / "nothing.tsv")


def config(model: dict[str, Any] = BAHDANAU, text: str = "words", **search: Any) -> RunConfig:
    tables = {
        "data": {"source": "en", "target": "fr", "train": ["x.tsv"]},
        "text": {"type": text},
        "model": model,
        "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
        "search": search,
    }
    return resolve(tables)


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        ({}, []),
        ({"replace_unknown": "copy"}, []),
        ({"replace_unknown": "dictionary", "dictionary": "d.tsv"}, []),
        (
            {"model": RNNENCDEC, "replace_unknown": "copy"},
            ["search.replace_unknown: has no effect with the rnnencdec decoder, which has no attention; remove it"],
        ),
        (
            {"text": "bpe", "replace_unknown": "copy"},
            ['search.replace_unknown: has no effect with text.type = "bpe", whose vocabulary covers every '
             "text; remove it"],
        ),
        (
            {"replace_unknown": "dictionary"},
            ['search.dictionary: must be given for replace_unknown = "dictionary"'],
        ),
        (
            {"replace_unknown": "copy", "dictionary": "d.tsv"},
            ['search.dictionary: has no effect with replace_unknown = "copy"; remove it'],
        ),
        (
            {"dictionary": "d.tsv"},
            ['search.dictionary: has no effect with replace_unknown = "none"; remove it'],
        ),
    ],
)  # fmt: skip
def test_invalid_dictionaries_are_rejected(given: dict[str, Any], faults: list[str]) -> None:
    assert check_unknown_words(config(**given)) == faults


def test_replacement_is_built_from_the_config(tmp_path: Path) -> None:
    assert unknown_word_replacer(config()) is None
    copying = unknown_word_replacer(config(replace_unknown="copy"))
    assert copying is not None
    assert copying.entry("zebra") is None
    (tmp_path / "d.tsv").write_text("zebra\tzèbre\n", encoding="utf-8")
    given = config(replace_unknown="dictionary", dictionary=str(tmp_path / "d.tsv"))
    looking = unknown_word_replacer(given)
    assert looking is not None
    assert looking.entry("zebra") == "zèbre"
