"""Caption scenes of handwritten digits with soft and hard attention over image regions (Xu et al. 2015).

    pip install scikit-learn
    python reproduce/scenes.py
    python reproduce/scenes.py --systems soft "hard, weight 0.02" --seeds 1 2 3

A scene is a 3 x 3 grid of regions, two or three of which hold a digit of scikit-learn's 1,797 images (8 x 8 pixels, the
64 features of a region). Its caption names the digits in reading order and how each is placed relative to the next: "a
seven left of a two above a five". The images are divided among training, dev and test, so that no digit of a test scene
has been seen. The position of each digit is known, and attention is compared with it when the word of the digit is
written; nothing of it is used in training.

Output: table.md with means over seeds (and their range): caption accuracy and accuracy of the digit words on the test
scenes, BLEU, the attention on the right region when a digit is written, how often most attention is elsewhere, and the
attention on regions with digits at all words; scenes.json, one model folder per system and seed, and pictures of the
first test scenes (SYSTEM-N.png). An interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import cached, prepare_once, require_known, resolve_config, train_or_resume

from rnnsearch.data.arrays import NamedArray
from rnnsearch.data.corpus import Row
from rnnsearch.data.prepared import Prepared
from rnnsearch.metrics.plots.figures import save
from rnnsearch.metrics.plots.regions import region_figure
from rnnsearch.metrics.scores import corpus_bleu
from rnnsearch.systems.card import best_evaluation, load_training_facts
from rnnsearch.translator.loading import load
from rnnsearch.translator.translation import Translation
from rnnsearch.utils.files import write_json, write_text
from rnnsearch.utils.tables import as_markdown

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
GRID = 3
"""Rows and columns of a scene."""
PIXELS = 8
"""Rows and columns of a digit."""
CORPUS_SEED = 1
IMAGES = {"train": 0.6, "dev": 0.2, "test": 0.2}
"""Fraction of the digit images of each part."""
PICTURES = 4
"""Number of test scenes that are drawn."""

MODEL = {
    "embedding": 96,
    "encoder": {"type": "feedforward", "size": 96},
    "attention": {"score": "additive", "size": 64},
    "decoder": {"type": "bahdanau", "cell": "gru", "size": 96, "maxout": 64},
    "dropout": {"embedding": 0.1, "annotations": 0.1},
}
TRAINING = {
    "batch": {"sentences": 32},
    "optimiser": {"type": "adam", "learning_rate": 0.002},
    "max_epochs": 8,
    "threads": 1,
}
HARD = {"model": {"attention": {"normaliser": "hard"}}}
AVERAGE = {"baseline": "average", "decay": 0.9, "entropy": 0.01}
SYSTEMS: dict[str, dict[str, Any]] = {
    "soft": {},
    "soft, doubly stochastic": {"objective": {"doubly_stochastic": 1.0}},
    "hard, weight 1": {**HARD, "objective": {"reinforce": {**AVERAGE, "weight": 1.0}}},
    "hard, weight 0.02": {**HARD, "objective": {"reinforce": {**AVERAGE, "weight": 0.02}}},
    "hard, weight 0.02, learned baseline": {
        **HARD,
        "objective": {"reinforce": {"baseline": "learned", "weight": 0.02}},
    },
}
"""Tables in addition to `MODEL` and `TRAINING` by system; Xu et al. use the moving average and the entropy."""
DEFAULT_SYSTEMS = ("soft", "hard, weight 1", "hard, weight 0.02")


@dataclass(frozen=True)
class Result:
    """Training facts and test scores of one system and seed."""

    system: str
    seed: int
    epochs: float
    dev_nll: float
    captions: float
    """Fraction of the captions that are right."""
    digits: float
    """Fraction of the digit words that are right, by position."""
    any_order: float
    """Fraction of the captions with the right digits in any order."""
    bleu: float
    mass: float
    """Mean attention on the right region when a digit of the reference is written."""
    elsewhere: float
    """Fraction of these digits for which most attention is on another region."""
    any_digit: float
    """Mean attention on all regions with digits, over all words of the references."""


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=DEFAULT_SYSTEMS, metavar="NAME", help="; ".join(SYSTEMS))
    parser.add_argument("--scenes", type=int, default=8000, help="training scenes; a 20th for dev and an 8th for test")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="as in `rnnsearch train`")
    parser.add_argument("--output", type=Path, default=Path("runs/reproduce-scenes"))
    args = parser.parse_args()
    require_known(parser, "system", args.systems, SYSTEMS)
    return args


# Scenes.


def write_scenes(folder: Path, count: int) -> None:
    """Write the scenes, captions and digit positions of all parts, unless they are there."""
    if (folder / "test.cells.json").is_file():
        return
    from sklearn.datasets import load_digits

    folder.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)  # [images, 64], from 0 to 1
    rng = np.random.default_rng(CORPUS_SEED)
    order = rng.permutation(len(images))
    start = 0
    for part, size in {"train": count, "dev": count // 20, "test": count // 8}.items():
        end = start + round(IMAGES[part] * len(images))
        pool = order[start:end]
        start = end
        scenes = np.zeros((size, GRID * GRID, PIXELS * PIXELS), np.float32)
        captions = []
        all_cells = []
        for scene in scenes:
            cells = np.sort(rng.choice(len(scene), size=rng.integers(2, 4), replace=False))
            chosen = rng.choice(pool, size=len(cells), replace=False)
            scene[cells] = images[chosen]
            captions.append(caption(labels[chosen], cells))
            all_cells.append(cells.tolist())
        np.save(folder / f"{part}.npy", scenes)
        write_text(folder / f"{part}.en", "".join(f"{text}\n" for text in captions))
        write_json(folder / f"{part}.cells.json", all_cells)


def caption(digits: Sequence[int], cells: Sequence[int]) -> str:
    """Return the caption of digits in some cells, which are in reading order."""
    words = ["a", DIGITS[digits[0]]]
    for digit, cell, previous in zip(digits[1:], cells[1:], cells[:-1], strict=True):
        is_same_row = cell // GRID == previous // GRID
        words += [*(["left", "of"] if is_same_row else ["above"]), "a", DIGITS[digit]]
    return " ".join(words)


# Systems.


def run_system(args: argparse.Namespace, prepared: Prepared, system: str, seed: int) -> Result:
    """Train a system, or resume its training, and caption the test scenes."""
    folder = model_folder(args, system, seed)
    config = config_of(args, system, seed)
    train_or_resume(config, prepared, folder, f"{system}, seed {seed}")
    translator = load(folder)
    arrays = [row.source for row in prepared.test]
    references = [row.target for row in prepared.test]
    captions = [translation.text for translation in translator.translate(arrays)]
    scored = translator.score(arrays, references)
    cells = read_cells(args.output / "scenes" / "test.cells.json")
    attention = np.array(digit_attention(scored, cells))  # [digits, 2]
    facts = load_training_facts(folder)
    return Result(
        system=system,
        seed=seed,
        epochs=facts["epochs"],
        dev_nll=best_evaluation(facts)["dev_nll"],
        captions=float(np.mean([text == reference for text, reference in zip(captions, references, strict=True)])),
        digits=float(np.mean(right_digits(captions, references))),
        any_order=float(np.mean([same_digits(*pair) for pair in zip(captions, references, strict=True)])),
        bleu=corpus_bleu(captions, references, "en"),
        mass=float(attention[:, 0].mean()),
        elsewhere=float(attention[:, 1].mean()),
        any_digit=any_digit_attention(scored, cells),
    )


def config_of(args: argparse.Namespace, system: str, seed: int) -> Any:
    """Return the config of a system."""
    extra = SYSTEMS[system]
    model = {**MODEL, "attention": {**MODEL["attention"], **extra.get("model", {}).get("attention", {})}}
    folder = (args.output / "scenes").absolute()
    tables = {
        "data": {
            "arrays": {"image": {"features": PIXELS * PIXELS, "grid": [GRID, GRID]}},
            "source": "image",
            "target": "en",
            "train": [f"{folder}/train.npy|{folder}/train.en"],
            "dev": f"{folder}/dev.npy|{folder}/dev.en",
            "test": f"{folder}/test.npy|{folder}/test.en",
        },
        "text": {"type": "words"},
        "model": model,
        "objective": extra.get("objective", {}),
        "training": {**TRAINING, "seed": seed},
    }
    return resolve_config(system, tables, args.set)


def model_folder(args: argparse.Namespace, system: str, seed: int) -> Path:
    """Return the folder of a system's model."""
    path: Path = args.output / f"{system.replace(', ', '-').replace(' ', '-').replace('.', '')}-{seed}"
    return path


