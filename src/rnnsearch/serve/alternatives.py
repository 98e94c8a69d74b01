"""Other words in a word's place, each with the rest of the sentence made anew."""

from __future__ import annotations

import math
import re

from rnnsearch.errors import RnnsearchError
from rnnsearch.serve.schemas import OtherWord
from rnnsearch.text.spans import word_spans
from rnnsearch.text.vocabulary import SPECIALS
from rnnsearch.translate import Translator
from rnnsearch.translation import Translation, one_line

_EDGES = re.compile(r"^\W+|\W+$")


def alternatives(translator: Translator, source: str, target: str, word: int, n_best: int = 5) -> list[OtherWord]:
    """Up to `n_best` other words in the place of word `word` (from 0) of a translation, the likeliest first.

    The words before it stay; what follows is translated anew. The words begin differently.
    Errors: RnnsearchError for a word that the translation has not, or an empty source.
    """
    spans = word_spans(target)
    if not 0 <= word < len(spans):
        raise RnnsearchError(f"word must be one of the translation's {len(spans)} (from 0); got {word}")
    if not source.strip():
        raise RnnsearchError("the text must not be empty")
    start, end = spans[word]
    before = target[:start]
    begins = {id: text for id, text in enumerate(_word_begins(translator)) if text}
    # Some of them lead to the present word, or to the same one.
    firsts = translator.likeliest(source, before, list(begins), n_best + 3)
    prefixes = [before + begins[first] for first in firsts]
    begun = translator.n_best([source] * len(firsts), translator.options(), len(firsts), prefixes=prefixes)
    return _different([best[0] for best in begun], target[start:end], word)[:n_best]


def _word_begins(translator: Translator) -> list[str]:
    """What each symbol that can begin a word begins it with; empty for the others."""
    texts = (spelling.decode(errors="ignore") for spelling in translator.target.spellings())
    return [text[1:] if id >= len(SPECIALS) and text.startswith(" ") else "" for id, text in enumerate(texts)]


def _different(translations: list[Translation], present: str, word: int) -> list[OtherWord]:
    """The likeliest translation with each word in that place but the present one."""
    found: dict[str, OtherWord] = {}
    for translation in translations:
        if word < len(translation.words):
            other = translation.words[word]
            probability = math.exp(sum(translation.word_token_scores[word]))
            core = _EDGES.sub("", other)
            if core != _EDGES.sub("", present) and (core not in found or found[core].probability < probability):
                found[core] = OtherWord(word=other, probability=probability, text=one_line(translation.text))
    return sorted(found.values(), key=lambda alternative: -alternative.probability)
