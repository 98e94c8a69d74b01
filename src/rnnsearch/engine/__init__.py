"""The engine: models as arrays and programs that native code runs without PyTorch, and their files."""
