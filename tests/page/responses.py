"""Responses of the server to a text of one sentence."""

from collections.abc import Sequence
from typing import Any


def word_spans(words: Sequence[str], separator: str) -> list[dict[str, Any]]:
    """Return words with their offsets."""
    spans = []
    start = 0
    for word in words:
        spans.append({"text": word, "start": start, "end": start + len(word)})
        start += len(word) + len(separator)
    return spans


def hypothesis(
    source: Sequence[str],
    target: Sequence[str],
    separator: str,
    attention: list[list[float]],
    confidences: Sequence[float] = (),
) -> dict[str, Any]:
    """Return a hypothesis of /v1/translate in which word n is aligned with word n."""
    words = [{**word, "score": -0.1, "probability": 0.8} for word in word_spans(target, separator)]
    for word, confidence in zip(words, confidences, strict=False):
        word["confidence"] = confidence
    return {
        "text": separator.join(target),
        "confidence": sum(confidences) / len(confidences) if confidences else None,
        "score": -0.2,
        "log_prob": -1.0,
        "finished": True,
        "tokens": target,
        "token_scores": [-0.1] * len(target),
        "source_words": word_spans(source, separator),
        "words": words,
        "alignment": [[n, n] for n in range(len(target))],
        "attention": attention,
    }


def translate_response(
    source: Sequence[str], target: Sequence[str], separator: str = " ", confidences: Sequence[float] = ()
) -> dict[str, Any]:
    """Return a response of /v1/translate in which target word n attends to source word n."""
    attention = [[0.9 if i == j else 0.01 for j in range(len(source))] for i in range(len(target))]
    best = hypothesis(source, target, separator, attention, confidences)
    text = separator.join(source)
    sentence = {"source": text, "start": 0, "end": len(text), "best": [best]}
    translation = {"text": best["text"], "sentences": [sentence], "target_spans": [[0, len(best["text"])]]}
    return {"model": "m", "source": "xx", "target": "yy", "translations": [translation]}
