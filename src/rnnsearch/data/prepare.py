"""Preparation of a corpus: read, clean, split, learn tokenizers, segment, and write a folder of ids.

`rnnsearch prepare` and `train` call `prepare`; `prepared.Prepared` opens its result. The text passes through in
chunks (`preprocess.py`) that any number of processes work on. Chunks are written in order, so the folder is byte for
byte the same for any number of processes. Between the passes, cleaned text and the hashes of rows are on disk; memory
holds dev, test, the counts of distinct words and a few bytes per pair.

`bulk/prepare.py` runs the same passes on other machines. The content depends only on the config and its files;
`prepared.json` contains a SHA-256 of the training text, with which a resumed run recognises its corpus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rnnsearch.align import aligner
from rnnsearch.align.aligner import Aligner
from rnnsearch.config import DataConfig, RunConfig, TextConfig
from rnnsearch.config.data import TextType
from rnnsearch.data import aligner_text, prepared
from rnnsearch.data.arrays import SUFFIX, ArrayFiles, ArrayWriter
from rnnsearch.data.cleaning import DUPLICATE, MAX_EXAMPLES, Tally, first_occurrences
from rnnsearch.data.corpora import catalog
from rnnsearch.data.corpus import check_files
from rnnsearch.data.held_out import HeldOut
from rnnsearch.data.language_check import language_warnings
from rnnsearch.data.preprocess import Cells, CleanedText, CleaningRules, KeyTable, LinkOptions, count, encode, id_dtype
from rnnsearch.data.progress import Progress, ignore, with_progress
from rnnsearch.data.ragged import RaggedFile
from rnnsearch.data.split import (
    HELD_OUT,
    LEFT_OUT,
    PARTS,
    TRAIN,
    Part,
    Parts,
    SplitKeys,
    document_keys,
    split,
    split_documents,
)
from rnnsearch.data.workers import Pool, Workers, cores
from rnnsearch.errors import ConfigError, DataError, did_you_mean
from rnnsearch.text.alignments import parse_pharaoh
from rnnsearch.text.annotation import annotation_tokens
from rnnsearch.text.languages import require_identifiable
from rnnsearch.text.normalization import NONE, Normalization
from rnnsearch.text.subwords import (
    DEFAULT_VOCABULARY,
    bpe_from_counts,
    characters_from_counts,
    default_vocabulary_size,
    without_rare,
)
from rnnsearch.text.tokenizer import Tokenizer, tokenizer_file
from rnnsearch.text.unigram import require_sentencepiece, unigram_from_counts
from rnnsearch.text.words import prune_counts, words_from_counts, words_in_chunks
from rnnsearch.utils.files import atomic_folder, write_json

SMALL_CORPUS_PAIRS_PER_HELD_OUT_PAIR = 20
"""Pairs per dev pair, and per test pair, in a corpus too small for the default sizes."""

READING = "reading and cleaning"
COUNTING = "counting words"
TOKENIZING = "learning the tokenizers"
ALIGNING = "learning the word aligner"
WRITING = "writing ids"
CHECKING = "checking the languages"
STAGES = (READING, COUNTING, TOKENIZING, ALIGNING, WRITING, CHECKING)
"""Names of the stages, in order, as shown to the user."""

TOKENIZERS_FROM_COUNTS = {
    "words": words_from_counts,
    "bpe": bpe_from_counts,
    "unigram": unigram_from_counts,
    "characters": characters_from_counts,
}
"""Functions that learn a tokenizer from counts of text chunks between spaces, by `[text] type`."""


def prepare(
    config: RunConfig,
    folder: Path,
    cache: Path | None = None,
    progress: Progress = ignore,
    processes: int | None = None,
    workers: Workers | None = None,
    learn_aligner: bool = True,
) -> prepared.Prepared:
    """Prepare the config's corpus in `folder`, which replaces earlier prepared data there, and open it.

    `folder` does not change until everything is written.

    Args:
        config: Run file.
        folder: New folder, or one of prepared data.
        cache: Folder of downloaded corpora. A listed corpus that it does not have is downloaded.
        progress: Called at the start of each stage, after each chunk of text, and during downloads.
        processes: Number of processes; by default one per core. A small corpus takes one.
        workers: Run the tasks instead of new processes.
        learn_aligner: Learn the word aligner now, if `[data] aligner` is set. Otherwise store its text, from which
            `aligner_text.learn_pending` learns it later, unless the data contain its links.

    Raises:
        ConfigError: `[data]` or `[text]` is invalid.
        DataError: A file is missing, line counts differ, no pair is left, there are too few sentences to split, or
            the folder holds something else.
        RnnsearchError: The disk is full.
    """
    if config.text.joint and "words" in config.text.types:
        raise ConfigError(['text.joint: has no effect with text.type = "words"; remove it'])
    if "unigram" in config.text.types:
        require_sentencepiece()
    if config.data.cleaning.language_id:
        require_identifiable(config.data.text_languages)
    if config.data.alignments is not None and not config.data.is_bilingual:
        raise ConfigError([f"data.alignments: must be used with two languages; got {len(config.data.text_languages)}"])
    if config.data.train == []:  # imported models have no corpus
        raise ConfigError(["data.train: must name at least one file; got none"])
    if folder.exists() and not (folder / prepared.FACTS_FILE).exists() and any(folder.iterdir()):
        raise DataError(f"{folder}: must be a new folder or one of prepared data; got one with other files")
    corpus = _corpus_files(config, cache, progress)
    check_files([corpus.base / name for name in data_files(corpus.data)])
    with atomic_folder(folder) as temporary, Pool(processes or cores()) as pool:
        facts = _write(config, corpus, temporary, workers or pool, progress, learn_aligner)
        progress(CHECKING, 0, None, "")
        facts["warnings"] += language_warnings(corpus.data, corpus.base)
        # Not the aligner's text, which is removed later.
        pending = aligner_text.paths(temporary, config.data.languages)
        paths = sorted(path for path in temporary.rglob("*") if path.is_file() and path not in pending)
        files = {path.relative_to(temporary).as_posix(): path.stat().st_size for path in paths}
        # Last, with the sizes of all other files, by which `Prepared.open` notices truncated ones.
        write_json(temporary / prepared.FACTS_FILE, facts | {"files": files})
    return prepared.Prepared.open(folder)


def data_files(data: DataConfig) -> list[str]:
    """Return the names of all files that `[data]` refers to, except files of the ends of arrays."""
    held_out = (data.dev, data.test, data.dev_alignments, data.test_alignments)
    specs = [*(data.train or []), *(data.alignment_files or []), *(spec for spec in held_out if spec)]
    return [name for spec in specs for part in spec.split("|") if (name := part.strip())]


class _CorpusFiles(NamedTuple):
    """Files that the text comes from."""

    data: DataConfig
    """`[data]`, with the names of the files."""
    base: Path
    """Folder that the names are relative to."""
    facts: dict[str, Any]
    """Name, licence and attribution, for prepared.json."""


def _corpus_files(config: RunConfig, cache: Path | None, progress: Progress) -> _CorpusFiles:
    """Return the files of the config's corpus; download a listed corpus if it is not in the cache."""
    data = config.data
    if data.corpus is None:
        return _CorpusFiles(data, config.base, {"corpus": ", ".join(data.train or [])})
    corpus = catalog.find(data.corpus)
    if data.languages != (corpus.source, corpus.target):
        wanted = f'must be "{corpus.source}" and "{corpus.target}", the languages of {corpus.name}'
        mirrored = "-".join((corpus.name.partition("-")[0], *data.languages))
        hint = did_you_mean(mirrored, [mirrored]) if mirrored in catalog.CORPORA else ""
        got = " and ".join(f'"{language}"' for language in data.languages)
        raise ConfigError([f"data.source, data.target: {wanted}; got {got}{hint}"])
    files: dict[str, Any] = {part: f"{part}.{corpus.source}|{part}.{corpus.target}" for part in HELD_OUT}
    files["train"] = [f"train.{corpus.source}|train.{corpus.target}"]
    if corpus.aligned:
        files |= {f"{part}_alignments": f"{part}.align" for part in HELD_OUT}
        files["alignments"] = data.alignments or ["train.align"]
    facts = {"corpus": corpus.name, "licence": corpus.licence, "attribution": corpus.attribution}
    stage = f"fetching {corpus.name}"
    progress(stage, 0, None, "")
    folder = catalog.get(corpus.name, cache, lambda done, total: progress(stage, done, total, "bytes"))
    return _CorpusFiles(data.model_copy(update=files), folder, facts)


