"""Translate with what `rnnsearch export MODEL FOLDER --format onnx` wrote: python translate.py FOLDER < in > out

Needs numpy, onnxruntime and tokenizers alone. The beam is here, outside the graphs, and finds what rnnsearch's finds.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

BYTE = re.compile("<0x[0-9A-F]{2}>")


class Translator:
    def __init__(self, folder):
        folder = Path(folder)
        self.model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        self.source, self.target = (Tokenizer.from_file(str(folder / f"{side}.json")) for side in ("source", "target"))
        self.encoder, self.step = (InferenceSession(folder / f"{graph}.onnx") for graph in ("encoder", "step"))

    def translate(self, text, beam=None):
        ids = [part for id in self.source.encode(text).ids for part in self.model["apart"].get(str(id), [id])]
        return self.text(self.search(ids, beam or self.model["search"]["beam"])) if ids else ""

    def text(self, ids):
        """The symbols one after another, each with the space before it; some are bytes of a character, as <0xE2>."""
        names = [" <unk>" if id == self.model["symbols"]["unk"] else self.target.id_to_token(id) for id in ids]
        spelled = [bytes.fromhex(name[3:5]) if BYTE.fullmatch(name) else name.encode() for name in names]
        return b"".join(spelled).decode(errors="replace").removeprefix(" ")

    def search(self, ids, beam):
        """The ids of the best translation of a sentence; with a beam of 1, greedily."""
        symbols, options = self.model["symbols"], self.model["search"]
        found = run(self.encoder, {"source": np.array([[*ids, symbols["eos"]]])})
        memory, state = begins("memory.", found), begins("state.", found)
        most = int(options["max_ratio"] * len(ids)) + options["max_extra"]
        live, worth, covered = [[]], np.zeros(1, np.float32), 0.0
        finished = []
        for length in range(1, most + 2):
            y = np.array([symbols["bos"] if length == 1 else own[-1] for own in live])
            found = run(self.step, {"y": y, "sentence": np.zeros_like(y), **memory, **state})
            scores = found["log_probs"]
            scores[:, [symbols["pad"], symbols["bos"]]] = -np.inf
            if options["coverage_penalty"] and beam > 1:
                covered = covered + found["attention"]
            # The best continuations, of which as many as the beam is wide live on, however many end.
            total = (worth[:, None] + scores).ravel()
            best = np.argsort(-total, kind="stable")[: 2 * beam]
            parent, token = best // scores.shape[1], best % scores.shape[1]
            ends = token == symbols["eos"]
            for place in np.flatnonzero(ends[:beam]):
                finished.append((self.score(total[best[place]], length, covered, parent[place]), live[parent[place]]))
            if length > most:
                break
            kept = np.flatnonzero(~ends)[:beam]
            live = [[*live[parent[place]], int(token[place])] for place in kept]
            worth = total[best[kept]]
            state = {
                name.replace("next", "state", 1): rows[parent[kept]] for name, rows in begins("next.", found).items()
            }
            covered = covered[parent[kept]] if np.ndim(covered) else covered
            # No hypothesis scores more than if it went on, for nothing, to its greatest length.
            if len(finished) >= beam or (beam > 1 and finished and self.score(worth[0], most + 1) <= max(finished)[0]):
                break
        return max(finished)[1] if finished else live[int(worth.argmax())]

    def score(self, worth, length, covered=0.0, row=0):
        """log P(Y|X) / norm(|Y|), and the penalty for what was not attended to (Wu et al. 2016, eq. 14)."""
        options = self.model["search"]
        norm = length if options["length_norm"] == "power" else (5 + length) / 6
        score = worth / norm ** options["length_penalty"]
        if np.ndim(covered):
            score += options["coverage_penalty"] * np.log(np.clip(covered[row, :-1], 1e-6, 1)).sum()
        return float(score)


def run(session, feeds):
    """What a graph gives, by name."""
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True))


def begins(prefix, found):
    return {name: rows for name, rows in found.items() if name.startswith(prefix)}


def main():
    parser = argparse.ArgumentParser(description="Translate lines with a model exported to ONNX.")
    parser.add_argument("folder", help="what rnnsearch export --format onnx wrote")
    parser.add_argument("--beam", type=int, help="hypotheses kept; 1: greedy; else the model's own number")
    arguments = parser.parse_args()
    translator = Translator(arguments.folder)
    for number, given in enumerate(sys.stdin.buffer):
        line = given.decode("utf-8" if number else "utf-8-sig")  # a byte order mark is not text
        text = translator.translate(line.removesuffix("\n").removesuffix("\r"), arguments.beam)
        sys.stdout.buffer.write(text.encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
