"""Turning a corpus into a folder of ids: cleaned, split, segmented and written as a stream, on all cores.

The text passes through in chunks (`passes.py`), worked on in any number of processes and put down in order, so that
the folder is the same to the byte whatever their number. Between the passes the cleaned text lies on disk, and so do
the hashes that tell duplicates; besides dev, test and the counts of different words, memory holds some bytes a pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rnnsearch.align import aligner
from rnnsearch.align.aligner import Aligner, Pair, learn_aligner
from rnnsearch.config import DataConfig, RunConfig, TextConfig
from rnnsearch.config.data import TextType
from rnnsearch.data.cleaning import DUPLICATE, EXAMPLES, Tally, first_of_each
from rnnsearch.data.corpora import catalog
from rnnsearch.data.corpora.download import Progress
from rnnsearch.data.corpus import check_files
from rnnsearch.data.held_out import HeldOut
from rnnsearch.data.prepared import (
    COUNTS,
    DOCUMENT_TYPE,
    DOCUMENTS,
    FACTS,
    FORMAT,
    REPORT,
    Prepared,
    prepared_tokenizer,
    settings_of,
    unknown_words,
    write_counts,
)
from rnnsearch.data.preprocess import Cells, CleanedText, KeyTable, Linking, Rules, count, encode, id_type
from rnnsearch.data.ragged import RaggedFile
from rnnsearch.data.split import (
    HELD_OUT,
    LEFT_OUT,
    PARTS,
    TRAIN,
    Keys,
    Part,
    Parts,
    document_keys,
    split,
    split_documents,
)
from rnnsearch.data.workers import Pool, Workers, cores
from rnnsearch.errors import ConfigError, DataError, did_you_mean
from rnnsearch.text.alignments import parse_pharaoh
from rnnsearch.text.annotation import annotated_symbols
from rnnsearch.text.languages import require_identified
from rnnsearch.text.subwords import LARGEST, bpe_from_counts, characters_from_counts, fitting_size, without_rare
from rnnsearch.text.tokenizer import Tokenizer, tokenizer_file
from rnnsearch.text.unigram import require_learner, unigram_from_counts
from rnnsearch.text.words import count_words_in, forget_rare, words_from_counts
from rnnsearch.utils.files import atomic_folder, write_json

SMALL = 20
"""Of a small corpus one pair in so many is split off for dev, and as many for test, where no number is given."""

MAKE = {
    "words": words_from_counts,
    "bpe": bpe_from_counts,
    "unigram": unigram_from_counts,
    "characters": characters_from_counts,
}
"""From the stretches between spaces to a tokenizer, of `[text] type`."""


def prepare(
    config: RunConfig,
    folder: Path,
    cache: Path | None = None,
    progress: Progress | None = None,
    processes: int | None = None,
    workers: Workers | None = None,
) -> Prepared:
    """Prepare the config's corpus into `folder`, replacing what was prepared there before, and open it.

    A listed corpus is fetched first where it is not in the cache (`progress` then hears of the bytes).
    The work is shared out among `processes`, as many as there are cores if not given; a small corpus takes one. Or
    `workers` do it.
    Nothing changes in `folder` until all is written.
    Errors: ConfigError for an unfit `[data]` or `[text]`; DataError for missing files, different line
    counts, no pair left, too few sentences to split, a folder that holds something else;
    RnnsearchError for a full disk.
    """
    if config.text.joint and "words" in config.text.types:
        raise ConfigError(['text.joint: has no effect with text.type = "words"; remove it'])
    if "unigram" in config.text.types:
        require_learner()
    if config.data.cleaning.language_id:
        require_identified(config.data.languages)
    if config.data.alignments is not None and len(config.data.languages) != 2:
        raise ConfigError([f"data.alignments: must be of two sides; got {len(config.data.languages)}"])
    if config.data.train == []:  # as an imported model has it
        raise ConfigError(["data.train: must name at least one file; got none"])
    if folder.exists() and not (folder / FACTS).exists() and any(folder.iterdir()):
        raise DataError(f"{folder}: must be a new folder or one of prepared data; got one with other files")
    source = _source(config, cache, progress)
    check_files([source.base / name for name in files_of(source.data)])
    with atomic_folder(folder) as temporary, Pool(processes or cores()) as pool:
        facts = _write(config, source, temporary, workers or pool)
        every = sorted(file for file in temporary.rglob("*") if file.is_file())
        files = {file.relative_to(temporary).as_posix(): file.stat().st_size for file in every}
        write_json(temporary / FACTS, facts | {"files": files})
    return Prepared.open(folder)


class _Source(NamedTuple):
    """`[data]` with the files that the text comes from, the folder that they are in, and the facts about them."""

    data: DataConfig
    base: Path
    facts: dict[str, Any]


def _source(config: RunConfig, cache: Path | None, progress: Progress | None) -> _Source:
    data = config.data
    if data.corpus is None:
        return _Source(data, config.base, {"corpus": ", ".join(data.train or [])})
    corpus = catalog.find(data.corpus)
    if data.languages != (corpus.source, corpus.target):
        wanted = f'must be "{corpus.source}" and "{corpus.target}", the languages of {corpus.name}'
        mirrored = "-".join((corpus.name.partition("-")[0], *data.languages))
        hint = did_you_mean(mirrored, [mirrored]) if mirrored in catalog.CORPORA else ""
        got = " and ".join(f'"{side}"' for side in data.languages)
        raise ConfigError([f"data.source, data.target: {wanted}; got {got}{hint}"])
    files: dict[str, Any] = {part: f"{part}.{corpus.source}|{part}.{corpus.target}" for part in HELD_OUT}
    files["train"] = [f"train.{corpus.source}|train.{corpus.target}"]
    if corpus.aligned:
        files |= {f"{part}_alignments": f"{part}.align" for part in HELD_OUT}
        files["alignments"] = data.alignments or ["train.align"]
    facts = {"corpus": corpus.name, "licence": corpus.licence, "attribution": corpus.attribution}
    return _Source(data.model_copy(update=files), catalog.get(corpus.name, cache, progress), facts)


def _given(source: _Source) -> dict[Part, HeldOut]:
    data = source.data
    files = {"dev": (data.dev, data.dev_alignments), "test": (data.test, data.test_alignments)}
    return {part: HeldOut.read(part, spec, links, data, source.base) for part, (spec, links) in files.items() if spec}


def files_of(data: DataConfig) -> list[str]:
    """All files that `[data]` names."""
    single = (data.dev, data.test, data.dev_alignments, data.test_alignments)
    specs = [*(data.train or []), *(data.alignment_files or []), *(spec for spec in single if spec)]
    return [name for spec in specs for part in spec.split("|") if (name := part.strip())]


def _write(config: RunConfig, source: _Source, folder: Path, workers: Workers) -> dict[str, Any]:
    """Write all files but prepared.json, and return what it is to say."""
    data, documents = source.data, source.data.documents
    given = _given(source)
    wanted = dict(zip(HELD_OUT, (data.dev_size, data.test_size), strict=True))
    splits = any(size for part, size in wanted.items() if part not in given)
    rules = Rules(data.languages, data.cleaning, splits, documents)
    with CleanedText(folder, rules, aligned=data.alignment_files is not None) as cleaned:
        tally = cleaned.read(data.train or [], source.base, data.alignment_files, workers)
        keys = cleaned.keys()
        kept = _without_duplicates(data, cleaned, keys, tally)
        if not kept.any():
            raise DataError(f"no sentence pair is left for training in {source.facts['corpus']}: {tally.summary()}")
        whole = ~cleaned.of_files(data.files_without_source)
        sizes = _sizes(data, {part: 0 if part in given else size for part, size in wanted.items()}, kept & whole)
        parts, shared = _parts(keys, kept, sizes, documents)
        stretches, split_off, digest = _count(cleaned, parts, keys["document"], given, workers)
        rows, pairs_of_files = int((parts == TRAIN).sum()), cleaned.rows_of_files(parts == TRAIN)
        if not rows:
            raise DataError("no training pair is left beside dev and test (lower data.dev_size and data.test_size)")
        tokenizers = _tokenizers(config.text, dict(zip(data.languages, stretches, strict=True)), config.base, folder)
        write_counts(folder / COUNTS, count_words_in(stretches[-1]))
        if data.aligner and len(data.languages) == 2:
            learned = _learn_aligner(cleaned, np.where(whole, parts, LEFT_OUT), (given | split_off).get("dev"), workers)
            learned.save(folder / aligner.FOLDER)
        aligned = cleaned.aligned or data.alignments == "aligner"
        wanted_links = not cleaned.aligned and (aligned or config.text.annotation is not None)
        finder = Aligner.load(folder / aligner.FOLDER) if wanted_links else None
        linking = Linking(finder, aligned, config.text, copied=data.target_only == "copied")
        facts = _write_ids(cleaned, parts, tokenizers, linking, folder, workers)
        if data.target_only == "null":
            facts["lacking"][data.single_source] = 0  # which is there, with nothing in it but its end
        if documents:
            _write_documents(keys[["document", "place"]][parts == TRAIN], folder / DOCUMENTS)
    write_json(folder / REPORT, tally.report())
    held_out = given | split_off
    for held in held_out.values():
        held.write(folder, (*data.languages, "align"), documents)
    warnings = tally.warnings()
    if shared:
        told = "training pairs share a sentence with the documents split off, so scores on those are too good"
        warnings.append(f"{shared} {told}")
    return {
        "format": FORMAT,
        "sides": list(data.languages),
        **source.facts,
        "sha256": digest,
        "aligned": aligned,
        "documents": documents,
        "pairs": rows,
        "pairs_of_files": pairs_of_files,
        **{part: len(held_out[part].rows) if part in held_out else 0 for part in HELD_OUT},
        **facts,
        "vocabulary": {side: len(tokenizer) for side, tokenizer in tokenizers.items()},
        "cleaning": tally.report(examples=False),
        "left_out_by_split": int((kept & (parts == LEFT_OUT)).sum()),
        "warnings": warnings + [warning for held in given.values() for warning in held.warnings()],
        "settings": settings_of(config),
        "inputs": {name: (config.base / name).stat().st_size for name in files_of(config.data)},
    }


def _without_duplicates(data: DataConfig, cleaned: CleanedText, keys: KeyTable, tally: Tally) -> npt.NDArray[np.bool_]:
    """Which cleaned rows are the first of their like, or in documents that are; the others are counted."""
    if not data.cleaning.drop_duplicates:
        return np.ones(len(keys), dtype=bool)
    if data.documents:
        of_documents, begins = document_keys(keys["row"], keys["document"])
        kept = np.repeat(first_of_each(of_documents), np.diff(begins, append=len(keys)))
    else:
        kept = first_of_each(keys["row"])
    repeated = np.flatnonzero(~kept)
    for place in repeated[:EXAMPLES].tolist():
        tally.reject(DUPLICATE, cleaned.row(place, int(keys["line"][place])))
    if len(repeated) > EXAMPLES:
        tally.rejected[DUPLICATE] = len(repeated)
    return kept


def _sizes(data: DataConfig, wanted: Mapping[Part, int], usable: npt.NDArray[np.bool_]) -> list[int]:
    """How many rows are split off for each part; of a small corpus fewer than usual, where the run file says none."""
    fewest = max(1, int(usable.sum()) // SMALL)
    told = data.model_fields_set
    return [size if f"{part}_size" in told else min(size, fewest) for part, size in wanted.items()]


def _parts(keys: KeyTable, kept: npt.NDArray[np.bool_], sizes: Sequence[int], documents: bool) -> tuple[Parts, int]:
    """The part of each cleaned row, duplicates having none; and how many training rows of documents share a sentence
    with what is held out."""
    parts = np.where(kept, TRAIN, LEFT_OUT).astype(np.uint8)
    if not any(sizes):
        return parts, 0
    own = Keys(keys["sentences"][kept].astype(np.uint64), keys["rank"][kept].astype(np.uint64))
    if not documents:
        parts[kept] = split(own, sizes[0], sizes[1])
        return parts, 0
    parts[kept] = found = split_documents(own, keys["document"][kept], sizes[0], sizes[1])
    return parts, int((own.shared(own.sentences[found > TRAIN]) & (found == TRAIN)).sum())


def _count(
    cleaned: CleanedText,
    parts: Parts,
    documents: npt.NDArray[np.uint32],
    given: dict[Part, HeldOut],
    workers: Workers,
) -> tuple[list[Counter[str]], dict[Part, HeldOut], str]:
    """The stretches of each side of the training text, what the split holds out, and the corpus's digest."""
    sides = len(cleaned.rules.languages)
    digest, stretches, held = sha256(), [Counter[str]() for _ in range(sides)], dict[Part, list[Cells]]()
    sets = [held_out.sentences(sides) for held_out in given.values()]
    for found in workers.map(count, cleaned.chunks(parts), (sets, sides)):
        digest.update(found.text)
        for counts, more in zip(stretches, found.stretches, strict=True):
            counts.update(more)
            forget_rare(counts)
        for part, rows in found.held.items():
            held.setdefault(part, []).extend(rows)
        for held_out, shared in zip(given.values(), found.shared, strict=True):
            held_out.shared += shared
    numbers = {part: documents[parts == PARTS.index(part)] for part in held}
    split_off = {part: HeldOut(part, rows, numbers[part]) for part, rows in held.items() if rows}
    return stretches, split_off, digest.hexdigest()


