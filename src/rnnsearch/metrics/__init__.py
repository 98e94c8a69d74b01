"""Quality of translations and alignments: scores, significance, calibration, tuning of weights, and plots.

No module may import torch, which import-linter checks. The tests are in tests/metrics and tests/plots.
"""
