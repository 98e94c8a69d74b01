"""Attention, composed of a score, a window, a normaliser and features; each is one class per formulation."""