def _write(
    config: RunConfig, corpus: _CorpusFiles, folder: Path, workers: Workers, progress: Progress, learn_aligner: bool
) -> dict[str, Any]:
    """Write all files except prepared.json and return the content of that."""
    data = corpus.data
    progress(READING, 0, None, "pairs")
    from_files = _read_held_out(corpus)
    sizes = {"dev": data.dev_size, "test": data.test_size}
    for part in from_files:
        sizes[part] = 0  # not split off
    rules = CleaningRules(data.languages, data.cleaning, any(sizes.values()), data.documents, data.arrays or {})
    with CleanedText(folder, rules, aligned=data.alignment_files is not None) as cleaned:
        # First pass: clean, then find duplicates and split by the hashes of rows.
        tally = cleaned.read(
            data.train or [],
            corpus.base,
            data.alignment_files,
            workers,
            lambda num_read: progress(READING, num_read, None, "pairs"),
        )
        rows = _split_rows(corpus, cleaned, tally, sizes)
        # Second pass: count words, then learn tokenizers and the aligner.
        normalize = _normalization_level(config)
        text_chunks, split_off, digest = _count(
            cleaned, rows.parts, rows.keys["document"], from_files, normalize, workers, progress
        )
        held_out = from_files | split_off
        pairs_per_file = cleaned.count_rows_per_file(rows.is_train)
        if not rows.is_train.any():
            wanted = "no training pair is left after dev and test are split off"
            raise DataError(f"{wanted} (lower data.dev_size and data.test_size)")
        progress(TOKENIZING, 0, None, "")
        text_chunks_of = dict(zip(data.languages, text_chunks, strict=True))
        texts = {language: text_chunks_of[language] for language in data.text_languages}
        tokenizers = _learn_tokenizers(config.text, texts, config.base, folder)
        prepared.write_word_counts(folder / prepared.WORD_COUNTS_FILE, words_in_chunks(text_chunks[-1]))
        if data.aligner and data.is_bilingual:
            # Rows with a copied or empty source would teach wrong translations.
            usable_parts = np.where(rows.is_parallel, rows.parts, LEFT_OUT)
            pairs = aligner_text.sample(cleaned, usable_parts, aligner.MAX_PAIRS)
            if learn_aligner or _needs_aligner(config, cleaned.aligned):
                progress(ALIGNING, 0, None, "")
                learned = _learn_aligner(pairs, held_out.get("dev"), normalize)
                learned.save(folder / aligner.FOLDER)
            else:
                aligner_text.store(pairs, folder, data.languages)
        # Third pass: segment into ids.
        linking = _link_options(config, data, cleaned.aligned, folder)
        facts = _write_ids(cleaned, rows.parts, tokenizers, linking, folder, workers, progress)
        arrays, digest = _write_arrays(cleaned, rows.parts, corpus.base, folder, digest)
        facts["lacking"] |= {name: written["missing"] for name, written in arrays.items()}
        if data.documents:
            _write_documents(rows.keys[["document", "position"]][rows.is_train], folder / prepared.DOCUMENTS_FILE)
    if data.target_only == "null":
        facts["lacking"][data.single_source] = 0  # the source is present: an empty sentence with EOS
    write_json(folder / prepared.REPORT_FILE, tally.report())
    for part_rows in held_out.values():
        part_rows.write(folder, (*data.languages, "align"), data.documents, data.arrays, corpus.base)
    return {
        "format": prepared.ARRAYS_FORMAT if arrays else prepared.FORMAT,
        "sides": list(data.languages),
        **corpus.facts,
        "sha256": digest,
        "aligned": linking.store_links,
        "documents": data.documents,
        "pairs": int(rows.is_train.sum()),
        "pairs_of_files": pairs_per_file,
        **{part: len(held_out[part].rows) if part in held_out else 0 for part in HELD_OUT},
        **facts,
        **({"arrays": arrays} if arrays else {}),
        "vocabulary": {language: len(tokenizer) for language, tokenizer in tokenizers.items()},
        "cleaning": tally.report(examples=False),
        "left_out_by_split": int((rows.is_unique & (rows.parts == LEFT_OUT)).sum()),
        "warnings": _warnings(tally, rows, from_files),
        "settings": prepared.data_settings(config),
        "inputs": {name: (config.base / name).stat().st_size for name in data_files(config.data)},
    }


