"""Options of JoeyNMT, from the `config.yaml` beside a checkpoint; what has no counterpart is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rnnsearch.errors import ModelError
from rnnsearch.importing.options import no_counterpart

LONGEST = 1_000_000
"""Bytes of a configuration."""
LARGEST = 1 << 28
"""Bytes of a vocabulary."""
CELLS = {"lstm": "lstm", "gru": "torch-gru"}
ONLY: dict[str, tuple[Any, ...]] = {
    "model.encoder.type": ("recurrent",),
    "model.encoder.rnn_type": ("gru", "lstm"),
    "model.encoder.bidirectional": (True,),
    "model.encoder.embeddings.scale": (False,),
    "model.decoder.type": ("recurrent",),
    "model.decoder.rnn_type": ("gru", "lstm"),
    "model.decoder.attention": ("bahdanau", "luong"),
    "model.decoder.init_hidden": ("bridge", "zero"),
    "model.decoder.activation": ("tanh",),
    "model.decoder.embeddings.scale": (False,),
    "data.src.level": ("word", "bpe"),
    "data.trg.level": ("word", "bpe"),
}
"""Of the options that change the equations or the symbols those values that have a counterpart here; the first is that
of a configuration which does not say."""


class Options:
    """A configuration."""

    def __init__(self, path: Path) -> None:
        """Errors: ModelError for a file that is none, and for the first option without a counterpart."""
        text = text_of(path, LONGEST)
        try:
            self._all = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError, ValueError):
            self._all = None
        if not isinstance(self._all, Mapping):
            raise ModelError(f"{path}: must be a configuration of JoeyNMT, in YAML")
        for name, known in ONLY.items():
            value = self.of(name, known[0])
            if not any(type(value) is type(one) and value == one for one in known):
                raise no_counterpart(str(path), name, value, known)
        self.encoder_cell = CELLS[self._one("model.encoder.rnn_type")]
        self.decoder_cell = CELLS[self._one("model.decoder.rnn_type")]
        self.attention, self.bridge = self._one("model.decoder.attention"), self._one("model.decoder.init_hidden")
        self.feeds = bool(self.of("model.decoder.input_feeding", True))

    def _one(self, name: str) -> str:
        value: str = self.of(name, ONLY[name][0])
        return value

    def of(self, name: str, default: Any) -> Any:
        """An option by its path."""
        found: Any = self._all
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return default if found is None else found

    def text(self, name: str, default: str) -> str:
        """One that is a text; another than that is as none."""
        found = self.of(name, default)
        return found if isinstance(found, str) else default

    def share(self, name: str) -> float:
        """Of what is dropped out; 0 for what is no share."""
        found = self.of(name, 0.0)
        return float(found) if isinstance(found, int | float) and 0 <= found < 1 else 0.0


def text_of(path: Path, most: int = LARGEST) -> str:
    """A file beside the checkpoint. Errors: ModelError where it is missing, has more bytes than `most`, or no text."""
    try:
        if path.stat().st_size > most:
            raise ModelError(f"{path}: must have at most {most:,} bytes; got {path.stat().st_size:,}")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(f"{path}: must stand beside the checkpoint, as JoeyNMT writes it; there is none") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: must be text in UTF-8: {type(error).__name__}") from None