def read_cells(path: Path) -> list[list[int]]:
    """Return the cells of the digits of each scene."""
    import json

    cells: list[list[int]] = json.loads(path.read_text(encoding="utf-8"))
    return cells


def digit_attention(scored: Sequence[Translation], cells: Sequence[Sequence[int]]) -> list[tuple[float, bool]]:
    """Return, for each digit word of the references, its attention on its cell, and if another cell has more."""
    values = []
    for translation, scene_cells in zip(scored, cells, strict=True):
        weights = translation.word_attention
        assert weights is not None
        positions = [n for n, word in enumerate(translation.words) if word in DIGITS]
        for position, cell in zip(positions, scene_cells, strict=True):
            row = weights[position]
            values.append((float(row[cell]), int(row.argmax()) != cell))
    return values


def any_digit_attention(scored: Sequence[Translation], cells: Sequence[Sequence[int]]) -> float:
    """Return the mean attention on all regions with digits, over all words of the references."""
    values: list[float] = []
    for translation, scene_cells in zip(scored, cells, strict=True):
        assert translation.word_attention is not None
        values += translation.word_attention[:, list(scene_cells)].sum(1).tolist()
    return float(np.mean(values))


def digits_of(text: str) -> list[str]:
    """Return the digit words of a caption."""
    return [word for word in text.split() if word in DIGITS]


