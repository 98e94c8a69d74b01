"""Normalisation of text: the same tokens for the same sentence, offsets in the raw text, stable results."""

import json
import random
import re
import unicodedata
from typing import get_args

import pytest

from rnnsearch.config.data import TextNormalization
from rnnsearch.errors import ModelError
from rnnsearch.text.letter_case import letter_case
from rnnsearch.text.normalization import LEVELS, SPACES, Normalization
from rnnsearch.text.prefixes import PrefixReader
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.tokenizer_cache import CachedTokenizer
from rnnsearch.text.vocabulary import UNK

STANDARD = Normalization("standard")
FRENCH = Normalization("standard", "fr")
PIECES = (
    " \u00a0\u202f\u3000\u00ad\u200b\u200c\u200d\ufeff\u200e\u0301\u0323\u0308\u0338aeionEAI\u212b\u0627\u0645\u064bक"
    "\u094d\u0930\u1100\u1161\u11a8\uac00👩👧\U0001f3fd❤\ufe0f«»“”‘’—–-:;!?%.12{}<@/ßİıſﬁǅΣσς\t\u2028\x1c\u2190\u0958"
)
SENTENCE = "A man sits on the bench."
VARIANTS = {
    "leading space": f" {SENTENCE}",
    "trailing spaces": f"{SENTENCE} \u00a0",
    "repeated spaces": SENTENCE.replace(" ", "  "),
    "no-break spaces": SENTENCE.replace(" ", "\u00a0"),
    "thin spaces": SENTENCE.replace(" ", "\u2009"),
    "ideographic spaces": SENTENCE.replace(" ", "\u3000"),
    "tabs": SENTENCE.replace(" ", "\t"),
    "soft hyphens": SENTENCE.replace("nc", "n\u00adc"),
    "zero-width spaces": SENTENCE.replace(" ", " \u200b"),
    "directional marks": f"\u202a{SENTENCE}\u202c\u200f",
    "byte-order mark": f"\ufeff{SENTENCE}",
    "joiners": SENTENCE.replace("ma", "m\u200da"),
}


@pytest.fixture(scope="module")
def random_texts():
    choose = random.Random(5)
    return ["".join(choose.choices(PIECES, k=choose.randint(0, 12))) for _ in range(2000)]


def test_levels_are_those_of_run_files():
    assert get_args(TextNormalization) == LEVELS


def test_white_space_is_that_of_python():
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert "".join(re.findall(f"[{SPACES}]", "".join(characters))) == "".join(filter(str.isspace, characters))


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_a_sentence_have_the_same_tokens(tokenizer, variant):
    normalizing = tokenizer.normalizing(STANDARD)
    clean, other = normalizing.segment([SENTENCE, VARIANTS[variant]])
    assert other.text == VARIANTS[variant]
    assert (other.ids, other.tokens) == (clean.ids, clean.tokens)
    assert other.spelled_ids.unknown == clean.spelled_ids.unknown
    assert normalizing.ids([other.text]) == [clean.ids]
    assert CachedTokenizer(normalizing).ids([other.text])[0].tolist() == clean.ids
    for own, raw in zip(clean.texts, other.texts, strict=True):
        assert Normalization("standard").text(raw) == own


def test_words_keep_their_spans_in_the_raw_text(bpe):
    text = "\ufeff A\u00a0 man\u00adkind  sit\u0323s"
    segmented = bpe.normalizing(STANDARD).segment([text])[0]
    covered = {}
    for start, end in segmented.offsets:
        word = next(
            n for n, word in enumerate(("A", "man\u00adkind", "sit\u0323s")) if start < text.index(word) + len(word)
        )
        first, last = covered.get(word, (start, end))
        covered[word] = min(first, start), max(last, end)
    assert [text[start:end] for start, end in covered.values()] == ["A", "man\u00adkind", "sit\u0323s"]


def test_normalised_texts_stay(random_texts):
    for level in LEVELS:
        normalization = Normalization(level)
        for text in random_texts:
            once = normalization.text(text)
            assert normalization.text(once) == once, (level, text)
            if level != "none":
                assert once == " ".join(once.split(" ")) and unicodedata.is_normalized("NFC", once), text


def test_origins_of_characters_are_in_order(random_texts):
    for text in random_texts:
        normalized = STANDARD.normalized(text)
        spans = normalized.spans
        if spans is None:
            assert normalized.text == text
            continue
        assert len(spans) == len(normalized.text)
        assert all(0 <= start < end <= len(text) for start, end in spans), text
        assert [*spans] == sorted(spans), text


def test_offsets_cover_the_raw_text_of_tokens(tokenizer, random_texts):
    for segmented in tokenizer.normalizing(STANDARD).segment(random_texts):
        last = 0
        for start, end in segmented.offsets:
            assert 0 <= start <= end <= len(segmented.text)
            assert start >= last or start == end or segmented.text[start:end].strip()
            last = start


