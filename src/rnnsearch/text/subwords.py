"""Byte-pair encoding (Sennrich et al., 2016), with merges inside words only and bytes for rare characters.

`data/prepare.py` and `align/aligner.py` train tokenizers with it, from counts of "chunks", the stretches of text
between spaces (`words.count_chunks`). The result depends only on the counts, never on the number of processes; tests
compare vocabularies exactly.

Also here: character-level vocabularies (BPE without merges), and the steps that `unigram.py` shares: the alphabet, the
byte tokens, `scale_counts` and `split_chunks`.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from zlib import crc32

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from rnnsearch.errors import ConfigError, DataError
from rnnsearch.text.piece_patterns import PIECE_PATTERN
from rnnsearch.text.tokenizer import BYTE_TOKENS, Tokenizer
from rnnsearch.text.vocabulary import SPECIALS, UNK
from rnnsearch.text.words import count_chunks

_NON_ASCII_BYTES = [*range(0x80, 0xC0), *range(0xC2, 0xF5)]
"""The bytes that occur in the UTF-8 of non-ASCII characters."""
MIN_VOCABULARY = len(SPECIALS) + len(_NON_ASCII_BYTES) + 128
"""Number of tokens in every vocabulary: special tokens, bytes, and each ASCII character or its byte."""
_MAX_TRAINING_CHUNKS = 5_000_000
"""Number of chunks that merges are learned from, at most."""
DEFAULT_VOCABULARY = 8000
"""Vocabulary size for most corpora; larger ones make training slower, and each token is seen less often."""
_SMALL_CORPUS_CHARACTERS = 400_000
"""Characters per language below which a corpus counts as small (see docs/results/small-corpora.md)."""
SMALL_CORPUS_VOCABULARY = 2000
"""Vocabulary size for small corpora."""
_CHUNKS_PER_BATCH = 10_000
_CHARACTERS_PER_STRING = 4096
"""Number of characters of repeated training text passed to the library at a time."""


def default_vocabulary_size(counts: Collection[Counter[str]]) -> int:
    """Return the default vocabulary size for texts with these chunk counts, one per language."""
    total = 0
    for chunks in counts:
        total += sum(len(chunk) * n for chunk, n in chunks.items())
    is_small = total / len(counts) < _SMALL_CORPUS_CHARACTERS
    return SMALL_CORPUS_VOCABULARY if is_small else DEFAULT_VOCABULARY


def train_bpe(lines: Iterable[str], size: int, min_count: int) -> Tokenizer:
    """Train a BPE tokenizer that segments any text without unknown tokens.

    The most frequent characters become tokens, as long as they leave half of the vocabulary to
    merges; other characters are represented by bytes. The same text gives the same vocabulary in
    any order of its lines.

    Args:
        lines: The training text; read once.
        size: Maximum vocabulary size, including special tokens and byte tokens.
        min_count: Minimum number of occurrences of a character that becomes a token and of a pair
            that is merged.

    Raises:
        ConfigError: `size` cannot hold the byte tokens.
        DataError: No character is frequent enough.
    """
    return bpe_from_counts(count_chunks(lines), size, min_count)


def bpe_from_counts(chunks: Counter[str], size: int, min_count: int) -> Tokenizer:
    """Train like `train_bpe`, from the counts of a text's chunks.

    Counts of more than `_MAX_TRAINING_CHUNKS` chunks are scaled down to that total, which drops
    chunks of less than half a count: training time depends on the length of the text, and the
    result hardly changes.
    """
    require_min_vocabulary(size)
    chunks, min_count = scale_counts(chunks, min_count)
    alphabet = select_alphabet(chunks, min_count, _max_non_ascii(size))
    fixed_names = fixed_tokens(alphabet)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_count,
        special_tokens=fixed_names,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(PIECE_PATTERN), "isolated")
    # Sorted and repeated by count, so that the result does not depend on the order of the lines.
    core.train_from_iterator(_repeated(split_chunks(chunks, alphabet)), trainer)
    # Training registers the special tokens as "added", which would be found in raw text: build a new tokenizer.
    trained = json.loads(core.to_str())["model"]
    merges = [(left, right) for left, right in trained["merges"]]
    return _assemble(trained["vocab"], merges)


def bpe_of_sizes(chunks: Counter[str], sizes: Sequence[int], min_count: int) -> list[Tokenizer]:
    """Return what `bpe_from_counts` returns for each size; this takes as long as the largest one.

    Smaller vocabularies consist of the first tokens of larger ones, unless there are so many distinct characters that
    they have smaller alphabets.
    """
    counts, scaled_min_count = scale_counts(chunks, min_count)
    largest: dict[tuple[str, ...], tuple[int, Tokenizer]] = {}
    for size in sorted(sizes, reverse=True):
        alphabet = tuple(select_alphabet(counts, scaled_min_count, _max_non_ascii(size)))
        if alphabet not in largest:
            largest[alphabet] = size, bpe_from_counts(chunks, size, min_count)
    tokenizers = []
    for size in sizes:
        alphabet = tuple(select_alphabet(counts, scaled_min_count, _max_non_ascii(size)))
        larger_size, tokenizer = largest[alphabet]
        tokenizers.append(tokenizer if size == larger_size else _truncated(tokenizer, size))
    return tokenizers


def _truncated(tokenizer: Tokenizer, size: int) -> Tokenizer:
    """Return a BPE tokenizer with the first `size` tokens of another one."""
    model = json.loads(tokenizer.json)["model"]
    vocabulary = {token: index for token, index in model["vocab"].items() if index < size}
    merges: list[tuple[str, str]] = []
    for left, right in model["merges"]:
        # Training would stop with the last token.
        if merges and vocabulary["".join(merges[-1])] == size - 1:
            break
        merges.append((left, right))
    return _assemble(vocabulary, merges)


def without_rare(tokenizer: Tokenizer, chunks: Counter[str], min_count: int) -> Tokenizer:
    """Return a joint tokenizer that does not use the tokens which are rare in one language's text.

    They are split into the tokens they were merged from, repeatedly (a unigram tokenizer does not
    use them), so that hardly any token of the language is undertrained (Sennrich et al. 2017,
    section 2; Sennrich et al. 2016, section 3.2).

    Args:
        tokenizer: A tokenizer of both languages.
        chunks: Chunk counts of one language's text.
        min_count: Minimum number of occurrences of a token in that text.
    """
    return tokenizer.without_tokens(rare_tokens(tokenizer, chunks, min_count))


def rare_tokens(tokenizer: Tokenizer, chunks: Counter[str], min_count: int) -> set[int]:
    """Return the tokens of several characters that occur fewer than `min_count` times in a text."""
    counts = token_counts(tokenizer, chunks)
    rare = set()
    for token_id, name in enumerate(tokenizer.names()):
        if token_id >= len(SPECIALS) and len(name) > 1 and name not in BYTE_TOKENS and counts[token_id] < min_count:
            rare.add(token_id)
    return rare


def token_counts(tokenizer: Tokenizer, chunks: Counter[str]) -> list[int]:
    """Return the number of occurrences of each token in a text with these chunks."""
    counts = [0] * len(tokenizer)
    remaining = iter(chunks.items())
    while batch := list(islice(remaining, _CHUNKS_PER_BATCH)):
        for ids, (_, n) in zip(tokenizer.ids([chunk for chunk, _ in batch]), batch, strict=True):
            for token_id in ids:
                counts[token_id] += n
    return counts


def scale_counts(chunks: Counter[str], min_count: int) -> tuple[Counter[str], int]:
    """Scale counts down to a total of about `_MAX_TRAINING_CHUNKS`, and `min_count` with them.

    Of chunks whose scaled count is below a half, a sample is kept: in text without spaces, all chunks may be rare.
    """
    scale = _MAX_TRAINING_CHUNKS / max(chunks.total(), 1)
    if scale >= 1:
        return chunks, min_count
    scaled: Counter[str] = Counter()
    for chunk, n in chunks.items():
        count = round(n * scale)
        # A hash instead of random numbers: the result must not depend on the order of the chunks.
        if count or crc32(chunk.encode("utf-8", "surrogatepass")) < n * scale * 2**32:
            scaled[chunk] = max(1, count)
    return scaled, max(1, round(min_count * scale))


def _max_non_ascii(size: int) -> int:
    # Half of the vocabulary is left to merges.
    return (size - MIN_VOCABULARY) // 2


def train_characters(lines: Iterable[str], size: int, min_count: int) -> Tokenizer:
    """Train a character-level tokenizer, like `train_bpe` without merges.

    Characters, including the space, that occur at least `min_count` times become tokens, the most
    frequent first; others are represented by bytes.

    Raises:
        ConfigError: `size` cannot hold the byte tokens.
        DataError: No character is frequent enough.
    """
    return characters_from_counts(count_chunks(lines), size, min_count)


def characters_from_counts(chunks: Counter[str], size: int, min_count: int) -> Tokenizer:
    """Train like `train_characters`, from the counts of a text's chunks."""
    require_min_vocabulary(size)
    alphabet = select_alphabet(chunks, min_count, max_non_ascii=size - MIN_VOCABULARY)
    return _assemble({token: index for index, token in enumerate([*fixed_tokens(alphabet), *alphabet])}, [])


