"""Translate with a model that `rnnsearch export MODEL FOLDER --format onnx` wrote.

    python translate.py FOLDER < input > output

Needs only numpy, onnxruntime and tokenizers. Beam search is implemented here, outside of the graphs, and gives the same
translations as rnnsearch.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


class Translator:
    """An exported model: tokenizers, an encoder graph and a decoder step graph."""

    def __init__(self, folder):
        folder = Path(folder)
        self.model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        self.source, self.target = (Tokenizer.from_file(str(folder / f"{side}.json")) for side in ("source", "target"))
        self.encoder, self.step = (InferenceSession(folder / f"{graph}.onnx") for graph in ("encoder", "step"))

    def translate(self, text, beam=None):
        """Return the translation of one sentence."""
        # Some subwords are never used on the source side and are split into smaller ones.
        ids = [part for id in self.source.encode(text).ids for part in self.model["apart"].get(str(id), [id])]
        return self.text(self.search(ids, beam or self.model["search"]["beam"])) if ids else ""

    def text(self, ids):
        """Return the text of target tokens, each with its preceding space; some are single bytes, such as <0xE2>."""
        tokens = [" <unk>" if id == self.model["symbols"]["unk"] else self.target.id_to_token(id) for id in ids]
        encoded = [bytes.fromhex(token[3:5]) if BYTE_TOKEN.fullmatch(token) else token.encode() for token in tokens]
        return b"".join(encoded).decode(errors="replace").removeprefix(" ")

    def search(self, ids, beam):
        """Return the ids of the best translation of a sentence; a beam of 1 is greedy search."""
        special = self.model["symbols"]
        options = self.model["search"]
        outputs = run(self.encoder, {"source": np.array([[*ids, special["eos"]]])})
        memory = select("memory.", outputs)
        state = select("state.", outputs)
        max_length = int(options["max_ratio"] * len(ids)) + options["max_extra"]
        live = [[]]
        log_probs = np.zeros(1, np.float32)
        coverage = 0.0
        finished = []
        for length in range(1, max_length + 2):
            y = np.array([special["bos"] if length == 1 else hypothesis[-1] for hypothesis in live])
            outputs = run(self.step, {"y": y, "sentence": np.zeros_like(y), **memory, **state})
            scores = outputs["log_probs"]
            scores[:, [special["pad"], special["bos"]]] = -np.inf
            if options["coverage_penalty"] and beam > 1:
                coverage = coverage + outputs["attention"]
            # Twice the beam size is enough for `beam` live hypotheses, however many of the best continuations end.
            total = (log_probs[:, None] + scores).ravel()
            best = np.argsort(-total, kind="stable")[: 2 * beam]
            parent = best // scores.shape[1]
            token = best % scores.shape[1]
            ends = token == special["eos"]
            for rank in np.flatnonzero(ends[:beam]):
                score = self.score(total[best[rank]], length, coverage, parent[rank])
                finished.append((score, live[parent[rank]]))
            if length > max_length:
                break
            survivors = np.flatnonzero(~ends)[:beam]
            live = [[*live[parent[rank]], int(token[rank])] for rank in survivors]
            log_probs = total[best[survivors]]
            rows = parent[survivors]
            next_state = select("next.", outputs)
            state = {name.replace("next", "state", 1): values[rows] for name, values in next_state.items()}
            coverage = coverage[rows] if np.ndim(coverage) else coverage
            if len(finished) >= beam:
                break
            # No hypothesis can score more than if it reached the maximum length without any loss of probability.
            if beam > 1 and finished and self.score(log_probs[0], max_length + 1) <= max(finished)[0]:
                break
        return max(finished)[1] if finished else live[int(log_probs.argmax())]

    def score(self, log_prob, length, coverage=0.0, row=0):
        """Return log P(Y|X) / norm(|Y|), plus the coverage penalty (Wu et al. 2016, eq. 14)."""
        options = self.model["search"]
        norm = length if options["length_norm"] == "power" else (5 + length) / 6
        score = log_prob / norm ** options["length_penalty"]
        if np.ndim(coverage):
            score += options["coverage_penalty"] * np.log(np.clip(coverage[row, :-1], 1e-6, 1)).sum()
        return float(score)


def run(session, inputs):
    """Return the outputs of a graph by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def select(prefix, outputs):
    """Return the outputs whose name starts with a prefix."""
    return {name: values for name, values in outputs.items() if name.startswith(prefix)}


def main():
    parser = argparse.ArgumentParser(description="Translate lines with a model exported to ONNX.")
    parser.add_argument("folder", help="output folder of `rnnsearch export --format onnx`")
    parser.add_argument("--beam", type=int, help="beam size; 1 is greedy search [default: the model's]")
    arguments = parser.parse_args()
    translator = Translator(arguments.folder)
    for number, line_bytes in enumerate(sys.stdin.buffer):
        line = line_bytes.decode("utf-8" if number else "utf-8-sig")  # a byte order mark is not text
        text = translator.translate(line.removesuffix("\n").removesuffix("\r"), arguments.beam)
        sys.stdout.buffer.write(text.encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
