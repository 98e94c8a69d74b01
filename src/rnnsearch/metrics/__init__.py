"""Quality of translations and alignments: scores, significance, calibration, tuning of weights, and plots.

`evaluation`, `translator` and the validation during training call it. No module may import torch, which import-linter
checks.
"""
