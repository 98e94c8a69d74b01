"""Byte-pair encoding (Sennrich et al., 2016) with merges inside words only and bytes for rare characters."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from rnnsearch.errors import ConfigError, DataError
from rnnsearch.text.tokenizer import BYTE_SYMBOLS, Tokenizer
from rnnsearch.text.vocabulary import SPECIALS, UNK
from rnnsearch.text.words import PIECES, count_chunks

_BEYOND_ASCII = [*range(0x80, 0xC0), *range(0xC2, 0xF5)]
"""The bytes that occur in the UTF-8 of characters beyond ASCII."""
SMALLEST = len(SPECIALS) + len(_BEYOND_ASCII) + 128
"""Symbols that every vocabulary holds: special ones, bytes, and each ASCII character or its byte."""
ENOUGH = 5_000_000
"""Stretches of text that merges are learned from."""
LARGEST = 8000
"""Symbols that most corpora want: more make training slower, and each is seen less often."""
SMALL_CORPUS, FEW = 400_000, 2000
"""Below so many characters a side, so many symbols: see docs/results/small-corpora.md."""
_TOGETHER = 10_000
"""Stretches segmented at a time."""
_REPEATS = 4096
"""Characters of one stretch of training text handed to the library at a time."""


def fitting_size(sides: Collection[Counter[str]]) -> int:
    """How many symbols suit a text with these stretches between spaces a side, where nobody says."""
    characters = sum(len(chunk) * n for chunks in sides for chunk, n in chunks.items()) / len(sides)
    return FEW if characters < SMALL_CORPUS else LARGEST


def train_bpe(lines: Iterable[str], size: int, min_count: int) -> Tokenizer:
    """A BPE tokenizer that segments every text at all without an unknown symbol.

    `size` counts the special and the byte symbols too; `lines` is read once. Characters that occur
    `min_count` times or more are symbols, the most frequent first, as long as they leave half of the
    remaining room to the merges; others are spelled in bytes. A pair is merged while it occurs `min_count`
    times or more. The same text gives the same vocabulary, in whatever order its lines come.

    Errors: ConfigError where `size` cannot hold the byte symbols; DataError for a text without symbols.
    """
    return bpe_from_counts(count_chunks(lines), size, min_count)


def bpe_from_counts(chunks: Counter[str], size: int, min_count: int) -> Tokenizer:
    """As `train_bpe`, of a text with these stretches between spaces (see `count_chunks`).

    Of more than `ENOUGH` stretches, all counts are divided so that `ENOUGH` are left, and what then occurs less than
    half a time is left out: learning takes time by the length of the text, and hardly changes.
    """
    require_room(size)
    chunks, min_count = scaled(chunks, min_count)
    alphabet = alphabet_of(chunks, min_count, room=(size - SMALLEST) // 2)
    fixed = fixed_symbols(alphabet)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_count,
        special_tokens=fixed,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(PIECES), "isolated")
    core.train_from_iterator(_repeated(stretches(chunks, alphabet)), trainer)
    # Training registers the special symbols as "added", which are found in raw text: begin anew without them.
    trained = json.loads(core.to_str())["model"]
    merges = [(left, right) for left, right in trained["merges"]]
    return _assembled(trained["vocab"], merges)


def without_rare(tokenizer: Tokenizer, chunks: Counter[str], min_count: int) -> Tokenizer:
    """A joint tokenizer for the side whose text has these stretches between spaces: symbols that occur there less often
    than `min_count` times are taken apart again into those they were merged from, and these likewise (of a unigram
    tokenizer: are never used), so that the side has few symbols that it was hardly trained on (Sennrich et al. 2017,
    section 2; Sennrich et al. 2016, section 3.2).
    """
    return tokenizer.without(rare_symbols(tokenizer, chunks, min_count))


def rare_symbols(tokenizer: Tokenizer, chunks: Counter[str], min_count: int) -> set[int]:
    """The symbols of several characters that a text with these stretches between spaces has less often."""
    counts, names = used(tokenizer, chunks), tokenizer.names()
    several = [id for id in range(len(SPECIALS), len(names)) if len(names[id]) > 1 and names[id] not in BYTE_SYMBOLS]
    return {id for id in several if counts[id] < min_count}


def used(tokenizer: Tokenizer, chunks: Counter[str]) -> list[int]:
    """How often each symbol stands in a text with these stretches between spaces."""
    counts = [0] * len(tokenizer)
    rest = iter(chunks.items())
    while some := list(islice(rest, _TOGETHER)):
        for ids, (_, n) in zip(tokenizer.ids([chunk for chunk, _ in some]), some, strict=True):
            for id in ids:
                counts[id] += n
    return counts


def scaled(chunks: Counter[str], min_count: int) -> tuple[Counter[str], int]:
    """Counts of at most `ENOUGH` stretches in the same proportions, and what `min_count` is among them."""
    share = ENOUGH / max(chunks.total(), 1)
    if share >= 1:
        return chunks, min_count
    fewer = {chunk: kept for chunk, n in chunks.items() if (kept := round(n * share))}
    return Counter(fewer), max(1, round(min_count * share))


def train_characters(lines: Iterable[str], size: int, min_count: int) -> Tokenizer:
    """A tokenizer whose symbols are characters, those that occur `min_count` times or more, as many as there is room
    for, the space among them; others are spelled in bytes. It is `train_bpe`'s without merges. Errors: as there."""
    return characters_from_counts(count_chunks(lines), size, min_count)


