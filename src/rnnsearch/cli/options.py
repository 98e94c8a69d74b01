"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rnnsearch.text.alignments import AlignedBy
from rnnsearch.utils.stdio import unless_stream

MOST_BEAM = 1000
"""Hypotheses a sentence; memory grows with them."""

Model = Annotated[Path, typer.Argument(help="A model folder, as `rnnsearch train` makes it.", show_default=False)]
SourceFile = Annotated[Path, typer.Argument(help="Source text, one sentence a line.", show_default=False)]
TargetFile = Annotated[Path, typer.Argument(help="Target text, line by line.", show_default=False)]
Input = Annotated[
    Path | None, typer.Option("-i", "--input", callback=unless_stream, help="Read here, not from standard input.")
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", callback=unless_stream, help="Write here instead of standard output.")
]
LineByLine = Annotated[Path, typer.Option("-o", "--output", help="Write here, line by line.", show_default=False)]
NewFolder = Annotated[Path, typer.Option("-o", "--output", help="The folder to make.", show_default=False)]
Beam = Annotated[
    int | None, typer.Option(min=1, max=MOST_BEAM, help="Beam width; 1 is greedy.  [default: the model's]")
]
By = Annotated[
    AlignedBy | None,
    typer.Option(
        help="What aligns: the model's aligner, its attention, that of the position after a word, which has read it "
        "(read), or attention given the target word too (posterior; slow).  [default: aligner, if it has one]"
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="CPU threads.  [default: all cores]")]

Batch = Annotated[int | None, typer.Option(min=1, help="Sentences a batch.  [default: the model's]")]
MaxSource = Annotated[
    int, typer.Option(min=1, max=100_000, help="Most symbols of a line; the output of a longer one is empty.")
]
MaxSymbols = Annotated[
    int,
    typer.Option(min=1, max=100_000, help="Most symbols of a side; the output of a pair with a longer one is empty."),
]
Precision = Literal["auto", "fp32", "bf16", "int8"]
PrecisionOfProducts = Annotated[Precision | None, typer.Option(help="Of products on the CPU.  [default: the model's]")]