class _SplitRows(NamedTuple):
    """The rows of the cleaned text; arrays have one entry per row."""

    keys: KeyTable
    """Hashes and origins."""
    is_unique: npt.NDArray[np.bool_]
    """True for rows that do not repeat an earlier one."""
    is_parallel: npt.NDArray[np.bool_]
    """True for rows of files in several languages, False for text in one language only."""
    parts: Parts
    """Part that each row belongs to."""
    shared: int
    """Number of training rows of documents that share a sentence with dev or test."""

    @property
    def is_train(self) -> npt.NDArray[np.bool_]:
        """True for rows of the training text."""
        is_train: npt.NDArray[np.bool_] = self.parts == TRAIN
        return is_train


def _split_rows(corpus: _CorpusFiles, cleaned: CleanedText, tally: Tally, sizes: Mapping[Part, int]) -> _SplitRows:
    """Find duplicates in the cleaned text and split it, or raise DataError if no row is left."""
    data = corpus.data
    keys = cleaned.keys()
    is_unique = _find_unique(data, cleaned, keys, tally)
    if not is_unique.any():
        if tally.read == 0:
            raise DataError(f"the training text must have at least one line; got none in {corpus.facts['corpus']}")
        raise DataError(f"no sentence pair is left for training in {corpus.facts['corpus']}: {tally.summary()}")
    # Rows in one language cannot be held out.
    is_parallel = ~cleaned.rows_in_files(data.monolingual_files)
    parts, shared = _parts(keys, is_unique, _split_sizes(data, sizes, is_unique & is_parallel), data.documents)
    return _SplitRows(keys, is_unique, is_parallel, parts, shared)


