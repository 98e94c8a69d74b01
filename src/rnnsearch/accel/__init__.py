"""Twins of whole models and of their parts: which are chosen, and why not."""
