"""`rnnsearch data list` and `get`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rnnsearch.cli.io import download_bar, say

app = typer.Typer(help="Corpora that can be downloaded, with licence and attribution.", no_args_is_help=True)


@app.command("list")
def list_corpora() -> None:
    """List the corpora by name."""
    from rnnsearch.data.catalog import CORPORA

    for corpus in CORPORA.values():
        aligned = "; word alignments" if corpus.aligned else ""
        typer.echo(f"{corpus.name:16} {corpus.pairs:>7,} pairs  {corpus.licence}{aligned}\n    {corpus.description}")


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="A name of `rnnsearch data list`.", show_default=False)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Copy its files here, too.")] = None,
) -> None:
    """Download a corpus, check its hash, split it, and print the folder it lies in."""
    import shutil

    from rnnsearch.data.catalog import find
    from rnnsearch.data.catalog import get as fetch
    from rnnsearch.errors import DataError
    from rnnsearch.files import atomic_folder

    corpus = find(name)
    if output is not None and output.exists() and not _replaceable(output):
        raise DataError(f"{output}: must be a new or empty folder, or a corpus got before; got one with other files")
    with download_bar() as bar:
        folder = fetch(name, progress=bar)
    say(f"{corpus.attribution}. Licence: {corpus.licence}.")
    if output is not None:
        with atomic_folder(output.resolve()) as temporary:
            shutil.copytree(folder, temporary, dirs_exist_ok=True)
        folder = output
    typer.echo(str(folder))


def _replaceable(folder: Path) -> bool:
    """Whether a folder holds nothing that a corpus in its place would destroy."""
    return folder.is_dir() and ((folder / "corpus.json").is_file() or not any(folder.iterdir()))