def _needs_aligner(config: RunConfig, has_links: bool) -> bool:
    """Return True if the training data depend on the aligner, because the corpus has no links but they are needed."""
    return not has_links and (config.data.alignments == "aligner" or config.text.annotation is not None)


def _link_options(config: RunConfig, data: DataConfig, has_links: bool, folder: Path) -> LinkOptions:
    """Return where the links of the training text come from: the corpus if it `has_links`, or the learned aligner."""
    return LinkOptions(
        aligner=Aligner.load(folder / aligner.FOLDER) if _needs_aligner(config, has_links) else None,
        store_links=has_links or data.alignments == "aligner",
        text=config.text,
        copy_missing_source=data.target_only == "copied",
    )


def _warnings(tally: Tally, rows: _SplitRows, from_files: Mapping[Part, HeldOut]) -> list[str]:
    warnings = tally.warnings()
    if rows.shared:
        problem = "training pairs share a sentence with the documents split off, so scores on those are too good"
        warnings.append(f"{rows.shared} {problem}")
    for held_out in from_files.values():
        warnings += held_out.warnings()
    return warnings


def _read_held_out(corpus: _CorpusFiles) -> dict[Part, HeldOut]:
    """Return the parts that are given as files."""
    data = corpus.data
    files = {"dev": (data.dev, data.dev_alignments), "test": (data.test, data.test_alignments)}
    return {part: HeldOut.read(part, spec, links, data, corpus.base) for part, (spec, links) in files.items() if spec}