def same_digits(text: str, reference: str) -> bool:
    """Return True if two captions have the same digits in any order."""
    return sorted(digits_of(text)) == sorted(digits_of(reference))


def right_digits(captions: Sequence[str], references: Sequence[str]) -> list[bool]:
    """Return, for each digit word of the references, True if the caption has it as its digit of that number."""
    results = []
    for text, reference in zip(captions, references, strict=True):
        digits = digits_of(text)
        results += [digits[n : n + 1] == [digit] for n, digit in enumerate(digits_of(reference))]
    return results


# Output.


def draw(args: argparse.Namespace, test: Sequence[Row], system: str, seed: int) -> None:
    """Draw where a model looks at each word of its captions of the first test scenes."""
    translator = load(model_folder(args, system, seed))
    for number, row in enumerate(test[:PICTURES], 1):
        assert isinstance(row.source, NamedArray)
        translation = translator.translate(np.asarray(row.source.values))
        assert translation.word_attention is not None
        cells = np.asarray(row.source.values).reshape(GRID, GRID, PIXELS, PIXELS)
        image = cells.transpose(0, 2, 1, 3).reshape(GRID * PIXELS, GRID * PIXELS)
        figure = region_figure(translation.word_attention, (GRID, GRID), translation.words, image)
        save(figure, args.output / f"{model_folder(args, system, seed).name}-{number}.png")


def table(results: Sequence[Result]) -> list[list[str]]:
    """Return a header and one row per system with means over seeds and, in parentheses, their range."""
    scores = ["Captions right, %", "Digits right, %", "Digits in any order, %", "BLEU"]
    rows = [["System", "Seeds", *scores, "Attention on the digit, %", "Elsewhere, %", "Attention on any digit, %"]]
    for system in dict.fromkeys(result.system for result in results):
        group = [result for result in results if result.system == system]
        columns = [
            [100 * result.captions for result in group],
            [100 * result.digits for result in group],
            [100 * result.any_order for result in group],
            [result.bleu for result in group],
            [100 * result.mass for result in group],
            [100 * result.elsewhere for result in group],
            [100 * result.any_digit for result in group],
        ]
        cells = [f"{np.mean(column):.1f} ({min(column):.1f} to {max(column):.1f})" for column in columns]
        rows.append([system, str(len(group)), *cells])
    return rows


def main() -> None:
    """Train and test all systems; the table is rewritten after each of them."""
    args = parse_arguments()
    write_scenes(args.output / "scenes", args.scenes)
    results = []
    text = ""
    for seed in args.seeds:
        for system in args.systems:
            prepared = prepare_once(config_of(args, system, seed), args.output)
            path = model_folder(args, system, seed) / "result.json"
            compute = partial(run_system, args, prepared, system, seed)
            results.append(Result(**cached(path, lambda compute=compute: asdict(compute()))))
            if seed == args.seeds[0]:
                draw(args, prepared.test, system, seed)
            text = as_markdown(table(results))
            write_text(args.output / "table.md", text)
    write_json(args.output / "scenes.json", [asdict(result) for result in results])
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
