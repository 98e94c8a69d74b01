"""rnnsearch's own rows: each in a process of its own (child.py), on the rivals' tokens."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import Ended, Row, peak_mib, run
from benchmarks.speed import model
from benchmarks.speed.child import KINDS
from benchmarks.speed.limit import Counts
from benchmarks.speed.model import Sizes
from benchmarks.speed.tokens import Tokens

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Setting:
    """One way of training the same model: options of the run file laid over it."""

    name: str
    title: str
    settings: tuple[str, ...] = ()
    updates: int = 504
    skip: int = 50
    environment: tuple[tuple[str, str], ...] = ()
    plain: bool = False
    """Every recurrence by its definition, the step repeated, instead of a faster twin."""

    @property
    def precision(self) -> str:
        """Of the matrix products."""
        found = [s.partition("=")[2] for s in self.settings if s.startswith("training.precision=")]
        return found[0] if found else "fp32"


FP32, BF16 = ("training.precision=fp32",), ("training.precision=bf16",)
WITHOUT_NATIVE = (("RNNSEARCH_NATIVE", "0"),)
TRAININGS = (
    Setting("bf16", "bf16", BF16),
    Setting("fp32", "fp32", FP32, updates=504),
    Setting("bf16-torch", "bf16, without native code", BF16, updates=250, environment=WITHOUT_NATIVE),
    Setting("fp32-torch", "fp32, without native code", FP32, updates=250, environment=WITHOUT_NATIVE),
    Setting("fp32-plain", "fp32, the plain step", FP32, updates=100, environment=WITHOUT_NATIVE, plain=True),
)


@dataclass(frozen=True)
class Way:
    """One way of searching with the same weights."""

    name: str
    title: str
    precision: str
    environment: tuple[tuple[str, str], ...] = ()
    candidates: int = 0
    """Translations a source symbol in the batch's candidate list; 0: the whole vocabulary."""

    @property
    def apart(self) -> list[str]:
        """What sets its rows apart from those that the targets are about."""
        return [*(["int8"] if self.precision == "int8" else []), *(["candidate list"] if self.candidates else [])]


WAYS = (
    Way("bf16", "bf16", "bf16"),
    Way("candidates", "bf16, candidate lists of 40", "bf16", candidates=40),
    Way("int8", "int8", "int8"),
    Way("int8-candidates", "int8, candidate lists of 40", "int8", candidates=40),
    Way("fp32", "fp32", "fp32"),
    Way("torch", "fp32, without native code", "fp32", WITHOUT_NATIVE),
)


