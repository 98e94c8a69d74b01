"""How good a translation or an alignment is, and whether a difference is more than chance."""
