"""Systems: everything that a model folder holds, built from a config, saved, loaded and described.

`training` builds and saves systems, `translator/loading.py` loads them, `importers` and `export` convert them. Tests:
tests/properties/test_systems.py, tests/old_models/test_old_models.py. See
docs/decisions/0012-systems-tasks-and-options.md and docs/decisions/0013-model-folders-and-checkpoints.md.
"""