def _tokenizers(
    config: TextConfig, stretches: dict[str, Counter[str]], base: Path, folder: Path
) -> dict[str, Tokenizer]:
    """The sides' tokenizers, saved; the last is the target's."""
    fitting, (*sources, target) = fitting_size([*stretches.values()]), stretches

    def made(kind: TextType, counts: Counter[str], given: int | None) -> Tokenizer:
        usual = fitting if kind in ("bpe", "unigram") else LARGEST
        return MAKE[kind](counts, usual if given is None else given, config.min_count)

    of_sources, of_target = config.types
    if config.tokenizers is not None:
        tokenizers = _as_in(base / config.tokenizers, dict.fromkeys(sources, of_sources) | {target: of_target})
    elif config.joint:
        joint = made(of_target, sum(stretches.values(), Counter()), config.vocabulary)
        tokenizers = dict.fromkeys(stretches, joint)
        if least := config.side_min_count:
            tokenizers = {side: without_rare(joint, counts, least) for side, counts in stretches.items()}
    else:
        tokenizers = {side: made(of_sources, stretches[side], config.vocabulary) for side in sources}
        tokenizers[target] = made(of_target, stretches[target], config.target_vocabulary or config.vocabulary)
    for sides, added in zip((sources, [target]), annotated_symbols(config), strict=True):
        tokenizers |= {side: tokenizers[side].with_marks(added) for side in sides if added}
    for side, tokenizer in tokenizers.items():
        tokenizer.save(folder / prepared_tokenizer(side))
    return tokenizers


