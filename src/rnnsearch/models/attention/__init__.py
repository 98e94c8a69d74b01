"""Attention, composed of a score, a window, a normaliser and features; one class a piece."""
