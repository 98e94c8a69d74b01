"""PyTorch models: cells, encoders, attention, decoders and output layers, and the models composed of them."""
