"""Languages: English names, lengths and BLEU tokenisers of languages without spaces, and language detection.

`detect` ranks the languages that a server translates; `is_other_language` finds sentence pairs in
wrong languages when a corpus is cleaned. Both use py3langid.

`export/web_page.py` writes the names for the page. py3langid is imported and its model loaded (half a second) at the
first detection, because the runtime imports this module without it.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import chain
from math import ceil
from threading import Lock
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

_CODES_OF_THREE_LETTERS = {
    "afr": "af", "amh": "am", "ara": "ar", "aze": "az", "bel": "be", "bul": "bg", "ben": "bn", "cat": "ca", "ces": "cs",
    "cym": "cy", "dan": "da", "deu": "de", "ell": "el", "eng": "en", "epo": "eo", "spa": "es", "est": "et", "eus": "eu",
    "fas": "fa", "pes": "fa", "fin": "fi", "fra": "fr", "gle": "ga", "glg": "gl", "guj": "gu", "hau": "ha", "heb": "he",
    "hin": "hi", "hrv": "hr", "hun": "hu", "hye": "hy", "ind": "id", "ibo": "ig", "isl": "is", "ita": "it", "jpn": "ja",
    "kat": "ka", "kaz": "kk", "khm": "km", "kan": "kn", "kor": "ko", "kir": "ky", "lat": "la", "lao": "lo", "lit": "lt",
    "lav": "lv", "lvs": "lv", "mkd": "mk", "mal": "ml", "mon": "mn", "mar": "mr", "msa": "ms", "mlt": "mt", "mya": "my",
    "nob": "nb", "nep": "ne", "nld": "nl", "nno": "nn", "nor": "no", "pan": "pa", "pol": "pl", "por": "pt", "ron": "ro",
    "rus": "ru", "sin": "si", "slk": "sk", "slv": "sl", "sqi": "sq", "srp": "sr", "hbs": "sr", "swe": "sv", "swa": "sw",
    "tam": "ta", "tel": "te", "tgk": "tg", "tha": "th", "tuk": "tk", "tgl": "tl", "tur": "tr", "ukr": "uk", "urd": "ur",
    "uzb": "uz", "vie": "vi", "xho": "xh", "yid": "yi", "yor": "yo", "zho": "zh", "cmn": "zh", "zul": "zu",
}  # fmt: skip
"""ISO 639-3 codes of the languages in `NAMES`, with some codes of their main varieties, as Apertium uses them."""


def base_language(code: str) -> str:
    """Return a language code without its region or script: `en` for `en-GB`."""
    return re.split("[-_]", code.lower(), maxsplit=1)[0]


def three_letter_code(code: str) -> str | None:
    """Return the ISO 639-3 code for a code of two letters, or None if there is none here."""
    three_letter_codes = (three for three, two in _CODES_OF_THREE_LETTERS.items() if two == code.lower())
    return next(three_letter_codes, None)


def two_letter_code(code: str) -> str:
    """Return the code of two letters for an ISO 639-3 code, and any other code as it is."""
    return _CODES_OF_THREE_LETTERS.get(code.lower(), code)


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


def _script(character: str) -> str:
    """Return the script of a letter, or an empty string for other characters."""
    return unicodedata.name(character, "").partition(" ")[0] if character.isalpha() else ""


def is_unspaced_letter(character: str) -> bool:
    """Return True for a letter of a script that is written without spaces between words."""
    return any(code in UNSPACED_LANGUAGES for code in _SCRIPTS.get(_script(character), ()))


def has_script_of(text: str, language: str) -> bool:
    """Return True if a text has a letter of a language's script."""
    return _script_fraction(_count_scripts(text), language) > 0


def _count_scripts(text: str) -> Counter[str]:
    """Return the number of letters of each script in the first characters of a text."""
    scripts = map(_script, text[:MAX_IDENTIFIED_CHARACTERS])
    return Counter(script for script in scripts if script)


