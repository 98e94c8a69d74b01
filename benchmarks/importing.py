"""Translations of another toolkit's models, by that toolkit itself and by what `rnnsearch import` makes of them.

Run it as `python benchmarks/importing.py --source FILE --rival PYTHON CHECKPOINT ...`, PYTHON an interpreter that has
OpenNMT-py 3 and CHECKPOINT its files. Both search with OpenNMT-py's own settings, by a beam of 5 and greedily;
OpenNMT-py one sentence after the other, for in a batch the longest sets the greatest length of all translations.
Scores are mean log-probabilities, as OpenNMT-py counts them.

With `--from joeynmt` it is JoeyNMT, whose command prints the best translations and no scores; its division by length
is what the checkpoint's configuration says.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import yaml
from harness import machine_line, parsed, parser, publish, run, say, table

from rnnsearch.importing import import_joeynmt, import_opennmt_py
from rnnsearch.importing.joeynmt import CONFIG, VOCABULARIES
from rnnsearch.loading import load

RIVAL = """
import json, sys
from onmt.bin.translate import _get_parser
from onmt.inference_engine import InferenceEnginePY
from onmt.utils.parse import ArgumentParser
asked, made = sys.argv[1:-1], sys.argv[-1]
options = _get_parser().parse_args(asked)
ArgumentParser.validate_translate_opts(options)
ArgumentParser._get_all_transform_translate(options)
ArgumentParser._validate_transforms_opts(options)
ArgumentParser.validate_translate_opts_dynamic(options)
scores, texts = InferenceEnginePY(options).infer_file()
found = [[[text, float(score)] for text, score in zip(*both)] for both in zip(texts, scores)]
open(made, "w").write(json.dumps(found))
"""
"""What `onmt_translate` does; its own output has four digits of a score."""

Found = list[list[tuple[str, float]]]


def rival(python: Path, checkpoint: Path, source: Path, beam: int, n_best: int, folder: Path) -> Found:
    """The n best translations of each line and their scores, by OpenNMT-py."""
    made = folder / "found.json"
    asked = ["-model", checkpoint.resolve(), "-src", source, "-output", folder / "out", "-beam_size", beam]
    asked += ["-n_best", n_best, "-batch_size", 1, "-batch_type", "sents", "-gpu", -1]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    run([str(python), "-c", RIVAL, *map(str, asked), str(made)], folder / "log", os.environ | threads)
    return [[(text, score) for text, score in each] for each in json.loads(made.read_text())]


def joeynmt(python: Path, checkpoint: Path, source: Path, beam: int, n_best: int, folder: Path) -> Found:
    """The best translation of each line, by JoeyNMT, in a copy of the model's folder; scores are not told."""
    del n_best
    own = folder / "joey"
    own.mkdir(exist_ok=True)
    shutil.copyfile(checkpoint, own / "best.ckpt")
    told = yaml.safe_load((checkpoint.parent / CONFIG).read_text(encoding="utf-8"))
    settings = told | {"model_dir": str(own), "use_cuda": False}
    settings["testing"] |= {"beam_size": beam, "n_best": 1, "batch_size": 64, "batch_type": "sentence"}
    for side, name in VOCABULARIES.items():
        shutil.copyfile(checkpoint.parent / name, own / name)
        settings["data"][side]["voc_file"] = str(own / name)
    (own / CONFIG).write_text(yaml.safe_dump(settings), encoding="utf-8")
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    script = f"{shlex.quote(str(python))} -m joeynmt translate {own / CONFIG} < {source} > {own / 'out'}"
    run(["sh", "-c", script], folder / "log", os.environ | threads)
    return [[(line, math.nan)] for line in (own / "out").read_text(encoding="utf-8").splitlines()]


def ours(model: Path, texts: list[str], beam: int, n_best: int) -> Found:
    """The same, by the imported model."""
    translator = load(model)
    found = translator.n_best(texts, translator.options(beam, n_best))
    return [[(one.text, one.score) for one in each] for each in found]


def compared(found: Found, own: Found) -> list[str]:
    """How many sentences have the same best translation, and the same list of all; the largest difference of scores
    where they have."""
    best = [a[0][0] == b[0][0] for a, b in zip(found, own, strict=True)]
    same = f"{sum(best)}/{len(best)}"
    if any(math.isnan(score) for each in found for _, score in each):
        return [same, "", ""]
    lists = [[text for text, _ in a] == [text for text, _ in b] for a, b in zip(found, own, strict=True)]
    apart = [abs(a[0][1] - b[0][1]) for a, b, alike in zip(found, own, best, strict=True) if alike]
    return [same, f"{sum(lists)}/{len(lists)}", f"{max(apart, default=0.0):.1e}"]


TOOLKITS = {"opennmt-py": (import_opennmt_py, rival), "joeynmt": (import_joeynmt, joeynmt)}
"""How a checkpoint becomes a model folder, and how the toolkit itself translates."""


def main() -> None:
    """Compare and print."""
    made = parser(__doc__)
    made.add_argument("--source", type=Path, required=True, help="Text cut into symbols, a sentence a line.")
    made.add_argument("--rival", type=Path, required=True, help="The interpreter that has the toolkit.")
    made.add_argument("--from", dest="toolkit", choices=sorted(TOOLKITS), default="opennmt-py")
    made.add_argument("--sentences", type=int, default=300)
    made.add_argument("checkpoints", type=Path, nargs="+")
    given = parsed(made)
    texts = given.source.read_text(encoding="utf-8").split("\n")[: given.sentences]
    rows = []
    for checkpoint in given.checkpoints:
        with TemporaryDirectory() as name:
            folder = Path(name)
            source = folder / "source"
            source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
            model = folder / "model"
            importer, translated = TOOLKITS[given.toolkit]
            importer(checkpoint, model, "en", "de")
            for beam, n_best in ((5, 5), (1, 1)):
                theirs = translated(given.rival, checkpoint, source, beam, n_best, folder)
                rows.append([checkpoint.parent.name, str(beam), *compared(theirs, ours(model, texts, beam, n_best))])
                say(" ".join(rows[-1]))
    columns = "model | beam | same text | same list | scores apart, at most"
    publish([machine_line(), "", *table(columns, rows)], given.output)


if __name__ == "__main__":
    main()
