"""Exports of model folders: one file for the runtime, a web page, and ONNX graphs (`rnnsearch export`)."""
