"""Plots of attention, scores by length and frequency, and learning curves.

`evaluation` writes them into reports, and the command line shows heatmaps. matplotlib is slow to import: import these
modules where they are needed.
"""
