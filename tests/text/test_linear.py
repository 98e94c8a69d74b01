"""Functions that read external text take linear time: on hard texts, twice the text takes at most 2.3 times the time.

`READERS` and `FILES` list these functions and the pieces that are repeated. `test_every_reader_has_an_entry` finds new
functions in the source. Processor time of this process is measured, in a few milliseconds for each text; only where the
time seems not to be linear, it is measured again on longer texts, because another process may have had the caches.
"""

import ast
import asyncio
import gc
import io
import re
import time
import zipfile
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from typer import BadParameter

from rnnsearch.align.aligner import Pair, lowercase
from rnnsearch.align.dictionary import Dictionary
from rnnsearch.cli import expand_set_options
from rnnsearch.cli.options import parse_weights
from rnnsearch.config import CleaningConfig, run_file
from rnnsearch.data import cleaning, code_points, corpus, links, pair_formats, split
from rnnsearch.data.corpora.catalog import read_facts
from rnnsearch.data.corpora.download import parse_pip_settings
from rnnsearch.data.prepared import read_word_counts
from rnnsearch.errors import RnnsearchError, did_you_mean, must_be_one_of
from rnnsearch.evaluation.report import read_grouped_sentences
from rnnsearch.export.web_page import read_model_list
from rnnsearch.metrics import scores
from rnnsearch.metrics.calibration import Calibration
from rnnsearch.metrics.plots.terminal import printable
from rnnsearch.runtime.serve import _parse_form
from rnnsearch.search.unknown_words import UnknownWordReplacer, read_entries
from rnnsearch.serve.clients import client_of
from rnnsearch.serve.glossaries import parse_entries
from rnnsearch.serve.limits import error_response, text_size
from rnnsearch.serve.request_fields import FORM, JSON, MULTIPART, read_fields, to_model
from rnnsearch.serve.schemas import TranslateRequest
from rnnsearch.serve.texts import require_line
from rnnsearch.systems import card
from rnnsearch.text import alignments, languages, letters, long_texts, several_sources, subwords, terms, words
from rnnsearch.text.banned import BannedPhrases
from rnnsearch.text.documents import FORMATS, document, document_format, read_document, xml
from rnnsearch.text.documents.plural_forms import parse_plural_forms
from rnnsearch.text.documents.subtitles import is_subtitles
from rnnsearch.text.letter_case import letter_case, true_cased, upper_cased, word_spans_with_symbols
from rnnsearch.text.long_texts import Markup
from rnnsearch.text.markup import tags
from rnnsearch.text.markup.html_document import HtmlDocument
from rnnsearch.text.markup.inline_document import InlineDocument
from rnnsearch.text.markup.marks import MarkedText
from rnnsearch.text.markup.protected import PROTECTED, find_protected, without_breaks
from rnnsearch.text.markup.substitutes import NAMES, NUMBERS, Substitutes
from rnnsearch.text.normalization import Normalization
from rnnsearch.text.prefixes import PrefixReader
from rnnsearch.text.sentences import rejoin, sentence_spans
from rnnsearch.text.tokenizer import Replacement, Segmented, SourceIds, SpelledIds
from rnnsearch.text.tokenizer_cache import CachedTokenizer
from rnnsearch.text.unigram import train_unigram
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import train_words
from rnnsearch.translator import confidence, copies, glossaries, texts, translation
from rnnsearch.utils import files, origin_check, stdio, tables

SOURCE = Path(__file__).parents[2] / "src" / "rnnsearch"

# Pieces of texts.

HARD = {
    "dots": ".",
    "dots apart": ". ",
    "numbers": "1. ",
    "quotes": '."',
    "closers": ".)",
    "full stops": "。",
    "initials": "a.",
    "initials apart": "a. ",
    "capitals": "A. ",
    "spaces": " ",
    "lines": "\n",
    "one word": "a",
    "openers": "“ (",
    "tags": "<a ",
    "tags that end": "<b>x</b>",
    "tags that never end": "<code>x<kbd>",
    "declarations": "<!",
    "comments": "<!--",
    "quoted": "<a b=\"'",
    "entities": "&amp",
    "marks": "e\u0301",
    "apostrophes": "l'",
    "placeholders": "{a}",
    "placeholders apart": "({a}), ",
    "braces": "{",
}
MARKUP = {
    "braces and names": "{a, ",
    "closed braces": "{}}",
    "percent signs": "%",
    "directives": "%1$-5.2",
    "named directives": "%(a",
    "percent names": "%a ",
    "dollars": "$a",
    "underscores": "__a",
    "masks": "[X1",
    "codes": '<ph id="1">',
    "sub in codes": "<ph><sub>",
    "pairs": '<bpt i="1">a</bpt>',
    "attributes": '<a title="a',
    "many attributes": ' a="b"',
    "classes": ' class="a',
    "scheme": "http://",
    "hosts": "www.",
    "URL ends": "http://a.,)",
    "addresses": "a@a.",
    "digits": "1",
    "grouped numbers": "1 000 ",
    "signs": "-1",
    "words and dots": "a1.-",
}
"""Pieces that matter only to markup and protected text."""
NOISE = {
    "unordered marks": "\u0301\u0323",
    "soft hyphens and joiners": "\u00ad\u200d",
    "no-break spaces": "\u00a0",
    "capitals": "AB ",
    "symbols": '1"',
}
SHORT = {
    "one word": "a",
    "words": "ab c ",
    "spaces": " ",
    "lines": "a\n",
    "tabs": "a\tb\t",
    "dots": ".",
    "unclosed tags": "<a ",
    "brackets": "([{",
    "quotes": "\"'",
    "escapes": '\\"',
    "marks": "\u0301\u0323",
    "ideographs": "語。",
}
"""Pieces of each kind for functions without patterns of their own."""
XML = {"comments": "<!--", "sections": "<![CDATA[", "instructions": "<?a", "ends": "-->]]>?>", "tags": "<a b='c'>"}
FIELDS = {"fields": "a=b&", "escapes": "%41%C3", "signs": "&=+;", "separators": "a,|=.", "digits": "1"}
JSON_PIECES = {"brackets": "[", "objects": '{"a":', "quotes": '"\\', "digits": "1", "list": "1,", "escapes": "\\u00e9"}

