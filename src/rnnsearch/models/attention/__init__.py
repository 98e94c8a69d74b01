"""Attention, composed of a score, a window, a normaliser and features; each is one class per formulation.

Decoders use it through `attention.Attention`. See docs/attention.md for the equations and docs/adding-a-component.md
for how to add a component.

Outside of `models`, `accel/`, `export/onnx.py` and `systems/pruning.py` read its components. Tests:
tests/models/test_attention.py, tests/models/test_scores.py, tests/models/test_windows.py,
tests/models/test_normalisers.py.
"""
