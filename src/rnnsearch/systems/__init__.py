"""What a model folder holds: built, kept, described."""
