"""Adaptation of a trained model to new text: `adapt` trains a copy of it and compares both on held-out pairs.

The new model starts from the old one, keeps its tokenizers, aligner, calibration and candidate lists, and reads new
and old text in equal amounts, so that it does not forget the old text. `cli/adapt.py` calls `adapt` for `rnnsearch
adapt`. The run file and the text of the run are written to the new folder, so that an interrupted adaptation
continues if it is called again, and `rnnsearch train` can repeat it with other options.

docs/results/adaptation.md compares learning rates. Tests: tests/commands/test_adapt.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from rnnsearch import config as run_config
from rnnsearch.config import RunConfig
from rnnsearch.data.corpus import read_rows
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import FACTS_FILE, Prepared
from rnnsearch.data.progress import stage_lines
from rnnsearch.data.split import sentence_key
from rnnsearch.errors import ConfigError, DataError, ModelError
from rnnsearch.evaluation.assess import assess, record
from rnnsearch.systems.ensemble_folder import EXTRA_FILES, copy_files
from rnnsearch.systems.folder import load_system, load_translation_config
from rnnsearch.systems.system import System
from rnnsearch.text.vocabulary import UNK
from rnnsearch.training.progress import Reporter
from rnnsearch.training.run import check, train
from rnnsearch.translator.confidence import CALIBRATION_FILE, learn_calibration
from rnnsearch.translator.loading import load
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.files import write_text

Pair = tuple[str, str]
"""A source sentence and its translation."""

RUN_FILE = "run.toml"
TEXT_FOLDER = "text"

MIN_PAIRS = 20
"""Fewest new pairs to adapt to."""
HELD_OUT_FRACTION = 0.1
"""Part of the new pairs in the dev set, and again in the test set."""
MAX_HELD_OUT_PAIRS = 500
OLD_PAIRS_PER_NEW = 10
"""Old pairs that are stored per new pair; every epoch samples from them."""
MIN_OLD_PAIRS = 2000

LEARNING_RATE_FACTOR = 0.2
"""Learning rate of the adaptation, relative to that of the model's training."""
DEFAULT_LEARNING_RATE = 5e-4
"""Learning rate of Adam for a model that was trained with another optimiser."""
MIN_UPDATES = 300
"""Fewest updates: small text is repeated, within the limits of epochs."""
MIN_EPOCHS = 3
MAX_EPOCHS = 20
WARMUP_FRACTION = 0.05
"""Part of the updates in which the learning rate rises."""
EVALUATIONS = 10
"""Number of evaluations on the dev set, of which the best weights are kept."""


@dataclass(frozen=True)
class AdaptationOptions:
    """Options of an adaptation."""

    old: tuple[str, ...] = ()
    """Old text to mix in, like entries of `data.train`; by default the prepared data in the model's folder."""
    epochs: float | None = None
    """Number of epochs of new and old text; by default it depends on the amount of text."""
    minutes: float | None = None
    """Maximum training time in minutes."""
    settings: tuple[str, ...] = ()
    """Overrides of options of the run file, such as `training.seed=2`."""


class Comparison(NamedTuple):
    """Scores of both models on held-out pairs of one kind of text."""

    text: str
    """Kind of text: new or old."""
    pairs: int
    """Number of held-out pairs."""
    bleu_before: float
    """BLEU of the old model."""
    bleu_after: float
    """BLEU of the new model."""
    chrf_before: float
    """chrF of the old model."""
    chrf_after: float
    """chrF of the new model."""


@dataclass(frozen=True)
class Adaptation:
    """Result of an adaptation."""

    end_reason: str
    """Reason for the end of training."""
    comparisons: tuple[Comparison, ...]
    """Scores on new text and, if there is any, on old text."""


class TextSplit(NamedTuple):
    """Pairs of one kind of text."""

    train: list[Pair]
    """Training pairs, which share no sentence with the others."""
    dev: list[Pair]
    """Pairs that select the best weights."""
    test: list[Pair]
    """Pairs that both models are compared on."""

    def disjoint_from(self, other: TextSplit) -> TextSplit:
        """Return this split without the pairs that share a sentence with another part of the other split."""
        return TextSplit(
            _without_sentences(self.train, other.dev + other.test),
            _without_sentences(self.dev, other.train),
            _without_sentences(self.test, other.train),
        )


