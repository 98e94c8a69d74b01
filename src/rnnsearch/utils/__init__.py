"""Helpers without knowledge of the domain: files, weights, tensors, devices, processes, tables."""