def _as_in(folder: Path, kinds: Mapping[str, TextType]) -> dict[str, Tokenizer]:
    """The tokenizers of a model folder, by side. Errors: DataError where it lacks one; ConfigError for another
    type.
    """
    found = {}
    for side, kind in kinds.items():
        path = folder / tokenizer_file(side)
        if not path.is_file():
            raise DataError(f"{folder}: must be a model folder with a tokenizer of {side} (text.tokenizers); got none")
        found[side] = Tokenizer.load(path)
        if found[side].type != kind:
            raise ConfigError([f'text.type: must be "{found[side].type}", as {side} is in {folder}; got "{kind}"'])
    return found


def _write_ids(
    cleaned: CleanedText,
    parts: Parts,
    tokenizers: dict[str, Tokenizer],
    linking: Linking,
    folder: Path,
    workers: Workers,
) -> dict[str, Any]:
    """Segment the training text into the files of ids and links; returns the facts about them."""
    saved = tuple(Tokenizer.load(folder / prepared_tokenizer(side)) for side in tokenizers)
    spelled = [side for side, tokenizer in tokenizers.items() if tokenizer.type == "words"]
    names = [
        *(f"train.{side}.ids" for side in tokenizers),
        *map(unknown_words, spelled),
        *["train.links"] * linking.kept,
    ]
    unknown, lacking = np.zeros((len(tokenizers), 2), dtype=np.int64), np.zeros(len(tokenizers), dtype=np.int64)
    with ExitStack() as stack:
        files = [stack.enter_context(RaggedFile(folder / name)) for name in names]
        for columns, more in workers.map(encode, cleaned.chunks(parts), (saved, linking)):
            for file, (values, lengths) in zip(files, columns, strict=True):
                file.add(values, lengths)
            unknown += more
            lacking += [np.count_nonzero(lengths == 0) for _, lengths in columns[: len(tokenizers)]]
    facts: dict[str, Any] = {
        "dtypes": {side: id_type(tokenizer).str for side, tokenizer in tokenizers.items()},
        "symbols": {side: file.total for side, file in zip(tokenizers, files, strict=False)},
        "unknown": {side: n / max(total, 1) for side, (n, total) in zip(tokenizers, unknown.tolist(), strict=True)},
        "lacking": dict(zip(tokenizers, lacking.tolist(), strict=True)),
        "spelled": spelled,
    }
    return facts | ({"links": files[-1].total} if linking.kept else {})


