"""`rnnsearch report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    model: Annotated[Path, typer.Argument(help="The folder of a run, finished or not.", show_default=False)],
    output_file: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the page here.  [default: report.html in the folder]")
    ] = None,
) -> None:
    """Write a run's page: learning curves, what was trained on and left out, settings, measured scores."""
    from rnnsearch.evaluate.report import write_run_report

    page = output_file or model / "report.html"
    write_run_report(model, page)
    typer.echo(str(page))
