"""Decoders, one class a formulation: what is computed once, what feeds back, and what is read out."""
