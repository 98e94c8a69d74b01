"""Time of one decoding step by source length: global attention reads all J positions, local-p reads 2 D + 1.

Run it as `python benchmarks/local_attention.py`; `--output FILE` also writes the table. Times are milliseconds per step
for all hypotheses of one sentence, the best of several rounds. The attention layer is measured with two scores, and a
complete RNNsearch decoder without the output layer, whose cost does not depend on the source.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import torch
from harness import argument_parser, best_seconds, build_model, machine_line, parse_arguments, publish, table

from rnnsearch.config import AttentionConfig
from rnnsearch.data.batch import Stream
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.memory import Encoded
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.utils.tensors import select

VOCABULARY_SIZE = 1000
WINDOWS = ("global", "local-p")
Step = Callable[[], object]


def attention_options(score: str, window: str, args: Namespace) -> dict[str, Any]:
    """Return a `[model.attention]` table."""
    options: dict[str, Any] = {"score": score, "window": window}
    if score == "additive":
        options["size"] = args.size
    if window == "local-p":
        options["width"] = args.width
    return options


def attention_step(options: dict[str, Any], J: int, beam: int, size: int) -> Step:
    """Return a function that computes one step of an attention layer."""
    generator = torch.Generator().manual_seed(1)
    layer = Attention(AttentionConfig(**options), size, size)
    for parameter in layer.parameters():
        parameter.data.normal_(std=size**-0.5, generator=generator)
    annotations = torch.randn(1, J, size, generator=generator)
    memory = layer.on(Encoded(annotations, torch.ones(1, J, dtype=torch.bool), annotations[:, 0], ()))
    query = torch.randn(beam, size, generator=generator)
    state = select(layer.start(memory), torch.zeros(beam, dtype=torch.long))
    return lambda: layer.step(query, state, memory)


def decoder_step(model: TranslationModel, J: int, beam: int) -> Step:
    """Return a function that computes one step of the decoder, up to its readout."""
    generator = torch.Generator().manual_seed(1)
    memory = model.encode({"source": Stream.from_ids(torch.randint(4, VOCABULARY_SIZE, (1, J), generator=generator))})
    state = select(model.start(memory), torch.zeros(beam, dtype=torch.long))
    y = torch.randint(4, VOCABULARY_SIZE, (beam,), generator=generator)
    return lambda: model.step(y, state, memory)


def rows(args: Namespace) -> Iterator[list[object]]:
    """Yield per length the times of both windows and their ratio, for both attention layers and the decoder."""
    size = args.size
    beam = args.beam
    rnnsearch = {
        "embedding": size,
        "encoder": {"type": "bidirectional", "cell": "gru", "size": size // 2},
        "decoder": {"type": "bahdanau", "cell": "gru", "size": size, "maxout": size // 2},
    }
    tables = [{**rnnsearch, "attention": attention_options("additive", window, args)} for window in WINDOWS]
    models = [build_model(table, VOCABULARY_SIZE).eval() for table in tables]
    for J in args.lengths:
        step_pairs: list[list[Step]] = []
        for score in ("general", "additive"):
            options = [attention_options(score, window, args) for window in WINDOWS]
            step_pairs.append([attention_step(table, J, beam, size) for table in options])
        step_pairs.append([decoder_step(model, J, beam) for model in models])
        cells: list[object] = [str(J)]
        for pair in step_pairs:
            wide, local = (1000 * best_seconds(step, rounds=7, min_round_seconds=0.05) for step in pair)
            cells += [wide, local, wide / local]
        yield cells


def main() -> None:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[50, 100, 200, 500, 1000, 2000, 3000])
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--size", type=int, default=512, help="units of the decoder and of the annotations")
    parser.add_argument("--width", type=int, default=10, help="D: the window is [p_t - D, p_t + D]")
    parser.set_defaults(threads=1)
    args = parse_arguments(parser)
    three = "{0}, global {{:,.2f}} | {0}, local-p {{:,.2f}} | ratio {{:,.1f}}"
    head = " | ".join(["source tokens", *(three.format(name) for name in ("general", "additive", "decoder"))])
    title = f"Milliseconds per step of {args.beam} hypotheses, {args.size} units, D = {args.width}, fp32."
    with torch.inference_mode():
        publish([f"{title} {machine_line()}", "", *table(head, rows(args))], args.output)


if __name__ == "__main__":
    main()
