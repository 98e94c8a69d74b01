"""The engine: models as arrays and programs that native code runs without PyTorch, and their files.

`runtime` and the exported web page run it (in `export/web/module`, in JavaScript); `accel` searches with it from
PyTorch. No module may import torch, which import-linter checks.
"""
