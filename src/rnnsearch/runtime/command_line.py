"""The command `rnnsearch-runtime`: translates lines, or serves an HTTP API, with one engine file.

It uses argparse instead of the libraries of `rnnsearch.cli`, because the runtime depends only on NumPy and tokenizers.

Options, exit codes and JSON fields mean the same as in `rnnsearch translate` (docs/shipping.md). All lines that have
arrived are answered before the next read that would block, so that a program can wait for each answer. Tests:
tests/runtime/test_command_line.py.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import BufferedIOBase, TextIOWrapper
from pathlib import Path
from typing import NamedTuple, TextIO, cast

from rnnsearch.errors import DataError, RnnsearchError
from rnnsearch.runtime.serve import RuntimeServer
from rnnsearch.runtime.translator import MAX_TOKENS, Translator, load
from rnnsearch.text.alignments import format_pharaoh
from rnnsearch.text.markup.protected import DEFAULT_PROTECTED, ProtectedType, parse_protected
from rnnsearch.translator.texts import MAX_LINE_SENTENCES, assign_sentences, line_spans
from rnnsearch.translator.translation import Translation, one_line
from rnnsearch.utils.files import atomic_file, path_conflict
from rnnsearch.utils.stdio import exit_on_io_error, path_unless_dash, read_lines, replace_closed_streams

CHUNK_BATCHES = 16  # batches of lines that are sorted by length together
MAX_LINE_BYTES = 1 << 20  # a line without end must not fill the memory
MAX_READ_BYTES = MAX_LINE_BYTES + 8  # the line is still too long without its line end and an incomplete character
MAX_COUNT = 1000
# Attributes of a translation in JSON output; the confidence is omitted if the model is not calibrated.
JSON_FIELDS = ("source", "text", "score", "finished", "tokens", "token_scores", "words", "alignment", "confidence")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. User errors are one sentence on standard error and exit code 1."""
    replace_closed_streams()
    try:
        try:
            args = _parser().parse_args(arguments)
            args.run(args)
        finally:
            # Before Python's own flush at exit, which would report a closed pipe with a traceback.
            sys.stdout.flush()
    except RnnsearchError as error:
        sys.exit(f"rnnsearch-runtime: {error}")
    except OSError as error:
        exit_on_io_error("rnnsearch-runtime", error)
    except MemoryError:
        sys.exit("rnnsearch-runtime: not enough memory; use shorter lines or a smaller beam (`--beam`)")
    except KeyboardInterrupt:
        sys.exit(130)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rnnsearch-runtime", description="Translate with a model in one file.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    translate_parser = commands.add_parser("translate", help="Translate the lines of a file or of standard input.")
    serve_parser = commands.add_parser("serve", help="Serve the main part of LibreTranslate's API.")
    for command, run in ((translate_parser, translate), (serve_parser, serve)):
        command.set_defaults(run=run)
        command.add_argument("model", type=Path, help="File written by `rnnsearch export`.")
    add_option = translate_parser.add_argument
    add_option("-i", "--input", type=path_unless_dash, help="Source text, line by line. [default: standard input]")
    add_option("-o", "--output", type=path_unless_dash, help="Output file. [default: standard output]")
    add_option("--beam", type=_count, help="Beam size; 1 is greedy search, the fastest. [default: the model's]")
    add_option(
        "--split",
        choices=("sentences", "lines"),
        default="sentences",
        help="sentences: translate each sentence of a line separately, and join them again; lines: one sentence per "
        "line. [default: sentences]",
    )
    add_option("--n-best", type=_count, default=1, help="Translations per sentence (--format json). [default: 1]")
    add_option(
        "--format", choices=("text", "json"), default="text", help="Write texts, or JSON with scores and alignments."
    )
    add_option(
        "--protect",
        type=_protected_types,
        default=DEFAULT_PROTECTED,
        help="Copy text of these types unchanged: urls, emails, placeholders, codes, numbers (comma-separated), all, "
        "or none. [default: urls,emails,placeholders]",
    )
    add_option("--alignments", type=Path, help="Also write word alignments in Pharaoh format (i-j) to this file.")
    add_option = serve_parser.add_argument
    add_option("--host", default="127.0.0.1", help="Address to listen on. [default: 127.0.0.1, this machine only]")
    add_option("--port", type=int, default=5000, help="Port to listen on. [default: 5000]")
    add_option("--page", type=Path, help="Also serve a page written by `rnnsearch export --format web`.")
    add_option(
        "--allowed-host",
        action="append",
        default=[],
        help="Host name of this server in addition to its addresses and localhost; * allows any.",
    )
    return parser


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MAX_COUNT:
        raise argparse.ArgumentTypeError(f"must be a whole number between 1 and {MAX_COUNT}; got {text}")
    return number