# Functions to call, with a text.


def segmented(text):
    """Return a text whose tokens are its words, all of them unknown."""
    offsets = alignments.word_spans(text)
    return Segmented(text, [UNK] * len(offsets), ["<unk>"] * len(offsets), offsets)


def copied(text):
    """Check the copy links of a text of copied words."""
    side = segmented(text)
    replaced = tuple(Replacement(n, n, "", "copy") for n in range(len(side.ids)))
    found = replace(side, replaced=replaced)
    assert alignments.with_copy_links((), side, found, "words") == tuple((n, n) for n in range(len(side.ids)))


def words_of_tokens(text):
    spans = alignments.word_spans(text)
    alignments.drop_punctuation(alignments.word_of_token(text, spans), text, spans)


def restored(text):
    """Replace the protected text of a sentence, and restore it."""
    item = SUBSTITUTES.replace(text, PROTECTED)
    if item is not None:
        target = Segmented(item.text, [], [], [])
        item.restored(target)
        item.partly_restored(item.text[:1000])
        item.is_complete(item.text)
        item.protected_spans(item.text)
        item.relocated(item.text)


def cased(text):
    """Read a text in ordinary letter case, and write it in capitals."""
    case = letter_case(text)
    if case is not None:
        text = true_cased(text, case, "tr", lambda words: [[0, 0]] * len(words))
    upper_cased(text, 0, "tr", word_spans_with_symbols(text, text))


def normalized(text):
    for level in ("spaces", "punctuation"):
        with suppress(RnnsearchError):
            normalization = Normalization(level, "fr")
            result = normalization.normalized(text)
            normalization.restored(normalization.text(text))
            result.raw_span(0, len(result.text), len(text))


def rejoined(text):
    spans = sentence_spans(text, "de")
    rejoin(text, spans, [text[start:end] for start, end in spans], "ja")


def with_terms(text):
    glossary = terms.Glossary({"a": "b|c", "ab c ab": "d", ".": "!"}, terms.Glossary({"a a a": "e"}))
    glossary.terms(text)
    marked = terms.insert_terms(text, glossary.preferred(text))
    terms.restore_offsets(replace(segmented(marked), text=marked))


def with_banned(text):
    banned = BannedPhrases(["ab", "a. b", "..a", "\u0301\u0323b", "語語"])
    banned.occurs_in(text)
    banned.is_certain_in(text)
    banned.advance(0, text)
    banned.character_classes(text)


def tokenized(text):
    """Segment a text with a tokenizer of each type, and join the tokens."""
    for tokenizer in tokenizers():
        tokenizer.fits(text, 10)
        [ids] = tokenizer.ids([text])
        tokenizer.join(ids)
        tokenizer.join_with_offsets(ids)
        tokenizer.segment([text])
        [source] = tokenizer.segment_sources([text])
        source.in_case_of(source, "de")
        CachedTokenizer(tokenizer).ids([text])


def with_prefix(text):
    for reader in prefix_readers():
        reader.read(text)
        reader.read(text, upper=True)


@cache
def tokenizers():
    lines = ["a b ab, cd. <a> 12", "the dog's <b>house</b>"]
    return [subwords.train_bpe(lines, 300, 1), train_unigram(lines, 280, 1), train_words(lines, 9, 1)]


@cache
def in_two_sources(text):
    """Read a sentence with the text in both of two sources."""
    tokenizer = tokenizers()[0]
    sources = ("de", "fr")
    several_sources.single_texts([text], sources)
    several_sources.texts_by_source((text, text), sources)
    several_sources.segment_several([(text, text)], sources, [tokenizer.segment, tokenizer.segment])
    SourceIds({"de": SpelledIds(range(len(text)), [])})


def prefix_readers():
    return [PrefixReader(tokenizer) for tokenizer in tokenizers()]


def with_row(text):
    row = corpus.Row((text, text + "x"), Path("a"), 1)
    config = CleaningConfig(language_id=False) if "language_id" in CleaningConfig.model_fields else CleaningConfig()
    cleaning.rejection_reason(row, config, ("en", "ja"))
    cleaning.Tally().reject("empty", row)
    cleaning.row_key(row.texts)
    split.split_key(row.texts)


