"""Texts without letters, such as "5", "---" or an emoji, and texts that show nothing.

A text without letters is its own translation (`translator/copies.py`), and one that shows nothing has an empty
translation, like white space. `export/web/module/letters.js` has the same functions; tests/page/test_module.py compares
them.
"""

import unicodedata


def has_letters(text: str) -> bool:
    """Return True if a text contains a letter of any script, including ideographs and their numerals."""
    return any(map(str.isalpha, text))


def is_invisible(text: str) -> bool:
    """Return True if a text shows nothing: white space and format characters (category Cf), such as U+200B."""
    return all(character.isspace() or unicodedata.category(character) == "Cf" for character in text)
