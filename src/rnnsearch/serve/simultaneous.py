"""Simultaneous translation over HTTP: the translation of a text that is being typed, as far as it is final.

`v1` calls `translate_arriving`. The server stores nothing between requests: each one translates its words again, in
their order, so that the result for more words begins with the result for fewer. The work is divided into short calls of
the model's queue (`Batcher.call`). Between them other clients have their turns, and a request whose client has
disconnected ends. Tests: tests/serve/test_simultaneous.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from rnnsearch.serve.limits import ServeError
from rnnsearch.serve.schemas import ModelInfo, SimultaneousSentence
from rnnsearch.serve.served_model import ServedModel
from rnnsearch.translator.simultaneous import SimultaneousTranslator, word_parts

MAX_TEXT_CHARACTERS = 5000
"""Maximum length of a text: the start of a sentence is translated again for each of its words."""
CALL_SECONDS = 0.05
"""Processor time after which a call starts no further word."""


class ArrivingText:
    """A text of which some words have arrived, and its translation."""

    def __init__(self, translator: SimultaneousTranslator, text: str, is_complete: bool) -> None:
        """Translate no word yet.

        Args:
            translator: The model.
            text: The text.
            is_complete: False if the text may go on; then its last word may go on, too, unless white space follows.
        """
        self.sentences: list[SimultaneousSentence] = []
        self._translator = translator
        self._text = text
        self._is_complete = is_complete
        self.last_seconds = 0.0
        """Processor time of the last call of `advance`."""
        self._pieces: list[str] = []
        self._steps = self._translate_lines()

    @property
    def translation(self) -> str:
        """The translation so far."""
        return "".join(self._pieces)

    def advance(self) -> bool:
        """Translate words for about `CALL_SECONDS`; return False if there are no more."""
        start_time = time.thread_time()
        for piece in self._steps:
            self._pieces.append(piece)
            self.last_seconds = time.thread_time() - start_time
            if self.last_seconds > CALL_SECONDS:
                return True
        return False

    def _translate_lines(self) -> Iterator[str]:
        """Yield the translation in pieces; each line is a text by itself."""
        line_start = 0
        lines = self._text.split("\n")
        for number, line in enumerate(lines, start=1):
            ends = self._is_complete or number < len(lines)
            parts = list(word_parts(line))
            if not ends and parts and not line[-1].isspace():
                parts.pop()
            translations = yield from self._translator.translate((line[start:end] for start, end in parts), ends)
            first_part = 0
            for translation in translations:
                next_part = first_part + len(translation.source.split())
                start = line_start + parts[first_part][0]
                end = line_start + parts[next_part - 1][1]
                is_last = next_part == len(parts)
                sentence = SimultaneousSentence(
                    source=self._text[start:end],
                    start=start,
                    end=end,
                    text=translation.text,
                    complete=ends or not is_last,
                    delays=list(translation.delays),
                    average_lagging=round(translation.average_lagging, 4) if ends or not is_last else None,
                )
                self.sentences.append(sentence)
                first_part = next_part
            if number < len(lines):
                yield "\n"
            line_start += len(line) + 1


def check_text(info: ModelInfo, text: str) -> None:
    """Check a request before its model is loaded.

    Raises:
        ServeError: With status 400 for a direction through a third language, 413 for a long text.
    """
    if info.pivot is not None:
        raise ServeError(400, f"simultaneous translation needs one model; {info.name} translates with two")
    if len(text) > MAX_TEXT_CHARACTERS:
        must = f"the text must have at most {MAX_TEXT_CHARACTERS:,} characters in simultaneous translation"
        raise ServeError(413, f"{must}; got {len(text):,}")


async def translate_arriving(model: ServedModel, text: str, is_complete: bool, client: str) -> ArrivingText:
    """Return the translation of a text of which some words have arrived.

    Args:
        model: The model.
        text: The text, see `check_text`.
        is_complete: False if the text may go on.
        client: Identity of the client.

    Raises:
        ServeError: With status 400 if the model reads whole sentences, and as in `Batcher.submit`.
        DataError: For text that is not valid Unicode.
    """
    arriving = ArrivingText(await model.simultaneous(client), text, is_complete)
    is_unfinished = True
    while is_unfinished:
        # A word late in a long sentence takes longer than a call should, and so will the next one.
        num_tokens = model.batcher.tokens_in(max(CALL_SECONDS, arriving.last_seconds))
        is_unfinished = await model.call(lambda _: arriving.advance(), num_tokens, client)
    return arriving
