"""Time of one decoding step against the source's length: global attention looks at all J positions, local-p at 2 D + 1.

Run it as `python benchmarks/local_attention.py`; `--output FILE` also writes the table. Times are the best of several
rounds, in milliseconds for a step of all hypotheses of one sentence: of attention alone, with either kind of score, and
of a whole decoder (RNNsearch's, without the output layer, whose cost does not depend on the source).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from harness import machine_line, number, parsed, parser, publish, seconds_of, table

from rnnsearch.config import AttentionConfig, resolve
from rnnsearch.data.sides import Side
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.memory import Encoded
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.systems.build import build
from rnnsearch.tensors import select

ROUNDS = 7
SECONDS_A_ROUND = 0.05
SYMBOLS = 1000


def options(score: str, window: str, size: int, width: int) -> dict[str, Any]:
    """`[model.attention]`."""
    return {
        "score": score,
        "window": window,
        **({"size": size} if score == "additive" else {}),
        **({"width": width} if window == "local-p" else {}),
    }


def model_of(window: str, size: int, width: int) -> TranslationModel:
    """RNNsearch with an additive score and the given window."""
    tables = {
        "data": {"source": "en", "target": "de", "corpus": "none"},
        "model": {
            "embedding": size,
            "encoder": {"type": "bidirectional", "cell": "gru", "size": size // 2},
            "attention": options("additive", window, size, width),
            "decoder": {"type": "bahdanau", "cell": "gru", "size": size, "maxout": size // 2},
        },
        "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
    }
    return build(resolve(tables).model, SYMBOLS, SYMBOLS, seed=1).eval()


def milliseconds(work: Callable[[], object]) -> float:
    """The best round's mean time of `work`."""
    return 1000 * seconds_of(work, ROUNDS, SECONDS_A_ROUND)


def attention_step(score: str, window: str, J: int, beam: int, size: int, width: int) -> float:
    """One step of attention alone."""
    generator = torch.Generator().manual_seed(1)
    attention = Attention.make(AttentionConfig(**options(score, window, size, width)), size, size)
    for parameter in attention.parameters():
        parameter.data.normal_(std=size**-0.5, generator=generator)
    annotations = torch.randn(1, J, size, generator=generator)
    mask = torch.ones(1, J, dtype=torch.bool)
    memory = attention.on(Encoded(annotations, mask, annotations[:, 0], ()))
    query = torch.randn(beam, size, generator=generator)
    state = select(attention.start(memory), torch.zeros(beam, dtype=torch.long))
    return milliseconds(lambda: attention.step(query, state, memory))


def decoder_step(model: TranslationModel, J: int, beam: int) -> float:
    """One step of the decoder, up to its readout."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(4, SYMBOLS, (1, J), generator=generator)
    memory = model.encode({"source": Side.of(source)})
    state = select(model.start(memory), torch.zeros(beam, dtype=torch.long))
    y = torch.randint(4, SYMBOLS, (beam,), generator=generator)
    return milliseconds(lambda: model.step(y, state, memory))


def rows(lengths: list[int], beam: int, size: int, width: int) -> Iterator[list[str]]:
    """For each length the times of both windows and their ratio: of either attention alone, and of the decoder."""
    models = {window: model_of(window, size, width) for window in ("global", "local-p")}
    for J in lengths:
        pairs = [
            [attention_step(score, window, J, beam, size, width) for window in models]
            for score in ("general", "additive")
        ]
        pairs.append([decoder_step(model, J, beam) for model in models.values()])
        cells = [(number(wide, 2), number(local, 2), number(wide / local, 1)) for wide, local in pairs]
        yield [str(J), *(cell for three in cells for cell in three)]


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--lengths", type=int, nargs="+", default=[50, 100, 200, 500, 1000, 2000, 3000])
    made.add_argument("--beam", type=int, default=5)
    made.add_argument("--size", type=int, default=512)
    made.add_argument("--width", type=int, default=10, help="D: the window is [p_t - D, p_t + D]")
    made.set_defaults(threads=1)
    given = parsed(made)
    head = ["source symbols"]
    for name in ("general", "additive", "decoder"):
        head += [f"{name}, global", f"{name}, local-p", "ratio"]
    title = f"Milliseconds a step of {given.beam} hypotheses, {given.size} units, D = {given.width}, fp32."
    with torch.inference_mode():
        measured = table(head, rows(given.lengths, given.beam, given.size, given.width))
    publish([f"{title} {machine_line()}", "", *measured], given.output)


if __name__ == "__main__":
    main()