def characters_from_counts(chunks: Counter[str], size: int, min_count: int) -> Tokenizer:
    """As `train_characters`, of a text with these stretches between spaces."""
    require_room(size)
    alphabet = alphabet_of(chunks, min_count, room=size - SMALLEST)
    return _assembled({symbol: id for id, symbol in enumerate([*fixed_symbols(alphabet), *alphabet])}, [])


def require_room(size: int) -> None:
    """Errors: ConfigError for a size that cannot hold the byte symbols."""
    if size < SMALLEST + 2:
        raise ConfigError([f"text.vocabulary: must be at least {SMALLEST + 2} (a symbol a byte); got {size}"])


def fixed_symbols(alphabet: list[str]) -> list[str]:
    """The special symbols and those of bytes, beside these characters."""
    ascii_bytes = sorted(set(range(128)) - {ord(c) for c in alphabet})
    return [*SPECIALS, *(f"<0x{byte:02X}>" for byte in (*ascii_bytes, *_BEYOND_ASCII))]


def _assembled(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    model = models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token=SPECIALS[UNK])
    return Tokenizer.assemble(model, PIECES)


def alphabet_of(chunks: Counter[str], min_count: int, room: int) -> list[str]:
    """The characters that are symbols of their own, sorted: all that are frequent enough, at most `room`
    of them beyond ASCII (ASCII's have their room already: it is a character or its byte)."""
    counts = Counter({" ": chunks.total()})
    for chunk, n in chunks.items():
        for character in chunk:
            counts[character] += n
    frequent = [c for c, n in counts.items() if n >= max(min_count, 1)]
    beyond = sorted((c for c in frequent if not c.isascii()), key=lambda c: (-counts[c], c))
    if not frequent:
        raise DataError(f"the training text must hold characters seen {min_count} times or more; got none")
    return sorted([c for c in frequent if c.isascii()] + beyond[:room])


def stretches(chunks: Counter[str], alphabet: list[str]) -> Iterator[tuple[str, int]]:
    """Each stretch of text, the space before it with it, and how often it occurs; cut where a character is spelled in
    bytes, over which nothing can be merged."""
    spelled = re.compile("[^" + "".join(map(re.escape, alphabet)) + "]+")
    for chunk in sorted(chunks):
        for part in filter(None, spelled.split(f" {chunk}")):
            yield part, chunks[chunk]


def _repeated(stretches: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Each stretch as often as it occurs."""
    for part, n in stretches:
        # Parts that begin with a space can follow one another in one text; others would run together.
        together = max(1, _REPEATS // len(part)) if part[0] == " " else 1
        whole, rest = divmod(n, together)
        yield from (part * together for _ in range(whole))
        if rest:
            yield part * rest
