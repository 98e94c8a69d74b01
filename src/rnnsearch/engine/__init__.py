"""Models as native code reads them, without PyTorch: arrays in one file, laid out once, and searched."""
