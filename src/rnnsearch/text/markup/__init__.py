"""Inline tags and protected text: found in the source and placed in the translation."""
