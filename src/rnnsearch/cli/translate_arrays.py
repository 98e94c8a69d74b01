"""`rnnsearch translate -i` for NumPy files, with models that read arrays: one line per array.

Tests: tests/commands/test_translate_arrays.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from typer import BadParameter

from rnnsearch.cli.io import open_output, print_message

if TYPE_CHECKING:
    from rnnsearch.bulk import Counts, Done
    from rnnsearch.cli.options import BulkGroup, FileGroup
    from rnnsearch.cli.translate_lines import TranslateOptions


def is_array_file(path: Path) -> bool:
    """Return True if the name of a file is that of arrays (`data.arrays.SUFFIX`)."""
    return path.suffix.lower() == ".npy"


def require_array_options(options: TranslateOptions, bulk: BulkGroup) -> None:
    """Raise BadParameter if an option is for text only."""
    has_option = {
        "--tags": options.terms.tags,
        "--protect": bool(options.terms.protect),
        "--glossary": options.terms.glossary is not None,
        "--normalize": options.lines.normalize is not None,
        "--replace-unknown": options.unknown_words.replace_unknown is not None,
        "--dictionary": options.unknown_words.dictionary is not None,
        "--candidates": options.search.candidates is not None,
        "--engine": bulk.engine is not None,
        "--stream": options.lines.stream,
    }
    for option, is_given in has_option.items():
        if is_given:
            raise BadParameter(f"{option} needs text as input; {options.input_name} has arrays")


def translate_arrays(options: TranslateOptions, files: FileGroup) -> Counts:
    """Translate each array of a file and return the counts of all lines.

    Raises:
        DataError: The file is not valid, or its arrays do not fit the model.
        RnnsearchError: The model cannot be loaded, or reads text.
    """
    from rnnsearch.bulk import Done
    from rnnsearch.cli.translate_lines import ALIGNMENTS, OUTPUT, LineTranslator
    from rnnsearch.data.arrays import named_array, open_arrays
    from rnnsearch.errors import ModelError

    path = files.input
    assert path is not None
    translator = LineTranslator(options)
    system = getattr(translator.translator, "system", None)  # a pivot translator has none
    array_options = None if system is None else system.source_array
    if array_options is None:
        if system is not None and system.arrays:
            names = " and ".join(system.config.data.sources)
            raise ModelError(f'{options.models[0]}: reads {names}; name a file of each, separated by "|"; got {path}')
        raise ModelError(f"{options.models[0]}: reads text; {path} has arrays")
    arrays = open_arrays(path, array_options)
    with ExitStack() as stack:
        outputs = {OUTPUT: stack.enter_context(open_output(files.output))}
        if files.alignments is not None:
            outputs[ALIGNMENTS] = stack.enter_context(open_output(files.alignments))

        def chunks() -> Iterator[Done]:
            for first in range(0, len(arrays), translator.chunk_size):
                stop = min(first + translator.chunk_size, len(arrays))
                done = translator.translate_arrays([named_array(arrays, n, path) for n in range(first, stop)], first)
                for message in done.messages:
                    print_message(message)
                for name, file in outputs.items():
                    file.write(done.outputs[name])
                yield Done({}, [], done.counts)

        return Done.concatenate(chunks()).counts
