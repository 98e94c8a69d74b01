"""Text in, translations out: the `Translator`, loading, constraints, postprocessing, confidence and reranking."""
