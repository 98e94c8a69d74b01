"""`rnnsearch translate` at a terminal: a prompt that shows what it found, how sure it is, and what came from where."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rnnsearch.cli.options import MOST_BEAM
from rnnsearch.errors import RnnsearchError
from rnnsearch.metrics.plots.heatmap import draw, visible
from rnnsearch.search.options import SearchOptions
from rnnsearch.translator.translation import Translation
from rnnsearch.translator.translator import Translator

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

    def __init__(self, translator: Translator, console: Console, options: SearchOptions) -> None:
        self.translator = translator
        self.console = console
        self.options = options
        self.view = View(options.beam)

    def run(self, read: Callable[[str], str] = input) -> None:
        """Read lines, and answer them, until their end."""
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
                    options = replace(self.options, beam=max(self.view.beam, self.view.n), n_best=self.view.n)
                    self._show(self.translator.n_best([line], options)[0])
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
        if name in ("words", "heat"):
            if value not in ("on", "off", ""):
                self._say(f":{name} must be followed by on or off")
                return
            on = value == "on" if value else not getattr(self.view, name)
            if name == "heat" and on and not self.translator.attends:
                self._say("this model has no attention to draw")
                on = False
            setattr(self.view, name, on)
            self._say(f"{name} {'on' if on else 'off'}")
        elif name in ("beam", "n"):
            if value.isascii() and value.isdigit() and 1 <= int(value) <= MOST_BEAM:
                setattr(self.view, name, int(value))
                self._say(f"{name} {value}")
            else:
                must = f"must be followed by a whole number from 1 to {MOST_BEAM}"
                self._say(f":{name} {must}; it is {getattr(self.view, name)}")
        else:
            self._say(HELP if name == "help" else f"there is no command :{name}; :help lists them")

    def _say(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False, highlight=False)

    def _show(self, best: list[Translation]) -> None:
        """The translations of a line; of the best one also its words and its attention."""
        for number, translation in enumerate(best, start=1):
            rank = f"{number}. " if len(best) > 1 else ""
            end = "" if translation.finished else "  (no symbol allowed)" if translation.blocked else "  (cut off)"
            text = shaded(translation)
            text.append(f"   {translation.score:.2f}{end}", "dim")
            self.console.print(rank, text, sep="", highlight=False)
        first = best[0]
        if self.view.words and first.words:
            self.console.print(word_table(first))
        if self.view.heat and first.word_attention is not None and first.words:
            width = max(40, self.console.width)
            drawn = draw(first.word_attention, first.source_words, first.words, width, True, first.attended)
            self.console.print(drawn, markup=False, highlight=False, soft_wrap=True)


def shaded(translation: Translation) -> Text:
    """The translation, the words that are less sure in another colour."""
    text = Text()
    for n, (word, sure) in enumerate(zip(translation.words, translation.word_probabilities, strict=True)):
        text.append(" " if n else "")
        text.append(visible(word), next(style for least, style in SURE if sure >= least))
    return text


def word_table(translation: Translation) -> Table:
    """Each word with its probability and the source words that it attends to: those that it is linked to, the others by
    weight."""
    table = Table(box=None, pad_edge=True, header_style="dim")
    table.add_column("word")
    table.add_column("probability", justify="right")
    attention = translation.word_attention
    if attention is not None:
        table.add_column("from")
    for n, (word, sure) in enumerate(zip(translation.words, translation.word_probabilities, strict=True)):
        cells = [Text(visible(word)), Text(f"{100 * sure:.0f} %")]
        if attention is not None:
            ranks = attention[n].copy()
            ranks[[i for i, own in translation.attended if own == n]] += 1
            order = [int(j) for j in (-ranks).argsort(kind="stable")[:3] if ranks[j] >= 0.1]
            found = (f"{visible(translation.source_words[j])} {100 * attention[n, j]:.0f} %" for j in order)
            cells.append(Text(", ".join(found) or "–"))
        table.add_row(*cells)
    return table
