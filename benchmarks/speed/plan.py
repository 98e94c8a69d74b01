"""What one run measures, in which order."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.harness import Row, machine, say
from benchmarks.speed import full_size, quality
from benchmarks.speed import rivals as others
from benchmarks.speed.model import Sizes
from benchmarks.speed.ours import BF16, ROOT, TRAININGS, WAYS, Ours, Setting, Way
from benchmarks.speed.rivals import Rival
from benchmarks.speed.rows import Rows
from benchmarks.speed.table import Found
from benchmarks.speed.tokens import Tokens

GOAL = 35.5
"""BLEU of beam 5 on test_2016_flickr."""
TO_BLEU = Setting(
    "to-bleu",
    "bf16, Adam's rate 5e-3 falling to 0, label smoothing 0.1",
    (
        *BF16,
        "training.optimiser.learning_rate=5e-3",
        "training.schedule.type=linear",
        "training.schedule.warmup=200",
        "training.label_smoothing=0.1",
    ),
    updates=1400,
)


@dataclass(frozen=True)
class Plan:
    """One run. `between`: updates between the checkpoints that are tried for the goal."""

    scratch: Path
    tokens: Tokens
    threads: int
    trainings: Sequence[Setting] = TRAININGS
    ways: Sequence[Way] = WAYS
    to_bleu: Setting = TO_BLEU
    between: int = 350
    sizes: Sizes = field(default_factory=Sizes)
    rivals: Sequence[Rival] = ()
    scripts: Path | None = None
    rival_updates: int = others.LEAST
    bleu_updates: int = others.FOUR_EPOCHS
    model: Path | None = None
    quality: bool = False
    device: str = "cpu"
    goal: float = GOAL
    batches: Sequence[int] = (64, 128, 256, 512, 1000)
    phase_updates: int = 40
    quality_updates: int = 300
    sentences: int = 300
    repeats: int = 5
    at_home: bool = False


def smoke(scratch: Path, threads: int, quality: bool) -> Plan:
    """Everything of ours at toy size."""
    from benchmarks.speed import toy

    return Plan(
        scratch=scratch,
        tokens=toy.tokens(scratch / "toy"),
        threads=threads,
        trainings=[replace(setting, updates=4, skip=2) for setting in TRAININGS if not setting.environment],
        ways=[way for way in WAYS if not way.environment],
        to_bleu=replace(TO_BLEU, settings=(*TO_BLEU.settings, "training.schedule.warmup=1"), updates=4, skip=2),
        between=2,
        sizes=Sizes(embedding=8, encoder=8, decoder=16, attention=16, readout=16, batch=8),
        quality=quality,
        goal=0.0,
        batches=(4, 8),
        phase_updates=2,
        quality_updates=2,
        sentences=8,
        repeats=1,
        at_home=True,
    )


def measure(plan: Plan) -> Found:
    """All rows of a plan, kept ones as they are."""
    rows = Rows(plan.scratch)
    ours = Ours(plan.scratch, plan.tokens, plan.threads, plan.sizes, at_home=plan.at_home)
    code = version()
    found = Found({**machine(), "threads": plan.threads})
    prepared = rows.get("prepare", {"sizes": asdict(plan.sizes)}, ours.prepare)
    found.machine["data"] = (
        f"{prepared['pairs']:,} training pairs, {prepared['mean_target']:.2f} target tokens each; speeds are in target "
        "tokens without end symbols."
    )
    for rival in plan.rivals:
        _rival(plan, rows, found, rival)
    for setting in plan.trainings:
        row = rows.get(
            f"train-{setting.name}",
            _key(plan, code, setting),
            lambda s=setting: ours.train(s, s.name),  # type: ignore[misc]
        )
        found.trainings.append((setting.title, setting.precision, row))
    vocabulary = prepared["vocabulary"]["target"]
    found.limit.update(rows.get("limit", _key(plan, "", vocabulary), lambda: ours.limit(vocabulary, ("fp32", "bf16"))))
    _decodings(plan, rows, found, ours, _trained(plan, rows, found, ours, code), code)
    found.quality["search"] = quality.of_search(found.decodings)
    for setting in plan.trainings:
        row = rows.get(
            f"phases-{setting.name}",
            _key(plan, code, setting, plan.phase_updates),
            lambda s=setting: ours.phases(s, plan.phase_updates),  # type: ignore[misc]
        )
        found.phases.append((setting.title, row))
    if plan.quality:
        nlls = quality.of_training(rows, ours, plan.trainings, _key(plan, code), plan.quality_updates)
        found.quality.update({"updates": plan.quality_updates, "training": nlls})
    if plan.device != "cpu":
        folder = plan.scratch / "full-size"
        found.full_size.extend(full_size.measure(rows, folder, plan.threads, plan.device, _key(plan, code)))
    found.machine["foreign_cpu"] = max(row["foreign_cpu"] for row in rows.all.values())
    return found


def version() -> str:
    """A digest of the package's source: rows of other code are measured anew."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix in (".py", ".cpp", ".h", ".toml"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _key(plan: Plan, code: str, *rest: object) -> Row:
    settings = [asdict(each) if isinstance(each, Setting | Way) else each for each in rest]
    return {"code": code, "sizes": asdict(plan.sizes), "threads": plan.threads, "rest": settings}


