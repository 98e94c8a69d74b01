"""One reversible segmentation of raw text into symbols: text -> ids, symbols, character offsets -> text.

A space is put before every text and each symbol keeps the space that stands before it, so the symbols of a
text, one after another, are that text: joining is exact. Offsets count Python characters of the raw text.

No symbol is registered with the library as "added" or "special": those are searched for in raw text, so a
user's `</s>` would end the sentence. The special ids are ordinary rows of the vocabulary which no word or
merge can spell (see `words.PIECES`).
"""

import codecs
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

from rnnsearch.errors import DataError, ModelError
from rnnsearch.text.vocabulary import MARKER, POSITION, SPECIALS, UNK, is_unknown
from rnnsearch.utils.files import write_text

TokenizerType = Literal["words", "bpe", "unigram"]
TYPES: dict[str, TokenizerType] = {"WordLevel": "words", "BPE": "bpe", "Unigram": "unigram"}
BYTE_SYMBOLS = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
"""The library's names of the byte symbols of a vocabulary of subwords."""
NEVER = -1e6
"""The log-probability of a `unigram` tokenizer's symbols that are never used."""

RARE = "rare"
"""Where the file of a tokenizer holds the symbols that are taken apart, beside what is the library's."""
_RARE_KEY = re.compile(rf'"{RARE}"\s*:')

ReplacedBy = Literal["copy", "dictionary", "spelled"]
"""A copy of the source word, its entry in a dictionary, or the model's own spelling."""

Encoded = TypeVar("Encoded")


@dataclass(frozen=True)
class Replacement:
    """What took the place of an unknown word."""

    token: int
    """Which symbol it was."""
    source_token: int
    """The source symbol that it attended to most."""
    source: str
    """What was copied or looked up: the text of that, or of all symbols of its word that have an entry together."""
    by: ReplacedBy


class Spelled(list[int]):
    """The ids of a sentence with its unknown words, in order, each with the space before it; ids alone can take its
    place wherever spelling does not matter."""

    def __init__(self, ids: Iterable[int], unknown: Iterable[str] = ()) -> None:
        super().__init__(ids)
        self.unknown = list(unknown)


@dataclass(frozen=True)
class Segmented:
    """A raw text and its symbols, without BOS and EOS."""

    text: str
    ids: list[int]
    symbols: list[str]
    """What each id shows: a leading space as MARKER, a byte as `<0xE2>`, an unknown word as `<unk>`."""
    offsets: list[tuple[int, int]]
    """Characters of `text` that each symbol covers, [start, end), the leading space left out. The byte
    symbols of one character all cover that character; a symbol that is nothing but a space covers none."""
    replaced: tuple[Replacement, ...] = ()
    """The unknown symbols for which other text stands here."""

    @property
    def texts(self) -> list[str]:
        """What each symbol stands for in the text, without the leading space: an unknown word is itself."""
        return [self.text[start:end] for start, end in self.offsets]

    @property
    def spelled(self) -> Spelled:
        """Its ids, with the unknown words as they stand in the text."""
        if not self.unknown:
            return Spelled(self.ids)
        each = zip(self.ids, self.offsets, strict=True)
        return Spelled(self.ids, [self._piece(start, end) for id, (start, end) in each if id == UNK])

    def _piece(self, start: int, end: int) -> str:
        """What stands there, with the space that was left out of the offsets."""
        piece = self.text[start:end]
        spaced = start == 0 or self.text[start - 1] == " "
        return f" {piece}" if not piece or (spaced and not _space(piece[0])) else piece

    @property
    def to_translate(self) -> "Segmented":
        """What is translated of it: nothing of white space alone, for which a model would invent something."""
        return self if self.text.strip() else Segmented(self.text, [], [], [])

    @property
    def unknown(self) -> bool:
        """Whether some symbol is not in the vocabulary."""
        return UNK in self.ids


TOKENIZERS = "tokenizers"
"""The folder of a model's tokenizers, within its own."""


def tokenizer_file(side: str) -> str:
    """Where a side's tokenizer is, within a model folder."""
    return f"{TOKENIZERS}/{side}.json"


