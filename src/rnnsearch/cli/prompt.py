"""The prompt of `rnnsearch translate` at a terminal.

Shows translations, the probability of each word, and the source words that it attends to.

`translate.py` runs a `Prompt` if input and output are a terminal and `TranslateOptions.supports_prompt`. Commands start
with a colon and are listed in `HELP`. Tests: tests/commands/test_prompt.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rnnsearch.cli.options import MAX_BEAM
from rnnsearch.errors import RnnsearchError
from rnnsearch.metrics.plots.terminal import printable, text_heatmap
from rnnsearch.search.options import SearchOptions
from rnnsearch.translator.texts import translate_texts
from rnnsearch.translator.translation import Translation
from rnnsearch.translator.translator import Translator

HELP = """Type a line of text to translate it. Commands:
  :beam N       set the beam width; 1 is greedy search
  :n N          show the N best translations
  :words on     show a table of words, with probabilities and source words (off: hide it)
  :heat on      draw the attention weights (off: do not)
  :help         list these commands
  :quit         leave (or Ctrl-D)"""

WORD_STYLES = ((0.9, "bold"), (0.6, ""), (0.3, "yellow"), (0.0, "red"))
"""Minimum probability of a word, and its style; the first match counts."""
MIN_HEATMAP_WIDTH = 40
MAX_SHOWN_SOURCE_WORDS = 3
MIN_SHOWN_WEIGHT = 0.1


@dataclass
class View:
    """Settings that commands change; their names are those of the commands, which `setattr` uses."""

    beam: int
    """Size of the beam."""
    n: int = 1
    """Number of translations to show."""
    words: bool = True
    """True if the table of words is shown."""
    heat: bool = False
    """True if the heat map of attention is shown."""


class Prompt:
    """A session at a terminal."""

    def __init__(
        self, translator: Translator, console: Console, options: SearchOptions, splits_sentences: bool = True
    ) -> None:
        self.translator = translator
        self.splits_sentences = splits_sentences
        self.console = console
        self.options = options
        self.view = View(options.beam)

    def run(self, read: Callable[[str], str] = input) -> None:
        """Read and answer lines until the input ends or the user leaves."""
        with contextlib.suppress(ImportError):  # not available on every platform
            import readline  # noqa: F401  (gives `input` its history and editing keys)
        data = self.translator.config.data
        self.console.print(f"{data.source} → {data.target}. :help lists commands; Ctrl-D leaves.", highlight=False)
        while True:
            try:
                line = read(f"{data.source}> ").strip()
                if line in (":quit", ":q"):
                    return
                if line.startswith(":"):
                    self._run_command(line)
                elif line:
                    options = replace(self.options, beam=max(self.view.beam, self.view.n), n_best=self.view.n)
                    self._show(self._n_best(line, options))
            except EOFError:
                self.console.print()
                return
            except KeyboardInterrupt:
                self.console.print()
            except RnnsearchError as error:
                self.console.print(str(error), style="red", markup=False, highlight=False)

    def _n_best(self, line: str, options: SearchOptions) -> list[Translation]:
        """Return the n best translations of a line, sentence by sentence if it has several."""

        def n_best(sentences: list[str]) -> list[list[Translation]]:
            return self.translator.n_best_in_order(sentences, [0] * len(sentences), options)

        if not self.splits_sentences:
            return n_best([line])[0]
        [result] = translate_texts([line], self.translator.languages, n_best)
        return result.translations()

    def _run_command(self, line: str) -> None:
        """Run a command, which begins with a colon."""
        name, _, value = line.removeprefix(":").partition(" ")
        value = value.strip()
        if name in ("words", "heat"):
            self._set_switch(name, value)
        elif name in ("beam", "n"):
            self._set_number(name, value)
        elif name == "help":
            self._print(HELP)
        else:
            self._print(f"unknown command :{name}; :help lists all commands")

    def _set_switch(self, name: str, value: str) -> None:
        if value not in ("on", "off", ""):
            self._print(f":{name} must be followed by on or off")
            return
        is_on = value == "on" if value else not getattr(self.view, name)
        if name == "heat" and is_on and not self.translator.attends:
            self._print("this model has no attention to draw")
            is_on = False
        setattr(self.view, name, is_on)
        self._print(f"{name} {'on' if is_on else 'off'}")

    def _set_number(self, name: str, value: str) -> None:
        if value.isascii() and value.isdigit() and 1 <= int(value) <= MAX_BEAM:
            setattr(self.view, name, int(value))
            self._print(f"{name} {value}")
        else:
            current = getattr(self.view, name)
            self._print(f":{name} must be followed by an integer from 1 to {MAX_BEAM}; it is {current}")

    def _print(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False, highlight=False)

    def _show(self, n_best: list[Translation]) -> None:
        """Print the translations of a line; the words and the attention of the best one."""
        for rank, translation in enumerate(n_best, start=1):
            number = f"{rank}. " if len(n_best) > 1 else ""
            note = ""
            if not translation.finished:
                note = "  (no token allowed)" if translation.blocked else "  (cut off)"
            text = shade_words(translation)
            text.append(f"   {translation.score:.2f}{note}", "dim")
            self.console.print(number, text, sep="", highlight=False)
        best = n_best[0]
        if self.view.words and best.words:
            self.console.print(word_table(best))
        if self.view.heat and best.word_attention is not None and best.words:
            width = max(MIN_HEATMAP_WIDTH, self.console.width)
            heatmap = text_heatmap(best.word_attention, best.source_words, best.words, width, True, best.attended)
            self.console.print(heatmap, markup=False, highlight=False, soft_wrap=True)


def shade_words(translation: Translation) -> Text:
    """Return the translation with each word in the style of its probability."""
    text = Text()
    for position, (word, probability) in enumerate(zip(translation.words, translation.word_probabilities, strict=True)):
        text.append(" " if position else "")
        text.append(printable(word), next(style for minimum, style in WORD_STYLES if probability >= minimum))
    return text


def word_table(translation: Translation) -> Table:
    """Return a table of words with their probabilities and the source words that they attend to.

    Source words that a word is linked to come first, then others by weight.
    """
    table = Table(box=None, pad_edge=True, header_style="dim")
    table.add_column("word")
    table.add_column("probability", justify="right")
    attention = translation.word_attention
    if attention is not None:
        table.add_column("from")
    for position, (word, probability) in enumerate(zip(translation.words, translation.word_probabilities, strict=True)):
        cells = [Text(printable(word)), Text(f"{100 * probability:.0f} %")]
        if attention is not None:
            ranks = attention[position].copy()
            ranks[[source for source, target in translation.attended if target == position]] += 1
            order = (-ranks).argsort(kind="stable")[:MAX_SHOWN_SOURCE_WORDS]
            shown = [int(source) for source in order if ranks[source] >= MIN_SHOWN_WEIGHT]
            source_words = [
                f"{printable(translation.source_words[source])} {100 * attention[position, source]:.0f} %"
                for source in shown
            ]
            cells.append(Text(", ".join(source_words) or "–"))
        table.add_row(*cells)
    return table
