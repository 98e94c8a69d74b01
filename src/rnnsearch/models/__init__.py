"""PyTorch models: cells, encoders, attention, decoders and output layers, and the models composed of them.

`systems/` builds models from `[model]`. Names of submodules and parameters are keys of checkpoints and model folders,
so renaming an attribute breaks stored models (tests/old_models). Submodules are initialised in order of creation, so
reordering them changes the initial values for a seed. The layers inside this package are listed in docs/architecture.md
and checked by import-linter.
"""