@dataclass
class Ours:
    """A scratch folder with the tokens as words, the run file, and the runs."""

    scratch: Path
    tokens: Tokens
    threads: int
    sizes: Sizes = field(default_factory=Sizes)
    device: str = "cpu"
    at_home: bool = False
    """Measure in this process: faster to begin, but the memory is not the measurement's alone."""

    def __post_init__(self) -> None:
        self.text = self.scratch / "text"
        self.run_file = self.scratch / "run.toml"
        for name in ("specs", "logs", "runs", "found"):
            (self.scratch / name).mkdir(parents=True, exist_ok=True)

    def prepare(self) -> Row:
        """The tokens as a corpus of rnnsearch, prepared."""
        self.tokens.write(self.text)
        model.write(self.run_file, model.tables(self.tokens, self.text, self.sizes))
        began = self.child("prepare", "prepare", {"run": str(self.run_file)})
        facts = json.loads((self.text / "prepared" / "prepared.json").read_text(encoding="utf-8"))
        return {
            **began,
            "pairs": facts["pairs"],
            "vocabulary": dict(zip(("source", "target"), facts["vocabulary"].values(), strict=True)),
            "unknown": dict(zip(("source", "target"), facts["unknown"].values(), strict=True)),
            "mean_target": self.tokens.mean_length(),
        }

    def train(self, setting: Setting, name: str, more: Sequence[str] = (), ends: Sequence[int] = ()) -> Row:
        """Train into `runs/NAME`, from the beginning."""
        folder = self.scratch / "runs" / name
        shutil.rmtree(folder, ignore_errors=True)
        settings = [*setting.settings, f"training.max_updates={setting.updates}", *self._where(), *more]
        spec = {
            "run": str(self.run_file),
            "settings": settings,
            "folder": str(folder),
            "skip": setting.skip,
            "memory_after": [100, 200, 400],
            "ends": list(ends),
            "threads": self.threads,
            "plain": setting.plain,
        }
        return self.child("train", name, spec, setting.environment)

    def learn_candidates(self, folder: Path) -> None:
        """Put candidate lists, learned from the training text, into a model folder that has none."""
        if not (folder / "candidates.safetensors").is_file():
            sides = [str(self.text / f"train.{language}") for language in (self.tokens.source, self.tokens.target)]
            self._command("candidates", ["rnnsearch", "candidates", str(folder.resolve()), *sides])

    def decode(self, folder: Path, way: Way, name: str, cases: list[dict[str, Any]], passes: int = 2) -> Row:
        """Translate the test set; adds BLEU to each case."""
        output = self.scratch / "found" / name
        output.mkdir(parents=True, exist_ok=True)
        spec = {**self._searching(folder, way, self.threads), "cases": cases, "passes": passes, "output": str(output)}
        row = self.child("decode", name, spec, way.environment)
        for case in cases:
            lines = (output / case["name"]).read_text(encoding="utf-8").splitlines()
            row[case["name"]]["bleu"] = self.tokens.bleu(lines)
        return row

    def one_by_one(self, folder: Path, way: Way, threads: int, sentences: int = 300) -> Row:
        """Latency of greedy search, a sentence at a time."""
        spec = {**self._searching(folder, way, threads), "sentences": sentences, "warm": 20}
        return self.child("one_by_one", f"{way.name}-{threads}", spec, way.environment)

    def _searching(self, folder: Path, way: Way, threads: int) -> Row:
        return {
            "model": str(folder),
            "source": str(self.text / f"test.{self.tokens.source}"),
            "precision": way.precision,
            "candidates": way.candidates,
            "threads": threads,
            "device": self.device,
        }

    def start_up(self, folder: Path, repeats: int = 5) -> Row:
        """Seconds of `rnnsearch --help`, and of one sentence through the command line: medians of cold starts."""
        line = self.scratch / "one.txt"
        first = (self.text / f"test.{self.tokens.source}").read_text(encoding="utf-8").splitlines()[0]
        line.write_text(f"{first}\n", encoding="utf-8")
        one = ["rnnsearch", "translate", str(folder), "-i", str(line), "--beam", "1"]
        commands = {"help": ["rnnsearch", "--help"], "one_sentence": one}
        row: Row = {}
        for name, command in commands.items():
            ended = [self._command(name, command) for _ in range(repeats)]
            row[f"{name}_seconds"] = statistics.median(each.seconds for each in ended)
            row[f"{name}_peak_mib"] = max(each.peak_mib for each in ended)
        return row

    def limit(self, vocabulary: int, precisions: Sequence[str]) -> Row:
        """The matrix products of a mean update."""
        counts = self.counts()
        spec = {
            "sizes": self.sizes.__dict__,
            "vocabulary": vocabulary,
            "counts": list(counts),
            "precisions": list(precisions),
            "rounds": 0 if self.at_home else 5,
            "threads": self.threads,
            "device": self.device,
        }
        return self.child("limit", "limit", spec)

    def counts(self) -> Counts:
        """Real symbols of a mean update of the training set."""
        sides = [
            [len(line.split()) + 1 for line in self.tokens.lines("train", language)]
            for language in (self.tokens.source, self.tokens.target)
        ]
        whole = Counts.of(*sides)
        share = self.sizes.batch / whole.sentences
        return Counts(self.sizes.batch, *(round(share * number) for number in whole[1:]))

    def phases(self, setting: Setting, updates: int) -> Row:
        """Milliseconds by phase."""
        spec = {
            "run": str(self.run_file),
            "settings": [*setting.settings, *self._where()],
            "updates": updates,
            "threads": self.threads,
            "plain": setting.plain,
        }
        return self.child("phases", setting.name, spec, setting.environment)

    def child(self, kind: str, name: str, spec: Row, environment: Sequence[tuple[str, str]] = ()) -> Row:
        """One measurement in a process of its own, with its peak memory."""
        if self.at_home:
            return dict(json.loads(json.dumps(KINDS[kind](spec)))) | {"peak_mib": peak_mib()}
        path = self.scratch / "specs" / f"{kind}-{name}.json"
        path.write_text(json.dumps(spec, indent=1), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.speed.child", kind, str(path)]
        ended = run(
            command,
            self.scratch / "logs" / f"{kind}-{name}.log",
            {**self._environment(), **dict(environment)},
            cwd=ROOT,
        )
        row: Row = json.loads(ended.output)
        return row | {"peak_mib": ended.peak_mib}

    def _where(self) -> list[str]:
        return [f"training.threads={self.threads}", f"training.device={self.device}"]

    def _command(self, name: str, command: list[str]) -> Ended:
        """A command of the installed package, as a user would start it, by this Python."""
        words = [sys.executable, "-m", *command]
        return run(words, self.scratch / "logs" / f"{name}.log", self._environment(own=False), cwd=self.scratch)

    def _environment(self, own: bool = True) -> dict[str, str]:
        """The commands set limits of torch's caches before they import it; the children get the same."""
        from rnnsearch.cli import PRIMITIVES

        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        caches = dict.fromkeys(("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), PRIMITIVES) if own else {}
        threads = {"OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}
        return {**os.environ, **threads, **caches, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