def test_clusters_are_composed_like_whole_texts(random_texts):
    """Composition never crosses the borders of clusters, for any character."""
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    decomposed = [unicodedata.normalize("NFD", one) for one in characters]
    for character, parts in zip(characters, decomposed, strict=True):
        if parts != character:
            expected = " ".join(unicodedata.normalize("NFC", f"x{character}y").split())
            assert STANDARD.text(f"x{parts}y") == expected, ascii(character)
    for text in random_texts:
        kept = "".join(character for character in text if character not in "\u00ad\u200b\u200c\u200d\ufeff\u200e")
        expected = unicodedata.normalize("NFC", kept)
        assert STANDARD.text(kept) == " ".join(expected.split()), ascii(text)


@pytest.mark.parametrize(
    "text",
    ["می\u200cروم", "क\u094d\u200dष", "👩\u200d👩\u200d👧", "❤\ufe0f\u200d🔥", "🏳\ufe0f\u200d🌈", "ශ\u0dca\u200dර"],
)
def test_joiners_with_a_meaning_stay(text):
    assert STANDARD.text(text) == text


def test_punctuation_becomes_ascii():
    normalization = Normalization("punctuation")
    text = "«\u00a0Oui\u00a0» – „nein“ ‚x’ it’s well‑known word—word"
    assert normalization.text(text) == '"Oui" - "nein" \'x\' it\'s well-known word - word'
    assert STANDARD.text(text) == text.replace("\u00a0", " ")


def test_french_spaces_are_restored(bpe):
    text = "«\u00a0Oui\u00a0» : quoi\u202f? 5\u00a0%\u00a0; non\u202f!"
    restored = "«\u00a0Oui\u00a0»\u00a0: quoi\u202f? 5\u00a0%\u202f; non\u202f!"
    tokenizer = bpe.normalizing(FRENCH)
    [ids] = tokenizer.ids([text])
    segmented = tokenizer.join_with_offsets(ids)
    assert tokenizer.join(ids) == segmented.text == restored
    # Characters of several bytes have several tokens.
    covered = [restored[start:end] for start, end in dict.fromkeys(segmented.offsets)]
    assert "".join(covered) == "".join(restored.split())
    assert bpe.normalizing(STANDARD).join(ids) == FRENCH.text(text)
    assert Normalization("none", "fr").restored(" :") == " :"


def test_translations_begin_with_the_exact_prefix(tokenizer):
    normalizing = tokenizer.normalizing(FRENCH)
    reader = PrefixReader(normalizing)
    for text in ("A  man ", "\ufeffA ma", " A\u00a0man sits", "A man", "Un\u00ad ", " ", ""):
        prefix = reader.read(text)
        whole = f"{prefix.normalized.text.rstrip(' ')} bench !"
        [ids] = normalizing.ids([whole])
        positions = [position for position, id in enumerate(ids) if id == UNK]
        words = normalizing.segment([whole])[0].spelled_ids.unknown if positions else []
        target = normalizing.join_with_offsets(ids, dict(zip(positions, words, strict=True)))
        restored = prefix.restored(target, FRENCH)
        assert restored.text.startswith(text), text
        assert restored.text.endswith("bench\u202f!")
        assert [*map(str.strip, restored.texts)][-1] == "!"


def test_files_store_the_normalisation(bpe, tmp_path):
    tokenizer = bpe.normalizing(FRENCH)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.normalization == FRENCH
    assert loaded.json == tokenizer.json and loaded.fingerprint() != bpe.fingerprint()
    # Files of earlier versions have no such key.
    assert "normalization" not in json.loads(bpe.json) and not Tokenizer.from_json(bpe.json, tmp_path).normalization
    assert loaded.without_tokens([len(loaded) - 1]).normalization == FRENCH


@pytest.mark.parametrize(
    "settings", [None, {}, [], {"level": "x", "language": ""}, {"level": "standard"}, {"level": [], "language": 1}]
)
def test_unknown_normalisation_is_rejected(bpe, tmp_path, settings):
    contents = json.dumps(json.loads(bpe.json) | {"normalization": settings})
    with pytest.raises(ModelError, match="`normalization` that this version does not know"):
        Tokenizer.from_json(contents, tmp_path / "t.json")


def test_tokenizers_without_normalisation_change_nothing(tokenizer, random_texts):
    segmented = tokenizer.segment_sources(random_texts)
    assert segmented == tokenizer.segment(random_texts)
    assert all(text.case is None and text.pieces == () for text in segmented)


def test_text_of_invisible_characters_has_no_tokens(bpe):
    for text in ("\u200b", " \ufeff ", "\u00ad\u00a0"):
        assert bpe.normalizing(STANDARD).segment([text])[0].translatable == Segmented(text, [], [], [])
        assert letter_case(STANDARD.text(text)) is None
