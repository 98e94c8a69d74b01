"""`rnnsearch lm`: train language models, score text, sample it and complete it.

`app.py` adds it as a group of commands. They call `translator/language_model.py`; `lm train` is `train.train`. Tests:
tests/commands/test_language.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from rnnsearch.cli.io import input_chunks, open_output, print_message
from rnnsearch.cli.options import (
    MAX_BEAM,
    HardwareGroup,
    NoRepeatNgram,
    OutputFile,
    SamplingGroup,
    SamplingSettings,
)
from rnnsearch.cli.panels import PanelCommand, PanelGroup, expand_groups
from rnnsearch.cli.train import train

if TYPE_CHECKING:
    from rnnsearch.translator.language_model import Perplexity, ScoredText, TextModel

LINES_PER_CHUNK = 1000

LanguageModel = Annotated[Path, Argument(help="Language model folder.", show_default=False)]
TextFile = Annotated[Path | None, Argument(help="Text file, one text per line.", show_default="standard input")]
MaxLength = Annotated[int, Option(min=1, max=10_000, help="Maximum number of tokens per text.")]

app = typer.Typer(cls=PanelGroup, help="Train and use language models.", no_args_is_help=True)
app.command("train", cls=PanelCommand)(train)


@app.command(cls=PanelCommand)
@expand_groups
def score(
    model: LanguageModel,
    text: TextFile = None,
    *,
    documents: Annotated[
        bool,
        Option(
            "--documents",
            help="Empty lines separate documents, and are not scored: a model with model.context reads previous lines.",
        ),
    ] = False,
    output: OutputFile = None,
    format: Annotated[
        Literal["text", "json", "none"],
        Option(help="text, one log-probability per line; json, with those of tokens; or none, the perplexity only."),
    ] = "text",
    hardware: HardwareGroup,
) -> None:
    """Compute log-probabilities and perplexity of text.

    Prints the natural logarithm of each line's probability, and the perplexity of the whole text on standard error.
    """
    hardware.set_threads()
    from rnnsearch.translator.language_model import load_text_model

    language_model = load_text_model(model, hardware.device)
    chunk_perplexities: list[Perplexity] = []
    with open_output(output) as file:
        for scored_lines in _scored_chunks(language_model, input_chunks(text, LINES_PER_CHUNK), documents):
            scored = [line for line in scored_lines if line is not None]
            chunk_perplexities.append(language_model.perplexity(scored))
            file.writelines(_format_score(line, format) for line in scored_lines)
    if chunk_perplexities:
        _print_perplexity(chunk_perplexities)


def _scored_chunks(
    model: TextModel, chunks: Iterator[list[str]], has_documents: bool
) -> Iterator[list[ScoredText | None]]:
    """Yield the scored lines of each chunk; None for the end of a document."""
    order = model.document_order() if has_documents else None
    document = 0
    for lines in chunks:
        if order is None:
            yield list(model.score(lines))
            continue
        texts: list[str] = []
        documents: list[int] = []
        for line in lines:
            if line.strip():
                texts.append(line)
                documents.append(document)
            else:
                document += 1
        scored = iter(model.score(order.with_context(texts, documents)))
        yield [next(scored) if line.strip() else None for line in lines]


def _format_score(scored: ScoredText | None, format: str) -> str:
    if format == "none":
        return ""
    if format == "text":
        return "\n" if scored is None else f"{scored.log_prob:.6f}\n"
    if scored is None:
        return json.dumps({"text": "", "log_prob": None, "symbols": [], "token_scores": []}) + "\n"
    row = {
        "text": scored.text,
        "log_prob": scored.log_prob,
        "symbols": scored.tokens,
        "token_scores": scored.token_scores,
    }
    return json.dumps(row, ensure_ascii=False) + "\n"


def _print_perplexity(chunks: list[Perplexity]) -> None:
    """Print the perplexity of a text that consists of these chunks."""
    from rnnsearch.translator.language_model import Perplexity

    total = Perplexity(*map(sum, zip(*chunks, strict=True)))
    print_message(
        f"perplexity {total.per_token:.2f} per token ({total.tokens:,}), {total.per_word:.2f} per word "
        f"({total.words:,}); {total.bits_per_character:.3f} bits per character (ends of lines count)"
    )


@app.command(cls=PanelCommand)
@expand_groups
def sample(
    model: LanguageModel,
    *,
    count: Annotated[int, Option("-n", "--count", min=1, help="Number of texts.")] = 10,
    output: OutputFile = None,
    max_length: MaxLength = 100,
    sampling: SamplingSettings,
    hardware: HardwareGroup,
) -> None:
    """Sample texts, one per line."""
    hardware.set_threads()
    from rnnsearch.translator.language_model import load_text_model

    language_model = load_text_model(model, hardware.device)
    options = language_model.options(max_length=max_length, variant=sampling.sampling())
    with open_output(output) as file:
        file.writelines(f"{text}\n" for text in language_model.sample(count, options))


@app.command(cls=PanelCommand)
@expand_groups
def complete(
    model: LanguageModel,
    text: TextFile = None,
    *,
    output: OutputFile = None,
    beam: Annotated[int, Option(min=1, max=MAX_BEAM, help="Beam width; 1 is greedy search.")] = 1,
    no_repeat_ngram: NoRepeatNgram = None,
    max_length: MaxLength = 100,
    sampling: SamplingGroup,
    hardware: HardwareGroup,
) -> None:
    """Complete the text of each line.

    Each output line begins with its input line, letter for letter.
    """
    hardware.set_threads()
    from rnnsearch.translator.language_model import load_text_model
    from rnnsearch.translator.translation import one_line

    language_model = load_text_model(model, hardware.device)
    options = language_model.options(
        beam, max_length=max_length, variant=sampling.variant(), no_repeat_ngram=no_repeat_ngram or 0
    )
    with open_output(output) as file:
        for lines in input_chunks(text, LINES_PER_CHUNK):
            file.writelines(f"{one_line(n_best[0])}\n" for n_best in language_model.complete(lines, options))
