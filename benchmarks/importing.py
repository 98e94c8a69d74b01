"""Compare translations by another toolkit's models with those after `rnnsearch import`.

Run it as `python benchmarks/importing.py --source FILE --rival PYTHON CHECKPOINT ...`, where PYTHON is an interpreter
with OpenNMT-py 3 and the checkpoints are its files. Both toolkits search with OpenNMT-py's default settings, with a
beam of 5 and greedily. OpenNMT-py translates one sentence at a time, because in a batch the longest sentence determines
the maximum length of all translations. Scores are mean log-probabilities, as in OpenNMT-py.

With `--from joeynmt` the other toolkit is JoeyNMT, whose command prints only the best translations and no scores; it
normalises by length as the checkpoint's configuration says.
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
from harness import argument_parser, log, machine_line, parse_arguments, publish, run, table

from rnnsearch.importers import import_joeynmt, import_opennmt_py
from rnnsearch.importers.joeynmt import CONFIG_FILE, VOCABULARY_FILES
from rnnsearch.translator.loading import load

# Does what `onmt_translate` does, whose output has only four digits of a score.
OPENNMT_PY_SCRIPT = """
import json, sys
from onmt.bin.translate import _get_parser
from onmt.inference_engine import InferenceEnginePY
from onmt.utils.parse import ArgumentParser
arguments, output = sys.argv[1:-1], sys.argv[-1]
options = _get_parser().parse_args(arguments)
ArgumentParser.validate_translate_opts(options)
ArgumentParser._get_all_transform_translate(options)
ArgumentParser._validate_transforms_opts(options)
ArgumentParser.validate_translate_opts_dynamic(options)
scores, texts = InferenceEnginePY(options).infer_file()
n_best_lists = [[[text, float(score)] for text, score in zip(*pair)] for pair in zip(texts, scores)]
open(output, "w").write(json.dumps(n_best_lists))
"""

NBestLists = list[list[tuple[str, float]]]
"""Texts and scores per sentence, best first."""


def translate_with_opennmt_py(
    python: Path, checkpoint: Path, source: Path, beam: int, n_best: int, folder: Path
) -> NBestLists:
    """Translate with OpenNMT-py."""
    output = folder / "translations.json"
    arguments = ["-model", checkpoint.resolve(), "-src", source, "-output", folder / "out", "-beam_size", beam]
    arguments += ["-n_best", n_best, "-batch_size", 1, "-batch_type", "sents", "-gpu", -1]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [str(python), "-c", OPENNMT_PY_SCRIPT, *map(str, arguments), str(output)]
    run(command, folder / "log", os.environ | threads)
    return [[(text, score) for text, score in n_best_list] for n_best_list in json.loads(output.read_text())]


def translate_with_joeynmt(
    python: Path, checkpoint: Path, source: Path, beam: int, n_best: int, folder: Path
) -> NBestLists:
    """Translate with JoeyNMT in a copy of the model folder. Only the best translations are returned; scores are NaN."""
    del n_best
    copy = folder / "joey"
    copy.mkdir(exist_ok=True)
    shutil.copyfile(checkpoint, copy / "best.ckpt")
    settings = yaml.safe_load((checkpoint.parent / CONFIG_FILE).read_text(encoding="utf-8"))
    settings |= {"model_dir": str(copy), "use_cuda": False}
    settings["testing"] |= {"beam_size": beam, "n_best": 1, "batch_size": 64, "batch_type": "sentence"}
    for side, name in VOCABULARY_FILES.items():
        shutil.copyfile(checkpoint.parent / name, copy / name)
        settings["data"][side]["voc_file"] = str(copy / name)
    (copy / CONFIG_FILE).write_text(yaml.safe_dump(settings), encoding="utf-8")
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    script = f"{shlex.quote(str(python))} -m joeynmt translate {copy / CONFIG_FILE} < {source} > {copy / 'out'}"
    run(["sh", "-c", script], folder / "log", os.environ | threads)
    return [[(line, math.nan)] for line in (copy / "out").read_text(encoding="utf-8").splitlines()]


def translate_imported(model: Path, texts: list[str], beam: int, n_best: int) -> NBestLists:
    """Translate with the imported model."""
    translator = load(model)
    n_best_lists = translator.n_best(texts, translator.options(beam, n_best))
    return [[(translation.text, translation.score) for translation in n_best] for n_best in n_best_lists]


def compare(expected: NBestLists, imported: NBestLists) -> list[str]:
    """Return how many best translations and how many n-best lists are equal, and the largest difference of scores.

    Scores are compared for the sentences whose best translations are equal.
    """
    same_best = [a[0][0] == b[0][0] for a, b in zip(expected, imported, strict=True)]
    same_text = f"{sum(same_best)}/{len(same_best)}"
    if any(math.isnan(score) for n_best in expected for _, score in n_best):
        return [same_text, "", ""]
    same_list = [[text for text, _ in a] == [text for text, _ in b] for a, b in zip(expected, imported, strict=True)]
    differences = [abs(a[0][1] - b[0][1]) for a, b, same in zip(expected, imported, same_best, strict=True) if same]
    return [same_text, f"{sum(same_list)}/{len(same_list)}", f"{max(differences, default=0.0):.1e}"]


TOOLKITS = {
    "opennmt-py": (import_opennmt_py, translate_with_opennmt_py),
    "joeynmt": (import_joeynmt, translate_with_joeynmt),
}
"""Importer and translation function by toolkit."""


def main() -> None:
    """Compare and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--source", type=Path, required=True, help="tokenized text, one sentence per line")
    parser.add_argument("--rival", type=Path, required=True, help="Python interpreter with the other toolkit")
    parser.add_argument("--from", dest="toolkit", choices=sorted(TOOLKITS), default="opennmt-py")
    parser.add_argument("--sentences", type=int, default=300, help="sentences to translate")
    parser.add_argument("checkpoints", type=Path, nargs="+")
    args = parse_arguments(parser)
    texts = args.source.read_text(encoding="utf-8").split("\n")[: args.sentences]
    importer, translate = TOOLKITS[args.toolkit]
    rows = []
    for checkpoint in args.checkpoints:
        with TemporaryDirectory() as name:
            folder = Path(name)
            source = folder / "source"
            source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
            model = folder / "model"
            importer(checkpoint, model, "en", "de")
            for beam, n_best in ((5, 5), (1, 1)):
                expected = translate(args.rival, checkpoint, source, beam, n_best, folder)
                imported = translate_imported(model, texts, beam, n_best)
                rows.append([checkpoint.parent.name, str(beam), *compare(expected, imported)])
                log(" ".join(rows[-1]))
    columns = "model | beam | same text | same list | largest score difference"
    publish([machine_line(), "", *table(columns, rows)], args.output)


if __name__ == "__main__":
    main()
