"""Raw text in, translations out: loading models, requests, post-processing, confidence and reranking."""