def stripped_links(text):
    spaced = f"\u3000{text}\u3000"
    links.strip_links(alignments.Links(frozenset(), frozenset()), spaced, spaced)


def replaced_unknown(text):
    source = segmented(text)
    replacer = UnknownWordReplacer({"a": "b", "ab c": "d"})
    positions = {n: n for n in range(len(source.ids))}
    replacer.replace(source, replace(source, tokens=["<unk>"] * len(source.ids)), None, copied_from=positions)


def phrases_of(text):
    count = len(alignments.bare_word_spans(text))
    Dictionary(3).add(text, text, [(n, n) for n in range(count)])
    Pair.from_words(text, text)


def request_fields(content_type, body=b"", query=""):
    """Read the fields of a request."""

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", content_type.encode())]}
    request = Request(scope | {"query_string": query.encode(), "path": "/"}, receive)
    return to_model(asyncio.run(read_fields(request)), TranslateRequest)


def multipart(text):
    part = '--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n'
    request_fields(f"{MULTIPART}; boundary=x", f"{part}{text}\r\n--x--\r\n".encode())


def own_host(text):
    origin_check.rejection(origin_check.RequestOrigin("POST", text, f"http://{text}", ""), frozenset({"a"}))


TOKENIZER = train_words([" ".join((*NUMBERS, *NAMES))], 100, 1)
SUBSTITUTES = Substitutes(TOKENIZER, TOKENIZER)
READERS = {
    # Names of the functions and classes, and a function of a text that calls them.
    "text.sentences.sentence_spans": (lambda text: sentence_spans(text, "de"), HARD | MARKUP),
    "text.sentences.rejoin": (rejoined, SHORT),
    "text.alignments.word_spans": (alignments.word_spans, HARD),
    """text.several_sources.single_texts text.several_sources.texts_by_source text.several_sources.segment_several
    text.tokenizer.SourceIds""": (in_two_sources, SHORT),
    "text.alignments.words": (alignments.words, SHORT),
    "text.alignments.word_of_token text.alignments.drop_punctuation": (words_of_tokens, SHORT),
    "text.alignments.bare_word_spans": (alignments.bare_word_spans, SHORT),
    "text.alignments.with_copy_links": (copied, HARD),
    "text.alignments.parse_pharaoh": (
        lambda text: alignments.parse_pharaoh(text, "a"),
        {"links": "0-0 11-1 ", "possible": "1p1 2?2 ", "digits": "1", "hyphens": "-"},
    ),
    "text.banned.BannedPhrases": (with_banned, SHORT),
    "text.documents.document.FileText": (lambda text: document.FileText.decode("a", text.encode()).spliced([]), SHORT),
    "text.documents.document.one_line": (document.one_line, SHORT),
    "text.documents.document_format text.documents.read_document text.documents.subtitles.is_subtitles": (
        lambda text: (document_format("a.txt", text.encode()), is_subtitles(text.encode())),
        SHORT | {"numbers": "1\n", "times": "1\n00:00:01,000 --> "},
    ),
    "text.documents.plural_forms.parse_plural_forms": (
        lambda text: parse_plural_forms(f"nplurals=2; plural={text};"),
        {"brackets": "(", "spaces": " ", "operators": "n%", "sums": "n+", "conditions": "n?n:"},
    ),
    "text.documents.xml.declared_encoding": (
        lambda text: xml.declared_encoding(f"<?xml {text}".encode()),
        XML | SHORT | {"encodings": "encoding="},
    ),
    "text.documents.xml.inline_markup": (xml.inline_markup, XML | HARD),
    "text.documents.xml.as_content": (xml.as_content, XML | SHORT),
    "text.documents.xml.with_spaces_around": (lambda text: xml.with_spaces_around(text, text), SHORT),
    "text.languages.base_language text.languages.language_name text.languages.two_letter_code "
    "text.languages.three_letter_code": (
        lambda text: (
            languages.base_language(text),
            languages.language_name(text),
            languages.two_letter_code(text),
            languages.three_letter_code(text),
        ),
        SHORT | {"regions": "a-"},
    ),
    "text.languages.length_in_words": (
        lambda text: (languages.length_in_words(text, "de"), languages.length_in_words(text, "ja")),
        SHORT,
    ),
    "text.languages.has_script_of": (lambda text: languages.has_script_of(text, "de"), SHORT),
    "text.languages.detect text.languages.is_other_language": (
        lambda text: (languages.detect(text, ["de", "en"]), languages.is_other_language(text, "de")),
        SHORT,
    ),
    "text.letter_case.letter_case text.letter_case.true_cased text.letter_case.upper_cased "
    "text.letter_case.word_spans_with_symbols": (cased, NOISE | SHORT),
    "text.letters.has_letters text.letters.is_invisible": (
        lambda text: (letters.has_letters(text), letters.is_invisible(text)),
        {"digits": "1", "spaces": " \u200b"},
    ),
    "text.long_texts.parse text.long_texts.fill text.long_texts.split": (
        lambda text: (
            long_texts.fill([text], Markup("segment"), [[[(text, [(0, 0)])]]]),
            long_texts.split(long_texts.parse([text], Markup("html"))[0].texts, "de"),
        ),
        MARKUP,
    ),
    "text.markup.html_document.HtmlDocument": (HtmlDocument, HARD | MARKUP),
    "text.markup.inline_document.InlineDocument": (
        lambda text: InlineDocument(text, True, frozenset({"b"}), frozenset({"code"})).filled,
        HARD,
    ),
    "text.markup.marks.MarkedText text.markup.placing.MarkPlacement": (
        lambda text: MarkedText(text).place(text, [(0, 0)]),
        HARD | MARKUP,
    ),
    "text.markup.protected.find_protected text.markup.protected.protected_pattern text.markup.protected.Recogniser": (
        lambda text: find_protected(text, PROTECTED),
        HARD | MARKUP,
    ),
    "text.markup.protected.without_breaks": (lambda text: without_breaks(text, sentence_spans(text, "de")), SHORT),
    "text.markup.substitutes.Substitutes text.markup.substitutes.SubstitutedText": (restored, HARD | MARKUP),
    "text.markup.tags.tags text.markup.tags.fixed_spans text.markup.tags.collapse_spaces": (
        tags.collapse_spaces,
        HARD | XML | {"scripts": "<script>", "ends": "</script"},
    ),
    "text.normalization.Normalization": (normalized, HARD | NOISE),
    "text.prefixes.PrefixReader": (with_prefix, SHORT),
    "text.subwords.train_bpe": (lambda text: subwords.train_bpe([text], 270, 1), {"words": "ab cd ", "one word": "ab"}),
    "text.subwords.train_characters": (lambda text: subwords.train_characters([text], 270, 1), SHORT),
    "text.unigram.train_unigram": (lambda text: train_unigram([text], 270, 1), {"words": "ab cd "}),
    "text.words.train_words text.words.count_words text.words.count_chunks": (
        lambda text: (train_words([text], 9, 1), words.count_words([text])),
        SHORT,
    ),
    "text.words.pieces text.words.words_from_list": (
        lambda text: (words.pieces(text), words.words_from_list([text])),
        SHORT,
    ),
    "text.terms.TermMatcher text.terms.Glossary text.terms.insert_terms text.terms.words_and_spans": (
        with_terms,
        SHORT | {"ends of terms": "ab c a", "marks of terms": "\x01 a\x02 b\x03", "open marks": "\x01"},
    ),
    "text.terms.term_words": (terms.term_words, SHORT),
    "text.terms.read_forms": (lambda text: terms.read_forms("a", text), {"forms": "a|", "one": "a"}),
    "text.tokenizer.Tokenizer text.tokenizer.Segmented text.tokenizer_cache.CachedTokenizer": (tokenized, SHORT),
    "align.aligner.Pair align.aligner.lowercase align.dictionary.Dictionary": (
        lambda text: (phrases_of(text), lowercase(text)),
        SHORT,
    ),
    "cli.expand_set_options": (lambda text: expand_set_options(text.split("|")), {"options": "--set|a=1|b=2|"}),
    "cli.options.parse_weights": (parse_weights, {"numbers": "1,", "digits": "1", "dots": "."}),
    "config.run_file.parse": (
        lambda text: run_file.parse(text, Path("a.toml")),
        {
            "keys": "a.",
            "quoted": '"a".',
            "arrays": "a=[",
            "tables": "[a]\n",
            "strings": 'a="\\"',
            "digits": "1",
            "spaces": " ",
            "comments": "#\n",
        },
    ),
    "config.run_file.parse_setting": (run_file.parse_setting, {"keys": "a.", "values": "a=[", "digits": "1"}),
    "data.cleaning.rejection_reason data.cleaning.Tally data.cleaning.row_key data.split.split_key "
    "data.split.sentence_key": (with_row, SHORT),
    "data.code_points.codes": (lambda text: code_points.codes([text.split(), [text]]), SHORT),
    "data.corpus.decode_line": (lambda text: corpus.decode_line(text.encode()), SHORT),
    "data.links.strip_links": (stripped_links, SHORT),
    "data.links.links_of_rows": (
        lambda text: links.links_of_rows([segmented(text)], [segmented(text)], ["0-0 " * len(text.split())]),
        SHORT,
    ),
    "data.pair_formats.one_line": (pair_formats.one_line, SHORT),
    "errors.did_you_mean errors.must_be_one_of": (
        lambda text: (did_you_mean(text, ["alpha", "beta"]), must_be_one_of(["alpha", "beta"], text)),
        SHORT,
    ),
    "metrics.scores.sentence_chrf": (lambda text: scores.sentence_chrf(text, text), SHORT),
    "metrics.plots.terminal.printable": (printable, SHORT | {"controls": "\x00\x1b"}),
    "runtime.serve._parse_form": (_parse_form, FIELDS),
    "search.unknown_words.UnknownWordReplacer": (replaced_unknown, SHORT),
    "serve.clients.client_of": (client_of, {"numbers": "1.", "groups": "a:", "digits": "1", "scopes": "%"}),
    "serve.glossaries.parse_entries": (
        lambda text: parse_entries(text, "csv"),
        {"lines": "\n", "quotes": '"', "quoted": '"a""', "columns": "a,b,", "rows": "a,b\n"},
    ),
    "serve.limits.error_response serve.limits.text_size": (
        lambda text: (error_response(400, text), text_size([text])),
        SHORT,
    ),
    "serve.request_fields.read_fields": (lambda text: request_fields(FORM, text.encode(), text), FIELDS),
    "serve.request_fields.to_model": (lambda text: request_fields(JSON, f'{{"text": {text}'.encode()), JSON_PIECES),
    "serve.request_fields multipart": (multipart, SHORT | {"parts": "\r\n--x\r\n\r\n", "hyphens": "\r\n-"}),
    "serve.texts.require_line translator.translation.one_line": (
        lambda text: (translation.one_line(text), require_line("a", text)),
        SHORT,
    ),
    "translator.confidence.max_repetitions": (
        lambda text: confidence.max_repetitions(text.split()),
        {"one word": "a ", "two words": "a b ", "more": "a a a b a a a c ", "many": "a b c d e f a b c d e g "},
    ),
    "translator.confidence.repeats_more": (
        lambda text: confidence.repeats_more(text.split(), text.split()),
        {"one word": "a ", "two words": "a b ", "more": "a a a b a a a c ", "many": "a b c d e f a b c d e g "},
    ),
    "translator.copies.copied_texts": (
        lambda text: copies.copied_texts([segmented(text)], TOKENIZER, [text], [[text]]),
        SHORT,
    ),
    "translator.texts.line_spans": (lambda text: texts.line_spans(text, "de"), SHORT),
    "utils.origin_check.rejection utils.origin_check.is_own_host": (
        own_host,
        {"brackets": "[", "numbers": "1.", "groups": "a:", "signs": "@", "digits": "1", "wide": "．", "letters": "a"},
    ),
    "utils.stdio.read_lines": (lambda text: list(stdio.read_lines(io.BytesIO(text.encode()), 100)), SHORT),
    "utils.tables.align_columns utils.tables.as_markdown": (
        lambda text: (tables.align_columns([text.split()]), tables.as_markdown([[text]])),
        SHORT | {"bars": "|"},
    ),
    "data.corpora.download.parse_pip_settings": (
        lambda text: parse_pip_settings(f"global.timeout={text}", {}),
        {"lines": "'1'\nglobal.a='b'\n", "quotes": "'", "digits": "1", "brackets": "("},
    ),
}

