"""Plural forms of gettext catalogues: the header's expression, and defaults by language.

`po.py` uses it. Expressions come from strangers; Python's own `gettext` checks their tokens, and length, nesting and
number of forms are limited.
"""

from __future__ import annotations

import gettext
import re
from dataclasses import dataclass

from rnnsearch.text.languages import base_language

MAX_FORMS = 20
MAX_NUMBER = 1000
"""Numbers up to this one decide which forms are used, as in GNU msgfmt."""
_HEADER = re.compile(r"\s*nplurals\s*=\s*(\d{1,4})\s*;\s*plural\s*=\s*([^;]{1,500})(?:;\s*)?")

_SLAVIC = "n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);"
_DEFAULTS = {
    "ja ko zh vi th id ms lo my km yo jv su bo dz": "nplurals=1; plural=0;",
    "fr oc br ln mg ti fil tl wa ak am fa hi gun mfe uz": "nplurals=2; plural=(n > 1);",
    "is mk": "nplurals=2; plural=(n%10!=1 || n%100==11);",
    "ru uk be sr hr bs sh": f"nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : {_SLAVIC}",
    "pl szl": f"nplurals=3; plural=(n==1 ? 0 : {_SLAVIC}",
    "cs sk": "nplurals=3; plural=(n==1 ? 0 : n>=2 && n<=4 ? 1 : 2);",
    "lt": "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2);",
    "lv": "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);",
    "ro mo": "nplurals=3; plural=(n==1 ? 0 : n==0 || (n%100>0 && n%100<20) ? 1 : 2);",
    "sl": "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);",
    "mt": "nplurals=4; plural=(n==1 ? 0 : n==0 || (n%100>1 && n%100<11) ? 1 : n%100>10 && n%100<20 ? 2 : 3);",
    "gd": "nplurals=4; plural=(n==1 || n==11 ? 0 : n==2 || n==12 ? 1 : n>2 && n<20 ? 2 : 3);",
    "cy": "nplurals=4; plural=(n==1 ? 0 : n==2 ? 1 : n!=8 && n!=11 ? 2 : 3);",
    "ga": "nplurals=5; plural=(n==1 ? 0 : n==2 ? 1 : n<7 ? 2 : n<11 ? 3 : 4);",
    "ar": "nplurals=6; plural=(n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5);",
}
"""Value of the header's field by languages; all others have a singular for 1 and a plural."""
_DEFAULT_BY_LANGUAGE = {language: header for languages, header in _DEFAULTS.items() for language in languages.split()}


@dataclass(frozen=True)
class PluralForms:
    """The plural forms of a language."""

    header: str
    """Value of the field `Plural-Forms`."""
    count: int
    form_of_one: int
    """Number of the form for 1, from 0."""
    one_is_shared: bool
    """True if the form for 1 also serves larger numbers, such as 21."""


def parse_plural_forms(header: str) -> PluralForms:
    """Return the plural forms that a value of the field `Plural-Forms` declares.

    Raises:
        ValueError: The value is invalid; the message follows the name of the field.
    """
    match = _HEADER.fullmatch(header)
    if match is None:
        raise ValueError(f'must be "nplurals=...; plural=...;"; got "{header[:60]}"')
    count = int(match[1])
    if not 1 <= count <= MAX_FORMS:
        raise ValueError(f"must have nplurals from 1 to {MAX_FORMS}; got {count}")
    try:
        form = gettext.c2py(match[2])
        forms = [form(number) for number in range(MAX_NUMBER + 1)]
    except (ValueError, ArithmeticError, RecursionError):
        raise ValueError(f'must have a valid expression; got "{match[2].strip()[:60]}"') from None
    if not all(0 <= number < count for number in forms):
        raise ValueError(f"must give form numbers below {count}; it gives {max(forms)} and {min(forms)}")
    return PluralForms(header, count, forms[1], forms[1] in forms[2:])


def default_plural_forms(language: str) -> PluralForms:
    """Return the usual plural forms of a language."""
    if re.fullmatch(r"pt[-_]br", language, re.IGNORECASE):
        return parse_plural_forms("nplurals=2; plural=(n > 1);")
    header = _DEFAULT_BY_LANGUAGE.get(base_language(language), "nplurals=2; plural=(n != 1);")
    return parse_plural_forms(header)
