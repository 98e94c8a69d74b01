"""Inline tags and protected text: found in the source and placed in the translation.

The translator calls `marks.MarkedText`; everything else is internal, except `tags`, which `serve` uses.
"""
