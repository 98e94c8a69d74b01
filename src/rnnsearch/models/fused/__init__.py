"""Fast twins of recurrences: the same equations with a backward pass written by hand.

The plain step is the definition (`models/cells.py`, `models/decoders/*.py`); a law test holds each twin equal to
it, gradients included. What a twin saves: weights are cast once a batch, the gradients of weights are formed once
after the loop instead of a few rows at a time, and the hidden layer of the alignment model is not kept.
"""
