"""Systems: everything that a model folder holds, built from a config, saved, loaded and described."""
