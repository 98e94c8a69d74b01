"""`rnnsearch translate` at a terminal: a prompt that shows what it found, how sure it is, and what came from where."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rnnsearch.errors import RnnsearchError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rnnsearch.translate import Translator
    from rnnsearch.translation import Translation

HELP = """A line of text is translated. Commands:
  :beam N       beam width; 1 is greedy search
  :n N          show the N best translations
  :words on     a table of words: how probable, and which source words they come from (off: without)
  :heat on      draw the attention (off: do not)
  :help         this list
  :quit         leave (so does Ctrl-D)"""
SURE = ((0.9, "bold"), (0.6, ""), (0.3, "yellow"), (0.0, "red"))
"""The style of a word from a probability on."""


@dataclass
class View:
    """What the user has set."""

    beam: int
    n: int = 1
    words: bool = True
    heat: bool = False


class Prompt:
    """One session at the terminal."""

    def __init__(self, translator: Translator, console: Console, beam: int | None = None) -> None:
        self.translator = translator
        self.console = console
        self.view = View(beam or translator.config.search.beam)

    def run(self, search: Callable[[View, str], list[Translation]], read: Callable[[str], str] = input) -> None:
        """Read lines until their end; `search` gives the translations of a line, best first."""
        with contextlib.suppress(ImportError):  # not on every platform
            import readline  # noqa: F401  (gives `input` its history and editing keys)
        data = self.translator.config.data
        self.console.print(
            f"{data.source} → {data.target}. :help says what can be set; Ctrl-D leaves.", highlight=False
        )
        while True:
            try:
                line = read(f"{data.source}> ").strip()
                if line in (":quit", ":q"):
                    return
                if line.startswith(":"):
                    self._set(line)
                elif line:
                    self._show(search(self.view, line))
            except EOFError:
                self.console.print()
                return
            except KeyboardInterrupt:
                self.console.print()
            except RnnsearchError as error:
                self.console.print(str(error), style="red", markup=False, highlight=False)

    def _set(self, line: str) -> None:
        """Do what a line that begins with a colon says."""
        name, _, value = line.removeprefix(":").partition(" ")
        value = value.strip()
        if name in ("words", "heat") and value in ("on", "off", ""):
            on = not getattr(self.view, name) if not value else value == "on"
            setattr(self.view, name, on and (name != "heat" or self._attends()))
            self._say(f"{name} {'on' if getattr(self.view, name) else 'off'}")
        elif name in ("beam", "n") and value.isascii() and value.isdigit() and 1 <= int(value) <= 1000:
            setattr(self.view, name, int(value))
            self._say(f"{name} {value}")
        elif name == "help":
            self._say(HELP)
        elif name in ("beam", "n"):
            self._say(f":{name} must be followed by a whole number from 1 to 1000; it is {getattr(self.view, name)}")
        elif name in ("words", "heat"):
            self._say(f":{name} must be followed by on or off")
        else:
            self._say(f"there is no command :{name}; :help lists them")

    def _attends(self) -> bool:
        if not self.translator.aligns:
            self._say("this model has no attention to draw")
        return self.translator.aligns

    def _say(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False, highlight=False)

    def _show(self, best: list[Translation]) -> None:
        """The translations of a line; of the best one also its words and its attention."""
        for number, translation in enumerate(best, start=1):
            rank = f"{number}. " if len(best) > 1 else ""
            end = "" if translation.finished else "  (cut off)"
            text = shaded(translation)
            text.append(f"   {translation.score:.2f}{end}", "dim")
            self.console.print(rank, text, sep="", highlight=False)
        first = best[0]
        if self.view.words and first.words:
            self.console.print(word_table(first))
        if self.view.heat and first.word_attention is not None and first.words:
            from rnnsearch.plots.terminal import draw

            drawn = draw(first.word_attention, first.source_words, first.words, max(40, self.console.width), scale=True)
            self.console.print(drawn, markup=False, highlight=False, soft_wrap=True)


def shaded(translation: Translation) -> Text:
    """The translation, the words that are less sure in another colour."""
    from rich.text import Text

    from rnnsearch.plots.attention import visible

    text = Text()
    for n, (word, sure) in enumerate(zip(translation.words, translation.word_probabilities, strict=True)):
        text.append(" " if n else "")
        text.append(visible(word), next(style for least, style in SURE if sure >= least))
    return text


def word_table(translation: Translation) -> Table:
    """Each word with its probability and the source words that it attends to, the most first."""
    from rich.table import Table
    from rich.text import Text

    from rnnsearch.plots.attention import visible

    table = Table(box=None, pad_edge=True, header_style="dim")
    table.add_column("word")
    table.add_column("probability", justify="right")
    attention = translation.word_attention
    if attention is not None:
        table.add_column("from")
    for n, (word, sure) in enumerate(zip(translation.words, translation.word_probabilities, strict=True)):
        cells = [Text(visible(word)), Text(f"{100 * sure:.0f} %")]
        if attention is not None:
            order = [int(j) for j in (-attention[n]).argsort(kind="stable")[:3] if attention[n, j] >= 0.1]
            found = (f"{visible(translation.source_words[j])} {100 * attention[n, j]:.0f} %" for j in order)
            cells.append(Text(", ".join(found) or "–"))
        table.add_row(*cells)
    return table