class Tokenizer:
    """A trained segmentation: words (`train_words`) or subwords (`train_bpe`, `train_unigram`)."""

    def __init__(self, core: tokenizers.Tokenizer, rare: Iterable[int] = ()) -> None:
        """`core`: a tokenizer of the library, as `assemble` makes it. `rare`: symbols that are taken apart again into
        those they were merged from (see `subwords.without_rare`)."""
        self._core = core
        self._rare = frozenset(rare)

    @staticmethod
    def assemble(model: Any, pieces: str) -> "Tokenizer":
        """A tokenizer around a model of the library (one of `TYPES`); `pieces`: a pattern (Oniguruma)
        whose matches, one after another, cover every text and which the model never looks across."""
        core = tokenizers.Tokenizer(model)
        core.normalizer = normalizers.Prepend(" ")
        core.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(pieces), "isolated")
        # Not used here (`join` is), but it makes the file work in the library's other languages.
        core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        return Tokenizer(core)

    def __len__(self) -> int:
        return int(self._core.get_vocab_size())

    @cached_property
    def type(self) -> TokenizerType:
        """What it splits text into."""
        return TYPES[type(self._core.model).__name__]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without BOS and EOS; an empty text has none. The fast path: no symbols, no
        offsets, all cores. Errors: DataError for a text that is not valid Unicode."""
        return [self.apart(encoding.ids) for encoding in _encode(self._core.encode_batch_fast, texts)]

    def apart(self, ids: list[int]) -> list[int]:
        """Ids, rare symbols among them taken apart."""
        if not self._rare or self._rare.isdisjoint(ids):
            return ids
        return [part for id in ids for part in self._parts.get(id, (id,))]

    def without(self, rare: Iterable[int]) -> "Tokenizer":
        """Subwords with the same ids, of which these are taken apart where they would stand (`unigram`: not used)."""
        if self.type == "bpe":
            return Tokenizer(self._core, rare)
        whole, never = json.loads(self._core.to_str()), {self._names[id] for id in rare}
        scores = [[name, NEVER if name in never else score] for name, score in whole["model"]["vocab"]]
        whole["model"]["vocab"] = scores
        return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(whole)))

    def with_marks(self, names: Iterable[str]) -> "Tokenizer":
        """Words with the same ids, and behind them symbols that no text yields."""
        whole = json.loads(self._core.to_str())
        whole["model"]["vocab"] |= {name: id for id, name in enumerate(names, len(self))}
        return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(whole)))

    @cached_property
    def marks(self) -> dict[str, int]:
        """The ids of those symbols."""
        named = enumerate(self._names[len(SPECIALS) :], len(SPECIALS))
        return {name: id for id, name in named if is_unknown(name) or name.startswith(POSITION)}

    @cached_property
    def unknown(self) -> frozenset[int]:
        """The ids that stand for words that are not in the vocabulary."""
        return frozenset({UNK, *(id for name, id in self.marks.items() if is_unknown(name))})

    @cached_property
    def _parts(self) -> dict[int, tuple[int, ...]]:
        """What rare symbols are taken apart into, until no part is rare or was merged (Sennrich et al. 2017)."""
        vocabulary, merges = self.merges()
        parts: dict[int, tuple[int, ...]] = {}
        for left, right in merges:
            merged, (a, b) = vocabulary[left + right], (vocabulary[left], vocabulary[right])
            if merged in self._rare and merged not in parts:
                parts[merged] = (*parts.get(a, (a,)), *parts.get(b, (b,)))
        return parts

    def _spans(self, ids: list[int]) -> list[tuple[int, int]]:
        """The characters that each of a text's subwords covers, by their lengths. A space put before the text counts in
        no span, and the bytes of one character have the same."""
        spans: list[tuple[int, int]] = []
        at = -1
        for id in ids:
            byte = BYTE_SYMBOLS.get(self._names[id])
            if byte is not None and 0x80 <= byte[0] < 0xC0:
                spans.append(spans[-1])
            else:
                length = len(self._names[id]) if byte is None else 1
                spans.append((max(at, 0), at + length))
                at += length
        return spans

    def fits(self, text: str, most: int) -> bool:
        """Whether a text has at most so many symbols; what is far longer or shorter is not segmented."""
        # A character is four symbols at the most, and a symbol that a vocabulary holds seldom fifty characters.
        if len(text) > 50 * most:
            return False
        return 4 * len(text) <= most or len(self.ids([text])[0]) <= most

    def segment(self, texts: Sequence[str]) -> list[Segmented]:
        """Each text with its ids, symbols and offsets. Errors: DataError as in `ids`."""
        encodings = _encode(self._core.encode_batch, texts)
        return [self._segmented(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]

    def _segmented(self, text: str, encoding: Any) -> Segmented:
        ids = self.apart(encoding.ids)
        spans = encoding.offsets if self.type == "words" else self._spans(ids)
        offsets = [(start + 1, max(start + 1, end)) if text[start] == " " else (start, end) for start, end in spans]
        # A symbol that is the space put before the text covers nothing, yet is given the first character.
        if offsets and (self._names[ids[0]] == " " or _space(text[0])):
            offsets[0] = (0, 0)
        return Segmented(text, ids, [self.symbol(id) for id in ids], offsets)

    def join(self, ids: Iterable[int]) -> str:
        """The raw text of ids: the exact inverse of `ids` where none is `unknown`, which is shown as `<unk>`;
        the other special ids are dropped. Bytes that are not UTF-8, which only a model can produce, become
        U+FFFD."""
        text = b"".join([self._bytes[id] for id in ids]).decode("utf-8", errors="replace")
        return text.removeprefix(" ")

    def joined(self, ids: Sequence[int], unknown: Mapping[int, str] | None = None) -> Segmented:
        """`join`, with the characters of the text that each id covers: what a model's output becomes.

        `unknown`: what UNKs stand for, a leading space with it, by their places among `ids`; places behind the last are
        of a beginning that search did not come to the end of.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text, spans = "", []
        spellings = [self._bytes[id] for id in ids]
        for place, word in (unknown or {}).items():
            if place < len(spellings):
                spellings[place] = word.encode()
        for spelling in spellings:
            start = len(text)
            text += decoder.decode(spelling)
            end = max(len(text), start + 1) if spelling else start
            spans.append((start + 1 if text[start:].startswith(" ") else start, end))
        text += decoder.decode(b"", final=True)
        shift = int(text.startswith(" "))
        offsets = [(max(0, start - shift), max(0, end - shift)) for start, end in spans]
        return Segmented(text[shift:], list(ids), [self.symbol(id) for id in ids], offsets)

    def symbol(self, id: int) -> str:
        """What an id shows, as in `Segmented.symbols`."""
        return self._shown[id]

    def symbols(self) -> list[str]:
        """What each id shows, in the order of the ids."""
        return list(self._shown)

    def spellings(self) -> list[bytes]:
        """The UTF-8 that each id adds to a joined text, in the order of the ids."""
        return list(self._bytes)

    def merges(self) -> tuple[dict[str, int], list[tuple[str, str]]]:
        """Of a `bpe` tokenizer: the ids of all symbols by their names, and what is merged, in order."""
        model = json.loads(self._core.to_str())["model"]
        return dict(model["vocab"]), [(left, right) for left, right in model["merges"]]

    def scores(self) -> dict[str, float]:
        """Of a `unigram` tokenizer: the log-probabilities of all symbols by their names, in the order of the ids."""
        return dict(json.loads(self._core.to_str())["model"]["vocab"])

    def names(self) -> list[str]:
        """The library's name of each id, in their order: the text of a symbol, or what stands for a byte."""
        return list(self._names)

    @cached_property
    def _names(self) -> list[str]:
        vocabulary: dict[str, int] = self._core.get_vocab()
        return sorted(vocabulary, key=vocabulary.__getitem__)

    @cached_property
    def _shown(self) -> list[str]:
        return [name.replace(" ", MARKER) for name in self._names]

    @cached_property
    def _bytes(self) -> list[bytes]:
        """The UTF-8 bytes that each id adds to a joined text."""
        table = [BYTE_SYMBOLS.get(name) or name.encode() for name in self._names]
        table[: len(SPECIALS)] = [b""] * len(SPECIALS)
        for id in self.marks.values():
            table[id] = b""
        for id in self.unknown:  # most unknown words stand after a space, so one is shown
            table[id] = f" {SPECIALS[UNK]}".encode()
        return table

    def save(self, path: Path) -> None:
        """Write one JSON file, whole or not at all. Errors: RnnsearchError where it cannot be written."""
        write_text(path, self.dumped)

    @cached_property
    def dumped(self) -> str:
        """What `save` writes."""
        text = self._core.to_str()
        return json.dumps(json.loads(text) | {RARE: sorted(self._rare)}, ensure_ascii=False) if self._rare else text

    @staticmethod
    def load(path: Path) -> "Tokenizer":
        """Read what `save` wrote. Errors: ModelError for a missing, truncated or foreign file."""
        try:
            text = path.read_text(encoding="utf-8")
            json.loads(text)
        except FileNotFoundError:
            raise ModelError(f"{path}: there is no such tokenizer file") from None
        except OSError as error:
            raise ModelError(f"{path}: the tokenizer file cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path}: the tokenizer file must be whole JSON; got {error}") from None
        return Tokenizer.of(text, path)

    @staticmethod
    def of(text: str, path: Path) -> "Tokenizer":
        """From what `save` writes. Errors: ModelError, which names the file."""
        rare: Any = []
        try:
            if _RARE_KEY.search(text):  # or it is the library's, and need not be taken apart here, too
                whole = json.loads(text)
                rare = whole.pop(RARE, [])
                text = json.dumps(whole) if rare else text
            # The library raises bare `Exception` on a layout that it does not know.
            core = tokenizers.Tokenizer.from_str(text)
        except Exception as error:
            raise ModelError(f"{path}: must be a tokenizer that rnnsearch saved; got {error}") from None
        fault = _foreign(core) or _not_rare(rare, core)
        if fault:
            raise ModelError(f"{path}: must be a tokenizer that rnnsearch saved; got {fault}")
        return Tokenizer(core, rare)

    def fingerprint(self) -> str:
        """16 hexadecimal digits that differ between any two different tokenizers (of SHA-256 of the JSON)."""
        return hashlib.sha256(self.dumped.encode()).hexdigest()[:16]


