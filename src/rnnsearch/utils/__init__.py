"""Helpers without knowledge of the domain: files, weights, tensors, processes, streams, tables.

Every layer may import it; it imports only `errors`. `distributed`, `tensors` and `weights` need torch, the other
modules must not import it, because `runtime` uses them.
"""
