"""Inline tags and protected spans: found in the source and placed in the translation."""
