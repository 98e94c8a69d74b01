"""Measurements of rnnsearch on the rivals' tokens, each in a separate process (child.py)."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tomli_w

from benchmarks.harness import CompletedCommand, Row, peak_mib, run
from benchmarks.speed import child
from benchmarks.speed.limit import average_counts
from benchmarks.speed.model import Sizes, run_file
from benchmarks.speed.tokens import Tokens, write_lines


@dataclass(frozen=True)
class TrainingSetting:
    """Settings for training the same model."""

    name: str
    title: str
    precision: str
    """Precision of the matrix products."""
    updates: int = 504
    skip: int = 50
    native: bool = True
    recorded: bool = True
    """True if passes on a GPU are recorded as CUDA graphs."""
    plain: bool = False
    """True if recurrences repeat the decoder's step instead of using a fast implementation."""
    settings: tuple[str, ...] = ()
    """Options that override the run file."""


TRAINING_SETTINGS = (
    TrainingSetting("bf16", "bf16", "bf16"),
    TrainingSetting("fp32", "fp32", "fp32"),
    TrainingSetting("bf16-torch", "bf16, without native code", "bf16", updates=250, native=False),
    TrainingSetting("fp32-torch", "fp32, without native code", "fp32", updates=250, native=False),
    TrainingSetting("fp32-plain", "fp32, without fast implementations", "fp32", updates=100, native=False, plain=True),
)


@dataclass(frozen=True)
class SearchSetting:
    """Settings for searching with the same weights."""

    name: str
    title: str
    precision: str
    native: bool = True
    candidates: int = 0
    """Candidates per source token in the candidate list of a batch; 0 for the full vocabulary."""

    @property
    def approximations(self) -> list[str]:
        """List the approximations; rows with any of them have separate targets."""
        names = ["int8"] if self.precision == "int8" else []
        return [*names, "candidate list"] if self.candidates else names


SEARCH_SETTINGS = (
    SearchSetting("bf16", "bf16", "bf16"),
    SearchSetting("candidates", "bf16, candidate lists of 40", "bf16", candidates=40),
    SearchSetting("int8", "int8", "int8"),
    SearchSetting("int8-candidates", "int8, candidate lists of 40", "int8", candidates=40),
    SearchSetting("fp32", "fp32", "fp32"),
    SearchSetting("torch", "fp32, without native code", "fp32", native=False),
)


