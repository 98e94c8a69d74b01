"""Simultaneous translation: words are translated while later words of the sentence have not arrived.

A model can do this if its attention decides how many source tokens each target token needs: the window `wait-k` by a
fixed policy, the normaliser `monotonic` by a learned one; or if it has an agent, which decides when to read and when to
write, while the attention is over the source tokens that have been read (`search/read_write.py`).

Without an agent, the sentence so far is translated greedily when a word arrives, as if it ended there, and the tokens
that depend only on source tokens that have arrived are final: the rest of the sentence cannot change them. A complete
sentence therefore has the same tokens as in greedy search over the whole vocabulary, unless its tokenization changes
with later words.

`rnnsearch translate --stream` (`cli/translate_stream.py`) and the server (`serve/simultaneous.py`) use it. Tests:
tests/test_simultaneous.py.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from rnnsearch.config import RunConfig
from rnnsearch.config.attention import NORMALISERS, FeatureOptions, ScoreOptions, WaitOptions
from rnnsearch.config.sequence import ReadWriteOptions
from rnnsearch.errors import ModelError
from rnnsearch.metrics.latency import average_lagging
from rnnsearch.search.beam import greedy_search
from rnnsearch.search.constraints import max_lengths
from rnnsearch.search.hypothesis import Hypothesis, make_hypothesis
from rnnsearch.search.options import LengthLimit, SearchOptions
from rnnsearch.search.read_write import Interpreter, Progress
from rnnsearch.search.scorer import Sources
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.sentences import sentence_spans
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.text.vocabulary import EOS, SPECIALS
from rnnsearch.translator.copies import copied_texts
from rnnsearch.translator.protection import restored_target
from rnnsearch.translator.translation import one_line
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.tensors import leaves, lengths_mask

MAX_SENTENCE_TOKENS = 250
"""Source tokens or words after which a sentence ends: the sentence so far is read again for each word."""
MAX_WORD_CHARACTERS = 200
"""Length at which a word is cut, so that a text without spaces is translated in parts."""
_TEST_TOKENS = 12  # length of the sentences that `_is_causal` compares
_ALL_HEADS = 0.999  # attention of a token if all heads have stopped at source tokens, except for rounding


@dataclass(frozen=True)
class SimultaneousTranslation:
    """The translation of a sentence, and when its words were written."""

    source: str
    """Source text."""
    text: str
    """Target text."""
    delays: tuple[int, ...]
    """Number of source words that had been read when each target word was complete."""

    @property
    def average_lagging(self) -> float:
        """Mean number of source words by which the translation is behind the source (see `average_lagging`)."""
        return average_lagging(self.delays, len(self.source.split()))


class SimultaneousTranslator:
    """Translates words in the order in which they arrive, and never changes what it has written."""

    def __init__(self, translator: Translator, options: SearchOptions | None = None) -> None:
        """Prepare the translation.

        Args:
            translator: A model that does not read ahead.
            options: Options of the greedy search; by default those of the model.

        Raises:
            ModelError: The model needs the whole sentence before it writes, or reads more than a sentence of text.
        """
        system = translator.system
        if not isinstance(system, TranslationSystem):
            raise ModelError(f"simultaneous translation needs a single model; got {system.kind}")
        translator.require_one_source("simultaneous translation")
        problem = _attention_problem(system.config)
        if problem is not None:
            raise ModelError(f"simultaneous translation needs {problem}")
        if system.arrays or system.reads_context or system.can("copy") or system.can("choose"):
            raise ModelError("simultaneous translation needs a model that reads only the words of the sentence")
        if not _is_causal(translator):
            raise ModelError(
                "simultaneous translation needs a model whose translations do not depend on later words, with "
                'model.encoder.direction = "forward" and model.decoder.bridge = "zero"'
            )
        translator.prepare()
        self._translator = translator
        self._options = translator.options(beam=1) if options is None else replace(options, beam=1, n_best=1)
        attention = system.config.translation.attention
        assert attention is not None
        self._wait = attention.window.wait if isinstance(attention.window, WaitOptions) else None
        self._interpreter: Interpreter | None = None
        if system.model.agent is not None:
            if not self._options.unconstrained:
                raise ModelError(
                    "simultaneous translation with an agent needs a search without min_length, no_repeat_ngram and "
                    "banned phrases"
                )
            limit = LengthLimit(self._options.max_ratio, self._options.max_extra)
            self._interpreter = Interpreter(system.model, limit, self._options.banned)

    def translate(
        self, words: Iterable[str], is_complete: bool = True
    ) -> Generator[str, None, list[SimultaneousTranslation]]:
        """Yield the translation in pieces, one or more per word, while the words of a text arrive.

        The pieces, joined, are the translations of the sentences, separated by spaces; a piece may be empty. A sentence
        ends where the next word begins another one, or after `MAX_SENTENCE_TOKENS` tokens.

        Args:
            words: The words.
            is_complete: False if more words may follow after these. The last sentence then has no end, and its
                translation is the part that later words cannot change.

        Returns:
            The sentences.
        """
        done: list[SimultaneousTranslation] = []
        sentence = self._new_sentence()
        for word in words:
            if sentence.ends_before(word):
                yield sentence.end() + " "
                done.append(sentence.translation)
                sentence = self._new_sentence()
            yield sentence.read(word)
        if sentence.source:
            if is_complete:
                yield sentence.end()
            done.append(sentence.translation)
        return done

    def _new_sentence(self) -> _ArrivingSentence:
        if self._interpreter is not None:
            return _InterpretedSentence(self._translator, self._options, self._interpreter)
        return _ArrivingSentence(self._translator, self._options, self._wait)


def word_parts(text: str) -> Iterator[tuple[int, int]]:
    """Yield the characters [start, end) of the words of a text, of long words in parts."""
    for match in re.finditer(r"\S+", text):
        for start in range(match.start(), match.end(), MAX_WORD_CHARACTERS):
            yield start, min(start + MAX_WORD_CHARACTERS, match.end())


def reads_no_later_words(config: RunConfig) -> bool:
    """Return True if the config of a model shows that `SimultaneousTranslator` accepts it.

    A few others are accepted, too, because a test of the loaded model shows that it does not read ahead.
    """
    model = config.translation
    if config.data.arrays is not None or config.data.context is not None or config.has_several_texts:
        return False
    reads_forward = model.encoder.reads_forward and model.decoder.starts_at_zero
    return reads_forward and _attention_problem(config) is None


def _attention_problem(config: RunConfig) -> str | None:
    """Return what simultaneous translation needs that a model does not have, or None if it can be used."""
    attention = config.translation.attention
    if attention is None or not (
        isinstance(config.objective.sequence, ReadWriteOptions)
        or attention.window.reads_prefix
        or NORMALISERS[attention.normaliser].reads_prefix
    ):
        return (
            'a model with model.attention.window = "wait-k" or normaliser = "monotonic", which do not read the whole '
            "sentence first (presets wait-k-small and monotonic-small), or with an agent (preset read-write)"
        )
    components: list[ScoreOptions | FeatureOptions] = [attention.score, *attention.features]
    for component in components:
        if component.reads_ahead:
            return f"attention without {component.type}, which reads later words"
    return None


class _ArrivingSentence:
    """A sentence of which some words have arrived, and the translation that has been written."""

    def __init__(self, translator: Translator, options: SearchOptions, wait: int | None) -> None:
        """Start an empty sentence; `wait` is k of a wait-k model, None for a monotonic one."""
        self._translator = translator
        self._options = options
        self._wait = wait
        self.source = ""
        self._num_words = 0  # of the source
        self._num_tokens = 0  # of the source
        self._ids: tuple[int, ...] = ()
        self._is_finished = False
        self._text = ""
        self._num_written = 0  # tokens whose text has been written
        self._target: Segmented | None = None  # the text of all tokens
        # Number of source words that had been read when each target word was complete; the last one may not be.
        self._delays: list[int] = []

    @property
    def translation(self) -> SimultaneousTranslation:
        return SimultaneousTranslation(self.source, self._text, tuple(self._delays))

    def ends_before(self, word: str) -> bool:
        """Return True if a word begins the next sentence."""
        if not self.source:
            return False
        if max(self._num_tokens, self._num_words) >= MAX_SENTENCE_TOKENS:
            return True
        return len(sentence_spans(f"{self.source} {word}", self._translator.languages[0])) > 1

    def read(self, word: str) -> str:
        """Add a word and return the text that can be written now."""
        self.source = f"{self.source} {word}" if self.source else word
        self._num_words += 1
        return self._advance(is_complete=False)

    def end(self) -> str:
        """Return the rest of the translation, because no more words follow."""
        piece = self._advance(is_complete=True)
        if piece or self._target is None:
            return piece
        # No further token: the last character has been withheld if it was incomplete.
        return self._write(self._target, is_complete=True)

    def _advance(self, is_complete: bool) -> str:
        """Translate the words so far, and return the text of the new tokens that are final."""
        if self._is_finished:
            return ""
        translator = self._translator
        [segmented] = translator.segment([self.source], protect=())
        if copied_texts([segmented], translator.source):
            # It has no letters so far, and is its own translation if none follow.
            return self._append(self.source) if is_complete else ""
        source = segmented.translatable
        batch = translator.system.make_sources([source.spelled_ids], translator.device)
        [stream] = batch.values()
        self._num_tokens = int(stream.num_words[0])
        hypothesis = self._continue(batch, is_complete)
        if hypothesis is None:
            return ""
        self._ids = hypothesis.ids
        self._is_finished = hypothesis.finished
        targets = translator.postprocessor.target_texts([source], [hypothesis], [{}], beam=1)
        self._target = restored_target(source, targets[0], translator.target.normalization)
        return self._write(self._target, is_complete)

    def _continue(self, batch: Sources, is_complete: bool) -> Hypothesis | None:
        """Return the tokens that are final if the batch has the words so far, or None if there are no further ones."""
        scorer = self._translator.search.scorer
        max_length = int(max_lengths(batch, self._options)[0])
        options = replace(self._options, prefix=(self._ids,)) if self._ids else self._options
        if not is_complete and self._wait is not None:
            # No token that would not be final.
            max_length = min(max_length, self._num_tokens - self._wait + 1)
            options = replace(options, max_ratio=0.0, max_extra=max(0, max_length))
        if len(self._ids) >= max_length:
            return None
        [[hypothesis]] = greedy_search(scorer, batch, options)
        if not is_complete:
            hypothesis = _first_tokens(hypothesis, max(len(self._ids), self._num_final_tokens(hypothesis)))
        return hypothesis

    def _num_final_tokens(self, hypothesis: Hypothesis) -> int:
        """Return the number of scored tokens that depend only on source tokens that have arrived."""
        if self._wait is not None:
            return self._num_tokens - self._wait + 1
        assert hypothesis.weights is not None
        # [scored tokens]: False if reading did not stop at a token that has arrived.
        stopped = np.append(hypothesis.weights[:, : self._num_tokens].sum(axis=1) > _ALL_HEADS, False)
        return int(stopped.argmin())

    def _write(self, target: Segmented, is_complete: bool) -> str:
        """Return the text of the tokens that have not been written; that of earlier ones may have changed since."""
        text = one_line(target.text)
        # The last character may still be incomplete.
        end = len(text if is_complete else text.rstrip("\N{REPLACEMENT CHARACTER}"))
        start = target.offsets[self._num_written - 1][1] if self._num_written else 0
        while self._num_written < len(target.offsets) and target.offsets[self._num_written][1] <= end:
            self._num_written += 1
        return self._append(text[start:end])

    def _append(self, piece: str) -> str:
        """Add a piece to the text, record the delays of its words, and return it."""
        # The last word may have grown by this piece.
        if piece and not piece[0].isspace() and self._delays:
            self._delays[-1] = self._num_words
        self._text += piece
        self._delays += [self._num_words] * (len(self._text.split()) - len(self._delays))
        return piece


class _InterpretedSentence(_ArrivingSentence):
    """A sentence whose tokens an agent reads and writes."""

    def __init__(self, translator: Translator, options: SearchOptions, interpreter: Interpreter) -> None:
        """Start an empty sentence."""
        super().__init__(translator, options, wait=None)
        self._interpreter = interpreter
        self._progress: Progress | None = None
        # Of the tokens, including EOS.
        self._tokens: list[int] = []
        self._scores: list[float] = []
        self._weights: list[NDArray[np.float32]] = []  # [source tokens at that time]

    @torch.inference_mode()
    def _continue(self, batch: Sources, is_complete: bool) -> Hypothesis | None:
        interpreter = self._interpreter
        memories = interpreter.model.encode(batch)
        [(name, memory)] = memories.items()
        num_words = batch[name].num_words
        if not is_complete:
            # The end token may turn out to be another word.
            memory = memory._replace(mask=memory.mask & lengths_mask(num_words, memory.mask.shape[1]))
            memories = {name: memory}
        available = memory.mask.sum(1)
        progress = self._progress or interpreter.start(memories)
        if is_complete:
            # The agent may have decided to read a token that does not follow.
            progress = progress._replace(num_read=torch.minimum(progress.num_read, available))
        while not self._is_finished and bool(progress.num_read <= available):
            step = interpreter.observe(progress, memories, num_words)
            has_read_all = (progress.num_read >= available) & is_complete
            if has_read_all & step.is_full:
                break
            writes = step.writes(has_read_all)
            progress = interpreter.advance(progress, step, writes)
            if writes:
                self._tokens.append(int(step.candidate))
                self._scores.append(float(step.log_prob))
                self._weights.append(memory.to_source(step.alpha)[0].float().cpu().numpy())
                self._is_finished = self._tokens[-1] == EOS
        self._progress = progress
        return self._hypothesis(name, memory.mask.shape[1]) if self._tokens else None

    def _hypothesis(self, source: str, num_positions: int) -> Hypothesis:
        weights = np.zeros((len(self._tokens), num_positions), np.float32)
        for row, values in zip(weights, self._weights, strict=True):
            row[: len(values)] = values[:num_positions]
        scores = np.array(self._scores, np.float32)
        tokens = np.array(self._tokens)
        return make_hypothesis(tokens, scores, {source: weights}, self._is_finished, self._options.ranking)


def _first_tokens(hypothesis: Hypothesis, count: int) -> Hypothesis:
    """Return a hypothesis with at most `count` of its scored tokens."""
    if count >= len(hypothesis.token_scores):
        return hypothesis
    return replace(
        hypothesis,
        ids=hypothesis.ids[:count],
        token_scores=hypothesis.token_scores[:count],
        attention={name: weights[:count] for name, weights in hypothesis.attention.items()},
        finished=False,
    )


@torch.inference_mode()
def _is_causal(translator: Translator) -> bool:
    """Return False if annotations, or the start of the decoder, depend on later source tokens.

    Two sentences with the same first half are compared.
    """
    half = _TEST_TOKENS // 2
    known = len(SPECIALS)  # the first token that is not a special one
    sentences = [[known] * _TEST_TOKENS, [known] * half + [known + 1] * half]
    memories = translator.model.encode(translator.system.make_sources(sentences, translator.device))
    [memory] = memories.values()
    for vectors in (memory.annotations[:, :half], *leaves(translator.model.start(memories))):
        if not torch.allclose(vectors[0], vectors[1]):
            return False
    return True
