"""Word alignment without gold links: a statistical aligner of its own, learned from the training text."""
