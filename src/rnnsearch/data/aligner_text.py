"""The sentence pairs that a word aligner is learned from, and how it is learned from prepared data.

`prepare` learns the aligner at once if the data depend on it or the user calls `rnnsearch prepare`. Before a training
it only stores the pairs (`store`), and `training/run.py` learns it when training has ended (`learn_pending`). Both give
the same aligner. The files `aligner.NAME` are removed when the aligner is complete; they are not in the list of files
in `prepared.json`. Tests: tests/data/test_learned_aligner.py, tests/stress/kills.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rnnsearch.data.preprocess import CleanedText
from rnnsearch.data.split import TRAIN, Parts
from rnnsearch.errors import DataError, RnnsearchError
from rnnsearch.text.alignments import Links
from rnnsearch.utils.files import complete_folder, recover_folder, replacing

if TYPE_CHECKING:
    from rnnsearch.align.aligner import Aligner
    from rnnsearch.config import RunConfig
    from rnnsearch.data.prepared import Prepared

Pairs = Iterator[tuple[str, str]]
"""Source and target sentences, which are read once."""


def sample(cleaned: CleanedText, parts: Parts, max_pairs: int) -> Pairs:
    """Yield at most `max_pairs` training rows, evenly spaced."""
    step = max(1, -(-int((parts == TRAIN).sum()) // max_pairs))
    num_before = 0  # training rows of earlier chunks
    for lines, chunk_parts in cleaned.chunks(parts):
        train_rows = np.flatnonzero(chunk_parts == TRAIN)
        selected = train_rows[-num_before % step :: step]  # the first one continues the step of the last chunk
        num_before += len(train_rows)
        sources = lines.column(0)
        targets = lines.column(1)
        for row in selected.tolist():
            yield sources[row], targets[row]


def learn(pairs: Pairs, dev: Sequence[Sequence[str]], gold: Sequence[Links] | None, normalize: str) -> Aligner:
    """Learn an aligner.

    Args:
        pairs: Source and target sentences.
        dev: Source and target of each dev pair.
        gold: Links of the dev pairs, which determine the threshold, if there are any.
        normalize: Level of normalisation of the text that the aligner reads.

    Raises:
        RnnsearchError: No pair has text in both languages.
    """
    from rnnsearch.align.aligner import Pair, learn_from_pairs  # imports torch

    learned = learn_from_pairs(pairs, normalize)
    if gold is None:
        return learned
    return learned.tuned([Pair.from_words(source, target) for source, target, *_ in dev], gold)


# Text that waits for the end of training.


def paths(folder: Path, languages: Sequence[str]) -> list[Path]:
    """Return the files of prepared data that contain the pairs of an aligner that has not been learned yet."""
    return [folder / f"aligner.{language}" for language in languages]


def store(pairs: Pairs, folder: Path, languages: Sequence[str]) -> None:
    """Write the pairs to a folder of prepared data.

    Raises:
        DataError: None has text in both languages.
    """
    has_text = False
    source_path, target_path = paths(folder, languages)
    with (
        source_path.open("w", encoding="utf-8", newline="\n") as sources,
        target_path.open("w", encoding="utf-8", newline="\n") as targets,
    ):
        for source, target in pairs:
            sources.write(f"{source}\n")
            targets.write(f"{target}\n")
            has_text = has_text or bool(source.strip() and target.strip())
    if not has_text:
        raise DataError("an aligner must be learned from sentence pairs with text on both sides; got none")


def is_pending(prepared: Prepared) -> bool:
    """Return True if prepared data have no aligner yet, but the pairs to learn it from."""
    languages = prepared.facts["sides"]
    return not prepared.has_aligner and all(path.is_file() for path in paths(prepared.folder, languages))


def find_prepared(model: Path, config: RunConfig) -> Path | None:
    """Return the prepared data of a model's run if they have its aligner or the pairs to learn it from, else None."""
    from rnnsearch.align import aligner
    from rnnsearch.data.prepared import DATA_FOLDER

    folders = [model / DATA_FOLDER]
    if config.data.prepared is not None:
        folders = [config.base / config.data.prepared, Path(config.data.prepared)]
    for folder in folders:
        has_text = all(path.is_file() for path in paths(folder, config.data.languages))
        if has_text or complete_folder(folder / aligner.FOLDER).is_dir():
            return folder
    return None


def has_learned_pairs(prepared: Prepared) -> bool:
    """Return True if the pairs are still stored although the aligner has been learned from them."""
    has_pairs = any(file.is_file() for file in paths(prepared.folder, prepared.facts["sides"]))
    return has_pairs and not is_pending(prepared)


def learn_pending(prepared: Prepared) -> Aligner | None:
    """Learn the aligner of prepared data if it is pending, store it there, and return the data's aligner, if any.

    Processes that share the data learn it once. If the folder cannot be written, only the aligner is returned.

    Raises:
        DataError: The pairs are damaged.
    """
    from rnnsearch.align import aligner

    files = paths(prepared.folder, prepared.facts["sides"])
    if not any(file.is_file() for file in files):
        return prepared.aligner
    try:
        with replacing(prepared.folder / "aligner-text"):
            learned = _learn_and_store(prepared, prepared.folder / aligner.FOLDER)
    except OSError:  # a folder without write permission
        return _learn_stored(prepared) if is_pending(prepared) else prepared.aligner
    if prepared.has_aligner:
        # After the lock, so that a process that is killed inside is followed by one that removes its lock.
        for file in files:
            with suppress(OSError):
                file.unlink(missing_ok=True)
    return learned


def _learn_and_store(prepared: Prepared, folder: Path) -> Aligner | None:
    """Learn and store the aligner, unless another process has done so."""
    recover_folder(folder)
    if not is_pending(prepared):
        return prepared.aligner
    learned = _learn_stored(prepared)
    # If it cannot be written, the model folders still get their copy.
    with suppress(RnnsearchError):
        learned.save(folder)
    return learned


def _learn_stored(prepared: Prepared) -> Aligner:
    gold = prepared.links("dev")
    dev = [row.texts for row in prepared.dev] if gold is not None else []
    pairs = _stored_pairs(*paths(prepared.folder, prepared.facts["sides"]))
    return learn(pairs, dev, gold, prepared.target.normalization.level)


def _stored_pairs(source_path: Path, target_path: Path) -> Pairs:
    """Yield the stored pairs.

    Raises:
        DataError: The files are not UTF-8 or differ in their number of lines.
    """
    # Lines end with \n only, not at characters such as U+2028.
    with (
        source_path.open(encoding="utf-8", newline="\n") as sources,
        target_path.open(encoding="utf-8", newline="\n") as targets,
    ):
        try:
            for number, (source, target) in enumerate(zip_longest(sources, targets), 1):
                if source is None or target is None:
                    shorter, longer = (source_path, target_path) if source is None else (target_path, source_path)
                    problem = f"must have as many lines as {longer}; it ends after line {number - 1}"
                    raise DataError(f"{shorter}: {problem} (prepare the corpus again)")
                yield source.removesuffix("\n"), target.removesuffix("\n")
        except UnicodeDecodeError:
            problem = "must be UTF-8; got other bytes (prepare the corpus again)"
            raise DataError(f"{source_path}, {target_path}: {problem}") from None