# Files.

TMX = '<tmx version="1.4"><header srclang="en"/><body>{}</body></tmx>'
SEGMENT = TMX.format('<tu><tuv xml:lang="en"><seg>{}</seg></tuv></tu>')
XLIFF = '<xliff version="1.2"><file source-language="en" target-language="de"><body>{}</body></file></xliff>'
SHEET = (
    '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>{}</sheetData></worksheet>'
)
FILES = [
    # The suffix, the content, and the pieces to repeat in it.
    (".txt", "{}", ["a\n", "a ", "\u2028", "1\n00:00:01,000 --> "]),
    (".tsv", "{}", ["a\tb\n", "a\t\n", "a\t", "\n"]),
    (".po", "{}", ['msgid "a"\nmsgstr ""\n', '#, fuzzy\n#| a\nmsgid "a"\nmsgstr "b"\n', "#, a\n", '"', "msgid", "\n"]),
    (".po", 'msgid ""{}\nmsgstr ""\n', ['"a\\n"\n', '"a" ', '"\\"']),
    (".po", 'msgid "{}"\nmsgstr ""\n', ["<a>%(", "a ", "\\", "&a;", "<a/", "</a", "{{"]),
    (".po", 'msgid ""\nmsgstr "{}"\nmsgid "a"\nmsgstr ""\n', ["a: b\\n", "Language: a", "\\n", "Plural-Forms:"]),
    (".po", 'msgid "a"\nmsgid_plural "{}"\nmsgstr[0] ""\n', ["%d ", "\\n"]),
    (
        ".tmx",
        TMX,
        ['<tu><tuv xml:lang="en"><seg>a</seg></tuv></tu>', "<tu></tu>", "<!--a-->", "<tuv/>", "<tu>"],
    ),
    (".tmx", TMX.format("<tu>{}</tu>"), ['<tuv lang="en"><seg>a</seg></tuv>', '<tuv lang="de"><seg/></tuv>', " "]),
    (".tmx", SEGMENT, ["<ph>a</ph>", "a ", "&amp;", "<![CDATA[<!--]]>", "<?a?>", "<!-- a -->", "<", "\n"]),
    (".tmx", TMX.format("<tu {}/>"), [" a='b'", "a"]),
    (".tmx", "<!DOCTYPE tmx [{}", ["<!ELEMENT a ANY>", "<!ATTLIST a b CDATA 'c'>", "<!ENTITY a 'b'>", "%a;", "["]),
    (".xliff", XLIFF, ["<trans-unit><source>a</source></trans-unit>", "<group>", "<source>a</source>", "<file/>"]),
    (".xliff", XLIFF.format("<trans-unit>{}</trans-unit>"), ["<source>a</source>", "<target/>", "<seg-source/>"]),
    (".srt", "{}", ["1\n00:00:01,000 --> 00:00:02,000\n<i>a\n\n", "00:00:01,000 --> 00:00:02,000\n", "1\n", "\r\n"]),
    (".srt", "00:00:01,000 --> 00:00:02,000\n{}", ["a\n", "- a\n", "{\\a}", "a ", "<i>", "-", " \u2028"]),
    (".csv", "{}", ["a,b\n", "a;b,", '"', '"a""', '"a\n', ",", "\r", "a\tb;c,d\n"]),
    (
        ".xlsx",
        SHEET,
        ['<row><c t="inlineStr"><is><t>a</t></is></c></row>', "<row/>", "<c>", "<!--a-->"],
    ),
    (".pharaoh", "{}", ["0-0 ", "0-0\n", "1"]),
    (".glossary", "{}", ["a\tb|c\n", "a\t", "\n", "|"]),
    (".dictionary", "{}", ["a\tb\n", "a\t", "\n"]),
    (".lines", "{}", ["a\n", "a", "\r"]),
    (".html", "{}", ['<p title="a">a<!-- b -->', "<p>", "<meta charset='"]),
    (".json", "{}", list(JSON_PIECES.values())),
    (".json", "[{}{}]", ["{},", "[],", '{"a":1},']),
]


