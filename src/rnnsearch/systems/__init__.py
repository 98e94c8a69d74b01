"""Systems: everything that a model folder holds, built from a config, saved, loaded and described.

Callers: `training` builds and saves systems, `translator/loading.py` loads them, `importers` and `export` convert
them. See docs/decisions/0012-systems-tasks-and-options.md and 0013-model-folders-and-checkpoints.md.
"""
