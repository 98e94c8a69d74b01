"""Training: runs, the loop, optimisers, schedules, checkpoints and progress reports.

`training/run.py` has the entry points, `check` and `train`, which `rnnsearch train` (`cli/train.py`) and scripts call.
`tests/training/toys.py` has small tasks.
"""
