"""The unigram language model of subwords (Kudo, 2018): a text's most probable segmentation into independent symbols,
with pieces inside words only and bytes for rare characters, as `subwords.train_bpe` has them.

The symbols are learned by sentencepiece, Kudo's own program: the trainer of `tokenizers` takes words in another order
in every process, so that the same text gave other vocabularies.
"""

from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from io import BytesIO

from tokenizers import models

from rnnsearch.errors import ConfigError
from rnnsearch.text.subwords import SMALLEST, alphabet_of, fixed_symbols, rare_symbols, require_room, scaled, stretches
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import PIECES, count_chunks, pieces

_THREADS = 8
"""As many on every machine, for they add up what they found one after another."""
_DIGITS = 4
"""Decimals of a log-probability, so that it is the same when it is read from a file."""
_MARKER = "\u2581"
"""What stands for a space in sentencepiece's symbols."""


def train_unigram(lines: Iterable[str], size: int, min_count: int) -> Tokenizer:
    """A unigram tokenizer that segments every text at all without an unknown symbol.

    `size` counts the special and the byte symbols too, and `lines` is read once. Characters are symbols as in
    `train_bpe`. Longer symbols are those that EM and pruning leave (Kudo 2018, section 3.2), and stay out where the
    training text's segmentation has them less often than `min_count` times. The same text gives the same vocabulary, in
    whatever order its lines come. Errors: as `train_bpe`; ConfigError where sentencepiece is not installed.
    """
    return unigram_from_counts(count_chunks(lines), size, min_count)


def unigram_from_counts(chunks: Counter[str], size: int, min_count: int) -> Tokenizer:
    """As `train_unigram`, of a text with these stretches between spaces, which are scaled as `bpe_from_counts` does."""
    require_learner()
    require_room(size)
    chunks, min_count = scaled(chunks, min_count)
    alphabet = alphabet_of(chunks, min_count, room=(size - SMALLEST) // 2)
    fixed = fixed_symbols(alphabet)
    counts = _counted(chunks, alphabet)
    alone = set(alphabet).difference(*counts)
    learned = _learned(counts, size - len(fixed) - len(alone))
    learned |= dict.fromkeys(alone, min(learned.values(), default=0.0))
    found = _assembled(fixed, learned)
    if min_count > 1:
        names = found.names()
        for id in rare_symbols(found, chunks, min_count):
            del learned[names[id]]
        found = _assembled(fixed, learned)
    return found


def require_learner() -> None:
    """Errors: ConfigError where sentencepiece is not installed."""
    if find_spec("sentencepiece") is None:
        raise ConfigError(['text.type: "unigram" needs a library to learn it with: pip install sentencepiece'])


def _counted(chunks: Counter[str], alphabet: list[str]) -> Counter[str]:
    """How often each piece occurs, those left out that are nothing but space, or hold what stands for one."""
    counts: Counter[str] = Counter()
    for stretch, n in stretches(chunks, alphabet):
        for piece in pieces(stretch):
            if not piece.isspace() and _MARKER not in piece:
                counts[piece] += n
    return counts


def _learned(counts: Counter[str], size: int) -> dict[str, float]:
    """Log-probabilities of `size` symbols at most, all characters of these pieces among them."""
    if not counts:
        return {}
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    written = BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=(f"{piece}\t{n}" for piece, n in sorted(counts.items())),
        input_format="tsv",
        model_writer=written,
        model_type="unigram",
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
        num_threads=_THREADS,
        minloglevel=2,
    )
    found = SentencePieceProcessor(model_proto=written.getvalue())
    symbols = [found.id_to_piece(id).replace(_MARKER, " ") for id in range(1, found.get_piece_size())]
    return dict(zip(symbols, map(found.get_score, range(1, len(symbols) + 1)), strict=True))


def _assembled(fixed: list[str], learned: dict[str, float]) -> Tokenizer:
    rounded = {name: round(score, _DIGITS) for name, score in learned.items()}
    ordered = sorted(rounded.items(), key=lambda item: (-item[1], item[0]))
    scores = [*((name, 0.0) for name in fixed), *ordered]
    return Tokenizer.assemble(models.Unigram(scores, UNK, byte_fallback=True), PIECES)
