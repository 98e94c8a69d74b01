"""Languages: English names, lengths and BLEU tokenisers of languages without spaces, and language detection.

`detect` ranks a few candidate languages for the translation page; `is_other_language` uses
py3langid to find sentence pairs in wrong languages when a corpus is cleaned.

Callers: `banned.py`, `documents.py` and `sentences.py` in this package, `data`, `metrics/scores.py`,
`evaluation/corpus_scores.py`, `runtime/serve.py` and `serve`. `export/web_page.py` writes the names for the page.
py3langid is imported only where a corpus is cleaned. Tests: tests/text/test_languages.py.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache
from math import ceil
from typing import Any, NamedTuple

from rnnsearch.errors import ConfigError

NAMES = {
    "af": "Afrikaans", "am": "Amharic", "ar": "Arabic", "az": "Azerbaijani", "be": "Belarusian", "bg": "Bulgarian",
    "bn": "Bengali", "ca": "Catalan", "cs": "Czech", "cy": "Welsh", "da": "Danish", "de": "German", "el": "Greek",
    "en": "English", "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian",
    "fi": "Finnish", "fr": "French", "ga": "Irish", "gl": "Galician", "gu": "Gujarati", "ha": "Hausa",
    "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian",
    "ig": "Igbo", "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ka": "Georgian", "kk": "Kazakh",
    "km": "Khmer", "kn": "Kannada", "ko": "Korean", "ky": "Kyrgyz", "la": "Latin", "lo": "Lao", "lt": "Lithuanian",
    "lv": "Latvian", "mk": "Macedonian", "ml": "Malayalam", "mn": "Mongolian", "mr": "Marathi", "ms": "Malay",
    "mt": "Maltese", "my": "Burmese", "nb": "Norwegian Bokmål", "ne": "Nepali", "nl": "Dutch",
    "nn": "Norwegian Nynorsk", "no": "Norwegian", "pa": "Punjabi", "pl": "Polish", "pt": "Portuguese",
    "ro": "Romanian", "ru": "Russian", "si": "Sinhala", "sk": "Slovak", "sl": "Slovenian", "sq": "Albanian",
    "sr": "Serbian", "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "tg": "Tajik", "th": "Thai",
    "tk": "Turkmen", "tl": "Tagalog", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek",
    "vi": "Vietnamese", "xh": "Xhosa", "yi": "Yiddish", "yo": "Yoruba", "zh": "Chinese", "zu": "Zulu",
}  # fmt: skip

_SCRIPTS = {
    "ARABIC": ("ar", "fa", "ur"), "ARMENIAN": ("hy",), "BENGALI": ("bn",), "CJK": ("zh", "ja"),
    "CYRILLIC": ("be", "bg", "kk", "ky", "mk", "mn", "ru", "sr", "tg", "uk"), "DEVANAGARI": ("hi", "mr", "ne"),
    "ETHIOPIC": ("am",), "GEORGIAN": ("ka",), "GREEK": ("el",), "GUJARATI": ("gu",), "GURMUKHI": ("pa",),
    "HANGUL": ("ko",), "HEBREW": ("he", "yi"), "HIRAGANA": ("ja",), "KANNADA": ("kn",), "KATAKANA": ("ja",),
    "KHMER": ("km",), "LAO": ("lo",), "MALAYALAM": ("ml",), "MYANMAR": ("my",), "SINHALA": ("si",),
    "TAMIL": ("ta",), "TELUGU": ("te",), "THAI": ("th",),
}  # fmt: skip
"""Languages by script, which is the first word of a character's Unicode name; all other languages are in LATIN."""
_NON_LATIN_LANGUAGES = {code for codes in _SCRIPTS.values() for code in codes}

_WORDS = {
    "cs": "a se je na že to v s z do i o jsem ale jako který",
    "da": "og i at er en det til af som på med der ikke den jeg et har",
    "de": "der die und das ist ein eine nicht ich zu den mit sich auf des im dem er sie wir auch von einen für",
    "en": "the of and to a in is that it was for on with he as you be at by this have are not i they his an",
    "es": "de la que el en y a los se del las un por con una no es su para lo al está como",
    "et": "ja on ei et see ma ta oli mis kui ka aga",
    "fi": "ja on ei se että hän oli minä mutta ovat joka tämä",
    "fr": "de la le et les des est un une du en que dans qui il elle pas pour sur ce au ne je avec son",
    "hu": "a az és hogy nem is egy van ez volt meg de",
    "it": "di e il la che in un è per una non del con sono si le i della lo da ha",
    "la": "et in est non ad ut cum qui quod sed ex",
    "nb": "og i det er på en til som av at for med ikke jeg han de var",
    "nl": "de van het een en in is dat op te zijn met voor niet aan er die ik hij",
    "pl": "w i na z nie się do to jest że jak o po co tak",
    "pt": "de a o que e do da em um para com não uma os no se na por é está",
    "ro": "de și în a la cu nu pe o un este să care din pentru",
    "ru": "и в не на я что он с это как по но она мы",
    "sv": "och i att det som en på är av för med den till inte jag han ett har",
    "tr": "ve bir bu da de için ne çok ben o var mi ile",
    "uk": "і в не на я що він з це як у та до ми є",
}
_FREQUENT = {code: frozenset(words.split()) for code, words in _WORDS.items()}
_WORD = re.compile(r"[^\W\d_]+")


def base_language(code: str) -> str:
    """Return a language code without its region or script: `en` for `en-GB`."""
    return re.split("[-_]", code.lower(), maxsplit=1)[0]


