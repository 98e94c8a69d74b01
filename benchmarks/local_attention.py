"""Time of one decoding step against the source's length: global attention looks at all J positions, local-p at 2 D + 1.

Run it as `python benchmarks/local_attention.py`; `--output FILE` also writes the table. Times are the best of several
rounds, in milliseconds for a step of all hypotheses of one sentence: of attention alone, with either kind of score, and
of a whole decoder (RNNsearch's, without the output layer, whose cost does not depend on the source).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import torch
from harness import machine_line, network, parsed, parser, publish, seconds_of, table

from rnnsearch.config import AttentionConfig
from rnnsearch.data.sides import Side
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.memory import Encoded
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.tensors import select

SYMBOLS = 1000
WINDOWS = ("global", "local-p")
Step = Callable[[], object]


def options(score: str, window: str, given: Namespace) -> dict[str, Any]:
    """`[model.attention]`."""
    scored = {"score": score, "size": given.size} if score == "additive" else {"score": score}
    return {**scored, "window": window, **({"width": given.width} if window == "local-p" else {})}


def attention_step(attention: dict[str, Any], J: int, beam: int, size: int) -> Step:
    """One step of attention alone."""
    generator = torch.Generator().manual_seed(1)
    layer = Attention(AttentionConfig(**attention), size, size)
    for parameter in layer.parameters():
        parameter.data.normal_(std=size**-0.5, generator=generator)
    annotations = torch.randn(1, J, size, generator=generator)
    memory = layer.on(Encoded(annotations, torch.ones(1, J, dtype=torch.bool), annotations[:, 0], ()))
    query = torch.randn(beam, size, generator=generator)
    state = select(layer.start(memory), torch.zeros(beam, dtype=torch.long))
    return lambda: layer.step(query, state, memory)


def decoder_step(model: TranslationModel, J: int, beam: int) -> Step:
    """One step of the decoder, up to its readout."""
    generator = torch.Generator().manual_seed(1)
    memory = model.encode({"source": Side.of(torch.randint(4, SYMBOLS, (1, J), generator=generator))})
    state = select(model.start(memory), torch.zeros(beam, dtype=torch.long))
    y = torch.randint(4, SYMBOLS, (beam,), generator=generator)
    return lambda: model.step(y, state, memory)


def rows(given: Namespace) -> Iterator[list[object]]:
    """For each length the times of both windows and their ratio: of either attention alone, and of the decoder."""
    size, beam = given.size, given.beam
    rnnsearch = {
        "embedding": size,
        "encoder": {"type": "bidirectional", "cell": "gru", "size": size // 2},
        "decoder": {"type": "bahdanau", "cell": "gru", "size": size, "maxout": size // 2},
    }
    tables = [{**rnnsearch, "attention": options("additive", window, given)} for window in WINDOWS]
    models = [network(table, SYMBOLS).eval() for table in tables]
    for J in given.lengths:
        steps = [
            [attention_step(options(score, window, given), J, beam, size) for window in WINDOWS]
            for score in ("general", "additive")
        ]
        cells: list[object] = [str(J)]
        for pair in [*steps, [decoder_step(model, J, beam) for model in models]]:
            wide, local = (1000 * seconds_of(step, rounds=7, least=0.05) for step in pair)
            cells += [wide, local, wide / local]
        yield cells


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--lengths", type=int, nargs="+", default=[50, 100, 200, 500, 1000, 2000, 3000])
    made.add_argument("--beam", type=int, default=5)
    made.add_argument("--size", type=int, default=512)
    made.add_argument("--width", type=int, default=10, help="D: the window is [p_t - D, p_t + D]")
    made.set_defaults(threads=1)
    given = parsed(made)
    three = "{0}, global {{:,.2f}} | {0}, local-p {{:,.2f}} | ratio {{:,.1f}}"
    head = " | ".join(["source symbols", *(three.format(name) for name in ("general", "additive", "decoder"))])
    title = f"Milliseconds a step of {given.beam} hypotheses, {given.size} units, D = {given.width}, fp32."
    with torch.inference_mode():
        publish([f"{title} {machine_line()}", "", *table(head, rows(given))], given.output)


if __name__ == "__main__":
    main()
