"""What one run measures, in which order. A row that is done is kept in a file as long as its settings stay."""

from __future__ import annotations

import hashlib
import json
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path

from benchmarks.harness import Row, busy_seconds, machine, own_seconds, say
from benchmarks.speed import rivals as others
from benchmarks.speed import tokens as texts
from benchmarks.speed.child import ROOT
from benchmarks.speed.gpu import SCALES, Scale, on_a_gpu
from benchmarks.speed.model import Sizes
from benchmarks.speed.ours import TRAININGS, WAYS, Ours, Setting, Way
from benchmarks.speed.rivals import Rival
from benchmarks.speed.table import Found
from benchmarks.speed.tokens import Tokens

GOAL = 35.5
"""BLEU of beam 5 on test_2016_flickr."""
TO_BLEU = Setting(
    "to-bleu",
    "bf16, Adam's rate 5e-3 falling to 0, label smoothing 0.1",
    "bf16",
    updates=1400,
    settings=(
        "training.optimiser.learning_rate=5e-3",
        "training.schedule.type=linear",
        "training.schedule.warmup=200",
        "training.label_smoothing=0.1",
    ),
)
SEEDS = (1, 2, 3)
"""Of the trainings whose quality is compared."""


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
    return Plan(
        scratch=scratch,
        tokens=texts.toy(scratch / "toy"),
        threads=threads,
        trainings=[replace(setting, updates=4, skip=2) for setting in TRAININGS if setting.native],
        ways=[way for way in WAYS if way.native],
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


class Rows:
    """The finished rows of a scratch folder, a file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "rows"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.all: dict[str, Row] = {}

    def get(self, name: str, key: object, measure: Callable[..., Row], *arguments: object) -> Row:
        """The row of these arguments as it is kept, or measured now and kept. `key`: what else it depends on."""
        path = self.folder / f"{name}.json"
        settings = json.loads(json.dumps([key, *arguments], default=_plain))
        kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if kept.get("settings") == settings:
            say(f"{name}: kept from an earlier call")
            self.all[name] = kept["row"]
        else:
            self.all[name] = self._measured(name, lambda: measure(*arguments))
            path.write_text(json.dumps({"settings": settings, "row": self.all[name]}, indent=1), encoding="utf-8")
        return self.all[name]

    def _measured(self, name: str, measure: Callable[[], Row]) -> Row:
        """The row with its own time, and what share of a core others took meanwhile."""
        say(f"{name} ...")
        began, busy, own = time.monotonic(), busy_seconds(), own_seconds()
        row: Row = json.loads(json.dumps(measure()))
        seconds = time.monotonic() - began
        foreign = busy_seconds() - busy - (own_seconds() - own)
        row |= {"row_seconds": round(seconds, 1), "foreign_cpu": round(max(0.0, foreign) / max(seconds, 1e-9), 3)}
        say(f"{name}: {seconds:.0f} s, {row['foreign_cpu']:.0%} of a core taken by others")
        return row


def _plain(value: object) -> object:
    """As JSON has it."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def version() -> str:
    """A digest of the package's source: rows of other code are measured anew."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix in (".py", ".cpp", ".h", ".toml"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Measurement:
    """All rows of a plan, kept ones as they are."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.rows = plan, Rows(plan.scratch)
        self.ours = Ours(plan.scratch, plan.tokens, plan.threads, plan.sizes, at_home=plan.at_home)
        self.setting = {"tokens": plan.tokens.folder, "sizes": plan.sizes, "threads": plan.threads}
        self.key = {**self.setting, "code": version()}
        self.found = Found({**machine(), "threads": plan.threads})

    def all(self) -> Found:
        """Measure; on a GPU, what there is to say of one."""
        if self.plan.device == "cpu":
            self._everything()
        else:
            self.on_a_gpu(SCALES)
        self.found.machine["foreign_cpu"] = max(row["foreign_cpu"] for row in self.rows.all.values())
        return self.found

    def on_a_gpu(self, scales: Sequence[Scale]) -> None:
        """Training at some scales: a row for each size of batch, recorded and kernel by kernel."""
        for scale in scales:
            tokens = scale.tokens(self.plan.tokens, self.plan.scratch)
            for batch in scale.batches:
                folder, sizes = self.plan.scratch / scale.name / str(batch), replace(scale.sizes, batch=batch)
                ours = Ours(folder, tokens, self.plan.threads, sizes, self.plan.device, self.plan.at_home)
                self.found.gpu.extend(self._row(f"gpu-{scale.name}-{batch}", on_a_gpu, ours, scale)["ways"])

    def _everything(self) -> None:
        plan, found, ours = self.plan, self.found, self.ours
        prepared = self.rows.get("prepare", self.setting, ours.prepare)
        found.machine["data"] = (
            f"{prepared['pairs']:,} training pairs, {prepared['mean_target']:.2f} target tokens each; speeds are in "
            "target tokens without end symbols."
        )
        for rival in plan.rivals:
            self._rival(rival)
        for setting in plan.trainings:
            row = self._row(f"train-{setting.name}", ours.train, setting, setting.name)
            found.trainings.append((setting.title, setting.precision, row))
        vocabulary = prepared["vocabulary"]["target"]
        found.limit.update(self.rows.get("limit", self.setting, ours.limit, vocabulary, ("fp32", "bf16")))
        self._decodings(self._trained())
        for setting in plan.trainings:
            row = self._row(f"phases-{setting.name}", ours.phases, setting, plan.phase_updates)
            found.phases.append((setting.title, row))
        if plan.quality:
            found.quality.update({"updates": plan.quality_updates, "training": self._quality_of_training()})

    def _row(self, name: str, measure: Callable[..., Row], *arguments: object) -> Row:
        """One that other code would change."""
        return self.rows.get(name, self.key, measure, *arguments)

    def _rival(self, rival: Rival) -> None:
        """One rival; OpenNMT-py without input feeding trains on to the goal, where that is asked for."""
        plan = self.plan
        long = rival.name == "onmt-nofeed" and plan.bleu_updates
        updates = max(plan.rival_updates, plan.bleu_updates) if long else plan.rival_updates
        name = f"rival-{rival.name}"
        row = self.rows.get(name, "", others.measure, rival, plan.scripts, updates, plan.threads, plan.tokens.raw)
        self.found.rivals.append((rival.title, rival.context_fed, row))

    def _trained(self) -> Path:
        """A model trained to the goal in this run (or as given), and how long that took."""
        plan = self.plan
        if plan.model is not None:
            return plan.model.resolve()
        row = self._row("to-bleu", self._to_bleu, plan.to_bleu, plan.between, plan.goal)
        self.found.to_bleu.update({**row, "title": plan.to_bleu.title, "target": plan.goal})
        return Path(row["folder"])

    def _to_bleu(self, setting: Setting, between: int, goal: float) -> Row:
        """Train, and try the checkpoints until one reaches the goal."""
        marks = range(between, setting.updates + 1, between)
        row = self.ours.train(setting, "to-bleu", [f"training.checkpoint_every={between}"], marks)
        history, best = [], ("", -1.0)
        for update in marks:
            folder = self._with_weights(update)
            case = {"name": "beam", "beam": 5, "batch": 64}
            bleu = self.ours.decode(folder, WAYS[0], f"after-{update}", [case], passes=0)["beam"]["bleu"]
            history.append((update, row["ends"][str(update)], bleu))
            say(f"after {update} updates, {history[-1][1]:.0f} s: BLEU {bleu:.2f}")
            best = max(best, (str(folder), bleu), key=lambda pair: pair[1])
            if bleu >= goal:
                break
        reached = history[-1][1] if history[-1][2] >= goal else None
        return {**row, "history": history, "seconds": reached, "folder": best[0]}

    def _with_weights(self, update: int) -> Path:
        """The model folder as it was after an update."""
        run, folder = (self.ours.scratch / "runs" / name for name in ("to-bleu", f"after-{update}"))
        folder.mkdir(exist_ok=True)
        shutil.copy(run / "config.toml", folder / "config.toml")
        shutil.copytree(run / "tokenizers", folder / "tokenizers", dirs_exist_ok=True)
        shutil.copy(run / "checkpoints" / f"update-{update}.safetensors", folder / "model.safetensors")
        return folder

    def _decodings(self, folder: Path) -> None:
        """Batches of every size, one by one, and from a cold start; the same weights' BLEU by each way."""
        plan, found, ours = self.plan, self.found, self.ours
        kinds = {"greedy": 1, "beam 5": 5}
        cases: dict[str, list[Row]] = {
            kind: [{"name": f"{kind.replace(' ', '')}-{n}", "beam": beam, "batch": n} for n in plan.batches]
            for kind, beam in kinds.items()
        }
        for way in plan.ways:
            if way.candidates:
                ours.learn_candidates(folder)
            every = [case for kind in kinds for case in cases[kind]]
            decoded = self._row(f"decode-{way.name}", ours.decode, folder, way, way.name, every)
            bleu = found.quality.setdefault("search", {}).setdefault(way.title, {})
            for kind in kinds:
                mine = [decoded[case["name"]] for case in cases[kind]]
                best = max(mine, key=lambda case: case["tokens_per_second"])
                at_64 = [case for case in mine if case["batch"] == 64]
                shown = at_64 if best in at_64 else [*at_64, best]
                found.decodings.extend((way.title, ", ".join([kind, *way.apart]), case) for case in shown)
                bleu[kind] = shown[0]["bleu"]
            for threads in [] if way.candidates else sorted({1, plan.threads}):
                name = f"one-by-one-{way.name}-{threads}"
                row = self._row(name, ours.one_by_one, folder, way, threads, plan.sentences)
                found.one_by_one.append((f"{way.title}, {threads} thread{'s' if threads > 1 else ''}", row))
        found.start_up.update(self._row("start-up", ours.start_up, folder, plan.repeats))

    def _quality_of_training(self) -> Row:
        """Dev NLL a word after equally many updates, by title: of each seed, and the mean."""
        found: Row = {}
        for setting in self.plan.trainings:
            if not setting.plain:
                names = {f"quality-{setting.name}-{seed}": [f"training.seed={seed}"] for seed in SEEDS}
                long = replace(setting, updates=self.plan.quality_updates)
                rows = [self._row(name, self.ours.train, long, name, seed) for name, seed in names.items()]
                values = [row["dev_nll_per_word"] for row in rows]
                found[setting.title] = {"nll": values, "mean": statistics.fmean(values)}
        return found
