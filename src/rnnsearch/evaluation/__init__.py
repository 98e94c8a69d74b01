"""What a trained system is worth: scores, plots, heat maps, alignments in the terminal, a report."""
