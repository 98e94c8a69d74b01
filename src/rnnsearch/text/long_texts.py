"""Parsing, splitting and filling of texts as functions of JSON values, and the process that calls them for long texts.

Python runs one thread at a time, so a long text that is parsed in a thread slows down all others: each time that one of
them needs the interpreter, it waits for up to five milliseconds. `serve.long_texts` therefore starts this process
(`python -m` this module), which answers requests from standard input until that ends.

Texts come from strangers: tests/text/test_linear.py. Must not import torch.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any, Literal, NamedTuple

from rnnsearch.text.alignments import Link
from rnnsearch.text.markup.html_document import HtmlDocument
from rnnsearch.text.markup.inline_document import InlineDocument
from rnnsearch.text.markup.marks import MarkedText
from rnnsearch.text.processes import Block, answer_or_error, limit_process, raise_error, read_blocks, write_blocks
from rnnsearch.text.sentences import sentence_spans

NICE = 5  # increment of the nice value of the process: a fourth of a busy processor, as clients wait for it
MarkupFormat = Literal["text", "html", "xml", "codes", "segment"]
"""Formats of texts: plain text, HTML, XML, segments with the inline tags of translation tools, segments of files."""
Filling = Sequence[tuple[str, Sequence[Link]]]
"""Translations of the texts of a document, each with the links between its words and those of the text."""


class Markup(NamedTuple):
    """Markup of texts."""

    format: MarkupFormat
    """Format of the texts; not `text`."""
    ignored_tags: Sequence[str] = ()
    """Names of elements, in lower case, whose content is not translated; for `xml` and `codes`."""
    splitting_tags: Sequence[str] = ()
    """Names of elements, in lower case, that separate sentences; for `xml` and `codes`."""


class ParsedText(NamedTuple):
    """The texts to translate in a text with markup."""

    texts: Sequence[str]
    """The texts, without tags."""
    has_inline_tags: bool
    """True if there are tags inside texts, so that links between words are needed."""


class _Segment:
    """A segment of a file, with the interface of a document."""

    def __init__(self, source: str) -> None:
        self._marked = MarkedText(source)
        self.texts = [self._marked.text]
        self.has_inline_tags = bool(self._marked.marks)

    def filled(self, translations: Filling) -> str:
        """Return the translation with tags."""
        [(text, links)] = translations
        return self._marked.place(text, links)


def _document(text: str, markup: Markup) -> HtmlDocument | InlineDocument | _Segment:
    if markup.format == "html":
        return HtmlDocument(text)
    if markup.format == "segment":
        return _Segment(text)
    return InlineDocument(
        text, markup.format == "codes", frozenset(markup.ignored_tags), frozenset(markup.splitting_tags)
    )


def parse(texts: Sequence[str], markup: Markup) -> list[ParsedText]:
    """Return what is to be translated in each text with markup."""
    documents = [_document(text, markup) for text in texts]
    return [ParsedText(document.texts, document.has_inline_tags) for document in documents]


def fill(texts: Sequence[str], markup: Markup, fillings: Sequence[Sequence[Filling]]) -> list[list[str]]:
    """Return the translations of each text with markup, one for each of its fillings."""
    filled = []
    for text, fillings_of_text in zip(texts, fillings, strict=True):
        document = _document(text, markup)
        filled.append([document.filled(filling) for filling in fillings_of_text])
    return filled


def split(texts: Sequence[str], language: str) -> list[list[tuple[int, int]]]:
    """Return the characters [start, end) of each sentence of each text."""
    return [sentence_spans(text, language) for text in texts]


# The process.


class _Function(NamedTuple):
    """A function of the process. JSON has neither tuples nor classes, so its values are converted."""

    call: Callable[..., Any]
    """The function itself."""
    read_arguments: Callable[..., tuple[Any, ...]]
    """Returns its arguments from their JSON."""
    read_result: Callable[[Any], Any]
    """Returns its result from JSON."""


def _read_markup(texts: list[str], markup: list[Any], *others: Any) -> tuple[Any, ...]:
    return texts, Markup(*markup), *others


_FUNCTIONS = {
    "parse": _Function(parse, _read_markup, lambda result: [ParsedText(*parsed) for parsed in result]),
    "fill": _Function(fill, _read_markup, lambda result: result),
    "split": _Function(split, lambda *arguments: arguments, lambda result: [list(map(tuple, text)) for text in result]),
}


def write_request(stream: IO[bytes], function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Write the request to call `parse`, `fill` or `split`."""
    write_blocks(stream, {"function": function.__name__, "arguments": arguments})


def read_response(stream: IO[bytes], function: Callable[..., Any], max_bytes: int) -> Any:
    """Return the result of a function.

    Raises:
        EOFError: The process has ended.
        OverflowError: The response has more bytes.
        MemoryError: The process needs too much memory.
        RuntimeError: A bug.
    """
    header, _ = read_blocks(stream, max_bytes)
    raise_error(header)
    return _FUNCTIONS[function.__name__].read_result(header["result"])


def _answer(header: dict[str, Any], _: Sequence[bytes]) -> tuple[dict[str, Any], list[Block]]:
    function = _FUNCTIONS[header["function"]]
    return {"result": function.call(*function.read_arguments(*header["arguments"]))}, []


def main() -> None:
    """Answer requests from standard input on standard output until it ends; argument: memory in bytes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which then ends this process
    limit_process(NICE, int(sys.argv[1]))
    while True:
        try:
            header, blocks = read_blocks(sys.stdin.buffer, sys.maxsize)
        except EOFError:
            os._exit(0)
        response, response_blocks = answer_or_error(_answer, header, blocks)
        write_blocks(sys.stdout.buffer, response, *response_blocks)


if __name__ == "__main__":
    main()
