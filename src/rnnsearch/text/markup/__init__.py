"""Inline tags and protected text: found in the source and placed in the translation.

Callers use `marks.MarkedText`, `html_document.HtmlDocument`, `inline_document.InlineDocument`, the types of protected
text in `protected`, `substitutes` (`translator/protection.py`) and the parser in `tags`; `placing` is internal.
"""