def _rival(plan: Plan, rows: Rows, found: Found, rival: Rival) -> None:
    """One rival; OpenNMT-py without input feeding trains on to the goal, where that is asked for."""
    assert plan.scripts is not None
    scripts = plan.scripts
    long = rival.name == "onmt-nofeed" and plan.bleu_updates
    updates = max(plan.rival_updates, plan.bleu_updates) if long else plan.rival_updates
    key = {"updates": updates, "threads": plan.threads}
    row = rows.get(
        f"rival-{rival.name}", key, lambda: others.measure(rival, scripts, updates, plan.threads, plan.tokens.raw)
    )
    found.rivals.append((rival.title, rival.context_fed, row))


def _trained(plan: Plan, rows: Rows, found: Found, ours: Ours, code: str) -> Path:
    """A model trained to the goal in this run (or as given), and how long that took."""
    if plan.model is not None:
        return plan.model.resolve()
    marks = range(plan.between, plan.to_bleu.updates + 1, plan.between)

    def train() -> Row:
        every = [f"training.checkpoint_every={plan.between}"]
        row = ours.train(plan.to_bleu, "to-bleu", every, list(marks))
        history, best = [], ("", -1.0)
        for update in marks:
            folder = _with_weights(ours, update)
            case = {"name": "beam", "beam": 5, "batch": 64}
            bleu = ours.decode(folder, WAYS[0], f"after-{update}", [case], passes=0)["beam"]["bleu"]
            history.append((update, row["ends"][str(update)], bleu))
            say(f"after {update} updates, {history[-1][1]:.0f} s: BLEU {bleu:.2f}")
            best = max(best, (str(folder), bleu), key=lambda pair: pair[1])
            if bleu >= plan.goal:
                break
        reached = history[-1][1] if history[-1][2] >= plan.goal else None
        return {**row, "history": history, "seconds": reached, "folder": best[0]}

    row = rows.get("to-bleu", _key(plan, code, plan.to_bleu, plan.goal), train)
    found.to_bleu.update({**row, "title": plan.to_bleu.title, "target": plan.goal})
    return Path(row["folder"])


def _with_weights(ours: Ours, update: int) -> Path:
    """The model folder as it was after an update."""
    run = ours.scratch / "runs" / "to-bleu"
    folder = ours.scratch / "runs" / f"after-{update}"
    folder.mkdir(exist_ok=True)
    shutil.copy(run / "config.toml", folder / "config.toml")
    shutil.copytree(run / "tokenizers", folder / "tokenizers", dirs_exist_ok=True)
    shutil.copy(run / "checkpoints" / f"update-{update}.safetensors", folder / "model.safetensors")
    return folder


def _decodings(plan: Plan, rows: Rows, found: Found, ours: Ours, folder: Path, code: str) -> None:
    """Batches of every size, one by one, and from a cold start."""
    cases: list[Row] = [
        {"name": f"{kind.replace(' ', '')}-{batch}", "kind": kind, "beam": beam, "batch": batch}
        for beam, kind in ((1, "greedy"), (5, "beam 5"))
        for batch in plan.batches
    ]
    for way in plan.ways:
        if way.candidates:
            ours.learn_candidates(folder)
        key = _key(plan, code, str(folder), cases, way)
        decoded = rows.get(f"decode-{way.name}", key, lambda w=way: ours.decode(folder, w, w.name, cases))  # type: ignore[misc]
        for kind in ("greedy", "beam 5"):
            mine = [decoded[case["name"]] for case in cases if case["kind"] == kind]
            best = max(mine, key=lambda case: case["tokens_per_second"])
            at_64 = [case for case in mine if case["batch"] == 64]
            named = ", ".join([kind, *way.apart])
            shown = at_64 if best in at_64 else [*at_64, best]
            found.decodings.extend((way.title, named, case) for case in shown)
        for threads in [] if way.candidates else sorted({1, plan.threads}):
            row = rows.get(
                f"one-by-one-{way.name}-{threads}",
                _key(plan, code, str(folder), way, threads, plan.sentences),
                lambda w=way, n=threads: ours.one_by_one(folder, w, n, plan.sentences),  # type: ignore[misc]
            )
            found.one_by_one.append((f"{way.title}, {threads} thread{'s' if threads > 1 else ''}", row))
    key = _key(plan, code, str(folder), plan.repeats)
    found.start_up.update(rows.get("start-up", key, lambda: ours.start_up(folder, plan.repeats)))
