"""Unigram language model of subwords (Kudo, 2018): the most probable segmentation into independent tokens.

As in `subwords`, tokens do not cross words, and rare characters are represented by bytes. The
tokens are learned by sentencepiece, Kudo's own program: the trainer of `tokenizers` visits words in
a different order in every process, so the same text would give different vocabularies.

`data/prepare.py` calls `unigram_from_counts`; `train_unigram` does the same for lines of text.
"""

from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from io import BytesIO

from tokenizers import models

from rnnsearch.errors import ConfigError
from rnnsearch.text import subwords
from rnnsearch.text.piece_patterns import PIECE_PATTERN
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import count_chunks, pieces

_NUM_THREADS = 8
"""Fixed on every machine, because the sums of the threads' counts depend on it."""
_LOG_PROB_DECIMALS = 4
"""Log-probabilities are rounded so that they are the same when read from a file."""
_SPACE = "\u2581"
"""Space in sentencepiece's tokens."""


def train_unigram(lines: Iterable[str], size: int, min_count: int) -> Tokenizer:
    """Train a unigram tokenizer that segments any text without unknown tokens.

    Characters become tokens as in `train_bpe`. Longer tokens are those that EM and pruning leave
    (Kudo 2018, section 3.2), without those that occur fewer than `min_count` times in the segmented
    training text. The same text gives the same vocabulary in any order of its lines.

    Args:
        lines: The training text; read once.
        size: Maximum vocabulary size, including special tokens and byte tokens.
        min_count: Minimum number of occurrences of a token.

    Raises:
        ConfigError: `size` cannot hold the byte tokens, or sentencepiece is not installed.
        DataError: No character is frequent enough.
    """
    return unigram_from_counts(count_chunks(lines), size, min_count)


def unigram_from_counts(chunks: Counter[str], size: int, min_count: int) -> Tokenizer:
    """Train like `train_unigram`, from the counts of a text's chunks, which are scaled as in `bpe_from_counts`.

    Args:
        chunks: Number of occurrences of each chunk (see `words.count_chunks`).
        size: Maximum vocabulary size, including special tokens and byte tokens.
        min_count: Minimum number of occurrences of a token.

    Raises:
        ConfigError: `size` cannot hold the byte tokens, or sentencepiece is not installed.
        DataError: No character is frequent enough.
    """
    require_sentencepiece()
    subwords.require_min_vocabulary(size)
    chunks, min_count = subwords.scale_counts(chunks, min_count)
    alphabet = subwords.select_alphabet(chunks, min_count, max_non_ascii=(size - subwords.MIN_VOCABULARY) // 2)
    fixed = subwords.fixed_tokens(alphabet)
    counts = _count_pieces(chunks, alphabet)
    # White space and sentencepiece's space character are not in its input, but must have tokens.
    not_in_pieces = set(alphabet).difference(*counts)
    log_probs = _learn(counts, size - len(fixed) - len(not_in_pieces))
    log_probs |= dict.fromkeys(not_in_pieces, min(log_probs.values(), default=0.0))
    tokenizer = _assemble(fixed, log_probs)
    if min_count > 1:
        names = tokenizer.names()
        # Counted in the segmented text: what EM expects and what the best segmentation uses differ.
        for id in subwords.rare_tokens(tokenizer, chunks, min_count):
            del log_probs[names[id]]
        tokenizer = _assemble(fixed, log_probs)
    return tokenizer


def require_sentencepiece() -> None:
    """Raise ConfigError if sentencepiece is not installed."""
    if find_spec("sentencepiece") is None:
        raise ConfigError(['text.type: "unigram" needs a library to learn it with: pip install sentencepiece'])


def _count_pieces(chunks: Counter[str], alphabet: list[str]) -> Counter[str]:
    """Count the pieces, except white space and those with sentencepiece's space character."""
    counts: Counter[str] = Counter()
    for text, n in subwords.split_chunks(chunks, alphabet):
        for piece in pieces(text):
            if not piece.isspace() and _SPACE not in piece:
                counts[piece] += n
    return counts


def _learn(counts: Counter[str], size: int) -> dict[str, float]:
    """Return the log-probabilities of at most `size` tokens, including all characters of the pieces."""
    if not counts:
        return {}
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    model_file = BytesIO()
    SentencePieceTrainer.train(
        # Sorted, because the result depends on the order.
        sentence_iterator=(f"{piece}\t{n}" for piece, n in sorted(counts.items())),
        input_format="tsv",
        model_writer=model_file,
        model_type="unigram",
        # Plus 1 for sentencepiece's own unknown token, which is dropped below.
        vocab_size=size + 1,
        hard_vocab_limit=False,
        character_coverage=1.0,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_by_whitespace=False,
        split_by_unicode_script=False,
        split_by_number=False,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        num_threads=_NUM_THREADS,
        minloglevel=2,
    )
    processor = SentencePieceProcessor(model_proto=model_file.getvalue())
    tokens = [processor.id_to_piece(id).replace(_SPACE, " ") for id in range(1, processor.get_piece_size())]
    return dict(zip(tokens, map(processor.get_score, range(1, len(tokens) + 1)), strict=True))


def _assemble(fixed: list[str], log_probs: dict[str, float]) -> Tokenizer:
    rounded = {name: round(score, _LOG_PROB_DECIMALS) for name, score in log_probs.items()}
    # By name among equal scores, so that ids do not depend on the order of learning.
    ordered = sorted(rounded.items(), key=lambda item: (-item[1], item[0]))
    scores = [*((name, 0.0) for name in fixed), *ordered]
    return Tokenizer.assemble(models.Unigram(scores, UNK, byte_fallback=True), PIECE_PATTERN)
