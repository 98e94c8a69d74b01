"""`rnnsearch serve`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from rnnsearch.cli.io import use_threads
from rnnsearch.cli.options import Device, Threads

API_KEYS = "RNNSEARCH_API_KEYS"
SWITCH_SECONDS = 0.0002
"""The interpreter hands over between threads this often: the model's many short operations must not each wait the
usual 5 ms for a thread that builds answers."""


def serve(
    models: Annotated[list[Path], typer.Argument(help="Model folders.", show_default=False)],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for a free one.")] = 5000,
    api_keys: Annotated[
        Path | None, typer.Option(help=f"A file of API keys, one a line (or keys with spaces in {API_KEYS}).")
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="A name that clients call the server by, besides its addresses and localhost; * for any."),
    ] = None,
    preload: Annotated[bool, typer.Option("--preload", help="Load every model before the first request.")] = False,
    max_loaded: Annotated[int | None, typer.Option(min=1, help="Models kept in memory.  [default: all]")] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Megabytes of a file that is sent.")] = 10,
    max_characters: Annotated[int, typer.Option(min=1, help="Characters of a request's texts.")] = 50_000,
    max_symbols: Annotated[int, typer.Option(min=1, help="Symbols of a sentence.")] = 500,
    max_queue: Annotated[int, typer.Option(min=1, help="Sentences that may wait for a model.")] = 2000,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until a request is given up.")] = 60.0,
    batch: Annotated[int, typer.Option(min=1, help="Sentences of a batch.")] = 64,
    suggestions: Annotated[Path | None, typer.Option(help="Keep readers' better translations here.")] = None,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="What is told.")] = "info",
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Serve models over HTTP: a page, LibreTranslate's API and our own. Stops on Ctrl-C or SIGTERM when all is done."""
    from rnnsearch.ops.device import choose_device
    from rnnsearch.serve.limits import Settings
    from rnnsearch.serve.server import run
    from rnnsearch.utils.files import require_appendable

    choose_device(device, "device")  # not only when a first request asks for a model
    if suggestions is not None:
        require_appendable(suggestions)
    settings = Settings(
        api_keys=_keys(api_keys),
        allowed_hosts=frozenset(name.lower() for name in allowed_host or ()),
        max_body=max_body << 20,
        max_characters=max_characters,
        max_symbols=max_symbols,
        max_queue=max_queue,
        timeout=timeout,
        batch_sentences=batch,
        device=device,
        max_loaded=max_loaded,
        suggestions=suggestions,
    )
    use_threads(threads)
    sys.setswitchinterval(SWITCH_SECONDS)
    run(models, settings, host, port, log_level, preload)


def _keys(path: Path | None) -> frozenset[str]:
    """The API keys of a file, or of the environment. Errors: ConfigError for a file without any."""
    if path is None:
        return frozenset(os.environ.get(API_KEYS, "").split())
    from rnnsearch.errors import ConfigError

    try:
        keys = frozenset(path.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: the file of API keys cannot be read: {error}"]) from None
    if not keys:
        raise ConfigError([f"{path}: must hold API keys, one a line; it is empty"])
    return keys