def _find_unique(data: DataConfig, cleaned: CleanedText, keys: KeyTable, tally: Tally) -> npt.NDArray[np.bool_]:
    """Return the mask of rows that do not repeat an earlier row or, if the corpus has documents, document.

    The others are added to the tally.
    """
    if not data.cleaning.drop_duplicates:
        return np.ones(len(keys), dtype=bool)
    if data.documents:
        hashes, starts = document_keys(keys["row"], keys["document"])
        # A document is a duplicate as a whole.
        is_unique = np.repeat(first_occurrences(hashes), np.diff(starts, append=len(keys)))
    else:
        is_unique = first_occurrences(keys["row"])
    duplicates = np.flatnonzero(~is_unique)
    for position in duplicates[:MAX_EXAMPLES].tolist():
        tally.reject(DUPLICATE, cleaned.row(position, int(keys["line"][position])))
    if len(duplicates) > MAX_EXAMPLES:
        tally.rejected[DUPLICATE] = len(duplicates)
    return is_unique


def _split_sizes(data: DataConfig, sizes: Mapping[Part, int], usable: npt.NDArray[np.bool_]) -> list[int]:
    """Return how many rows to split off for each part; default sizes are smaller for a small corpus."""
    max_default = max(1, int(usable.sum()) // SMALL_CORPUS_PAIRS_PER_HELD_OUT_PAIR)
    result = []
    for part, size in sizes.items():
        is_default = f"{part}_size" not in data.model_fields_set
        result.append(min(size, max_default) if is_default else size)
    return result


def _parts(
    keys: KeyTable, is_unique: npt.NDArray[np.bool_], sizes: Sequence[int], documents: bool
) -> tuple[Parts, int]:
    """Return the part of each cleaned row, and how many training rows of documents share a sentence with dev or test.

    Duplicates are left out.
    """
    parts = np.where(is_unique, TRAIN, LEFT_OUT).astype(np.uint8)
    if not any(sizes):
        return parts, 0
    sentences = keys["sentences"][is_unique].astype(np.uint64)
    unique_keys = SplitKeys(sentences, keys["rank"][is_unique].astype(np.uint64))
    if not documents:
        parts[is_unique] = split(unique_keys, sizes[0], sizes[1])
        return parts, 0
    unique_parts = split_documents(unique_keys, keys["document"][is_unique], sizes[0], sizes[1])
    parts[is_unique] = unique_parts
    shares_sentence = unique_keys.share_sentence(unique_keys.sentences[unique_parts > TRAIN])
    return parts, int((shares_sentence & (unique_parts == TRAIN)).sum())


def _count(
    cleaned: CleanedText,
    parts: Parts,
    documents: npt.NDArray[np.uint32],
    from_files: dict[Part, HeldOut],
    normalize: str,
    workers: Workers,
    progress: Progress,
) -> tuple[list[Counter[str]], dict[Part, HeldOut], str]:
    """Run the second pass.

    Returns:
        The counts of text chunks of each language, over the training rows; the parts that are split off; and the
        digest of the corpus.
    """
    num_languages = len(cleaned.rules.languages)
    digest = sha256()
    text_chunks = [Counter[str]() for _ in range(num_languages)]
    held_out_rows: dict[Part, list[Cells]] = {}
    sentence_sets = [held_out.sentence_sets(num_languages) for held_out in from_files.values()]
    if cleaned.rules.arrays:  # different arrays may have the same text
        sentence_sets = [(frozenset(),) * num_languages for _ in sentence_sets]
    results = workers.map(count, cleaned.chunks(parts), (sentence_sets, num_languages, normalize))
    for result in with_progress(results, cleaned.chunk_sizes, COUNTING, progress):
        # Chunks arrive in the order of the corpus, so that the digest does not depend on the number of processes.
        digest.update(result.text)
        for counts, chunk_counts in zip(text_chunks, result.text_chunks, strict=True):
            counts.update(chunk_counts)
            prune_counts(counts)  # bounds the memory
        for part, rows in result.held_out.items():
            held_out_rows.setdefault(part, []).extend(rows)
        for held_out, shared in zip(from_files.values(), result.shared, strict=True):
            held_out.shared += shared
    split_off = {}
    for part, rows in held_out_rows.items():
        if rows:
            split_off[part] = HeldOut(part, rows, documents[parts == PARTS.index(part)])
    return text_chunks, split_off, digest.hexdigest()


def _learn_tokenizers(
    config: TextConfig, text_chunks: dict[str, Counter[str]], base: Path, folder: Path
) -> dict[str, Tokenizer]:
    """Learn or load the tokenizer of each language, the target's last, and save them.

    Args:
        config: `[text]`.
        text_chunks: Counts of text chunks, by language.
        base: Folder that `text.tokenizers` is relative to.
        folder: Folder to save them in.
    """
    *sources, target = text_chunks
    source_type, target_type = config.types
    subword_vocabulary = default_vocabulary_size([*text_chunks.values()])

    def learn(type: TextType, counts: Counter[str], size: int | None) -> Tokenizer:
        if size is None:
            size = subword_vocabulary if type in ("bpe", "unigram") else DEFAULT_VOCABULARY
        return TOKENIZERS_FROM_COUNTS[type](counts, size, config.min_count)

    loaded = _load_tokenizers(config, base, dict.fromkeys(sources, source_type) | {target: target_type})
    if config.joint:
        joint = learn(target_type, sum(text_chunks.values(), Counter()), config.vocabulary)
        tokenizers = dict.fromkeys(text_chunks, joint)
        if config.side_min_count:
            for language, counts in text_chunks.items():
                tokenizers[language] = without_rare(joint, counts, config.side_min_count)
    else:
        sizes = dict.fromkeys(sources, config.vocabulary) | {target: config.target_vocabulary or config.vocabulary}
        types = dict.fromkeys(sources, source_type) | {target: target_type}
        tokenizers = {
            language: loaded.get(language) or learn(types[language], chunks, sizes[language])
            for language, chunks in text_chunks.items()
        }
    if config.normalize != NONE:
        for language in tokenizers.keys() - loaded.keys():
            normalization = Normalization.of_language(config.normalize, language)
            tokenizers[language] = tokenizers[language].normalizing(normalization)
    for languages, new_tokens in zip((sources, [target]), annotation_tokens(config), strict=True):
        if new_tokens:
            for language in languages:
                tokenizers[language] = tokenizers[language].with_annotation_tokens(new_tokens)
    for language, tokenizer in tokenizers.items():
        tokenizer.save(folder / prepared.prepared_tokenizer_file(language))
    return tokenizers


def _normalization_level(config: RunConfig) -> str:
    """Return the level of normalisation of a run's tokenizers."""
    target = config.data.target
    loaded = _load_tokenizers(config.text, config.base, {target: config.text.types[1]})
    return loaded[target].normalization.level if target in loaded else config.text.normalize


def _load_tokenizers(config: TextConfig, base: Path, types: Mapping[str, TextType]) -> dict[str, Tokenizer]:
    """Load the tokenizers of languages for which `text.tokenizers` has a model folder.

    Args:
        config: `[text]`.
        base: Folder that `text.tokenizers` is relative to.
        types: Required type of each language's tokenizer.

    Raises:
        DataError: A folder has no tokenizer for a language.
        ConfigError: A tokenizer has another type.
    """
    tokenizers = {}
    for language, type in types.items():
        model = config.tokenizer_folder(language)
        if model is None:
            continue
        folder = base / model
        path = folder / tokenizer_file(language)
        if not path.is_file():
            wanted = f"must be a model folder with a tokenizer for {language} (text.tokenizers)"
            raise DataError(f"{folder}: {wanted}; got none")
        tokenizer = Tokenizer.load(path)
        if tokenizer.type != type:
            wanted = f'must be "{tokenizer.type}", the type of the tokenizer for {language} in {folder}'
            raise ConfigError([f'text.type: {wanted}; got "{type}"'])
        tokenizers[language] = tokenizer
    return tokenizers


def _write_ids(
    cleaned: CleanedText,
    parts: Parts,
    tokenizers: dict[str, Tokenizer],
    linking: LinkOptions,
    folder: Path,
    workers: Workers,
    progress: Progress,
) -> dict[str, Any]:
    """Run the third pass: write the ids, unknown words and links of the training text, and return their facts."""
    saved = tuple(Tokenizer.load(folder / prepared.prepared_tokenizer_file(language)) for language in tokenizers)
    word_level = [language for language, tokenizer in tokenizers.items() if tokenizer.type == "words"]
    names = [f"train.{language}.ids" for language in tokenizers]
    names += map(prepared.unknown_words_file, word_level)
    if linking.store_links:
        names.append("train.links")
    token_counts = np.zeros((len(tokenizers), 2), dtype=np.int64)  # unknown tokens, all tokens
    missing = np.zeros(len(tokenizers), dtype=np.int64)  # rows without text
    with ExitStack() as stack:
        files = [stack.enter_context(RaggedFile(folder / name)) for name in names]
        results = workers.map(encode, cleaned.text_chunks(parts), (saved, linking))
        for columns, chunk_token_counts in with_progress(results, cleaned.chunk_sizes, WRITING, progress):
            for file, (values, lengths) in zip(files, columns, strict=True):
                file.add(values, lengths)
            token_counts += chunk_token_counts
            # The first columns are the ids of the languages (see `preprocess.encode`).
            missing += [np.count_nonzero(lengths == 0) for _, lengths in columns[: len(tokenizers)]]
    facts: dict[str, Any] = {
        "dtypes": {language: id_dtype(tokenizer).str for language, tokenizer in tokenizers.items()},
        "symbols": {language: file.total for language, file in zip(tokenizers, files, strict=False)},
        "unknown": {
            language: unknown / max(total, 1)
            for language, (unknown, total) in zip(tokenizers, token_counts.tolist(), strict=True)
        },
        "lacking": dict(zip(tokenizers, missing.tolist(), strict=True)),
        "spelled": word_level,
    }
    if linking.store_links:
        facts["links"] = files[-1].total
    return facts


def _write_arrays(
    cleaned: CleanedText, parts: Parts, base: Path, folder: Path, text_digest: str
) -> tuple[dict[str, Any], str]:
    """Write the arrays of the training rows; return facts about each stream, and the digest of text and arrays."""
    facts = {}
    digests = [text_digest]
    files = ArrayFiles(base, cleaned.rules.arrays)
    for name, options in cleaned.rules.arrays.items():
        with ArrayWriter(folder / f"train.{name}{SUFFIX}", options.features) as writer:
            for array_name in cleaned.names(name, parts):
                writer.add(files.find(name, array_name))
        facts[name] = {"rows": writer.num_rows, "features": options.features, "missing": writer.num_missing}
        digests.append(writer.digest)
    return facts, text_digest if len(digests) == 1 else sha256(" ".join(digests).encode()).hexdigest()


def _learn_aligner(pairs: Iterator[tuple[str, str]], dev: HeldOut | None, normalize: str) -> Aligner:
    """Learn an aligner that normalises text; if the dev set has links, they determine the threshold."""
    if dev is None or not dev.aligned:
        return aligner_text.learn(pairs, [], None, normalize)
    gold = [parse_pharaoh(row[2], dev.part) for row in dev.rows]
    return aligner_text.learn(pairs, dev.rows, gold, normalize)


def _write_documents(table: npt.NDArray[Any], path: Path) -> None:
    """Write the document number of each training row, without gaps, and the row's position in its document."""
    # Documents without training rows leave gaps, which the running sum closes.
    numbers = np.cumsum(np.diff(table["document"], prepend=table["document"][:1]) > 0)
    np.stack([numbers, table["position"]], axis=1).astype(prepared.DOCUMENTS_DTYPE).tofile(path)