def fill(name, content):
    """Read a document and fill it with its segments."""
    opened = read_document(name, content, "en", "de")
    opened.fill(opened.segments)


def read_rows(name, content):
    """Read the rows of a file of sentence pairs."""
    path = Path(name)
    for _ in pair_formats.READERS[path.suffix](path, io.BufferedReader(io.BytesIO(content)), ["en", "de"]):
        pass


def workbook(sheet):
    """Return an Excel file with one sheet."""
    names = {"_rels/.rels": "officeDocument", "xl/_rels/workbook.xml.rels": "worksheet"}
    paths = {"officeDocument": "xl/workbook.xml", "worksheet": "worksheets/sheet1.xml"}
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    types = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{package}/content-types"><Default Extension="xml" ContentType="application/xml"/>'
            '<Override PartName="/xl/workbook.xml" ContentType="application/vnd.openxmlformats-officedocument.'
            'spreadsheetml.sheet.main+xml"/></Types>',
        )
        for name, kind in names.items():
            relation = f'<Relationship Id="r1" Type="{types}/{kind}" Target="{paths[kind]}"/>'
            archive.writestr(name, f'<Relationships xmlns="{package}/relationships">{relation}</Relationships>')
        sheets = '<sheets><sheet name="a" sheetId="1" r:id="r1"/></sheets>'
        archive.writestr("xl/workbook.xml", f'<workbook xmlns="{main}" xmlns:r="{types}">{sheets}</workbook>')
        archive.writestr("xl/worksheets/sheet1.xml", sheet)
    return content.getvalue()


