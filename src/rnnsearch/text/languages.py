"""Languages: their English names, how those without spaces are measured, and which of a few a text is in."""

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
"""The first word of a character's Unicode name -> the languages written so; every other language is in LATIN."""
_NOT_LATIN = {code for codes in _SCRIPTS.values() for code in codes}

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


def base(code: str) -> str:
    """A language code without its variant: `en` of `en-GB`."""
    return re.split("[-_]", code.lower(), maxsplit=1)[0]


class Unspaced(NamedTuple):
    """How a language written without spaces between words is measured."""

    characters: float
    """About so many stand for one word of a language with spaces."""
    bleu: str
    """sacreBLEU's tokeniser. Japanese is scored by characters, for MeCab is not among our dependencies."""


UNSPACED = {
    "ja": Unspaced(2.5, "char"),
    "km": Unspaced(6.0, "char"),
    "lo": Unspaced(5.0, "char"),
    "my": Unspaced(7.0, "char"),
    "th": Unspaced(5.0, "char"),
    "zh": Unspaced(1.7, "zh"),
}
"""Where spaces tell neither words nor sentences apart: the one table for lengths, sentence ends and BLEU."""
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f\s]+")


@cache
def unspaced(language: str | None) -> Unspaced | None:
    """How a language (a code, or none) is measured; None where it is written with spaces."""
    return UNSPACED.get(base(language or ""))


def length(text: str, language: str) -> int:
    """Words of a text: what stands between spaces; in a language without them its characters, as many as stand for a
    word together, and each Latin word or number among them."""
    measure = unspaced(language)
    if measure is None:
        return len(text.split())
    characters = sum(map(len, _BEYOND_ASCII.findall(text)))
    words = ceil(characters / measure.characters) + len(_ASCII_WORD.findall(text))
    return words or int(bool(text.strip()))


def language_name(code: str) -> str:
    """The English name of a language code, with its variant; the code itself where it is not known."""
    name = NAMES.get(base(code))
    variant = code[len(base(code)) + 1 :]
    return code if name is None else f"{name} ({variant})" if variant else name


def detect(text: str, among: Sequence[str]) -> list[tuple[str, float]]:
    """Languages of `among` by how well the text fits them, best first, with shares that sum to 1.

    By the share of letters in a language's script, and of words among its most frequent ones where those
    are known. Of equals the first of `among` comes first.
    """
    letters = Counter(script for character in text[:5000] if (script := _script(character)))
    words = Counter(word.lower() for word in _WORD.findall(text[:5000]))
    fits = [_fit(base(code), letters, words) for code in among]
    total = sum(fits)
    shares = [fit / total if total else 1 / len(fits) for fit in fits]
    return sorted(zip(among, shares, strict=True), key=lambda pair: -pair[1])


def _script(character: str) -> str:
    """The script of a letter; empty for other characters."""
    return unicodedata.name(character, "").partition(" ")[0] if character.isalpha() else ""


def unspaced_letter(character: str) -> bool:
    """Whether it is of a script that is written without spaces between words."""
    return any(code in UNSPACED for code in _SCRIPTS.get(_script(character), ()))


def _fit(code: str, letters: Counter[str], words: Counter[str]) -> float:
    """How well a text fits a language, at least 0."""
    total = max(letters.total(), 1)
    if code in _NOT_LATIN:
        own = sum(n for script, n in letters.items() if code in _SCRIPTS.get(script, ()))
    else:
        own = letters["LATIN"]
    frequent = _FREQUENT.get(code, frozenset())
    hits = sum(n for word, n in words.items() if word in frequent)
    # A text in the right script alone still fits; each frequent word says far more.
    return own / total * (0.05 + hits / max(words.total(), 1))


# Which texts are in another language than they should be, by py3langid: naive Bayes over byte n-grams (Lui & Baldwin
# 2012), 139 languages, in a file of some MB that comes with the library.

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
