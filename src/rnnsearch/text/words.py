"""Word-level tokenizers: the K most frequent words of a text, as in the papers (K = 30,000).

Also the pre-tokenization that all tokenizers share: `pieces` splits text into words and
punctuation, and `count_chunks` counts the stretches between spaces ("chunks"), from which every
vocabulary is learned.

`export/web/module/words.js` is the same in JavaScript. Tests: tests/page/test_module.py.
"""

from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import TypeVar

from tokenizers import Regex, models, pre_tokenizers

from rnnsearch.errors import ConfigError, DataError
from rnnsearch.text.piece_patterns import PIECE_PATTERN, SPACE_PATTERN
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import SPECIALS, UNK

_LINES_PER_UPDATE = 1000  # counting many lines at once is faster
MAX_COUNTED_TEXTS = 2_000_000
"""Maximum number of distinct texts whose counts are kept."""
Text = TypeVar("Text", str, tuple[str, str])


def train_words(lines: Iterable[str], size: int, min_count: int) -> Tokenizer:
    """Train a word-level tokenizer on the most frequent pieces of a text.

    Equally frequent words are taken in the order of their code points, so the same text always
    gives the same vocabulary. Upper and lower case differ.

    Args:
        lines: The training text; read once.
        size: Maximum vocabulary size, including the special tokens.
        min_count: Minimum number of occurrences of a word.

    Raises:
        ConfigError: `size` has no space for a word.
        DataError: No word is frequent enough.
    """
    return words_from_counts(count_chunks(lines), size, min_count)


def words_from_counts(chunks: Counter[str], size: int, min_count: int) -> Tokenizer:
    """Train like `train_words`, from the counts of a text's chunks (see `count_chunks`)."""
    if size <= len(SPECIALS):
        raise ConfigError([f"text.vocabulary: must be more than the {len(SPECIALS)} special tokens; got {size}"])
    counts = pieces_in_chunks(chunks)
    known = sorted((word for word, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
    if not known:
        raise DataError(f"the training text must hold words that occur {min_count} times or more; got none")
    vocabulary = {token: id for id, token in enumerate([*SPECIALS, *known[: size - len(SPECIALS)]])}
    return Tokenizer.assemble(models.WordLevel(vocab=vocabulary, unk_token=SPECIALS[UNK]), PIECE_PATTERN)


def words_from_list(words: Iterable[str]) -> Tokenizer:
    """Return a word-level tokenizer with these words after the special tokens, in order.

    Text is split at spaces only. No word equals a special token, because each includes the space
    before it.
    """
    vocabulary = {token: id for id, token in enumerate([*SPECIALS, *(f" {word}" for word in words)])}
    return Tokenizer.assemble(models.WordLevel(vocab=vocabulary, unk_token=SPECIALS[UNK]), SPACE_PATTERN)


def count_chunks(lines: Iterable[str]) -> Counter[str]:
    """Count the chunks of a text: the stretches between spaces.

    No piece crosses a space, so these counts are all that training needs. Memory grows with the
    number of distinct chunks, not with the number of lines.
    """
    counts: Counter[str] = Counter()
    remaining = filter(None, lines)
    while batch := list(islice(remaining, _LINES_PER_UPDATE)):
        # Lines are joined by a space, across which no chunk extends.
        counts.update(" ".join(batch).split(" "))
    return counts


def prune_counts(counts: Counter[Text]) -> None:
    """Keep only the more frequent half if there are more than `MAX_COUNTED_TEXTS` distinct texts.

    Equally frequent texts are kept in the order of their code points. This bounds the memory; what
    is dropped is too rare to become a token.
    """
    if len(counts) > MAX_COUNTED_TEXTS:
        frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: MAX_COUNTED_TEXTS // 2]
        counts.clear()
        counts.update(dict(frequent))


def pieces_in_chunks(chunks: Counter[str]) -> Counter[str]:
    """Count the pieces (see PIECE_PATTERN) in a text with these chunks."""
    counts: Counter[str] = Counter()
    for chunk, n in chunks.items():
        for piece in pieces(f" {chunk}"):
            counts[piece] += n
    return counts


def pieces(text: str) -> list[str]:
    """Return the pieces (see PIECE_PATTERN) of a text; concatenated they are that text."""
    return [piece for piece, _ in _splitter().pre_tokenize_str(text)]


@cache
def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(PIECE_PATTERN), "isolated")


def count_words(lines: Iterable[str]) -> Counter[str]:
    """Count the words of a text: its pieces without the space before them, and without punctuation."""
    return words_in_chunks(count_chunks(lines))


def words_in_chunks(chunks: Counter[str]) -> Counter[str]:
    """Count words like `count_words`, from the counts of a text's chunks."""
    counts: Counter[str] = Counter()
    for piece, n in pieces_in_chunks(chunks).items():
        if _is_word(piece):
            counts[piece.strip()] += n
    return counts


def _is_word(piece: str) -> bool:
    return any(character.isalnum() for character in piece)
