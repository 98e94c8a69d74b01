"""A small bilingual text, tokenizers trained on it, and texts that tokenizers tend to garble."""

import random

import pytest

from rnnsearch.text.subwords import train_bpe, train_characters
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.unigram import train_unigram
from rnnsearch.text.words import train_words

LINES = [
    "A man sits on a bench.",
    "A man in a blue shirt is sitting on the bench, isn't he?",
    "Ein Mann sitzt auf einer Bank.",
    "Ein Mann im blauen Hemd sitzt auf der Bank, geht's?",
    'He said: "The bench (blue) is Tom\'s."',
    "L'homme en chemise bleue est assis sur un banc\u202f!",
    "The women  sit…",
    "",
    "Größere Bänke – für 12,50 € – gibt es hier.",
] * 3

ODD = [
    "",
    " ",
    "  ",
    "a",
    " a",
    "a ",
    "  a  b   c  ",
    "a\tb\t",
    "\t\ta",
    "a\u00a0b\u202f?\u3000c",
    "▁", "▁▁a ▁", " ▁x▁",
    "</s>", "<unk> <pad><s>", "a</s>b <unk>!", "<0x41><0xE2>", "  <s>",
    '"Quoted", (bracketed) [and] {so} on... ?!?! ¡Ay! «là» „da“ “x”',
    "don't l'homme geht's rock'n'roll 'tis I'LL s’il aujourd’hui '' '",
    "🙂", "🙂🙂 👩‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️!",
    "e\u0301a\u0308o\u0302\u0323 x\u0301", "\u0301leading mark",
    "مرحبا بالعالم، كيف حالك؟", "שָׁלוֹם עוֹלָם!", "می‌خواهم",
    "日本語の文です。これは？", "今天天气很好，我们去公园吧！", "ภาษาไทยไม่มีช่องว่าง", "नमस्ते दुनिया।",
    "line\nbreak\r\nhere", "\x00\x01\x7f\x1c\x85\u2028\u2029\ufeff\ufffd", "\U0010ffff\U000e0001",
    "x" * 3000, "=" * 500, "https://example.org/a?b=c&d=%20#e", "snake_case CamelCase 3.14e-10 1,000.00 B2B",
    "ß" * 40 + " " + "é" * 40,
]  # fmt: skip


def random_texts(seed: int, count: int) -> list[str]:
    """Texts of characters from everywhere, spaces and quotes more often than others."""
    rng = random.Random(seed)
    pools = [
        "abcdefgh Tom's",
        "  \t\u00a0'\"’.,!?<>/()",
        "äöüßéñ",
        "\u0301\u0308\u200d\ufe0f",
        "🙂👍🏽❤",
        "日本語שלוםمر",
        "▁",
    ]

    def character() -> str:
        if rng.random() < 0.03:
            point = rng.randrange(0x110000 - 0x800)
            return chr(point if point < 0xD800 else point + 0x800)
        return rng.choice(rng.choice(pools))

    return ["".join(character() for _ in range(rng.randrange(25))) for _ in range(count)]


@pytest.fixture(scope="session")
def bpe() -> Tokenizer:
    return train_bpe(LINES, size=400, min_count=2)


@pytest.fixture(scope="session")
def words() -> Tokenizer:
    return train_words(LINES, size=500, min_count=1)


@pytest.fixture(scope="session")
def characters() -> Tokenizer:
    return train_characters(LINES, size=400, min_count=1)


@pytest.fixture(scope="session")
def parted(bpe: Tokenizer) -> Tokenizer:
    """BPE of which half of the merged symbols are taken apart again."""
    vocabulary, merges = bpe.merges()
    return bpe.without_tokens(vocabulary[left + right] for left, right in merges[::2])


@pytest.fixture(scope="session")
def unigram() -> Tokenizer:
    return train_unigram(LINES, size=400, min_count=1)


@pytest.fixture(scope="session")
def parted_unigram(unigram: Tokenizer) -> Tokenizer:
    """The same, of which half of the symbols of several characters are never used."""
    return unigram.without_tokens(
        [id for id, name in enumerate(unigram.names()) if len(name) > 1 and "<" not in name][::2]
    )


@pytest.fixture(scope="session", params=["words", "bpe", "characters", "parted", "unigram", "parted_unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def odd() -> list[str]:
    return ODD + random_texts(seed=1, count=400)


@pytest.fixture(scope="session")
def lines() -> list[str]:
    return LINES
