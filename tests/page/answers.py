"""Answers of the server to a text of one sentence."""

from typing import Any


def hypothesis(source: list[str], target: list[str], space: str, attention: list[list[float]]) -> dict[str, Any]:
    def spans(words: list[str]) -> list[dict[str, Any]]:
        found, at = [], 0
        for word in words:
            found.append({"text": word, "start": at, "end": at + len(word)})
            at += len(word) + len(space)
        return found

    scored = [{**word, "score": -0.1, "probability": 0.8} for word in spans(target)]
    return {
        "text": space.join(target), "score": -0.2, "log_prob": -1.0, "finished": True, "tokens": target,
        "token_scores": [-0.1] * len(target), "source_words": spans(source), "words": scored,
        "alignment": [[n, n] for n in range(len(target))], "attention": attention,
    }  # fmt: skip


def answer(source: list[str], target: list[str], space: str = " ") -> dict[str, Any]:
    """/v1/translate's answer: word n of the target looked at word n of the source, in the server's offsets."""
    attention = [[0.9 if i == j else 0.01 for j in range(len(source))] for i in range(len(target))]
    best = hypothesis(source, target, space, attention)
    text = space.join(source)
    sentence = {"source": text, "start": 0, "end": len(text), "best": [best]}
    whole = {"text": best["text"], "sentences": [sentence], "target_spans": [[0, len(best["text"])]]}
    return {"model": "m", "source": "xx", "target": "yy", "translations": [whole]}
