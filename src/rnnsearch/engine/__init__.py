"""The engine: models as arrays and programs that native code runs without PyTorch, and their files.

`runtime` and the exported web page run it (in `export/web/module`, in JavaScript); `accel` and `search` use it with
PyTorch. No module may import torch, which import-linter checks. Tests: tests/runtime, tests/properties/test_engine.py.
"""