def _script_fraction(letters: Counter[str], language: str) -> float:
    """Return the fraction of letters in a language's script; 0 without letters."""
    code = base_language(language)
    if code in _NON_LATIN_LANGUAGES:
        in_script = sum(n for script, n in letters.items() if code in _SCRIPTS.get(script, ()))
    else:
        in_script = letters["LATIN"]
    return in_script / max(letters.total(), 1)


# Language identification by py3langid: naive Bayes over byte n-grams (Lui & Baldwin 2012) for 139 languages. The
# model is a file of a few MB in the library.
MIN_PROBABILITY = 0.5
"""Minimum probability of another language. It is calibrated; short texts seldom reach it."""
MIN_PROBABILITY_RATIO = 10.0
"""Minimum ratio to the expected language's probability; close relatives (Danish, Norwegian) seldom reach it."""
NO_LANGUAGE = "zxx"
"""py3langid's code for numbers, markup and the like, which occur in texts of any language."""
MAX_IDENTIFIED_CHARACTERS = 5000
"""Length of a text's beginning by which its language is detected; more text adds time, but no evidence.

The library's time is quadratic in the number of consecutive combining marks.
"""
_PY3LANGID_CODES = {"nb": "no"}  # codes that py3langid names differently
_VARIETIES = {"ar": ("ary", "arz"), "ku": ("sdh",), "no": ("nn",), "uz": ("uzs",), "zh": ("wuu", "yue")}
"""Varieties that py3langid distinguishes from a language and that its model is expected to translate."""
_identifier_lock = Lock()


def _identifier() -> Any:
    # The lock, because `cache` would let several threads load the model at the same time.
    with _identifier_lock:
        return _load_identifier()


@cache
def _load_identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _py3langid_code(language: str) -> str:
    return _PY3LANGID_CODES.get(base_language(language), base_language(language))


def detect(text: str, candidates: Sequence[str]) -> list[tuple[str, float]]:
    """Return the candidate languages with probabilities, most probable first; none if the text is in none of them.

    The probabilities sum to at most 1; the rest is that of the likeliest other language. A text
    without letters is in no language. Ties keep the order of the candidates.
    """
    letters = _count_scripts(text)
    fractions = {code: _script_fraction(letters, code) for code in candidates}
    if not any(fractions.values()):
        return []
    probabilities: dict[str, float] = dict(_identifier().rank(text[:MAX_IDENTIFIED_CHARACTERS]))
    probabilities.pop(NO_LANGUAGE, None)
    labels_by_candidate: dict[str, tuple[str, ...]] = {}
    for code in candidates:
        label = _py3langid_code(code)
        labels_by_candidate[code] = (label, *_VARIETIES.get(label, ()))
    served = set(chain.from_iterable(labels_by_candidate.values()))
    other = max(probability for label, probability in probabilities.items() if label not in served)
    scores = {}
    for code, labels in labels_by_candidate.items():
        # A language that py3langid does not know looks like another one to it.
        unknown = other if labels[0] not in probabilities else 0.0
        scores[code] = fractions[code] * sum((probabilities.get(label, 0.0) for label in labels), unknown)
    if _is_clear(other, max(scores.values())):
        return []
    total = sum(scores.values()) + other
    return sorted(((code, score / total) for code, score in scores.items()), key=lambda pair: -pair[1])


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
    probabilities: dict[str, float] = dict(_identifier().rank(text[:MAX_IDENTIFIED_CHARACTERS]))
    best = max(probabilities, key=probabilities.__getitem__)
    return best != NO_LANGUAGE and _is_clear(probabilities[best], probabilities[_py3langid_code(language)])


def _is_clear(other: float, expected: float) -> bool:
    """Return True if the probability of another language is clearly above that of the expected one."""
    return other >= MIN_PROBABILITY and other > MIN_PROBABILITY_RATIO * expected
