"""Quality of translations and alignments: scores, significance, calibration, tuning of weights, and plots."""