def read_file(suffix, text, folder):
    """Read a file with all functions for its suffix."""
    content = workbook(text) if suffix == ".xlsx" else text.encode()
    for read, suffixes in ((fill, FORMATS), (read_rows, pair_formats.READERS)):
        if suffix in suffixes:
            with suppress(RnnsearchError):
                read(f"a{suffix}", content)
    path = folder / f"a{suffix}"
    path.write_bytes(content)
    for read in PATH_READERS.get(suffix, {}).values():
        with suppress(RnnsearchError):
            read(path)


def in_folder(name, read):
    """Return a function that reads a file as the file of this name in its folder."""

    def read_as(path):
        path.with_name(name).write_bytes(path.read_bytes())
        read(path.parent)

    return read_as


def read_corpus(path):
    """Read the rows of a text file or TSV file, and its lines."""
    for spec in (str(path), f"{path}|{path}"):
        for _ in corpus.read_rows([spec], path.parent):
            pass


PATH_READERS = {
    ".txt": {
        "data.corpus.read_rows": read_corpus,
        "data.corpus.read_lines": lambda path: list(corpus.read_lines(path)),
        "evaluation.report.read_grouped_sentences": read_grouped_sentences,
    },
    ".tsv": {"data.corpus.read_rows": read_corpus, "data.prepared.read_word_counts": read_word_counts},
    ".lines": {"utils.files.read_text": files.read_text, "utils.files.read_folder_text": files.read_folder_text},
    ".pharaoh": {"text.alignments.read_pharaoh": alignments.read_pharaoh},
    ".glossary": {"translator.glossaries.read_glossary": glossaries.read_glossary},
    ".dictionary": {"search.unknown_words.read_entries": read_entries},
    ".json": {
        "data.corpora.catalog.read_facts": in_folder("corpus.json", read_facts),
        "export.web_page.read_model_list": in_folder("models.json", read_model_list),
        "metrics.calibration.Calibration": lambda path: Calibration.load(path, ()),
        "systems.card.load_origin": in_folder("corpus.json", card.load_origin),
        "systems.card.load_scores": in_folder(card.SCORES_FILE, lambda folder: card.load_scores(folder, "x")),
        "systems.card.load_training_facts": in_folder(card.TRAINING_FILE, card.load_training_facts),
    },
}
"""Functions by their names and the suffix of the files that they read."""

# Measurements.