def adapt(
    model: Path, pairs: Sequence[str], output: Path, options: AdaptationOptions, reporter: Reporter
) -> Adaptation:
    """Train a copy of a model on new pairs mixed with old ones, and compare both models.

    Args:
        model: Model folder.
        pairs: New text, like entries of `data.train`, relative to the working directory.
        output: Model folder to write. If it has an unfinished adaptation with the same arguments, that continues.
        options: What to mix in, and for how long to train.
        reporter: Receiver of the progress.

    Raises:
        ModelError: The model is an ensemble, or `output` is the model.
        DataError: There are too few new pairs, or a file is missing or invalid.
        ConfigError: An override is invalid.
        TrainingError: `output` has another run.
        Interrupted: After a signal; the state is saved.
    """
    if load_translation_config(model).search.ensemble is not None:
        raise ModelError(f"{model}: is an ensemble; adapt its models one by one, and combine them again")
    if output.resolve() == model.resolve():
        raise ModelError(f"{output}: must be another folder than the model's")
    system = load_system(model)
    _ = system.config.data.single_source  # called for its check
    new = split_pairs(read_pairs(pairs, system.config.data.languages), ", ".join(pairs))
    old = _old_text(model, system, options.old, len(new.train))
    old = old.disjoint_from(new)
    if not old.train:
        reporter.message(
            f"{model} has no prepared data, so no old text is mixed in and the model may forget; name some by --old"
        )
    config = _write_run(model, system, output, new, old, options)
    copy_files(model, output, EXTRA_FILES)  # before training: search.candidates needs its lists
    data = output / "data"
    if (data / FACTS_FILE).is_file():
        prepared = Prepared.open(data, config)
    else:
        prepared = prepare(config, data, progress=stage_lines(reporter.message))
    end_reason = train(config, prepared, output, reporter, resume=True)
    copy_files(model, output, EXTRA_FILES)  # a new run has removed the aligner
    if (model / CALIBRATION_FILE).is_file():
        _calibrate(output, new.dev + old.dev, reporter)
    models = [(folder.name, load(folder)) for folder in (model, output)]
    test_sets = {"new": new.test, "old": old.test}
    compared = [_compare(models, output, name, test) for name, test in test_sets.items() if test]
    return Adaptation(end_reason, tuple(compared))


def read_pairs(specs: Sequence[str], languages: Sequence[str]) -> list[Pair]:
    """Return the distinct complete pairs of files, or raise DataError."""
    pairs: dict[Pair, None] = {}
    for row in read_rows(specs, Path(), 2, languages=languages):
        source, target = (text.strip() for text in row.texts)
        if row.problem is None and source and target:
            pairs[source, target] = None
    return list(pairs)


def split_pairs(pairs: list[Pair], name: str) -> TextSplit:
    """Split new pairs by a hash of their text, so that the same text is always split alike.

    Args:
        pairs: Distinct pairs.
        name: Name of the text in messages.

    Raises:
        DataError: There are too few pairs.
    """
    size = min(MAX_HELD_OUT_PAIRS, int(HELD_OUT_FRACTION * len(pairs)))
    if len(pairs) < MIN_PAIRS:
        raise DataError(f"{name}: must have at least {MIN_PAIRS} distinct sentence pairs to adapt to; got {len(pairs)}")
    ordered = sorted(pairs, key=_hash)
    test, dev = ordered[:size], ordered[size : 2 * size]
    train = _without_sentences(pairs, (*test, *dev))
    dev = _without_sentences(dev, test)
    if not train or not dev:
        raise DataError(f"{name}: the sentence pairs repeat the same sentences, so that none can be held out")
    return TextSplit(train, dev, test)


