"""`rnnsearch lm`: language models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rnnsearch.cli.io import input_portions, output, say, use_threads
from rnnsearch.cli.options import MOST_BEAM, Device, Output, Threads
from rnnsearch.cli.search_options import NoRepeat, Sample, Seed, Temperature, TopK, TopP, asked_variant
from rnnsearch.cli.train import train

if TYPE_CHECKING:
    from rnnsearch.translator.language_model import Perplexity, ScoredText

app = typer.Typer(help="Train language models, score text, sample it, and go on with it.", no_args_is_help=True)
app.command("train")(train)

PORTION = 1000
"""Lines that are read, and answered, together."""
Model = Annotated[Path, typer.Argument(help="A language model's folder.", show_default=False)]
Text = Annotated[Path | None, typer.Argument(help="A text file.  [default: standard input]", show_default=False)]
Most = Annotated[int, typer.Option("--max-length", min=1, max=10_000, help="Most symbols of a text.")]


@app.command()
def score(
    model: Model,
    text: Text = None,
    output_file: Output = None,
    format: Annotated[
        Literal["text", "json", "none"], typer.Option(help="A log-probability a line, each symbol's, or nothing.")
    ] = "text",
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Score text: one log-probability (natural logarithm) a line, and the perplexity of the whole."""
    use_threads(threads)
    from rnnsearch.translator.language_model import Perplexity, load_text_model

    loaded, parts = load_text_model(model, device), []
    with output(output_file) as out:
        for lines in input_portions(text, PORTION):
            scored = loaded.score(lines)
            parts.append(loaded.perplexity(scored))
            out.writelines(_scored(one, format) for one in scored)
    whole = Perplexity(*(sum(numbers) for numbers in zip(*parts, strict=True))) if parts else None
    if whole is not None:
        say(_told(whole))


def _scored(one: ScoredText, format: str) -> str:
    if format == "none":
        return ""
    if format == "text":
        return f"{one.log_prob:.6f}\n"
    row = {"text": one.text, "log_prob": one.log_prob, "symbols": one.symbols, "token_scores": one.token_scores}
    return json.dumps(row, ensure_ascii=False) + "\n"


def _told(whole: Perplexity) -> str:
    return (
        f"perplexity {whole.per_symbol:.2f} a symbol ({whole.symbols:,}), {whole.per_word:.2f} a word "
        f"({whole.words:,}); {whole.bits_per_character:.3f} bits a character (ends of lines count)"
    )


@app.command()
def sample(
    model: Model,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Texts to draw.")] = 10,
    output_file: Output = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    most: Most = 100,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Draw texts from a language model, a line each."""
    use_threads(threads)
    from rnnsearch.translator.language_model import load_text_model

    loaded = load_text_model(model, device)
    options = loaded.options(most=most, variant=asked_variant(True, temperature, top_k, top_p, seed))
    with output(output_file) as out:
        out.writelines(f"{text}\n" for text in loaded.sample(count, options))


@app.command()
def complete(
    model: Model,
    text: Text = None,
    output_file: Output = None,
    beam: Annotated[int, typer.Option(min=1, max=MOST_BEAM, help="Beam width; 1 is greedy.")] = 1,
    sample: Sample = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    no_repeat: NoRepeat = None,
    most: Most = 100,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Go on with the beginning of a text on each line, letter for letter; one line in is one line out."""
    variant = asked_variant(sample, temperature, top_k, top_p, seed)
    use_threads(threads)
    from rnnsearch.translator.language_model import load_text_model
    from rnnsearch.translator.translation import one_line

    loaded = load_text_model(model, device)
    options = loaded.options(beam, most=most, variant=variant, no_repeat_ngram=no_repeat or 0)
    with output(output_file) as out:
        for lines in input_portions(text, PORTION):
            out.writelines(f"{one_line(texts[0])}\n" for texts in loaded.complete(lines, options))
