"""Families beside the rivals that have the same architecture: training and search on the tokens that all read.

Run it as `python -m benchmarks.speed.families --output docs/results/families-and-rivals.md`. Each is trained for
some 200 updates in bf16, a rival for 150 in fp32. Search goes over the 1,000 test sentences in batches of 64, in all
symbols. Nothing is trained to the end, so that lines have the wrong length: tokens a second count.

The share of the limit is of the family's own matrix products, as PyTorch's counter finds them in its definition, at the
speed that the products of an RNNsearch update reach at best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.families import FAMILIES
from benchmarks.harness import Row, machine_line, network, parsed, parser, publish, table
from benchmarks.speed import rivals as others
from benchmarks.speed.ours import TRAININGS, WAYS, Ours
from benchmarks.speed.plan import Rows, version
from benchmarks.speed.rivals import Rival
from benchmarks.speed.table import ratio

LSTM = (("GRU", "LSTM"), ("enc_layers: 1", "enc_layers: 2"), ("dec_layers: 1", "dec_layers: 2"))
PRODUCT = ("global_attention: mlp", "global_attention: general")
PLAIN = (("global_attention: mlp", "global_attention: none"), ("brnn", "rnn"), ("bridge: true", "bridge: false"))


def _opennmt(fed: bool, *edits: tuple[str, str]) -> Rival:
    name = f"onmt-{'-'.join(new.split()[-1] for _, new in edits)}-{int(fed)}".lower()
    title = f"OpenNMT-py, {'' if fed else 'no '}input feeding"
    return Rival(name, title, "onmt.sh", f"run/onmt.feed{int(fed)}/train.log", fed, edits)


EOLE = Rival(
    "eole-lstm",
    "Eole, input feeding",
    "eole.sh",
    "run/eole/train.log",
    edits=(("GRU", "LSTM"), ("layers: 1", "layers: 2"), PRODUCT),
)


RIVALS: dict[str, tuple[Rival, ...]] = {
    "coverage": (_opennmt(True, ("bridge: true", "bridge: true\ncoverage_attn: true")),),
    "sutskever": (_opennmt(False, *LSTM, *PLAIN),),
    "luong": (_opennmt(False, *LSTM, PRODUCT),),
    "luong, input feeding": (_opennmt(True, *LSTM, PRODUCT), EOLE),
}
"""Who else has a family's architecture. RNNsearch's rivals are those of `python -m benchmarks.speed`."""


def operations(model: Row, ours: Ours, vocabulary: Row) -> float:
    """Multiplications and additions a target symbol (end symbols not counted) of an update's matrix products, onward
    and back, by the definition."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from rnnsearch.accel.registry import choose
    from rnnsearch.data.batches import make_batch
    from rnnsearch.models.batch_rng import Draws
    from rnnsearch.objectives.likelihood import Likelihood

    counts, pairs = ours.counts(), 8
    lengths = [round(number / counts.sentences) - 1 for number in (counts.source, counts.target)]
    batch = make_batch([tuple([5] * length for length in lengths)] * pairs, range(pairs))  # type: ignore[list-item]
    built = network(model, vocabulary["source"], vocabulary["target"])
    choose(built, fast=False)
    with FlopCounterMode(display=False) as counter, torch.random.fork_rng():
        Likelihood(0.0, ())(built, batch, Draws(1)).total.backward()
    return counter.get_total_flops() / (pairs * lengths[1])


def measure(ours: Ours, updates: int) -> Row:
    """A family's training and search in the first way of each."""
    facts = ours.prepare()
    trained = ours.train(replace(TRAININGS[0], updates=updates), "family")
    cases = [{"name": f"{kind}-64", "beam": beam, "batch": 64} for kind, beam in (("greedy", 1), ("beam", 5))]
    found = ours.decode(ours.scratch / "runs" / "family", WAYS[0], "family", cases)
    return {
        "train_tokens_per_second": trained["tokens_per_second"],
        "parameters": trained["parameters"],
        "operations": operations(ours.model or {}, ours, facts["vocabulary"]),
        **{f"{kind}_tokens_per_second": found[f"{kind}-64"]["tokens_per_second"] for kind in ("greedy", "beam")},
    }


def rows(names: list[str], scratch: Path, peers: Path, threads: int, updates: int) -> Iterator[list[object]]:
    """A family, then each of its rivals."""
    tokens, kept = others.tokens(peers, None, None), Rows(scratch)
    key = {"code": version(), "threads": threads}
    ours = Ours(scratch / "limit", tokens, threads)
    vocabulary = kept.get("prepare", key, ours.prepare)["vocabulary"]
    limit = kept.get("limit", key, ours.limit, vocabulary["target"], ("bf16",))["bf16"]["flops_per_second"]
    for name in names:
        own = Ours(scratch / name.replace(",", "").replace(" ", "-"), tokens, threads, model=FAMILIES[name])
        row = kept.get(own.scratch.name, {**key, "model": FAMILIES[name]}, measure, own, updates)
        found = []
        for rival in RIVALS.get(name, ()):
            given = (rival, peers, others.LEAST, threads, tokens.raw)
            found.append((rival, kept.get(rival.name, "", others.measure, *given)))
        kinds = [f"{kind}_tokens_per_second" for kind in ("train", "greedy", "beam")]
        speeds = [row[kind] for kind in kinds]
        best = [max((other[kind] for _, other in found), default=None) for kind in kinds]
        share = row["train_tokens_per_second"] * row["operations"] / limit
        yield [name, row["parameters"], *speeds, share, *map(ratio, speeds, best)]
        for rival, other in found:
            yield [rival.title, other.get("parameters"), *(other[kind] for kind in kinds), *[None] * 4]


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--families", nargs="+", choices=[*FAMILIES], default=[*FAMILIES])
    made.add_argument("--scratch", type=Path, default=Path("runs/families"), help="where rows and runs are kept")
    made.add_argument("--peers", type=Path, help="folder of the rivals' scripts")
    made.add_argument("--updates", type=int, default=200)
    given = parsed(made)
    what = ("training", "greedy b64", "beam 5 b64")
    speeds = " | ".join(f"{name}, tokens/s {{:,.0f}}" for name in what)
    ratios = " | ".join(f"{name}, to the fastest rival {{:.1f}}x" for name in what)
    head = f"family | parameters {{:,}} | {speeds} | share of the products' limit {{:.0%}} | {ratios}"
    found = rows(given.families, given.scratch.resolve(), others.scripts(given.peers), given.threads, given.updates)
    lines = table(head, found)
    publish(["# Families beside rivals", "", machine_line(), "", *lines], given.output)


if __name__ == "__main__":
    main()