def _without_sentences(pairs: Iterable[Pair], held_out: Iterable[Pair]) -> list[Pair]:
    """Return the pairs that share no sentence with held-out pairs."""
    keys = {sentence_key(text) for pair in held_out for text in pair}
    return [pair for pair in pairs if keys.isdisjoint(map(sentence_key, pair))]


def _hash(pair: Pair) -> bytes:
    return blake2b("\n".join(pair).encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _old_text(model: Path, system: System[Any], specs: Sequence[str], new_pairs: int) -> TextSplit:
    """Return old text to mix in: of files, of the prepared data of the model, or none."""
    limit = max(MIN_OLD_PAIRS, OLD_PAIRS_PER_NEW * new_pairs)
    if specs:
        old = split_pairs(read_pairs(specs, system.config.data.languages), ", ".join(specs))
        return old._replace(train=sorted(old.train, key=_hash)[:limit])
    data = model / "data"
    if not (data / FACTS_FILE).is_file():
        return TextSplit([], [], [])
    prepared = Prepared.open(data)
    dev = [(row.source, row.target) for row in prepared.dev[:MAX_HELD_OUT_PAIRS]]
    test = [(row.source, row.target) for row in prepared.test[:MAX_HELD_OUT_PAIRS]]
    return TextSplit(_training_pairs(prepared, system, limit), dev, test)


def _training_pairs(prepared: Prepared, system: System[Any], limit: int) -> list[Pair]:
    """Return the text of random training rows, without rows that have unknown tokens."""
    tokenizers = list(system.tokenizers.values())
    indices = np.random.default_rng(1).permutation(len(prepared.train))[:limit]
    pairs: list[Pair] = []
    for index in sorted(indices.tolist()):
        rows = [ids.tolist() for ids in prepared.train.row(index)]
        if any(UNK in ids for ids in rows):
            continue
        source, target = (tokenizer.join(ids) for tokenizer, ids in zip(tokenizers, rows, strict=True))
        pairs.append((source, target))
    return pairs


def _write_run(
    model: Path, system: System[Any], output: Path, new: TextSplit, old: TextSplit, options: AdaptationOptions
) -> RunConfig:
    """Write the text and the run file of an adaptation to its folder, and return its config."""
    languages = system.config.data.languages
    dev = new.dev + old.dev[: len(new.dev)]  # both kinds of text count alike in the choice of the best weights
    files = {"new": new.train, "old": old.train, "dev": dev, "test": new.test}
    for name, pairs in files.items():
        for column, language in enumerate(languages):
            if pairs:
                _write_lines(output / TEXT_FOLDER / f"{name}.{language}", (pair[column] for pair in pairs))
    tables = _run_tables(model, system, new, old, options)
    path = output / RUN_FILE
    text = f"# Adaptation of {model} (rnnsearch adapt).\n{tomli_w.dumps(tables)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    config = run_config.load(path, options.settings)
    if problems := check(config):
        raise ConfigError([f"{path}: {problem}" for problem in problems])
    return config


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in lines))


def _run_tables(
    model: Path, system: System[Any], new: TextSplit, old: TextSplit, options: AdaptationOptions
) -> dict[str, Any]:
    """Return the run file of an adaptation: the model's own, with other text and another schedule."""
    config = system.config
    tables = config.model_dump(mode="json", exclude_none=True)
    source, target = config.data.languages
    files = {name: f"{TEXT_FOLDER}/{name}.{source}|{TEXT_FOLDER}/{name}.{target}" for name in ("new", "old", "dev")}
    kept = {name: value for name, value in tables["data"].items() if name in ("tag", "cleaning")}
    train = [files["new"]]
    weights = [1.0]
    if old.train:
        train.append(files["old"])
        weights.append(min(1.0, max(0.001, len(new.train) / len(old.train))))
    test = f"{TEXT_FOLDER}/test.{source}|{TEXT_FOLDER}/test.{target}"
    tables["data"] = {"source": source, "target": target, "train": train, "weights": weights, "dev": files["dev"]}
    tables["data"] |= {"test": test, "aligner": False, **kept}
    learned = ("vocabulary", "target_vocabulary", "joint", "side_min_count", "min_count", "inline_terms")
    text = {name: value for name, value in tables["text"].items() if name not in learned}
    tables["text"] = text | {"tokenizers": str(model.resolve())}
    used = new.train + old.train[: len(new.train)]
    tables["training"] = _training_table(config, system, used, options) | {"begin_from": str(model.resolve())}
    tables["folder"] = "."
    tables.pop("name", None)
    return tables