def _protected_types(text: str) -> tuple[ProtectedType, ...]:
    try:
        return parse_protected(text.split(","))
    except RnnsearchError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def translate(args: argparse.Namespace) -> None:
    """Run `rnnsearch-runtime translate`: one line of output per line of input.

    Raises:
        RnnsearchError: The options contradict each other, or an output is also another file.
        DataError: The input cannot be read.
    """
    if args.n_best > 1 and args.format != "json":
        raise RnnsearchError("--n-best needs --format json")
    outputs = {"--output": args.output, "--alignments": args.alignments}
    if problem := path_conflict(outputs, [args.model, args.input]):
        raise RnnsearchError(problem)
    translator = load(args.model)
    with ExitStack() as stack:
        source = cast(BufferedIOBase, sys.stdin.buffer)
        if args.input is not None:
            source = stack.enter_context(_open_input(args.input))
        if isinstance(sys.stdout, TextIOWrapper):
            # The same bytes on every system, as in output files.
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        output: TextIO = sys.stdout
        if args.output is not None:
            output = _open_output(stack, args.output)
        alignments = None if args.alignments is None else _open_output(stack, args.alignments)
        path = args.input or Path("standard input")
        # A line that is too long keeps its output line, so that inputs and outputs stay parallel.
        lines = _split_lines(translator, _decoded_lines(source, path), path, args.split == "sentences")
        for chunk in _chunks(lines, CHUNK_BATCHES * translator.batch_sentences):
            sentences = [line.text[start:end] for line in chunk for start, end in line.spans]
            n_best = translator.n_best(sentences, args.n_best, args.beam, protect=args.protect)
            texts = [line.text for line in chunk]
            for result in assign_sentences(texts, [line.spans for line in chunk], n_best, translator.languages[1]):
                translations = result.translations()
                output.write(_format(translator, translations, args.format, args.n_best))
                if alignments is not None:
                    alignments.write(format_pharaoh(translations[0].alignment) + "\n")
            # Another program may wait for these lines.
            output.flush()


def serve(args: argparse.Namespace) -> None:
    """Run `rnnsearch-runtime serve` until SIGINT or SIGTERM.

    Raises:
        RnnsearchError: The address is not available.
    """
    # A process with id 1, as in a container, ignores SIGTERM unless it has a handler.
    signal.signal(signal.SIGTERM, _exit)
    allowed_hosts = frozenset(name.lower() for name in args.allowed_host)
    translator = load(args.model)
    try:
        server = RuntimeServer(translator, args.host, args.port, args.page, allowed_hosts)
    except (OSError, OverflowError) as error:
        raise RnnsearchError(f"cannot listen at {args.host}:{args.port}: {error}") from None
    with server:
        source, target = translator.languages
        sys.stderr.write(f"{source} to {target}: http://{args.host}:{server.server_port}/translate\n")
        server.serve_forever()


def _exit(*_: object) -> None:
    sys.exit(0)


def _format(translator: Translator, translations: Sequence[Translation], format: str, n_best: int) -> str:
    """Return the output line of a sentence: a text, a JSON object, or with `n_best` above 1 a list of objects."""
    if format == "text":
        return f"{one_line(translations[0].text)}\n"
    names = [name for name in JSON_FIELDS if name != "confidence" or translator.calibration is not None]
    rows = [translation.json_values(*names) for translation in translations]
    return json.dumps(rows if n_best > 1 else rows[0], ensure_ascii=False) + "\n"


def _open_input(path: Path) -> BufferedIOBase:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _open_output(stack: ExitStack, path: Path) -> TextIO:
    """Open a file that is replaced completely at the end, or not at all."""
    return stack.enter_context(stack.enter_context(atomic_file(path)).open("w", encoding="utf-8", newline="\n"))


def _decoded_lines(source: BufferedIOBase, path: Path) -> Iterator[str | None]:
    """Yield lines as text, and None before each read that would block.

    Raises:
        DataError: A line is not UTF-8, or the source cannot be read.
    """
    number = 0
    try:
        for line in read_lines(source, MAX_READ_BYTES):
            if line is None:
                yield None
                continue
            number += 1
            # A line that was cut may end with an incomplete character.
            yield line.decode("utf-8", "ignore" if len(line) > MAX_LINE_BYTES else "strict")
    except UnicodeDecodeError:
        raise DataError(f"{path}:{number}: must be text in UTF-8; got other bytes") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


class Line(NamedTuple):
    """A line and its sentences."""

    text: str
    """The line."""
    spans: list[tuple[int, int]]
    """Characters [start, end) of each sentence; one span of the whole line for a single sentence."""


def _split_lines(
    translator: Translator, lines: Iterator[str | None], path: Path, splits_sentences: bool
) -> Iterator[Line | None]:
    """Yield lines with their sentences; those that are too long are replaced by empty ones and reported."""
    number = 0
    for text in lines:
        if text is None:
            yield None
            continue
        number += 1
        fits = len(text.encode()) <= MAX_LINE_BYTES
        line = Line(text, [(0, len(text))])
        if fits and splits_sentences:
            line = Line(text, line_spans(text, translator.languages[0]))
        limit = f"{MAX_TOKENS:,} tokens"
        if len(line.spans) > MAX_LINE_SENTENCES:
            limit = f"{MAX_LINE_SENTENCES:,} sentences"
        elif fits and all(translator.fits(text[start:end]) for start, end in line.spans):
            yield line
            continue
        sys.stderr.write(f"{path}:{number}: must have at most {limit}; its output line is empty\n")
        yield Line("", [(0, 0)])


def _chunks(lines: Iterator[Line | None], size: int) -> Iterator[list[Line]]:
    """Yield lines of up to `size` sentences at a time, but at least one line.

    There are fewer before None, so that a program that waits for output gets it.
    """
    chunk: list[Line] = []
    num_sentences = 0
    for line in lines:
        is_full = line is not None and num_sentences + len(line.spans) > size
        if chunk and (line is None or is_full):
            yield chunk
            chunk = []
            num_sentences = 0
        if line is not None:
            chunk.append(line)
            num_sentences += len(line.spans)
    if chunk:
        yield chunk
