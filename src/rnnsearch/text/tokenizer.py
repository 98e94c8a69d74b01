"""The `Tokenizer`: reversible segmentation of raw text into tokens, with character offsets.

A tokenizer may normalise text first (`text.normalization`); the following is then true of the normalised text, and
offsets still count characters of the raw text. A space is put before every text, and each token keeps the space before
it. The concatenated tokens of a text are therefore that text, and `join` is exact. Offsets count Python characters of
the raw text. `text.words`, `text.subwords` and `text.unigram` learn tokenizers; models store one per
language as JSON.

No token is registered with the `tokenizers` library as "added" or "special": the library searches
raw text for those, so a user's `</s>` would end the sentence. The special ids are ordinary rows of
the vocabulary that no word or merge can produce (see `piece_patterns`).

The JSON is the file format of model folders, prepared data and engine files, and its hash (`fingerprint`) decides
whether models can be combined; ids are rows of embeddings. `export/web/module/tokenizer.js` reads the same files in
browsers (tests/page/test_module.py).
"""

import codecs
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

from rnnsearch.errors import DataError, ModelError, library_errors
from rnnsearch.text.letter_case import LetterCase, letter_case, true_cased, upper_cased, word_spans_with_symbols
from rnnsearch.text.letters import has_letters, is_invisible
from rnnsearch.text.normalization import NO_NORMALIZATION, Normalization, Normalized, from_settings
from rnnsearch.text.piece_patterns import KNOWN_PATTERNS
from rnnsearch.text.vocabulary import CONTEXT_END, POSITION_PREFIX, SPACE_MARKER, SPECIALS, UNK, is_unknown
from rnnsearch.utils.files import read_folder_text, write_text
from rnnsearch.utils.panics import LibraryPanicError, panics_as_errors

TokenizerType = Literal["words", "bpe", "unigram"]
TYPES: dict[str, TokenizerType] = {"WordLevel": "words", "BPE": "bpe", "Unigram": "unigram"}
"""Type of a tokenizer by the name of its model in the JSON; the names are stored in tokenizer files."""
_BPE_OPTIONS = {
    "dropout": None,
    "unk_token": SPECIALS[UNK],
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": True,
    "ignore_merges": False,
}
_MODEL_OPTIONS: dict[str, dict[str, Any]] = {"WordLevel": {"unk_token": SPECIALS[UNK]}, "BPE": _BPE_OPTIONS}
"""Options of the library's models that tokenizer files may contain; those of `Unigram` are in `_layout_problem`."""
BYTE_TOKENS = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
"""The library's name of each byte token in a subword vocabulary, with its byte."""
UNUSED_LOG_PROB = -1e6
"""Log-probability of the tokens of a `unigram` tokenizer that must not be used."""

RARE_KEY = "rare"
"""JSON key of the ids of rare tokens, in addition to what the library writes."""
NORMALIZATION_KEY = "normalization"
"""JSON key of the settings of the normalisation, in addition to what the library writes."""
_ADDED_KEY_PATTERN = re.compile(rf'"({RARE_KEY}|{NORMALIZATION_KEY})"\s*:')

ReplacedBy = Literal["copy", "dictionary", "spelled"]
"""Source of a replacement: a copy of the source word, a dictionary entry, or the model's character decoder."""

Encoded = TypeVar("Encoded")


@dataclass(frozen=True)
class Replacement:
    """A replacement of an unknown target word."""

    token: int
    """Index of the replaced target token."""
    source_token: int
    """Index of the source token that it attended to most."""
    source: str
    """Text that was copied or looked up: that of the token, or of all tokens of its word that share an entry."""
    by: ReplacedBy
    """Method of the replacement."""


class SpelledIds(list[int]):
    """The token ids of a sentence with the texts of its unknown words.

    It can be used like a list of ids wherever the texts do not matter. `unknown` holds one text per
    `<unk>` in order, each with the space before it.
    """

    def __init__(self, ids: Iterable[int], unknown: Iterable[str] = ()) -> None:
        super().__init__(ids)
        self.unknown = list(unknown)


