"""`rnnsearch serve`: serve models over HTTP.

The command makes `serve.limits.Settings` from its options and calls `serve.server.run`. API keys are read from a file
or the environment variable RNNSEARCH_API_KEYS, never from the command line. Tests: tests/commands/test_serve.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, BadParameter, Option

from rnnsearch.cli.options import HardwareGroup
from rnnsearch.cli.panels import OptionGroup, expand_groups

if TYPE_CHECKING:
    from rnnsearch.text.terms import Glossary

API_KEYS_VARIABLE = "RNNSEARCH_API_KEYS"
SWITCH_INTERVAL_SECONDS = 0.0002
"""Interval at which Python switches threads.

The model's many short operations would otherwise each wait the default 5 ms for threads that build responses.
"""


@dataclass(frozen=True)
class AccessGroup(OptionGroup):
    """Address of the server, and access to it."""

    panel = "Access"

    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1"
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 5000
    api_keys: Annotated[
        Path | None,
        Option(help=f"File of API keys, one per line; also read from {API_KEYS_VARIABLE} (separated by spaces)."),
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        Option(help="Further host name of this server, in addition to its addresses and localhost; * for any."),
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        Option(
            help="Origin of a web page or browser extension that may use the server, like app://obsidian.md; * for any."
        ),
    ] = None


@dataclass(frozen=True)
class LimitGroup(OptionGroup):
    """Limits of requests, queues and memory."""

    panel = "Limits"

    max_loaded: Annotated[
        int | None, Option(min=1, help="Maximum number of models in memory at the same time.", show_default="all")
    ] = None
    # In megabytes here, in bytes in `Settings`.
    max_body: Annotated[int, Option(min=1, help="Maximum size of an uploaded file in megabytes.")] = 10
    max_characters: Annotated[int, Option(min=1, help="Maximum number of characters per request.")] = 50_000
    # `Settings.max_tokens`; the option keeps its published name.
    max_symbols: Annotated[int, Option(min=1, help="Maximum number of tokens per sentence.")] = 500
    max_queue: Annotated[int, Option(min=1, help="Maximum number of waiting sentences per model.")] = 2000
    timeout: Annotated[float, Option(min=0.1, help="Seconds until a request is cancelled.")] = 60.0
    max_connections: Annotated[int, Option(min=2, help="Maximum number of open connections.")] = 1000
    stop_timeout: Annotated[
        float, Option(min=1, help="Seconds after a signal in which files and requests are finished.")
    ] = 90.0


@expand_groups
def serve(
    models: Annotated[list[Path], Argument(help="Model folders.", show_default=False)],
    *,
    preload: Annotated[bool, Option("--preload", help="Load all models before the first request.")] = False,
    batch: Annotated[int, Option(min=1, help="Sentences per batch.")] = 64,
    suggestions: Annotated[Path | None, Option(help="File to which users' suggestions are appended.")] = None,
    glossary: Annotated[
        list[str] | None,
        Option(
            metavar="[MODEL=]FILE",
            help="Terms that translations must contain: source term, tab, target term or several forms separated by |.",
        ),
    ] = None,
    pivot_language: Annotated[
        list[str] | None,
        Option(
            help="Also offer the directions that two models together have through this language, and no model has; "
            "can be given several times."
        ),
    ] = None,
    pivot_n_best: Annotated[
        int,
        Option(
            min=1,
            max=100,
            help="Number of translations into --pivot-language to translate further; their probabilities are summed.",
        ),
    ] = 1,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Option(help="Minimum level of log lines.")] = (
        "info"
    ),
    access: AccessGroup,
    limits: LimitGroup,
    hardware: HardwareGroup,
) -> None:
    """Serve models over HTTP.

    Provides a translation page, LibreTranslate's API and an API of its own. On Ctrl-C or SIGTERM the server finishes
    the requests it has accepted, then stops.
    """
    from rnnsearch.ops.device import choose_device
    from rnnsearch.serve.limits import Settings
    from rnnsearch.serve.server import run
    from rnnsearch.utils.files import require_appendable

    if pivot_n_best > 1 and not pivot_language:
        raise BadParameter("--pivot-n-best has no effect without --pivot-language")
    choose_device(hardware.device, "device")  # raises now rather than at the first request
    if suggestions is not None:
        require_appendable(suggestions)
    settings = Settings(
        api_keys=_read_api_keys(access.api_keys),
        allowed_hosts=frozenset(name.lower() for name in access.allowed_host or ()),
        allowed_origins=frozenset(map(_origin, access.allow_origin or ())),
        max_body=limits.max_body << 20,  # megabytes to bytes
        max_characters=limits.max_characters,
        max_tokens=limits.max_symbols,  # tokens were called symbols
        max_queue=limits.max_queue,
        timeout=limits.timeout,
        max_connections=limits.max_connections,
        stop_timeout=limits.stop_timeout,
        batch_sentences=batch,
        device=hardware.device,
        max_loaded=limits.max_loaded,
        suggestions=suggestions,
        pivot_languages=tuple(dict.fromkeys(pivot_language or ())),
        pivot_n_best=pivot_n_best,
        glossaries=read_glossaries(glossary or [], models),
    )
    hardware.set_threads()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    run(models, settings, access.host, access.port, log_level, preload)


def _origin(value: str) -> str:
    """Return an origin as browsers send it.

    Raises:
        ConfigError: It is not an origin.
    """
    from urllib.parse import urlsplit

    from rnnsearch.errors import ConfigError

    if value in ("*", "null"):  # browsers send "null" for pages that are files
        return value
    try:
        parts = urlsplit(value.lower())
    except ValueError:
        parts = urlsplit("")
    if not (parts.scheme and parts.netloc) or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ConfigError([f'--allow-origin: must be like https://example.org, or *; got "{value}"'])
    return f"{parts.scheme}://{parts.netloc}"


def read_glossaries(arguments: Sequence[str], models: Sequence[Path]) -> dict[str, Glossary]:
    """Return the glossary of each model by the model's name.

    Args:
        arguments: For each glossary, a file and perhaps the name of its model before an equals sign.
        models: The models.

    Raises:
        BadParameter: A model is unknown or has several glossaries, or there are several models and none is named.
        DataError: A file is not valid.
        ModelError: A folder is not a translation model.
    """
    from rnnsearch.serve.registry import read_model_infos
    from rnnsearch.translator.glossaries import read_glossary

    if not arguments:
        return {}
    infos = [info for folder in models for info in read_model_infos(folder)]
    names = [info.name for info in infos]
    directions = {(info.source, info.target) for info in infos}
    glossaries: dict[str, Glossary] = {}
    for argument in arguments:
        name, separator, path = argument.partition("=")
        is_named = bool(separator) and not Path(argument).exists()
        if is_named and name not in names:
            raise BadParameter(f'--glossary must name one of the models {", ".join(names)}; got "{name}"')
        if not is_named and len(directions) > 1:
            raise BadParameter(f"--glossary needs a model if several directions are served: {names[0]}={argument}")
        glossary = read_glossary(Path(path if is_named else argument))
        for model in [name] if is_named else names:
            if model in glossaries:
                raise BadParameter(f"--glossary must be given once per model; got several for {model}")
            glossaries[model] = glossary
    return glossaries


def _read_api_keys(path: Path | None) -> frozenset[str]:
    """Return the API keys of a file, or of the environment.

    Raises:
        ConfigError: The file cannot be read or contains no key.
    """
    if path is None:
        return frozenset(os.environ.get(API_KEYS_VARIABLE, "").split())
    from rnnsearch.errors import ConfigError
    from rnnsearch.utils.files import read_text

    try:
        keys = frozenset(read_text(path).split())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: the file of API keys cannot be read: {error}"]) from None
    if not keys:
        raise ConfigError([f"{path}: must contain API keys, one per line; got an empty file"])
    return keys