@dataclass
class Ours:
    """A scratch folder with the tokens as words, the run file and the runs."""

    scratch: Path
    tokens: Tokens
    threads: int
    sizes: Sizes = field(default_factory=Sizes)
    device: str = "cpu"
    in_process: bool = False
    """Measure in this process, which starts faster but does not isolate the memory of a measurement."""
    model: Row | None = None
    """`[model]` table, by default RNNsearch with `sizes`."""

    def __post_init__(self) -> None:
        self.text = self.scratch / "text"
        self.run_file_path = self.scratch / "run.toml"
        for name in ("logs", "runs", "translations"):
            (self.scratch / name).mkdir(parents=True, exist_ok=True)

    def prepare(self) -> Row:
        """Write the tokens as a corpus, and prepare it."""
        self.tokens.write(self.text)
        tables = run_file(self.tokens, self.text, self.sizes)
        if self.model is not None:
            tables["model"] = self.model
        self.run_file_path.write_text(tomli_w.dumps(tables), encoding="utf-8")
        row = self._measure("prepare", "prepare", {})
        facts = json.loads((self.text / "prepared" / "prepared.json").read_text(encoding="utf-8"))
        for fact in ("vocabulary", "unknown"):
            row[fact] = dict(zip(("source", "target"), facts[fact].values(), strict=True))
        return {**row, "pairs": facts["pairs"], "mean_target": self.tokens.mean_length()}

    def train(self, setting: TrainingSetting, name: str, options: Sequence[str] = (), ends: Sequence[int] = ()) -> Row:
        """Train from scratch in `runs/NAME`.

        Args:
            setting: How to train.
            name: Name of the run.
            options: More options that override the run file.
            ends: Updates whose end times are to be reported.
        """
        folder = self.scratch / "runs" / name
        shutil.rmtree(folder, ignore_errors=True)
        spec = {"folder": str(folder), "skip": setting.skip, "memory_after": [100, 200, 400], "ends": list(ends)}
        options = [f"training.max_updates={setting.updates}", *options]
        return self._measure_training("train", name, setting, spec, options)

    def phases(self, setting: TrainingSetting, updates: int) -> Row:
        """Measure the milliseconds per phase of a training update."""
        return self._measure_training("phases", setting.name, setting, {"updates": updates})

    def _measure_training(
        self, measurement: str, name: str, setting: TrainingSetting, spec: Row, options: Sequence[str] = ()
    ) -> Row:
        """Run a measurement with a training setting."""
        training = {"threads": self.threads, "device": self.device, "precision": setting.precision}
        settings = [*(f"training.{name}={value}" for name, value in training.items()), *setting.settings, *options]
        spec |= {"settings": settings, "plain": setting.plain, "native": setting.native, "recorded": setting.recorded}
        return self._measure(measurement, name, spec)

    def learn_candidates(self, folder: Path) -> None:
        """Learn candidate lists from the training text and add them to a model folder, unless it has some."""
        if not (folder / "candidates.safetensors").is_file():
            files = [str(self.text / f"train.{language}") for language in self.tokens.languages]
            self._run_command("candidates", ["rnnsearch", "candidates", str(folder.resolve()), *files])

    def decode(self, folder: Path, setting: SearchSetting, name: str, cases: Sequence[Row], passes: int = 2) -> Row:
        """Translate the test set in each case and return the speeds and BLEU scores."""
        output = self.scratch / "translations" / name
        output.mkdir(parents=True, exist_ok=True)
        spec = {"cases": cases, "passes": passes, "output": str(output)}
        row = self._measure_search("decode", name, folder, setting, spec)
        for case in cases:
            lines = (output / case["name"]).read_text(encoding="utf-8").splitlines()
            row[case["name"]]["bleu"] = self.tokens.bleu(lines)
        return row

    def one_by_one(self, folder: Path, setting: SearchSetting, threads: int, sentences: int = 300) -> Row:
        """Measure the latency of greedy search of one sentence at a time."""
        spec = {"threads": threads, "sentences": sentences, "warm": 20}
        return self._measure_search("one_by_one", f"{setting.name}-{threads}", folder, setting, spec)

    def _measure_search(self, measurement: str, name: str, folder: Path, setting: SearchSetting, spec: Row) -> Row:
        """Run a measurement on the test set with a search setting."""
        source = str(self.text / f"test.{self.tokens.source}")
        spec |= {"model": str(folder), "source": source}
        spec |= {"precision": setting.precision, "candidates": setting.candidates, "native": setting.native}
        return self._measure(measurement, name, spec)

    def start_up(self, folder: Path, repeats: int = 5) -> Row:
        """Measure cold starts of `rnnsearch --help` and of `rnnsearch translate` with one sentence; return medians."""
        input_file = self.scratch / "one.txt"
        write_lines(input_file, (self.text / f"test.{self.tokens.source}").read_text(encoding="utf-8").splitlines()[:1])
        one = ["rnnsearch", "translate", str(folder), "-i", str(input_file), "--beam", "1"]
        row: Row = {}
        for name, command in {"help": ["rnnsearch", "--help"], "one_sentence": one}.items():
            completed = [self._run_command(name, command) for _ in range(repeats)]
            row[f"{name}_seconds"] = statistics.median(run.seconds for run in completed)
            row[f"{name}_peak_mib"] = max(run.peak_mib for run in completed)
        return row

    def limit(self, vocabulary: int, precisions: Sequence[str]) -> Row:
        """Measure the matrix products of an average update."""
        spec = {
            "sizes": asdict(self.sizes),
            "vocabulary": vocabulary,
            "counts": list(average_counts(self.tokens, self.sizes.batch)),
            "precisions": list(precisions),
            "rounds": 0 if self.in_process else 5,
        }
        return self._measure("limit", "limit", spec)

    def _measure(self, measurement: str, name: str, spec: Row) -> Row:
        """Run one measurement, normally in a separate process, and return its results with its peak memory."""
        spec = {"run": str(self.run_file_path), "threads": self.threads, "device": self.device, **spec}
        if self.in_process:
            return {**child.measure(measurement, spec), "peak_mib": peak_mib()}
        return child.start(measurement, name, spec, self.scratch / "logs")

    def _run_command(self, name: str, command: list[str]) -> CompletedCommand:
        """Run a command of the package with this Python, as a user would."""
        log_file = self.scratch / "logs" / f"{name}.log"
        return run([sys.executable, "-m", *command], log_file, child.environment(self.threads), cwd=self.scratch)
