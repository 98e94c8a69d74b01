"""The patterns that tokenizers split text by, which are stored in tokenizer files.

`words` and `subwords` build tokenizers with them, and `tokenizer` rejects files with other patterns: the library
panics, or takes very long, on some patterns. A pattern must therefore stay here for as long as files with it must be
readable. `export/web/module/pretokenizer.js` is the same in JavaScript. Tests: tests/page/test_module.py.
"""

_INSIDE = "\\p{L}\\p{M}\\p{N}_\u200c\u200d"
"""Word characters: letters, marks, digits, and the joiners that Indic and Arabic scripts need."""
_CONTRACTION_ENDING = f"(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])(?![{_INSIDE}])"
PIECE_PATTERN = "|".join(
    (
        f"(?<=[\\p{{L}}\\p{{M}}])['’]{_CONTRACTION_ENDING}",  # Tom|'s, don|'t, geht|'s
        f" ?[{_INSIDE}]+(?:['’](?=\\p{{L}})(?!{_CONTRACTION_ENDING}))?",  # a word, or an elided one: l'|homme
        f"\\s?([^\\s{_INSIDE}])\\1*\\p{{M}}*",  # one punctuation mark or symbol, possibly repeated: ... !!
        "\\s",  # any other white space character
    )
)
"""Pattern of pieces: words and punctuation, each with the one space before it; its matches cover any text.

A piece with `<` contains nothing else, so no piece equals a special token or a byte token.
"""
SPACE_PATTERN = " [^ ]*"
"""Pattern of the tokens of a text that is already tokenized: separated by spaces, each with the space before it."""
KNOWN_PATTERNS = (PIECE_PATTERN, SPACE_PATTERN)
"""Patterns that tokenizer files may contain."""
