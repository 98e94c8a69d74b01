"""Fast implementations of the models in `models`, for training and search, and the choice between them.

`registry.py` chooses those that train (`fast_forwards.py`, `windowed_attention.py`), `verification.py` compares each
with its definition. The steps of cells (`cell_steps.py`), decoders (`decoder_steps.py`) and readouts
(`readout_steps.py`) are written as operations, which native code runs in training (`recurrences.py`), search
(`search.py`) and the engine (`program_writer.py`). RNNsearch has its own native search (`rnnsearch_search.py`). On
GPUs, `cuda_graphs.py` records whole passes.

A fast implementation must give the results of its definition: a change of an equation in `models` needs the same
change here, or the module runs its definition, with a warning. `tests/properties` compares all of them. See
docs/decisions/0006-fast-implementations.md.
"""