def _learn_aligner(cleaned: CleanedText, parts: Parts, dev: HeldOut | None, workers: Workers) -> Aligner:
    """An aligner of `aligner.ROWS` training rows at most, at even distances; by the dev set's links, where it has
    any, its threshold is chosen."""
    step, before = max(1, -(-int((parts == TRAIN).sum()) // aligner.MAX_PAIRS)), 0
    texts: tuple[list[str], list[str]] = ([], [])
    for lines, own in cleaned.chunks(parts):
        wanted = np.flatnonzero(own == TRAIN)[-before % step :: step]
        before += int((own == TRAIN).sum())
        for side, kept in enumerate(texts):
            column = lines.column(side)
            kept.extend(column[n] for n in wanted)
    learned = learn_aligner(*texts, partial(workers.map, alone=True))
    if dev is None or not dev.aligned:
        return learned
    pairs = [Pair.from_words(source, target) for source, target, _ in dev.rows]
    return learned.tuned(pairs, [parse_pharaoh(row[2], dev.part) for row in dev.rows])


def _write_documents(table: npt.NDArray[Any], path: Path) -> None:
    """The number of each training row's document, without gaps, and its place there."""
    numbers = np.cumsum(np.diff(table["document"], prepend=table["document"][:1]) > 0)
    np.stack([numbers, table["place"]], axis=1).astype(DOCUMENT_TYPE).tofile(path)