class SourceIds(SpelledIds):
    """The token ids of a sentence in each source of a model with several sources.

    As a sequence it is the longest source, so that its length is that of the sentence for batches and limits.
    """

    def __init__(self, by_source: Mapping[str, SpelledIds]) -> None:
        """Collect the ids of the sources that the sentence has, by their names."""
        longest = max(by_source.values(), key=len, default=SpelledIds(()))
        super().__init__(longest, longest.unknown)
        self.by_source = dict(by_source)


@dataclass(frozen=True)
class ContextStreams:
    """The previous sentences that a model reads as sources of their own (`data.context`)."""

    own: str
    """Name of the stream of the sentence itself."""
    ids: Mapping[str, list[int]]
    """Ids of each stream of previous sentences that is not empty, by its name."""


@dataclass(frozen=True)
class Segmented:
    """A raw text and its tokens, without BOS and EOS."""

    text: str
    """Raw text."""
    ids: list[int]
    """Ids of the tokens."""
    tokens: list[str]
    """Display form of each id: a leading space is SPACE_MARKER, a byte is `<0xE2>`, an unknown word is `<unk>`."""
    offsets: list[tuple[int, int]]
    """Character span [start, end) of each token in `text`, without the leading space.

    All byte tokens of one character cover that character; a token that is only a space covers nothing.
    """
    replaced: tuple[Replacement, ...] = ()
    """Unknown tokens for which `text` has other words."""
    substituted: Any = None
    """The `SubstitutedText` whose substitutes are in `ids`, or None; `text.markup.substitutes` imports this module."""
    pieces: tuple[str, ...] = ()
    """Normalised text of each word with the space before it; empty if normalisation has not changed the text."""
    case: LetterCase | None = None
    """Letter case of a source text whose tokens are in ordinary letter case; None if the tokens have that of `text`."""
    context: tuple["Segmented", ...] = ()
    """Previous sentences of the document that a model reads before this one (`data.context`); `ids` exclude them."""
    streams: ContextStreams | None = None
    """Previous sentences that a model reads as sources of their own; None if there are none."""
    by_source: "Mapping[str, Segmented] | None" = None
    """The text in each source that the sentence has, for a model with several sources; the other fields are those of
    the first source, empty if the sentence does not have it."""

    @property
    def texts(self) -> list[str]:
        """Text of each token without the leading space; an unknown word is itself."""
        return [self.text[start:end] for start, end in self.offsets]

    @property
    def spelled_ids(self) -> SpelledIds:
        """The ids that a model reads, context included, with the texts of unknown words."""
        if self.streams is not None:
            streams = {name: SpelledIds(ids) for name, ids in self.streams.ids.items()}
            return SourceIds({self.streams.own: self.by_itself.spelled_ids, **streams})
        if self.context:
            contexts = [sentence.spelled_ids for sentence in self.context]
            ids = [id for sentence in contexts for id in (*sentence, CONTEXT_END)]
            own = self.by_itself.spelled_ids
            unknown = [word for sentence in contexts for word in sentence.unknown]
            return SpelledIds([*ids, *own], [*unknown, *own.unknown])
        if self.by_source is not None:
            return SourceIds({name: text.spelled_ids for name, text in self.by_source.items()})
        if not self.has_unknown:
            return SpelledIds(self.ids)
        pieces = self.pieces or [self._text_with_space(start, end) for start, end in self.offsets]
        return SpelledIds(self.ids, [piece for id, piece in zip(self.ids, pieces, strict=True) if id == UNK])

    def in_case_of(self, source: "Segmented", language: str, start: int = 0) -> "Segmented":
        """Return this translation in the letter case of its source: in capital letters or as it is.

        Args:
            source: The source sentence.
            language: Language of this text.
            start: Position before which the text stays, such as the end of a prefix.
        """
        if source.case != "upper":
            return self
        kept_spans = word_spans_with_symbols(self.text, source.text)
        if source.substituted is not None:
            kept_spans += source.substituted.protected_spans(self.text)
        text, positions = upper_cased(self.text, start, language, kept_spans)
        return replace(self, text=text, offsets=[(positions[start], positions[end]) for start, end in self.offsets])

    @property
    def is_text(self) -> bool:
        """True if models read EOS after the tokens; False for an array (`data.arrays`)."""
        return True

    @property
    def image_grid(self) -> tuple[int, int] | None:
        """Rows and columns of regions that the tokens are, if the source is an image; None for text."""
        return None

    @property
    def symbols(self) -> list[str]:
        """Alias of `tokens`."""
        return self.tokens

    def _text_with_space(self, start: int, end: int) -> str:
        """Return the text of a token with its leading space, which offsets leave out."""
        text = self.text[start:end]
        follows_space = start == 0 or self.text[start - 1] == " "
        return f" {text}" if not text or (follows_space and not _is_space(text[0])) else text

    @property
    def translatable(self) -> "Segmented":
        """The sentence to search for; without tokens if the text shows nothing, which a model would "translate"."""
        if self.by_source is not None:
            return replace(
                self, by_source={n: text for n, text in self.by_source.items() if not is_invisible(text.text)}
            )
        return self.without_tokens if is_invisible(self.text) else self

    @property
    def without_tokens(self) -> "Segmented":
        """The text without its tokens, for which there is no search."""
        return Segmented(self.text, [], [], [])

    @property
    def by_itself(self) -> "Segmented":
        """The sentence without its context."""
        return replace(self, context=(), streams=None) if self.context or self.streams else self

    @property
    def num_context_ids(self) -> int:
        """Number of ids of the context in `spelled_ids`, with a separator after each sentence."""
        return sum(len(sentence.ids) + 1 for sentence in self.context)

    @property
    def has_unknown(self) -> bool:
        """True if a token is not in the vocabulary."""
        if self.by_source is not None:
            return any(text.has_unknown for text in self.by_source.values())
        return UNK in self.ids