def _foreign(core: tokenizers.Tokenizer) -> str:
    """What keeps a tokenizer of the library from being one of ours; empty where nothing does."""
    model = type(core.model).__name__
    if model not in TYPES:
        return f"one of model {model}"
    if tuple(core.id_to_token(id) for id in range(len(SPECIALS))) != SPECIALS:
        return f"one whose first symbols are not {', '.join(SPECIALS)}"
    if core.get_added_tokens_decoder():
        return "one with added tokens, which raw text could inject"
    if not isinstance(core.normalizer, normalizers.Prepend) or core.normalizer.prepend != " ":
        return "one that does not put a space before the text"
    if not isinstance(core.pre_tokenizer, pre_tokenizers.Split):
        return "one that does not split the text by one pattern"
    if model == "Unigram":
        kept = json.loads(core.to_str())["model"]
        if kept != {"type": model, "vocab": kept["vocab"], "unk_id": UNK, "byte_fallback": True}:
            return "a Unigram model with other options"
    if core.padding or core.truncation or core.post_processor:  # a short text could fill the memory
        return "one that changes the length of the text"
    if {*core.get_vocab().values()} != {*range(core.get_vocab_size())}:
        return "one whose ids do not count the symbols from 0"
    return ""


def _not_rare(rare: Any, core: tokenizers.Tokenizer) -> str:
    """What keeps `rare` from being symbols of a vocabulary; empty where nothing does."""
    size = core.get_vocab_size()
    if isinstance(rare, list) and all(type(id) is int and len(SPECIALS) <= id < size for id in rare):
        return "" if not rare or TYPES[type(core.model).__name__] == "bpe" else "rare symbols that nothing merged"
    return f"`{RARE}` that are no ids of its symbols"


def _encode(encode: Callable[[list[str]], list[Encoded]], texts: Sequence[str]) -> list[Encoded]:
    try:
        return encode(list(texts))
    except (TypeError, UnicodeEncodeError):
        for text in filter(_lone_surrogate, texts):
            raise DataError(f"text must be valid Unicode; got a lone surrogate in {text!r}") from None
        raise


def _space(character: str) -> bool:
    """Whether it is white space to the pattern of words, to which U+001C to U+001F are none."""
    return character.isspace() and not "\x1c" <= character <= "\x1f"


def _lone_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
