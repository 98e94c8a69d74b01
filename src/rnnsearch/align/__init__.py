"""Word alignment and dictionaries learned from unaligned sentence pairs: a statistical aligner on CPUs."""