TOKENIZERS = "tokenizers"
"""Name of the folder of tokenizers in a model folder."""


def tokenizer_file(language: str) -> str:
    """Return the path of a language's tokenizer within a model folder."""
    return f"{TOKENIZERS}/{language}.json"


class Tokenizer:
    """A trained tokenizer: words (`train_words`) or subwords (`train_bpe`, `train_unigram`)."""

    def __init__(
        self, core: tokenizers.Tokenizer, rare: Iterable[int] = (), normalization: Normalization = NO_NORMALIZATION
    ) -> None:
        """Wrap a tokenizer of the library.

        Args:
            core: The library's tokenizer, as built by `assemble`.
            rare: Ids of tokens to split into those they were merged from (see
                `subwords.without_rare`).
            normalization: Changes of raw text before it is segmented.
        """
        self._core = core
        self._rare = frozenset(rare)
        self.normalization = normalization
        """Changes of raw text before it is segmented."""

    @staticmethod
    def assemble(model: Any, piece_pattern: str) -> "Tokenizer":
        """Return a tokenizer around a model of the library.

        Args:
            model: A model of one of `TYPES`.
            piece_pattern: Regular expression (Oniguruma) whose consecutive matches cover every
                text; the model
                never merges across them.
        """
        core = tokenizers.Tokenizer(model)
        core.normalizer = normalizers.Prepend(" ")
        core.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(piece_pattern), "isolated")
        # We decode with `join`; this makes the file usable in the library's other languages.
        core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        return Tokenizer(core)

    def __len__(self) -> int:
        return int(self._core.get_vocab_size())

    @cached_property
    def type(self) -> TokenizerType:
        """Unit that text is split into."""
        return TYPES[type(self._core.model).__name__]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without BOS and EOS; an empty text has none.

        This is the fast path: it uses all cores and computes no tokens and no offsets.

        Raises:
            DataError: A text is not valid Unicode.
        """
        if self.normalization:
            texts = [self.normalization.text(text) for text in texts]
        return [self.split_rare(encoding.ids) for encoding in _encode(self._core.encode_batch_fast, texts)]

    def normalizing(self, normalization: Normalization) -> "Tokenizer":
        """Return this tokenizer with another normalisation."""
        return Tokenizer(self._core, self._rare, normalization)

    def split_rare(self, ids: list[int]) -> list[int]:
        """Return the ids with rare tokens split into their components."""
        if not self._rare or self._rare.isdisjoint(ids):
            return ids
        return [part for id in ids for part in self._rare_components.get(id, (id,))]

    def without_tokens(self, rare: Iterable[int]) -> "Tokenizer":
        """Return a subword tokenizer with the same ids that does not produce these tokens.

        BPE splits them into the tokens they were merged from; a unigram model gives them `UNUSED_LOG_PROB`.
        """
        # BPE needs the rare tokens for further merges, so they are split after the segmentation.
        if self.type == "bpe":
            return Tokenizer(self._core, rare, self.normalization)
        content = json.loads(self._core.to_str())
        unused = {self._names[id] for id in rare}
        scores = []
        for name, score in content["model"]["vocab"]:
            scores.append([name, UNUSED_LOG_PROB if name in unused else score])
        content["model"]["vocab"] = scores
        return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)), normalization=self.normalization)

    def with_annotation_tokens(self, names: Iterable[str]) -> "Tokenizer":
        """Return a word-level tokenizer with additional tokens at the end, which no text produces."""
        content = json.loads(self._core.to_str())
        content["model"]["vocab"] |= {name: id for id, name in enumerate(names, len(self))}
        return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)), normalization=self.normalization)

    @cached_property
    def has_letters(self) -> bool:
        """True if a token contains a letter; False for a vocabulary of digits, for example."""
        special_names = {*SPECIALS, *BYTE_TOKENS, *self.annotation_ids}
        return any(has_letters(name) for name in self._names if name not in special_names)

    @cached_property
    def annotation_ids(self) -> dict[str, int]:
        """Ids of the annotation tokens (`text.annotation`) by name."""
        ids = {}
        for id, name in enumerate(self._names[len(SPECIALS) :], len(SPECIALS)):
            if is_unknown(name) or name.startswith(POSITION_PREFIX):
                ids[name] = id
        return ids

    @cached_property
    def unknown_ids(self) -> frozenset[int]:
        """Ids of `<unk>` and of the annotation tokens that represent unknown words."""
        return frozenset({UNK, *(id for name, id in self.annotation_ids.items() if is_unknown(name))})

    @cached_property
    def _rare_components(self) -> dict[int, tuple[int, ...]]:
        """Components of each rare token, none of which is itself rare and merged (Sennrich et al. 2017)."""
        vocabulary, merges = self.merges()
        # Merges are in the order in which they were learned, so the components of both parts are known.
        components: dict[int, tuple[int, ...]] = {}
        for left, right in merges:
            merged = vocabulary[left + right]
            if merged in self._rare and merged not in components:
                left_id = vocabulary[left]
                right_id = vocabulary[right]
                components[merged] = (
                    *components.get(left_id, (left_id,)),
                    *components.get(right_id, (right_id,)),
                )
        return components

    def _subword_spans(self, ids: list[int]) -> list[tuple[int, int]]:
        """Return the character span of each subword, from the subwords' lengths.

        The space put before the text is in no span; the bytes of one character have the same span.
        """
        spans: list[tuple[int, int]] = []
        # The space put before the text is at -1.
        position = -1
        for id in ids:
            byte = BYTE_TOKENS.get(self._names[id])
            if byte is not None and 0x80 <= byte[0] < 0xC0:  # a continuation byte of UTF-8
                spans.append(spans[-1])
            else:
                length = len(self._names[id]) if byte is None else 1
                spans.append((max(position, 0), position + length))
                position += length
        return spans

    def fits(self, text: str, max_tokens: int) -> bool:
        """Return True if a text has at most `max_tokens` tokens.

        Texts that are much longer or shorter are not segmented: a character is at most four tokens, and a
        token of the vocabulary hardly ever has more than 50 characters.
        """
        if len(text) > 50 * max_tokens:
            return False
        return 4 * len(text) <= max_tokens or len(self.ids([text])[0]) <= max_tokens

    def segment(self, texts: Sequence[str]) -> list[Segmented]:
        """Return each text with its ids, tokens and offsets.

        Raises:
            DataError: A text is not valid Unicode.
        """
        return self.segment_normalized(texts, [self.normalization.normalized(text) for text in texts])

    def segment_sources(self, texts: Sequence[str]) -> list[Segmented]:
        """Return texts to translate like `segment`, with the tokens of ordinary letter case if text is normalised.

        Raises:
            DataError: A text is not valid Unicode.
        """
        if not self.normalization:
            return self.segment(texts)
        normalized = [self.normalization.normalized(text) for text in texts]
        cases = [letter_case(text.text) for text in normalized]
        for index, case in enumerate(cases):
            if case is not None:
                text = self.true_cased(normalized[index].text, case)
                normalized[index] = replace(normalized[index], text=text)
        segmented = self.segment_normalized(texts, normalized)
        return [replace(text, case=case) if case else text for text, case in zip(segmented, cases, strict=True)]

    def true_cased(self, text: str, case: LetterCase) -> str:
        """Return a normalised text in the letter case of this vocabulary (see `letter_case.true_cased`)."""
        return true_cased(text, case, self.normalization.language, self.ids)

    def segment_normalized(self, texts: Sequence[str], normalized: Sequence[Normalized]) -> list[Segmented]:
        """Return raw texts that are normalised already, with offsets into the raw texts.

        Raises:
            DataError: A text is not valid Unicode.
        """
        encodings = _encode(self._core.encode_batch, [text.text for text in normalized])
        segmented = []
        for raw, text, encoding in zip(texts, normalized, encodings, strict=True):
            tokens = self._segmented(text.text, encoding)
            segmented.append(tokens if text.text == raw else _with_raw_text(tokens, raw, text))
        return segmented

    def _segmented(self, text: str, encoding: Any) -> Segmented:
        """Return a normalised text with its tokens."""
        ids = self.split_rare(encoding.ids)
        spans = encoding.offsets if self.type == "words" else self._subword_spans(ids)
        offsets = []
        for start, end in spans:
            if text[start] == " ":  # leave out the leading space
                offsets.append((start + 1, max(start + 1, end)))
            else:
                offsets.append((start, end))
        # The library gives a token that is only the prepended space the first character; it covers nothing.
        if offsets and (self._names[ids[0]] == " " or _is_space(text[0])):
            offsets[0] = (0, 0)
        return Segmented(text, ids, [self.token(id) for id in ids], offsets)

    def join(self, ids: Iterable[int]) -> str:
        """Return the text of ids: the exact inverse of `ids`, for normalised text.

        Unknown words are shown as `<unk>`; the other special ids are dropped. Bytes that are not
        UTF-8, which only a model can produce, become U+FFFD.
        """
        # Decoded as a whole, because a character may consist of several byte tokens.
        text = b"".join([self._bytes[id] for id in ids]).decode("utf-8", errors="replace")
        return self.normalization.restored(text.removeprefix(" "))

    def join_with_offsets(self, ids: Sequence[int], unknown: Mapping[int, str] | None = None) -> Segmented:
        """Return the text of ids with the characters that each id covers; used for the output of models.

        Args:
            ids: Token ids.
            unknown: Texts of unknown words, with their leading space, by index into `ids`. Indices behind
                the last id, of a prefix that search did not reach the end of, are ignored.
        """
        token_bytes = [self._bytes[id] for id in ids]
        for index, word in (unknown or {}).items():
            if index < len(token_bytes):
                token_bytes[index] = word.encode()
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = ""
        spans = []
        for encoded in token_bytes:
            start = len(text)
            text += decoder.decode(encoded)
            # Bytes of an incomplete character cover the character that they belong to.
            end = max(len(text), start + 1) if encoded else start
            spans.append((start + 1 if text[start:].startswith(" ") else start, end))
        text += decoder.decode(b"", final=True)
        shift = int(text.startswith(" "))
        offsets = [(max(0, start - shift), max(0, end - shift)) for start, end in spans]
        restored = self.normalization.restored(text[shift:])
        return Segmented(restored, list(ids), [self.token(id) for id in ids], offsets)

    def token(self, id: int) -> str:
        """Return the display form of an id (see `Segmented.tokens`)."""
        return self._display_forms[id]

    def tokens(self) -> list[str]:
        """Return the display form of every id, in the order of the ids."""
        return list(self._display_forms)

    def token_bytes(self) -> list[bytes]:
        """Return the UTF-8 bytes that each id adds to a joined text, in the order of the ids."""
        return list(self._bytes)

    def merges(self) -> tuple[dict[str, int], list[tuple[str, str]]]:
        """Return the id of each token name and the merges, in order; for `bpe` tokenizers only."""
        model = json.loads(self._core.to_str())["model"]
        return dict(model["vocab"]), [(left, right) for left, right in model["merges"]]

    def scores(self) -> dict[str, float]:
        """Return the log-probability of each token name, in the order of the ids; for `unigram` tokenizers only."""
        return dict(json.loads(self._core.to_str())["model"]["vocab"])

    def names(self) -> list[str]:
        """Return the library's name of each id, in the order of the ids: the token's text, or the name of a byte."""
        return list(self._names)

    @cached_property
    def _names(self) -> list[str]:
        vocabulary: dict[str, int] = self._core.get_vocab()
        return sorted(vocabulary, key=vocabulary.__getitem__)

    @cached_property
    def _display_forms(self) -> list[str]:
        return [name.replace(" ", SPACE_MARKER) for name in self._names]

    @cached_property
    def _bytes(self) -> list[bytes]:
        """UTF-8 bytes that each id adds to a joined text."""
        table = [BYTE_TOKENS.get(name) or name.encode() for name in self._names]
        # Special tokens add no text; UNK gets its display form below.
        table[: len(SPECIALS)] = [b""] * len(SPECIALS)
        for id in self.annotation_ids.values():
            table[id] = b""
        for id in self.unknown_ids:  # most unknown words follow a space, so it is included
            table[id] = f" {SPECIALS[UNK]}".encode()
        return table

    def save(self, path: Path) -> None:
        """Write one JSON file atomically.

        Raises:
            RnnsearchError: The file cannot be written.
        """
        write_text(path, self.json)

    @cached_property
    def json(self) -> str:
        """The JSON that `save` writes."""
        text = self._core.to_str()
        added: dict[str, Any] = {}
        if self._rare:
            added[RARE_KEY] = sorted(self._rare)
        if self.normalization:
            added[NORMALIZATION_KEY] = self.normalization.settings()
        return json.dumps(json.loads(text) | added, ensure_ascii=False) if added else text

    @staticmethod
    def load(path: Path) -> "Tokenizer":
        """Load a tokenizer that was written by `save`.

        Raises:
            ModelError: The file is missing, truncated or something else.
        """
        try:
            text = read_folder_text(path)
            # Checked before the library reads it, because its error would not say that the file is truncated.
            json.loads(text)
        except FileNotFoundError:
            raise ModelError(f"{path}: there is no such tokenizer file") from None
        except OSError as error:
            raise ModelError(f"{path}: the tokenizer file cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path}: the tokenizer file must be whole JSON; got {error}") from None
        return Tokenizer.from_json(text, path)

    @staticmethod
    def from_json(text: str, path: Path) -> "Tokenizer":
        """Return the tokenizer of a JSON text that was written by `save`.

        Args:
            text: The JSON.
            path: File that it comes from, for error messages.

        Raises:
            ModelError: The JSON is not that of a tokenizer.
        """
        rare: Any = []
        settings: Any = NO_NORMALIZATION.settings()
        problem = f"{path}: must be a tokenizer that rnnsearch saved"
        with library_errors(problem, ModelError):  # the library raises a bare `Exception` for an unknown layout
            if _ADDED_KEY_PATTERN.search(text):  # otherwise the file is exactly what the library reads
                content = json.loads(text)
                size = len(content)
                rare = content.pop(RARE_KEY, rare)
                settings = content.pop(NORMALIZATION_KEY, settings)
                text = json.dumps(content) if len(content) < size else text
            with panics_as_errors():
                core = tokenizers.Tokenizer.from_str(text)
        difference = _layout_problem(core) or _rare_problem(rare, core)
        normalization = from_settings(settings)
        if normalization is None:
            difference = f"`{NORMALIZATION_KEY}` that this version does not know"
        if difference or normalization is None:
            raise ModelError(f"{problem}; got {difference}")
        return Tokenizer(core, rare, normalization)

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that identify the tokenizer (of the SHA-256 of its JSON)."""
        return hashlib.sha256(self.json.encode()).hexdigest()[:16]


