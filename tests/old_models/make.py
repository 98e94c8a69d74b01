"""Create the model folders next to this file and their expected translations with the installed rnnsearch.

    python tests/old_models/make.py FOLDER

This was run once, at commit dfee304, on the tiny corpus below; `test_old_models.py` tests every later version against
the results. Do not recreate them: a change of the format adds folders with new names.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from safetensors import safe_open

NOUNS = {"cat": "Katze", "dog": "Hund", "bird": "Vogel"}
ADJECTIVES = {"small": "kleine", "old": "alte", "red": "rote"}
VERBS = {"sees": "sieht", "hears": "hört"}
SENTENCES = ["the small cat sees the old dog.", "the red bird hears zebra.", "", "the dog sees the cat."]
REFERENCES = ["die kleine Katze sieht die alte Hund.", "die rote Vogel hört Zebra.", "", "die Hund sieht die Katze."]

DATA = """
[data]
source = "en"
target = "de"
train = ["train.en|train.de"]
dev_size = 0
test_size = 0

[training]
batch = { sentences = 16 }
optimiser = { type = "adam", learning_rate = 0.03 }
normalise = "tokens"
max_updates = 120
threads = 1

[search]
beam = 3
"""
RUNS = {
    "words": """
replace_unknown = "dictionary"
dictionary = "dictionary.tsv"
[text]
type = "words"
vocabulary = 12
[model]
embedding = 8
encoder = { type = "bidirectional", cell = "gru", size = 10 }
attention = { score = "additive", size = 8 }
decoder = { type = "bahdanau", cell = "gru", size = 12, maxout = 8 }
[objective]
fertility = { size = 4 }
""",
    "bpe": """
