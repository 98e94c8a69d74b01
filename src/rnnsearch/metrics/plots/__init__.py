"""Figures of plain values: attention, scores by length, learning curves."""
