"""The networks: cells, encoders, attention, decoders, output layer, and the model they make together."""
