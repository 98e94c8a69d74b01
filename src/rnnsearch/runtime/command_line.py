"""`rnnsearch-runtime`: lines in, translations out, by one engine file. Imports no torch, and no other library."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import BufferedIOBase, TextIOWrapper
from pathlib import Path
from typing import TextIO, cast

from rnnsearch.errors import DataError, RnnsearchError
from rnnsearch.runtime.serve import Server
from rnnsearch.runtime.translator import MOST_SYMBOLS, Translator, load
from rnnsearch.text.alignments import format_pharaoh
from rnnsearch.translator.translation import Translation, one_line
from rnnsearch.utils.files import atomic_file, clash
from rnnsearch.utils.stdio import give_up, lines_of, open_streams, unless_stream

CHUNK = 16
"""Batches of lines that are sorted by length together."""
MOST_BYTES = 1 << 20
"""Of a line: one that does not end would fill the memory."""
CUT = MOST_BYTES + 8
"""Bytes of a longer one that are still looked at: more than that with its end and a part of a character gone."""
SHOWN = ("source", "text", "score", "finished", "tokens", "token_scores", "words", "alignment", "confidence")
"""Of a translation, in JSON."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; what is the user's fault is one sentence, and status 1."""
    open_streams()
    try:
        try:
            args = _parser().parse_args(arguments)
            args.run(args)
        finally:
            sys.stdout.flush()
    except RnnsearchError as error:
        sys.exit(f"rnnsearch-runtime: {error}")
    except OSError as error:
        give_up("rnnsearch-runtime", error)
    except KeyboardInterrupt:
        sys.exit(130)


def _parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="rnnsearch-runtime", description="Translate with a model in one file.")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    lines = commands.add_parser("translate", help="lines of a file, or of standard input")
    served = commands.add_parser("serve", help="texts over HTTP, as LibreTranslate does")
    for parser, run in ((lines, translate), (served, serve)):
        parser.set_defaults(run=run)
        parser.add_argument("model", type=Path, help="a file that `rnnsearch export` has written")
    lines.add_argument(
        "-i", "--input", type=unless_stream, help="source text, one sentence a line  [default: standard input]"
    )
    lines.add_argument("-o", "--output", type=unless_stream, help="the file to write  [default: standard output]")
    lines.add_argument("--beam", type=_count, help="hypotheses kept a sentence; 1 is greedy, the fastest")
    lines.add_argument("--n-best", type=_count, default=1, help="translations a sentence (--format json)")
    lines.add_argument("--format", choices=("text", "json"), default="text", help="translations, or all about them")
    lines.add_argument("--alignments", type=Path, help="also write word alignments, as i-j (Pharaoh), to this file")
    served.add_argument("--host", default="127.0.0.1", help="where to listen  [default: this machine alone]")
    served.add_argument("--port", type=int, default=5000, help="[default: 5000]")
    served.add_argument("--page", type=Path, help="also give out a folder that `rnnsearch export --format web` wrote")
    served.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        help="a name that clients call the server by, besides its addresses and localhost; * for any",
    )
    return whole


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= 1000:
        raise argparse.ArgumentTypeError(f"must be a whole number between 1 and 1000; got {text}")
    return number


def translate(args: argparse.Namespace) -> None:
    """One line out a line in, or JSON. Errors: RnnsearchError for --n-best without --format json, and for an output
    that is another file's place."""
    if args.n_best > 1 and args.format != "json":
        raise RnnsearchError("--n-best needs --format json")
    if wrong := clash({"--output": args.output, "--alignments": args.alignments}, [args.model, args.input]):
        raise RnnsearchError(wrong)
    translator = load(args.model)
    with ExitStack() as stack:
        source = cast(BufferedIOBase, sys.stdin.buffer)
        if args.input is not None:
            source = stack.enter_context(_opened(args.input))
        output, alignments = (
            None if path is None else _written(stack, path) for path in (args.output, args.alignments)
        )
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        path = args.input or Path("standard input")
        for lines in _portions(_fitting(translator, _lines(source, path), path), CHUNK * translator.batch_sentences):
            for found in translator.n_best(lines, args.n_best, args.beam):
                (output or sys.stdout).write(_shown(translator, found, args.format, args.n_best))
                if alignments is not None:
                    alignments.write(format_pharaoh(found[0].alignment) + "\n")
            (output or sys.stdout).flush()


def serve(args: argparse.Namespace) -> None:
    """Until it is stopped, by SIGTERM, too: what is the first process of a container ignores it unless it says so."""
    signal.signal(signal.SIGTERM, _end)
    allowed = frozenset(name.lower() for name in args.allowed_host)
    translator = load(args.model)
    try:
        server = Server(translator, args.host, args.port, args.page, allowed)
    except (OSError, OverflowError) as error:
        raise RnnsearchError(f"cannot listen at {args.host}:{args.port}: {error}") from None
    with server:
        source, target = translator.languages
        sys.stderr.write(f"{source} to {target}: http://{args.host}:{server.server_port}/translate\n")
        server.serve_forever()


def _end(*_: object) -> None:
    sys.exit(0)


def _shown(translator: Translator, found: Sequence[Translation], format: str, n_best: int) -> str:
    """The best translation as text, or as a JSON object; a list of objects where several are asked for, however many
    there are."""
    if format == "text":
        return f"{one_line(found[0].text)}\n"
    names = [name for name in SHOWN if name != "confidence" or translator.calibration is not None]
    rows = [one.plain(*names) for one in found]
    return json.dumps(rows if n_best > 1 else rows[0], ensure_ascii=False) + "\n"


def _opened(path: Path) -> BufferedIOBase:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _written(stack: ExitStack, path: Path) -> TextIO:
    """A file that is there whole at the end, or not at all."""
    return stack.enter_context(stack.enter_context(atomic_file(path)).open("w", encoding="utf-8", newline="\n"))


def _lines(source: BufferedIOBase, path: Path) -> Iterator[str | None]:
    """Lines, and None where more would be waited for. Errors: DataError, which names the line, for other bytes than
    UTF-8, and where the source cannot be read."""
    number = 0
    try:
        for line in lines_of(source, CUT):
            number += line is not None
            # The end of a line that was cut may be part of a character.
            yield None if line is None else line.decode("utf-8", "ignore" if len(line) > MOST_BYTES else "strict")
    except UnicodeDecodeError:
        raise DataError(f"{path}:{number}: must be text in UTF-8; got other bytes") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _fitting(translator: Translator, lines: Iterator[str | None], path: Path) -> Iterator[str | None]:
    """Empty lines in the place of those that are too long, which are told of."""
    number = 0
    for line in lines:
        number += line is not None
        if line is None or (len(line.encode()) <= MOST_BYTES and translator.fits(line)):
            yield line
            continue
        sys.stderr.write(f"{path}:{number}: must have at most {MOST_SYMBOLS:,} symbols; its line of output is empty\n")
        yield ""


def _portions(lines: Iterator[str | None], size: int) -> Iterator[list[str]]:
    """Up to `size` lines at a time, fewer before None: who writes a line and waits for its answer gets it."""
    portion: list[str] = []
    for line in lines:
        if line is not None:
            portion.append(line)
        if portion and (line is None or len(portion) == size):
            yield portion
            portion = []
    if portion:
        yield portion
