"""Plots of attention, scores by length and frequency, and learning curves."""
