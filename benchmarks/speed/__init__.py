"""Training and decoding speed of rnnsearch compared with other toolkits and with the limit of the machine.

Run it as `python -m benchmarks.speed`; docs/speed.md describes the measurements.
"""
