"""Word-level vocabularies: the K most frequent words of a text, as in the papers (K = 30,000)."""

from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import TypeVar

from tokenizers import Regex, models, pre_tokenizers

from rnnsearch.errors import ConfigError, DataError
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import SPECIALS, UNK

_INSIDE = "\\p{L}\\p{M}\\p{N}_\u200c\u200d"
"""What words are made of: letters, marks, digits, and the joiners that Indic and Arabic scripts need."""
_CONTRACTED = f"(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])(?![{_INSIDE}])"
PIECES = "|".join(
    (
        f"(?<=[\\p{{L}}\\p{{M}}])['’]{_CONTRACTED}",  # Tom|'s, don|'t, geht|'s
        f" ?[{_INSIDE}]+(?:['’](?=\\p{{L}})(?!{_CONTRACTED}))?",  # a word, or one cut short: l'|homme
        f"\\s?([^\\s{_INSIDE}])\\1*\\p{{M}}*",  # one mark of punctuation or symbol, repeated: ... !!
        "\\s",  # any other white space, one by one
    )
)
"""The pieces of a text, as a pattern whose matches cover it: words and punctuation, each with the one space
before it. As `<` stands alone or with its like, no piece spells a special or a byte symbol."""


BY_SPACES = " [^ ]*"
"""The pieces of a text that somebody else has cut into symbols: what stands between spaces, each with the space before
it."""

_TOGETHER = 1000
"""Lines counted at a time, which is faster than one by one."""
MOST = 2_000_000
"""Different stretches of text whose counts are held."""
Text = TypeVar("Text", str, tuple[str, str])


def train_words(lines: Iterable[str], size: int, min_count: int) -> Tokenizer:
    """A word-level tokenizer: the most frequent pieces of the text that occur `min_count` times or more.

    `size` counts the special symbols too; `lines` is read once. Equally frequent words are taken in the
    order of their code points, so the same text gives the same vocabulary. Upper and lower case differ.

    Errors: ConfigError where `size` leaves no room for a word; DataError where no word is left.
    """
    return words_from_counts(count_chunks(lines), size, min_count)


def words_from_counts(chunks: Counter[str], size: int, min_count: int) -> Tokenizer:
    """As `train_words`, of a text with these stretches between spaces (see `count_chunks`)."""
    if size <= len(SPECIALS):
        raise ConfigError([f"text.vocabulary: must be more than {len(SPECIALS)} special symbols; got {size}"])
    counts = count_pieces(chunks)
    known = sorted((word for word, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
    if not known:
        raise DataError(f"the training text must hold words that occur {min_count} times or more; got none")
    vocabulary = {symbol: id for id, symbol in enumerate([*SPECIALS, *known[: size - len(SPECIALS)]])}
    return Tokenizer.assemble(models.WordLevel(vocab=vocabulary, unk_token=SPECIALS[UNK]), PIECES)


def given_words(words: Iterable[str]) -> Tokenizer:
    """A word-level tokenizer of these words, in the order of their ids behind the special symbols; a text is cut at its
    spaces alone. No word spells a special symbol, for each has the space before it."""
    vocabulary = {symbol: id for id, symbol in enumerate([*SPECIALS, *(f" {word}" for word in words)])}
    return Tokenizer.assemble(models.WordLevel(vocab=vocabulary, unk_token=SPECIALS[UNK]), BY_SPACES)


def count_chunks(lines: Iterable[str]) -> Counter[str]:
    """How often each stretch between spaces occurs. Memory grows with the different stretches, not the lines.

    No piece reaches across a space, so these counts are all that training needs to know of a text.
    """
    counts: Counter[str] = Counter()
    rest = filter(None, lines)
    while some := list(islice(rest, _TOGETHER)):
        counts.update(" ".join(some).split(" "))
    return counts


def forget_rare(counts: Counter[Text]) -> None:
    """Where there are more than `MOST` different ones, leave half of them: the most frequent, equally frequent
    ones in the order of their code points. So memory is bounded, and what goes is too rare to become a symbol."""
    if len(counts) > MOST:
        kept = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: MOST // 2]
        counts.clear()
        counts.update(dict(kept))


def count_pieces(chunks: Counter[str]) -> Counter[str]:
    """How often each piece (see PIECES) occurs in a text with these stretches between spaces."""
    counts: Counter[str] = Counter()
    for chunk, n in chunks.items():
        for piece in pieces(f" {chunk}"):
            counts[piece] += n
    return counts


def pieces(text: str) -> list[str]:
    """The pieces (see PIECES) of a text; one after another they are that text."""
    return [piece for piece, _ in _splitter().pre_tokenize_str(text)]


@cache
def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(PIECES), "isolated")


def count_words(lines: Iterable[str]) -> Counter[str]:
    """How often each word of a text occurs: its pieces without the space before them, punctuation left out."""
    return count_words_in(count_chunks(lines))


def count_words_in(chunks: Counter[str]) -> Counter[str]:
    """As `count_words`, of a text with these stretches between spaces."""
    counts: Counter[str] = Counter()
    for piece, n in count_pieces(chunks).items():
        if _is_word(piece):
            counts[piece.strip()] += n
    return counts


def _is_word(piece: str) -> bool:
    return any(character.isalnum() for character in piece)