MOST = 2.3
"""Maximum ratio of the times of short texts, which the caches hold."""
MOST_LONG = 8**0.5
"""Maximum ratio of the times of longer texts, whose words or characters as objects soon fill the caches.

It is half-way between linear and quadratic time."""
EXCEPTIONS = {"text.markup": 3.2, "text.normalization": 3.2, "text.letter_case": 3.2}
"""Maximum ratio for functions that create several objects for each piece; a square would be 4."""
LEAST = 0.004
"""Seconds of the shorter text: less is not measured well."""
FIRST_LEAST = 0.0004
"""Seconds of the shorter text in the first attempt, which most pass."""
MAX_CHARACTERS = 1 << 18
"""Characters of the shorter text: the longer one has as many as a line may have bytes, or twice as many."""
INVALID = (RnnsearchError, ValueError, BadParameter, MultiPartException)
"""Errors of texts that are not valid."""


def seconds(read, text, repetitions=2):
    """Return the processor time of reading a text, whether it is valid or not."""
    best = float("inf")
    gc.disable()  # it walks over all that the tests before this one have left
    for _ in range(repetitions):
        began = time.process_time()
        with suppress(*INVALID):
            read(text)
        best = min(best, time.process_time() - began)
    gc.enable()
    return best


def ratio(read, piece, first=False):
    """Return the ratio of the times of two texts, one twice as long as the other; measured on longer texts."""
    least = FIRST_LEAST if first else LEAST
    repetitions = 1 if first else 2
    doublings = 3 if first else 2
    size = 64
    while (short := seconds(read, piece * size, repetitions)) < least and size * len(piece) < MAX_CHARACTERS:
        size *= 2
    return (seconds(read, piece * (size << doublings), repetitions) / max(short, least / 2)) ** (1 / doublings)


def require_linear(read, piece, most=MOST_LONG):
    """Fail if reading twice the text takes more than `MOST` times the time, and more than `most` for long texts."""
    if ratio(read, piece, first=True) <= MOST:
        return
    found = [ratio(read, piece)]
    while found[-1] > most and len(found) < 8:
        found.append(ratio(read, piece))
    assert found[-1] <= most, found


# Completeness.

CHOSEN = (
    *("text/", "data/cleaning", "data/corpus", "data/links", "data/pair_formats", "data/split", "serve/clients"),
    *("serve/glossaries", "serve/limits", "serve/request_fields", "serve/texts", "translator/confidence"),
    *("translator/copies", "translator/texts", "translator/translation", "utils/origin_check", "utils/stdio"),
)
"""Modules and packages in which all public functions and classes with text must be listed."""
READS = re.compile(r"(?:read|parse|decode|load|from)(?:_|$)")
"""Names of functions that must be listed wherever they are."""
SETTINGS = frozenset({"code", "language", "languages", "level", "method", "target_language"})
"""Parameters that are no text."""
EXEMPT = {
    "calls entries of this list, or is only called by them": """
        cli.io.read_parallel_lines cli.io.read_sources cli.pairs.read_pairs cli.serve.read_glossaries
        config.run_file.load data.corpus.read_chunks data.held_out.HeldOut data.preprocess.CleanedText
        data.split.SplitKeys evaluation.contrastive.read_examples evaluation.adaptation.read_pairs
        search.unknown_words.read_dictionary text.documents.document.Document
        text.documents.xml.XmlFile text.documents.xml.find_elements text.markup.tags.protected_element_ends
        text.documents.packed.PackedTexts text.documents.process.fill_file text.documents.process.parse_file
        text.long_texts.read_response text.long_texts.write_request text.processes.answer_or_error
        text.processes.raise_error text.processes.read_blocks text.processes.write_blocks
        text.documents.process.parse_request text.documents.process.read_parsed text.subwords.bpe_of_sizes
        text.subwords.bpe_from_counts text.subwords.characters_from_counts text.unigram.unigram_from_counts
        text.words.pieces_in_chunks text.words.words_from_counts text.words.words_in_chunks
        translator.confidence.load_calibration translator.confidence.calibration_from_header
        serve.texts.require_one_sentence serve.texts.translate_texts
        translator.requests.ConstraintReader translator.texts.assign_sentences translator.texts.join_sentences
        translator.texts.sentences_of translator.texts.translate_texts cli.io.read_parallel_documents""",
    "the text is one character, one token or the name of a type": """
        text.banned.is_word_character text.banned.continues_word text.languages.is_unspaced_letter
        text.vocabulary.is_unknown text.markup.protected.parse_protected serve.clients.ConnectionCounts
        serve.clients.LeakyBuckets serve.clients.WrongKeys serve.glossaries.Glossaries serve.limits.ServeError
        utils.stdio.exit_on_io_error utils.stdio.path_unless_dash""",
    "reads vocabularies, whose size is limited": """
        text.banned.TokenAutomaton text.subwords.default_vocabulary_size text.subwords.fixed_tokens
        text.subwords.rare_tokens text.subwords.scale_counts text.subwords.select_alphabet text.subwords.split_chunks
        text.subwords.token_counts text.subwords.without_rare text.terms.InlineTerms text.tokenizer.SpelledIds""",
    "reads translations of a model, whose length is limited": """
        translator.confidence.correct_words translator.confidence.learn_calibration
        translator.confidence.reliability_bins translator.translation.Translation translator.translation.with_sources
        metrics.reranking.NBestLists""",
    "in tests/stress: bombs.py, engine_files.py and folders.py measure files of models and stores": """
        accel.program_writer.load_arrays align.aligner.Aligner bulk.encoding.from_bytes bulk.encoding.from_json
        data.corpora.catalog.read_chapters data.corpora.catalog.read_tatoeba_rows
        bulk.jobs.Done bulk.jobs.read_manifest bulk.stores.FolderStore bulk.stores.Store bulk.stores.UrlStore
        data.corpora.bible.read_verses data.id_store.ParallelIds engine.file.read_header
        engine.recurrent.RecurrentModel engine.rnnsearch.RNNsearchModel engine.stored.read_array
        importers.folder.load_checkpoint importers.opennmt_py.read_architecture importers.opennmt_py.read_checkpoint
        ops.autotune.load_or_measure runtime.translator.load search.candidates.load_candidates
        serve.registry.read_model_info serve.registry.read_model_infos
        systems.engine_file.load_engine_file systems.engine_file.load_model
        systems.ensemble_folder.load_checkpoints systems.folder.load_system systems.folder.load_translation_config
        systems.pruning.read_pruned training.checkpoint.load_state training.checkpoint.read_corpus_hash
        translator.language_model.load_text_model translator.loading.load translator.rerank.load_features
        translator.rerank.load_reranker utils.weights.load_weights utils.weights.read_weights""",
    "reads numbers; tests/data/test_arrays.py has hostile files": "data.arrays.read_arrays",
    "takes a table that is parsed": "config.options.parse_flat runtime.search.EngineSearchOptions",
}


