"""Exports of model folders: one file for the runtime, a web page, and ONNX graphs (`rnnsearch export`).

See docs/shipping.md and docs/decisions/0011-engine-and-exports.md; the tests are in `tests/runtime`, `tests/onnx` and
`tests/page`.
"""
