"""Training: runs, the loop, optimisers, schedules, checkpoints and progress reports.

`training/run.py` has the entry points, `check` and `train`, which `rnnsearch train` and scripts call. The tests are
in `tests/training`; `tests/training/toys.py` has small tasks.
"""
