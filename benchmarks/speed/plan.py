"""The measurements of one run and their order. Finished rows are stored and reused while their settings match."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.harness import Row, log, machine_facts, process_cpu_seconds, system_cpu_seconds
from benchmarks.speed import rivals as others
from benchmarks.speed import tokens as texts
from benchmarks.speed.model import Sizes
from benchmarks.speed.ours import SEARCH_SETTINGS, TRAINING_SETTINGS, Ours, SearchSetting, TrainingSetting
from benchmarks.speed.rivals import Rival
from benchmarks.speed.rows import StoredRows, version
from benchmarks.speed.table import Results
from benchmarks.speed.tokens import Tokens

GOAL_BLEU = 35.5  # beam 5 on test_2016_flickr
TO_BLEU = TrainingSetting(
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
SEEDS = (1, 2, 3)  # of the training runs whose quality is compared


@dataclass(frozen=True)
class Plan:
    """Settings of one run of the benchmark."""

    scratch: Path
    tokens: Tokens
    threads: int
    trainings: Sequence[TrainingSetting] = TRAINING_SETTINGS
    searches: Sequence[SearchSetting] = SEARCH_SETTINGS
    to_bleu: TrainingSetting = TO_BLEU
    updates_between_checkpoints: int = 350
    """Every checkpoint is tested for the goal."""
    sizes: Sizes = field(default_factory=Sizes)
    rivals: Sequence[Rival] = ()
    scripts: Path | None = None
    rival_updates: int = others.MIN_UPDATES
    bleu_updates: int = others.FOUR_EPOCHS
    model: Path | None = None
    quality: bool = False
    goal: float = GOAL_BLEU
    batches: Sequence[int] = (64, 128, 256, 512, 1000)
    phase_updates: int = 40
    quality_updates: int = 300
    sentences: int = 300
    repeats: int = 5
    in_process: bool = False


def smoke(scratch: Path, threads: int, quality: bool) -> Plan:
    """Return a plan of all measurements of rnnsearch at toy size."""
    return Plan(
        scratch=scratch,
        tokens=texts.toy(scratch / "toy"),
        threads=threads,
        trainings=[replace(setting, updates=4, skip=2) for setting in TRAINING_SETTINGS if setting.native],
        searches=[setting for setting in SEARCH_SETTINGS if setting.native],
        to_bleu=replace(TO_BLEU, settings=(*TO_BLEU.settings, "training.schedule.warmup=1"), updates=4, skip=2),
        updates_between_checkpoints=2,
        sizes=Sizes(embedding=8, encoder=8, decoder=16, attention=16, readout=16, batch=8),
        quality=quality,
        goal=0.0,
        batches=(4, 8),
        phase_updates=2,
        quality_updates=2,
        sentences=8,
        repeats=1,
        in_process=True,
    )


class Rows:
    """Finished rows, stored in one file each in the scratch folder."""

    def __init__(self, folder: Path) -> None:
        self.stored = StoredRows(folder)
        self.all: dict[str, Row] = {}

    def get(self, name: str, key: object, measure: Callable[..., Row], *arguments: object) -> Row:
        """Return a stored row, or measure and store it.

        Args:
            name: Name of the row and its file.
            key: Everything that the row depends on in addition to the arguments.
            measure: Called with the arguments if no row with the same key and arguments is stored.
            arguments: Arguments of `measure`.
        """
        settings = [key, *arguments]
        row = self.stored.get(name, settings)
        if row is None:
            row = self._measure(name, lambda: measure(*arguments))
            self.stored.put(name, settings, row)
        else:
            log(f"{name}: reusing the row of an earlier call")
        self.all[name] = row
        return row

    def _measure(self, name: str, measure: Callable[[], Row]) -> Row:
        """Measure a row and add its duration and the fraction of a core that other processes used meanwhile."""
        log(f"{name} ...")
        start = time.monotonic()
        system_start = system_cpu_seconds()
        process_start = process_cpu_seconds()
        row: Row = json.loads(json.dumps(measure()))
        seconds = time.monotonic() - start
        foreign = (system_cpu_seconds() - system_start) - (process_cpu_seconds() - process_start)
        row |= {"row_seconds": round(seconds, 1), "foreign_cpu": round(max(0.0, foreign) / max(seconds, 1e-9), 3)}
        log(f"{name}: {seconds:.0f} s, {row['foreign_cpu']:.0%} of a core used by other processes")
        return row


class Measurement:
    """All measurements of a plan, with stored rows where there are some."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rows = Rows(plan.scratch)
        self.ours = Ours(plan.scratch, plan.tokens, plan.threads, plan.sizes, in_process=plan.in_process)
        self.setting = {"tokens": plan.tokens.folder, "sizes": plan.sizes, "threads": plan.threads}
        self.key = {**self.setting, "code": version()}
        self.results = Results({**machine_facts(), "threads": plan.threads})

    def run(self) -> Results:
        """Measure everything and return the results."""
        self._measure_everything()
        self.results.machine["foreign_cpu"] = max(row["foreign_cpu"] for row in self.rows.all.values())
        return self.results

    def _measure_everything(self) -> None:
        plan = self.plan
        results = self.results
        ours = self.ours
        prepared = self.rows.get("prepare", self.setting, ours.prepare)
        results.machine["data"] = (
            f"{prepared['pairs']:,} training pairs, {prepared['mean_target']:.2f} target tokens each; speeds are in "
            "target tokens without end tokens."
        )
        for rival in plan.rivals:
            self._measure_rival(rival)
        for setting in plan.trainings:
            row = self._get_row(f"train-{setting.name}", ours.train, setting, setting.name)
            results.trainings.append((setting.title, setting.precision, row))
        vocabulary = prepared["vocabulary"]["target"]
        results.limit.update(self.rows.get("limit", self.setting, ours.limit, vocabulary, ("fp32", "bf16")))
        self._measure_decoding(self._train_to_goal())
        for setting in plan.trainings:
            row = self._get_row(f"phases-{setting.name}", ours.phases, setting, plan.phase_updates)
            results.phases.append((setting.title, row))
        if plan.quality:
            results.quality.update({"updates": plan.quality_updates, "training": self._measure_training_quality()})

    def _get_row(self, name: str, measure: Callable[..., Row], *arguments: object) -> Row:
        """Return a row that depends on the package's code."""
        return self.rows.get(name, self.key, measure, *arguments)

    def _measure_rival(self, rival: Rival) -> None:
        """Measure one rival. OpenNMT-py without input feeding also trains to the goal, unless that is disabled."""
        plan = self.plan
        to_goal = rival.name == "onmt-nofeed" and plan.bleu_updates
        updates = max(plan.rival_updates, plan.bleu_updates) if to_goal else plan.rival_updates
        name = f"rival-{rival.name}"
        row = self.rows.get(name, "", others.measure, rival, plan.scripts, updates, plan.threads, plan.tokens.raw)
        self.results.rivals.append((rival.title, rival.context_fed, row))

    def _train_to_goal(self) -> Path:
        """Return the folder of a model trained to the goal in this run, or of the given model."""
        plan = self.plan
        if plan.model is not None:
            return plan.model.resolve()
        row = self._get_row(
            "to-bleu", self._measure_time_to_goal, plan.to_bleu, plan.updates_between_checkpoints, plan.goal
        )
        self.results.to_bleu.update({**row, "title": plan.to_bleu.title, "target": plan.goal})
        return Path(row["folder"])

    def _measure_time_to_goal(self, setting: TrainingSetting, interval: int, goal: float) -> Row:
        """Train, and test the checkpoints until one reaches the goal."""
        updates = range(interval, setting.updates + 1, interval)
        row = self.ours.train(setting, "to-bleu", [f"training.checkpoint_every={interval}"], updates)
        history = []
        best = ("", -1.0)
        for update in updates:
            folder = self._model_after(update)
            case = {"name": "beam", "beam": 5, "batch": 64}
            bleu = self.ours.decode(folder, SEARCH_SETTINGS[0], f"after-{update}", [case], passes=0)["beam"]["bleu"]
            history.append((update, row["ends"][str(update)], bleu))
            log(f"after {update} updates, {history[-1][1]:.0f} s: BLEU {bleu:.2f}")
            best = max(best, (str(folder), bleu), key=lambda pair: pair[1])
            if bleu >= goal:
                break
        seconds = history[-1][1] if history[-1][2] >= goal else None
        return {**row, "history": history, "seconds": seconds, "folder": best[0]}

    def _model_after(self, update: int) -> Path:
        """Assemble a model folder with the weights after an update."""
        runs = self.ours.scratch / "runs"
        run = runs / "to-bleu"
        folder = runs / f"after-{update}"
        folder.mkdir(exist_ok=True)
        shutil.copy(run / "config.toml", folder / "config.toml")
        shutil.copytree(run / "tokenizers", folder / "tokenizers", dirs_exist_ok=True)
        shutil.copy(run / "checkpoints" / f"update-{update}.safetensors", folder / "model.safetensors")
        return folder

    def _measure_decoding(self, folder: Path) -> None:
        """Measure decoding in batches, one by one and from a cold start, and the BLEU of each search setting."""
        plan = self.plan
        results = self.results
        ours = self.ours
        cases: dict[str, list[Row]] = {}
        for search, beam in {"greedy": 1, "beam 5": 5}.items():
            name = search.replace(" ", "")
            cases[search] = [{"name": f"{name}-{batch}", "beam": beam, "batch": batch} for batch in plan.batches]
        all_cases = [case for search_cases in cases.values() for case in search_cases]
        for setting in plan.searches:
            if setting.candidates:
                ours.learn_candidates(folder)
            decoded = self._get_row(f"decode-{setting.name}", ours.decode, folder, setting, setting.name, all_cases)
            bleu = results.quality.setdefault("search", {}).setdefault(setting.title, {})
            for search, search_cases in cases.items():
                rows = [decoded[case["name"]] for case in search_cases]
                # The report has the row of batches of 64 and, if it is another one, the fastest row.
                fastest = max(rows, key=lambda row: row["tokens_per_second"])
                reported = [row for row in rows if row["batch"] == 64]
                if fastest not in reported:
                    reported.append(fastest)
                title = ", ".join([search, *setting.approximations])
                results.decodings.extend((setting.title, title, row) for row in reported)
                bleu[search] = reported[0]["bleu"]
            if not setting.candidates:
                self._measure_latency(folder, setting)
        results.start_up.update(self._get_row("start-up", ours.start_up, folder, plan.repeats))

    def _measure_latency(self, folder: Path, setting: SearchSetting) -> None:
        for threads in sorted({1, self.plan.threads}):
            name = f"one-by-one-{setting.name}-{threads}"
            row = self._get_row(name, self.ours.one_by_one, folder, setting, threads, self.plan.sentences)
            self.results.one_by_one.append((f"{setting.title}, {threads} thread{'s' if threads > 1 else ''}", row))

    def _measure_training_quality(self) -> Row:
        """Return the dev NLL per word after the same number of updates, by title, for each seed and as the mean."""
        quality: Row = {}
        for setting in self.plan.trainings:
            if setting.plain:
                continue
            shorter = replace(setting, updates=self.plan.quality_updates)
            values = []
            for seed in SEEDS:
                name = f"quality-{setting.name}-{seed}"
                row = self._get_row(name, self.ours.train, shorter, name, [f"training.seed={seed}"])
                values.append(row["dev_nll_per_word"])
            quality[setting.title] = {"nll": values, "mean": statistics.fmean(values)}
        return quality