def _training_table(
    config: RunConfig, system: System[Any], pairs: list[Pair], options: AdaptationOptions
) -> dict[str, Any]:
    """Return `[training]` for the pairs of one epoch, with warm-up and epochs scaled to their number."""
    training = config.training.model_dump(mode="json", exclude_none=True)
    limits = ("patience", "max_updates", "max_minutes", "checkpoint_every", "average", "evaluate_every")
    dropped = (*limits, "keep_zeros", "transfer")
    table = {name: value for name, value in training.items() if name not in dropped}
    updates_per_epoch = max(1, round(len(pairs) / _sentences_per_update(config, system, pairs)))
    epochs = options.epochs or min(MAX_EPOCHS, max(MIN_EPOCHS, math.ceil(MIN_UPDATES / updates_per_epoch)))
    updates = max(1, round(epochs * updates_per_epoch))
    optimiser = training["optimiser"]
    if optimiser["type"] in ("adam", "adamw"):
        optimiser = optimiser | {"learning_rate": LEARNING_RATE_FACTOR * optimiser["learning_rate"]}
    else:
        optimiser = {"type": "adam", "learning_rate": DEFAULT_LEARNING_RATE}
    table |= {
        "optimiser": optimiser,
        "schedule": {"type": "linear", "warmup": max(1, round(WARMUP_FRACTION * updates))},
        "max_epochs": float(epochs),
        "evaluate_every": max(1, updates // EVALUATIONS),
        "metric": "nll",
        "dev_bleu": False,
    }
    if options.minutes is not None:
        table["max_minutes"] = options.minutes
    return table


def _sentences_per_update(config: RunConfig, system: System[Any], pairs: list[Pair]) -> float:
    """Return the mean number of sentences in the batches of an update."""
    batch = config.training.batch
    if batch.sentences is not None:
        return float(batch.sentences * batch.accumulate)
    assert batch.tokens is not None
    sample = pairs[:: max(1, len(pairs) // 1000)]
    columns = zip(system.tokenizers.values(), _columns(sample), strict=True)
    ids = [tokenizer.ids(texts) for tokenizer, texts in columns]
    lengths = [max(map(len, row)) + 1 for row in zip(*ids, strict=True)]  # with EOS
    return batch.tokens * batch.accumulate / (sum(lengths) / len(lengths))


def _calibrate(folder: Path, pairs: list[Pair], reporter: Reporter) -> None:
    """Calibrate the new model: the old calibration is valid for the old weights only."""
    sources, references = _columns(pairs)
    try:
        learn_calibration(load(folder).translate(sources), references).save(folder / CALIBRATION_FILE)
    except DataError as error:
        reporter.message(f"the new model is not calibrated: {error}")


def _columns(pairs: list[Pair]) -> tuple[list[str], list[str]]:
    """Return the source sentences and their translations."""
    return [source for source, _ in pairs], [target for _, target in pairs]


def _compare(models: Sequence[tuple[str, Translator]], output: Path, name: str, pairs: list[Pair]) -> Comparison:
    """Score the old and the new model on held-out pairs, and add the scores of the new one to its card."""
    sources, references = _columns(pairs)
    scores: list[dict[str, float]] = []
    for folder_name, translator in models:
        assessment = assess(translator, sources, references, folder_name)
        scores.append({score.name: score.value for score in assessment.evaluation.scores})
    record(output, assessment, f"{name} text held out by rnnsearch adapt")
    before, after = scores
    return Comparison(name, len(pairs), before["BLEU"], after["BLEU"], before["chrF2"], after["chrF2"])
