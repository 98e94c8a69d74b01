"""Model families compared with rivals of the same architecture, in training and search on the same tokens.

Run it as `python -m benchmarks.speed.families --output docs/results/families-and-rivals.md`. Each family is trained for
200 updates in bf16, a rival for 150 in fp32. They translate the 1,000 test sentences in batches of 64 with the full
softmax. The models are not fully trained, so that translations have the wrong length: compare tokens per second.

The limit is the time of the family's matrix products, counted by PyTorch in the definition of the model, at the best
speed of the products of an RNNsearch update.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.families import FAMILIES
from benchmarks.harness import Row, argument_parser, build_model, machine_line, parse_arguments, publish, table
from benchmarks.speed import rivals as others
from benchmarks.speed.ours import SEARCH_SETTINGS, TRAINING_SETTINGS, Ours
from benchmarks.speed.plan import Rows
from benchmarks.speed.rivals import Rival
from benchmarks.speed.rows import version
from benchmarks.speed.table import ratio

LSTM = (("GRU", "LSTM"), ("enc_layers: 1", "enc_layers: 2"), ("dec_layers: 1", "dec_layers: 2"))
PRODUCT = ("global_attention: mlp", "global_attention: general")
NO_ATTENTION = (("global_attention: mlp", "global_attention: none"), ("brnn", "rnn"), ("bridge: true", "bridge: false"))


def _opennmt(input_feeding: bool, *edits: tuple[str, str]) -> Rival:
    name = f"onmt-{'-'.join(new.split()[-1] for _, new in edits)}-{int(input_feeding)}".lower()
    title = f"OpenNMT-py, {'' if input_feeding else 'no '}input feeding"
    return Rival(name, title, "onmt.sh", f"run/onmt.feed{int(input_feeding)}/train.log", input_feeding, edits)


EOLE = Rival(
    "eole-lstm",
    "Eole, input feeding",
    "eole.sh",
    "run/eole/train.log",
    edits=(("GRU", "LSTM"), ("layers: 1", "layers: 2"), PRODUCT),
)


RIVALS: dict[str, tuple[Rival, ...]] = {
    "coverage": (_opennmt(True, ("bridge: true", "bridge: true\ncoverage_attn: true")),),
    "sutskever": (_opennmt(False, *LSTM, *NO_ATTENTION),),
    "luong": (_opennmt(False, *LSTM, PRODUCT),),
    "luong, input feeding": (_opennmt(True, *LSTM, PRODUCT), EOLE),
}
"""Rivals with the architecture of a family. For RNNsearch, they are measured by `python -m benchmarks.speed`."""


def flops_per_token(model: Row, ours: Ours, vocabulary: Row) -> float:
    """Count the FLOP in matrix products per target token (without end tokens), forward and backward."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from benchmarks.speed.limit import average_counts
    from rnnsearch.accel.registry import choose
    from rnnsearch.data.batches import make_batch
    from rnnsearch.models.batch_rng import BatchRng
    from rnnsearch.objectives.likelihood import Likelihood

    counts = average_counts(ours.tokens, ours.sizes.batch)
    pairs = 8
    lengths = [round(count / counts.sentences) - 1 for count in (counts.source, counts.target)]
    batch = make_batch([tuple([5] * length for length in lengths)] * pairs, range(pairs))  # type: ignore[list-item]
    built = build_model(model, vocabulary["source"], vocabulary["target"])
    choose(built, fast=False)
    with FlopCounterMode(display=False) as counter, torch.random.fork_rng():
        Likelihood(0.0, ())(built, batch, BatchRng(1)).total.backward()
    return counter.get_total_flops() / (pairs * lengths[1])


def measure(ours: Ours, updates: int) -> Row:
    """Measure training and search of a family with the first setting of each."""
    facts = ours.prepare()
    trained = ours.train(replace(TRAINING_SETTINGS[0], updates=updates), "family")
    cases = [{"name": f"{search}-64", "beam": beam, "batch": 64} for search, beam in (("greedy", 1), ("beam", 5))]
    decoded = ours.decode(ours.scratch / "runs" / "family", SEARCH_SETTINGS[0], "family", cases)
    return {
        "train_tokens_per_second": trained["tokens_per_second"],
        "parameters": trained["parameters"],
        "flops_per_token": flops_per_token(ours.model or {}, ours, facts["vocabulary"]),
        "greedy_tokens_per_second": decoded["greedy-64"]["tokens_per_second"],
        "beam_tokens_per_second": decoded["beam-64"]["tokens_per_second"],
    }


def rows(names: list[str], scratch: Path, peers: Path, threads: int, updates: int) -> Iterator[list[object]]:
    """Yield a row per family, each followed by those of its rivals."""
    tokens = others.load_tokens(peers, None, None)
    stored_rows = Rows(scratch)
    key = {"code": version(), "threads": threads}
    ours = Ours(scratch / "limit", tokens, threads)
    vocabulary = stored_rows.get("prepare", key, ours.prepare)["vocabulary"]
    limit = stored_rows.get("limit", key, ours.limit, vocabulary["target"], ("bf16",))["bf16"]["flops_per_second"]
    speed_keys = [f"{task}_tokens_per_second" for task in ("train", "greedy", "beam")]
    for name in names:
        family = Ours(scratch / name.replace(",", "").replace(" ", "-"), tokens, threads, model=FAMILIES[name])
        row = stored_rows.get(family.scratch.name, {**key, "model": FAMILIES[name]}, measure, family, updates)
        rival_rows = []
        for rival in RIVALS.get(name, ()):
            arguments = (rival, peers, others.MIN_UPDATES, threads, tokens.raw)
            rival_rows.append((rival, stored_rows.get(rival.name, "", others.measure, *arguments)))
        speeds = [row[speed_key] for speed_key in speed_keys]
        best = [max((rival_row[speed_key] for _, rival_row in rival_rows), default=None) for speed_key in speed_keys]
        fraction = row["train_tokens_per_second"] * row["flops_per_token"] / limit
        yield [name, row["parameters"], *speeds, fraction, *map(ratio, speeds, best)]
        for rival, rival_row in rival_rows:
            rival_speeds = [rival_row[speed_key] for speed_key in speed_keys]
            yield [rival.title, rival_row.get("parameters"), *rival_speeds, *[None] * 4]


def main() -> None:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--families", nargs="+", choices=[*FAMILIES], default=[*FAMILIES])
    parser.add_argument("--scratch", type=Path, default=Path("runs/families"), help="folder for rows and runs")
    parser.add_argument("--peers", type=Path, help="folder of the rivals' scripts")
    parser.add_argument("--updates", type=int, default=200, help="training updates per family")
    args = parse_arguments(parser)
    tasks = ("training", "greedy b64", "beam 5 b64")
    speeds = " | ".join(f"{task}, tokens/s {{:,.0f}}" for task in tasks)
    ratios = " | ".join(f"{task}, relative to the fastest rival {{:.1f}}x" for task in tasks)
    head = f"family | parameters {{:,}} | {speeds} | fraction of the matrix product limit {{:.0%}} | {ratios}"
    peers = others.scripts(args.peers)
    lines = table(head, rows(args.families, args.scratch.resolve(), peers, args.threads, args.updates))
    publish(["# Model families and other toolkits", "", machine_line(), "", *lines], args.output)


if __name__ == "__main__":
    main()