def _with_raw_text(tokens: Segmented, raw: str, normalized: Normalized) -> Segmented:
    """Return the tokens of a normalised text as those of the raw text."""
    offsets = [normalized.raw_span(start, end, len(raw)) for start, end in tokens.offsets]
    pieces = tuple(tokens._text_with_space(start, end) for start, end in tokens.offsets)
    return replace(tokens, text=raw, offsets=offsets, pieces=pieces)


def _layout_problem(core: tokenizers.Tokenizer) -> str:
    """Return why a tokenizer of the library is not one of ours, or an empty string."""
    model = type(core.model).__name__
    if model not in TYPES:
        return f"one of model {model}"
    if tuple(core.id_to_token(id) for id in range(len(SPECIALS))) != SPECIALS:
        return f"one whose first tokens are not {', '.join(SPECIALS)}"
    if core.get_added_tokens_decoder():
        return "one with added tokens, which raw text could inject"
    if not isinstance(core.normalizer, normalizers.Prepend) or core.normalizer.prepend != " ":
        return "one that does not put a space before the text"
    if not isinstance(core.pre_tokenizer, pre_tokenizers.Split):
        return "one that does not split the text by one pattern"
    split = json.loads(core.pre_tokenizer.__getstate__())
    pattern = split["pattern"].get("Regex")
    # Other patterns may take exponential time.
    expected = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    if pattern not in KNOWN_PATTERNS or split != expected:
        return "one that splits the text by another pattern"
    for option, value in _MODEL_OPTIONS.get(model, {}).items():
        if getattr(core.model, option) != value:
            return f"a {model} model whose {option} is not {value}"
    if model == "Unigram":
        stored = json.loads(core.to_str())["model"]
        if stored != {"type": model, "vocab": stored["vocab"], "unk_id": UNK, "byte_fallback": True}:
            return "a Unigram model with other options"
    if core.padding or core.truncation or core.post_processor:  # padding of a short text could fill the memory
        return "one that changes the length of the text"
    if {*core.get_vocab().values()} != {*range(core.get_vocab_size())}:
        return "one whose ids do not number the tokens from 0"
    return ""


def _rare_problem(rare: Any, core: tokenizers.Tokenizer) -> str:
    """Return why `rare` is not a list of merged tokens of the vocabulary, or an empty string."""
    size = core.get_vocab_size()
    if isinstance(rare, list) and all(type(id) is int and len(SPECIALS) <= id < size for id in rare):
        return "" if not rare or TYPES[type(core.model).__name__] == "bpe" else "rare tokens without merges"
    return f"`{RARE_KEY}` that is not a list of token ids"


def _encode(encode: Callable[[list[str]], list[Encoded]], texts: Sequence[str]) -> list[Encoded]:
    try:
        with panics_as_errors():
            return encode(list(texts))
    except LibraryPanicError as error:
        raise ModelError(f"the tokenizers library cannot segment a text: {error}") from None
    # The library's exception does not say which text is wrong.
    except (TypeError, UnicodeEncodeError):
        for text in filter(_has_lone_surrogate, texts):
            raise DataError(f"text must be valid Unicode; got a lone surrogate in {text!r}") from None
        raise


def _is_space(character: str) -> bool:
    """Return True for white space in the sense of the word pattern, which excludes U+001C to U+001F."""
    return character.isspace() and not "\x1c" <= character <= "\x1f"


def _has_lone_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