length_norm = "gnmt"
[text]
type = "bpe"
vocabulary = 300
joint = true
[model]
embedding = 8
tie = "all"
lexical = true
encoder = { type = "stacked", cell = "lstm", size = 8, layers = 2, direction = "forward", reverse = true }
attention = { score = "general", window = "local-p", width = 4 }
decoder = { type = "luong-input-feeding", cell = "lstm", size = 8, layers = 2, bridge = "copy", readout = 8 }
dropout = { layers = 0.1 }
""",
}

ENCODER = 'encoder = { type = "bidirectional", cell = "gru", size = 6 }'
STACK = 'encoder = { type = "stacked", cell = "lstm", size = 6, layers = 2, direction = "forward" }'
ATTENTION = 'attention = { score = "additive", size = 4 }'
FAMILIES = {
    "bahdanau-tanh": [
        ENCODER,
        ATTENTION,
        'decoder = { type = "bahdanau-tanh", cell = "cho-gru", size = 6, readout = 4 }',
    ],
    "rnnencdec": [
        'encoder = { type = "unidirectional", cell = "gru", size = 6 }',
        'decoder = { type = "rnnencdec", cell = "tanh", size = 6, maxout = 4 }',
    ],
    "cho": [
        'encoder = { type = "unidirectional", cell = "cho-gru", size = 6 }',
        'decoder = { type = "cho", size = 6, maxout = 4 }',
    ],
    "sutskever": [STACK, 'decoder = { type = "sutskever", cell = "lstm", size = 6, layers = 2, bridge = "copy" }'],
    "luong": [
        STACK,
        'attention = { score = "concat", size = 4, features = ["coverage-neural", "markov", "position"], '
        "coverage_size = 2, neighbours = 1 }",
        'decoder = { type = "luong", cell = "lstm", size = 6, layers = 2, bridge = "learned", readout = 4 }',
    ],
    "neubig": [
        'encoder = { type = "pyramid", cell = "layer-norm-lstm", size = 6, layers = 2, reduce = 1 }',
        'attention = { score = "scaled-dot" }',
        'decoder = { type = "neubig", cell = "torch-gru", size = 12, layers = 2, bridge = "learned" }',
    ],
    "cgru": [
        ENCODER,
        'attention = { score = "location", max_source = 30 }',
        'decoder = { type = "cgru", cell = "layer-norm-gru", size = 6, readout = 4 }',
    ],
    "deep-transition": [
        ENCODER,
        'attention = { score = "additive", size = 4, features = ["coverage-linguistic"], fertility = 2.0 }',
        'decoder = { type = "deep-transition", cell = "layer-norm-gru", size = 6, readout = 4, transitions = 2 }',
    ],
    "bideep": [
        ENCODER,
        ATTENTION,
        'decoder = { type = "bideep", cell = "layer-norm-lstm", size = 6, readout = 4, transitions = 1, layers = 2 }',
    ],
    "memory": [
        ENCODER,
        ATTENTION,
        'decoder = { type = "memory", cell = "gru", size = 6, maxout = 4, slots = 3, slot_size = 4 }',
    ],
    "rnmt-plus": [
        'encoder = { type = "stacked", cell = "gate-norm-lstm", size = 6, layers = 2, direction = "both" }',
        'attention = { score = "multi-head-additive", size = 4, heads = 2 }',
        'decoder = { type = "rnmt-plus", cell = "gate-norm-lstm", size = 6, layers = 2, bridge = "zero" }',
    ],
}
"""Other decoders, of which only the names and shapes of the parameters are stored."""


def corpus() -> tuple[str, str]:
    """Return a few hundred sentence pairs, as source and target text."""
    noun_phrases = [
        (f"the {a} {n}".replace("  ", " "), f"die {ADJECTIVES.get(a, '')} {NOUNS[n]}".replace("  ", " "))
        for a, n in product(("", *ADJECTIVES), NOUNS)
    ]
    pairs = [
        (f"{left[0]} {verb} {right[0]}.", f"{left[1]} {VERBS[verb]} {right[1]}.")
        for left, verb, right in product(noun_phrases, VERBS, noun_phrases)
    ]
    random.Random(1).shuffle(pairs)
    sources, targets = zip(*pairs, strict=True)
    return "".join(f"{s}\n" for s in sources), "".join(f"{t}\n" for t in targets)


def command(*arguments: str, folder: Path, stdin: str = "") -> str:
    """Run `rnnsearch ARGUMENTS` and return its output."""
    completed = subprocess.run(
        [sys.executable, "-m", "rnnsearch", *arguments],
        cwd=folder, input=stdin, capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def write(path: Path, entries: dict[str, object]) -> None:
    """Write JSON with one line per entry."""
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in entries.items())
    path.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


def main(target: Path) -> None:
    """Train, translate and score; copy the files that a user would share."""
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        for name, text in zip(("train.en", "train.de"), corpus(), strict=True):
            (here / name).write_text(text, encoding="utf-8")
        (here / "dictionary.tsv").write_text("zebra\tZebra\n", encoding="utf-8")
        (here / "x.en").write_text("".join(f"{s}\n" for s in SENTENCES), encoding="utf-8")
        (here / "x.de").write_text("".join(f"{s}\n" for s in REFERENCES), encoding="utf-8")
        for name, text in RUNS.items():
            (here / f"{name}.toml").write_text(f'name = "{name}"\n{DATA}{text}', encoding="utf-8")
            command("train", f"{name}.toml", folder=here)
            model = here / "runs" / name
            source = "".join(f"{s}\n" for s in SENTENCES)
            command("candidates", str(model), "train.en", "train.de", folder=here)
            outputs = {
                option: command("translate", str(model), "--format", "json", "--precision", "fp32", *more, folder=here,
                                stdin=source).splitlines()
                for option, more in {"all": [], "candidates": ["--candidates", "5"], "greedy": ["--beam", "1"]}.items()
            }  # fmt: skip
            outputs["score"] = command(
                "score", str(model), "x.en", "x.de", "--format", "json", folder=here
            ).splitlines()
            if name != "words":  # with a hundred rows per token, the file is large
                (model / "candidates.safetensors").unlink()
                del outputs["candidates"]
            copy = target / name
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(model, copy, ignore=shutil.ignore_patterns("data", "checkpoints", "log.jsonl"))
            if name == "words":
                shutil.rmtree(target / "prepared", ignore_errors=True)
                shutil.copytree(model / "data", target / "prepared")
            rows = {option: [json.loads(line) for line in lines] for option, lines in outputs.items()}
            write(copy / "expected.json", rows)
        parameters = {}
        for name, lines in FAMILIES.items():
            data = DATA.replace("max_updates = 120", "max_updates = 1").replace(
                "training]\n", "training]\nmax_length = 25\n"
            )
            model = "\n".join(["[text]", 'type = "words"', "vocabulary = 12", "[model]", "embedding = 6", *lines])
            (here / f"{name}.toml").write_text(f"{data}{model}\n", encoding="utf-8")
            command("train", f"{name}.toml", folder=here)
            with safe_open(here / "runs" / name / "model.safetensors", framework="np") as file:
                shapes = {key: file.get_slice(key).get_shape() for key in sorted(file.keys())}
            parameters[name] = {"run": f"{data}{model}\n", "shapes": shapes}
        write(target / "parameters.json", parameters)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