def require_min_vocabulary(size: int) -> None:
    """Raise ConfigError if a vocabulary of this size cannot hold the byte tokens."""
    if size < MIN_VOCABULARY + 2:
        raise ConfigError([f"text.vocabulary: must be at least {MIN_VOCABULARY + 2} (one token per byte); got {size}"])


def fixed_tokens(alphabet: list[str]) -> list[str]:
    """Return the special tokens, and the byte tokens that complement an alphabet."""
    ascii_bytes = sorted(set(range(128)) - {ord(c) for c in alphabet})
    return [*SPECIALS, *(f"<0x{byte:02X}>" for byte in (*ascii_bytes, *_NON_ASCII_BYTES))]


def _assemble(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    model = models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token=SPECIALS[UNK])
    return Tokenizer.assemble(model, PIECE_PATTERN)


def select_alphabet(chunks: Counter[str], min_count: int, max_non_ascii: int) -> list[str]:
    """Return the characters that become tokens, sorted.

    Every ASCII character has a token in any case, as a character or as its byte.

    Args:
        chunks: Chunk counts of the training text.
        min_count: Minimum number of occurrences of a character.
        max_non_ascii: Maximum number of non-ASCII characters; the most frequent ones are taken.

    Raises:
        DataError: No character is frequent enough.
    """
    counts = Counter({" ": chunks.total()})
    for chunk, n in chunks.items():
        for character in chunk:
            counts[character] += n
    frequent = [c for c, n in counts.items() if n >= max(min_count, 1)]
    if not frequent:
        raise DataError(f"the training text must hold characters seen {min_count} times or more; got none")
    # Equally frequent characters are taken in the order of their code points.
    non_ascii = sorted((c for c in frequent if not c.isascii()), key=lambda c: (-counts[c], c))
    return sorted([c for c in frequent if c.isascii()] + non_ascii[:max_non_ascii])


def split_chunks(chunks: Counter[str], alphabet: list[str]) -> Iterator[tuple[str, int]]:
    """Yield the text of each chunk, with the space before it, and its count.

    Chunks are split at characters outside the alphabet: these become bytes, which no merge crosses.
    """
    outside = re.compile("[^" + "".join(map(re.escape, alphabet)) + "]+")
    # Sorted: the library breaks ties between merges by the order of first occurrence.
    for chunk in sorted(chunks):
        for text in filter(None, outside.split(f" {chunk}")):
            yield text, chunks[chunk]


def _repeated(texts: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Yield strings in which each text occurs as often as its count."""
    for text, n in texts:
        # Texts that start with a space may be concatenated; others would run together.
        per_string = max(1, _CHARACTERS_PER_STRING // len(text)) if text[0] == " " else 1
        num_strings, remainder = divmod(n, per_string)
        yield from (text * per_string for _ in range(num_strings))
        if remainder:
            yield text * remainder
