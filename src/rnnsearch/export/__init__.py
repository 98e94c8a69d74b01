"""Models as two ONNX graphs, the encoder and one step of the decoder, for whatever runs such graphs."""
