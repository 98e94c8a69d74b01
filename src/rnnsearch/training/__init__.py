"""Training: runs, the loop, optimisers, schedules, checkpoints and progress reports."""
