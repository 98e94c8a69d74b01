"""Training: runs, the loop, optimisers, schedules, checkpoints and progress reports.

`training/run.py` has the entry points, `check` and `train`, which `rnnsearch train` (`cli/train.py`) and scripts
call. `cli/train.py` also uses `progress.py` and `run_folder.py`; no other package imports this one. The tests are in
`tests/training`; `tests/training/toys.py` has small tasks.
"""
