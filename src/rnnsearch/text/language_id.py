"""Which texts are in another language than they should be, by py3langid: naive Bayes over byte n-grams (Lui & Baldwin
2012), 139 languages, in a file of some MB that comes with the library."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from rnnsearch.errors import ConfigError
from rnnsearch.text.languages import base

SURE = 0.5
"""The probability that another language must have. It is calibrated, and short texts seldom reach it."""
MARGIN = 10.0
"""How many times as probable as its own language: a close relative (Danish, Norwegian) is seldom so much."""
NO_LANGUAGE = "zxx"
"""py3langid's name for numbers, markup and the like, which stand in texts of any language."""
_NAMED = {"nb": "no"}
"""Codes that it has another name for."""


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _code(language: str) -> str:
    return _NAMED.get(base(language), base(language))


def require_identified(languages: Sequence[str]) -> None:
    """Errors: ConfigError for a language that is not known here."""
    for language in languages:
        if _code(language) not in _identifier().labels:
            raise ConfigError([f'data.cleaning.language_id: must be of languages that it can tell; got "{language}"'])


def in_another_language(text: str, language: str) -> bool:
    """Whether a text is clearly not in its language: another one is as probable as `SURE` or more, and more than
    `MARGIN` times as probable. A text that says little of its language is taken to be in it."""
    probabilities: dict[str, float] = dict(_identifier().rank(text))
    best = max(probabilities, key=probabilities.__getitem__)
    own, most = probabilities[_code(language)], probabilities[best]
    return best != NO_LANGUAGE and most >= SURE and most > MARGIN * own
