"""Inline tags and protected text: found in the source and placed in the translation.

Callers use `marks.MarkedText` and `html_document.HtmlDocument`; everything else is internal.
"""