class UnspacedLanguage(NamedTuple):
    """Measures for a language that is written without spaces between words."""

    characters_per_word: float
    """Number of characters that correspond to one word of a language with spaces."""
    bleu_tokeniser: str
    """sacreBLEU's tokeniser; Japanese is scored by characters, because MeCab is not a dependency."""


UNSPACED_LANGUAGES = {
    "ja": UnspacedLanguage(2.5, "char"),
    "km": UnspacedLanguage(6.0, "char"),
    "lo": UnspacedLanguage(5.0, "char"),
    "my": UnspacedLanguage(7.0, "char"),
    "th": UnspacedLanguage(5.0, "char"),
    "zh": UnspacedLanguage(1.7, "zh"),
}
"""Languages in which spaces separate neither words nor sentences; used for lengths, sentence ends and BLEU."""
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+")
_NON_ASCII = re.compile(r"[^\x00-\x7f\s]+")


@cache
def unspaced_language(language: str | None) -> UnspacedLanguage | None:
    """Return the measures of a language code, or None for a language with spaces, or without a code."""
    return UNSPACED_LANGUAGES.get(base_language(language or ""))


def length_in_words(text: str, language: str) -> int:
    """Return the number of words of a text.

    In a language without spaces, characters are divided by the mean word length, and each Latin
    word or number counts as one word.
    """
    measure = unspaced_language(language)
    if measure is None:
        return len(text.split())
    characters = sum(map(len, _NON_ASCII.findall(text)))
    words = ceil(characters / measure.characters_per_word) + len(_ASCII_WORD.findall(text))
    return words or int(bool(text.strip()))


def language_name(code: str) -> str:
    """Return the English name of a language code with its variant, or the code itself if it is unknown."""
    name = NAMES.get(base_language(code))
    variant = code[len(base_language(code)) + 1 :]
    if name is None:
        return code
    return f"{name} ({variant})" if variant else name


def detect(text: str, candidates: Sequence[str]) -> list[tuple[str, float]]:
    """Return the candidate languages with probabilities that sum to 1, most probable first.

    The score of a language is the fraction of letters in its script, weighted by the fraction of
    words that are among its most frequent ones, if those are known. Ties keep the order of the
    candidates.
    """
    # The first characters are enough, and long texts must not take long.
    scripts = map(_script, text[:5000])
    letters = Counter(script for script in scripts if script)
    words = Counter(word.lower() for word in _WORD.findall(text[:5000]))
    scores = [_language_score(base_language(code), letters, words) for code in candidates]
    total = sum(scores)
    probabilities = [score / total if total else 1 / len(scores) for score in scores]
    return sorted(zip(candidates, probabilities, strict=True), key=lambda pair: -pair[1])


def _script(character: str) -> str:
    """Return the script of a letter, or an empty string for other characters."""
    return unicodedata.name(character, "").partition(" ")[0] if character.isalpha() else ""


def is_unspaced_letter(character: str) -> bool:
    """Return True for a letter of a script that is written without spaces between words."""
    return any(code in UNSPACED_LANGUAGES for code in _SCRIPTS.get(_script(character), ()))


def _language_score(code: str, letters: Counter[str], words: Counter[str]) -> float:
    """Return how well a text fits a language, at least 0."""
    total = max(letters.total(), 1)
    if code in _NON_LATIN_LANGUAGES:
        in_script = sum(n for script, n in letters.items() if code in _SCRIPTS.get(script, ()))
    else:
        in_script = letters["LATIN"]
    frequent = _FREQUENT.get(code, frozenset())
    hits = sum(n for word, n in words.items() if word in frequent)
    # The script alone gives a low score; frequent words are much stronger evidence.
    return in_script / total * (0.05 + hits / max(words.total(), 1))


# Language identification by py3langid: naive Bayes over byte n-grams (Lui & Baldwin 2012) for 139 languages. The
# model is a file of a few MB in the library.
MIN_PROBABILITY = 0.5
"""Minimum probability of another language. It is calibrated; short texts seldom reach it."""
MIN_PROBABILITY_RATIO = 10.0
"""Minimum ratio to the expected language's probability; close relatives (Danish, Norwegian) seldom reach it."""
NO_LANGUAGE = "zxx"
"""py3langid's code for numbers, markup and the like, which occur in texts of any language."""
_PY3LANGID_CODES = {"nb": "no"}  # codes that py3langid names differently


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _py3langid_code(language: str) -> str:
    return _PY3LANGID_CODES.get(base_language(language), base_language(language))


def require_identifiable(languages: Sequence[str]) -> None:
    """Raise ConfigError if py3langid does not know one of the languages."""
    for language in languages:
        if _py3langid_code(language) not in _identifier().labels:
            raise ConfigError(
                [f'data.cleaning.language_id: must be for languages that can be identified; got "{language}"']
            )


def is_other_language(text: str, language: str) -> bool:
    """Return True if a text is clearly not in its language.

    Another language must have at least `MIN_PROBABILITY`, and more than `MIN_PROBABILITY_RATIO`
    times the probability of the expected one. A text with little evidence is accepted.
    """
    probabilities: dict[str, float] = dict(_identifier().rank(text))
    best = max(probabilities, key=probabilities.__getitem__)
    expected = probabilities[_py3langid_code(language)]
    if best == NO_LANGUAGE:
        return False
    return probabilities[best] >= MIN_PROBABILITY and probabilities[best] > MIN_PROBABILITY_RATIO * expected
