"""Attention, composed of a score, a window, a normaliser and features; each is one class per formulation.

Decoders use it through `attention.Attention`. See docs/attention.md for the equations and docs/adding-a-component.md
for how to add a component.

Outside of `models`, `accel/` has other versions of its equations.
"""
