"""Training: the loop, optimisers, schedules, checkpoints, averaging and progress."""