def has_text(function):
    """Return True if a function has a parameter with text that is not a setting."""
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        annotation = "" if argument.annotation is None else ast.unparse(argument.annotation)
        if re.search(r"\b(?:str|bytes)\b", annotation) and argument.arg not in SETTINGS:
            return True
        if re.search(r"\b(?:Path|BufferedIOBase)\b", annotation) and READS.match(function.name):
            return True
    return False


def public_readers(path):
    """Yield the names of the public functions of a module that have text, and of the classes with such methods."""
    module = str(path.relative_to(SOURCE).with_suffix("")).removesuffix("/__init__")
    is_chosen = module.startswith(CHOSEN)
    content = path.read_text(encoding="utf-8")
    if not is_chosen and not re.search(f"def {READS.pattern}".replace("$", r"\("), content):
        return
    for node in ast.parse(content).body:
        functions = [node] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            functions = [method for method in node.body if isinstance(method, ast.FunctionDef)]
        for function in functions:
            is_public = not function.name.startswith("_") or function.name in {"__init__", "__call__"}
            if is_public and (is_chosen or READS.match(function.name)) and has_text(function):
                yield f"{module.replace('/', '.')}.{node.name}"
                break


def test_every_reader_has_an_entry():
    listed = {name for names in READERS for name in names.split()}
    for readers in PATH_READERS.values():
        listed |= readers.keys()
    for classes in FORMATS.values():
        listed.add(f"{classes.__module__}.{classes.__name__}".removeprefix("rnnsearch."))
    found = set()
    for path in SOURCE.rglob("*.py"):
        found.update(public_readers(path))
    exempt = {name for names in EXEMPT.values() for name in names.split()}
    assert sorted(found - listed - exempt) == []
    assert sorted(exempt - found) == []
    assert sorted(exempt & listed) == []


def test_every_format_has_an_entry():
    assert {suffix for suffix, _, _ in FILES} >= {".txt", ".tsv", *set(pair_formats.READERS) - {".xlf"}}
    tested = {FORMATS[suffix] for suffix, _, _ in FILES if suffix in FORMATS}
    assert tested >= set(FORMATS.values())


def combinations():
    for names, (_, pieces) in READERS.items():
        for name, piece in pieces.items():
            yield pytest.param(names, piece, id=f"{names.split()[0]}-{name}")


@pytest.mark.parametrize(("names", "piece"), [*combinations()])
def test_time_is_linear_in_text_length(names, piece):
    most = next((most for prefix, most in EXCEPTIONS.items() if names.startswith(prefix)), MOST_LONG)
    require_linear(READERS[names][0], piece, most)


def file_combinations():
    for suffix, content, pieces in FILES:
        for piece in pieces:
            yield suffix, content, piece


@pytest.mark.parametrize(("suffix", "content", "piece"), [*file_combinations()])
def test_time_is_linear_in_file_length(suffix, content, piece, tmp_path):
    before, after = content.split("{}", 1)
    require_linear(lambda text: read_file(suffix, before + text + after, tmp_path), piece, 3.2)


@pytest.mark.parametrize(
    "phrases",
    [
        lambda size: ["ab " * size],
        lambda size: ["." * size],
        lambda size: [f"{chr(0x4E00 + n % 5000)}{chr(0x4E00 + n // 5000)}" for n in range(size)],
    ],
    ids=["one long", "one of dots", "many of many characters"],
)
def test_time_is_linear_in_banned_text_length(phrases):
    def found() -> float:
        short, long = (seconds(BannedPhrases, phrases(size)) for size in (8000, 32000))
        return (long / short) ** 0.5

    ratios = [found()]
    while ratios[-1] > 2.3 and len(ratios) < 8:
        ratios.append(found())
    assert ratios[-1] <= 2.3, ratios
