"""rnnsearch's own rows: each in a process of its own (child.py), on the rivals' tokens."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tomli_w

from benchmarks.harness import Ended, Row, peak_mib, run
from benchmarks.speed import child
from benchmarks.speed.limit import Counts
from benchmarks.speed.model import Sizes, tables
from benchmarks.speed.tokens import Tokens, write_lines


@dataclass(frozen=True)
class Setting:
    """One way of training the same model: precision of the products, and options of the run file laid over it."""

    name: str
    title: str
    precision: str
    updates: int = 504
    skip: int = 50
    native: bool = True
    recorded: bool = True
    """On a GPU: not kernel by kernel."""
    plain: bool = False
    """Every recurrence by its definition, the step repeated, instead of a faster twin."""
    settings: tuple[str, ...] = ()


TRAININGS = (
    Setting("bf16", "bf16", "bf16"),
    Setting("fp32", "fp32", "fp32"),
    Setting("bf16-torch", "bf16, without native code", "bf16", updates=250, native=False),
    Setting("fp32-torch", "fp32, without native code", "fp32", updates=250, native=False),
    Setting("fp32-plain", "fp32, the plain step", "fp32", updates=100, native=False, plain=True),
)


@dataclass(frozen=True)
class Way:
    """One way of searching with the same weights."""

    name: str
    title: str
    precision: str
    native: bool = True
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
    Way("torch", "fp32, without native code", "fp32", native=False),
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
    model: Row | None = None
    """`[model]`, where it is not RNNsearch of those sizes."""

    def __post_init__(self) -> None:
        self.text = self.scratch / "text"
        self.run_file = self.scratch / "run.toml"
        for name in ("logs", "runs", "found"):
            (self.scratch / name).mkdir(parents=True, exist_ok=True)

    def prepare(self) -> Row:
        """The tokens as a corpus of rnnsearch, prepared."""
        self.tokens.write(self.text)
        run_file = tables(self.tokens, self.text, self.sizes)
        if self.model is not None:
            run_file["model"] = self.model
        self.run_file.write_text(tomli_w.dumps(run_file), encoding="utf-8")
        row = self._child("prepare", "prepare", {})
        facts = json.loads((self.text / "prepared" / "prepared.json").read_text(encoding="utf-8"))
        for fact in ("vocabulary", "unknown"):
            row[fact] = dict(zip(("source", "target"), facts[fact].values(), strict=True))
        return {**row, "pairs": facts["pairs"], "mean_target": self.tokens.mean_length()}

    def train(self, setting: Setting, name: str, more: Sequence[str] = (), ends: Sequence[int] = ()) -> Row:
        """Train into `runs/NAME`, from the beginning; `more`: options of the run file, too; `ends`: the updates whose
        ends are told."""
        folder = self.scratch / "runs" / name
        shutil.rmtree(folder, ignore_errors=True)
        spec = {"folder": str(folder), "skip": setting.skip, "memory_after": [100, 200, 400], "ends": list(ends)}
        return self._training("train", name, setting, spec, [f"training.max_updates={setting.updates}", *more])

    def phases(self, setting: Setting, updates: int) -> Row:
        """Milliseconds by phase."""
        return self._training("phases", setting.name, setting, {"updates": updates})

    def _training(self, kind: str, name: str, setting: Setting, spec: Row, more: Sequence[str] = ()) -> Row:
        """A measurement of one way of training."""
        options = {"threads": self.threads, "device": self.device, "precision": setting.precision}
        settings = [*(f"training.{name}={value}" for name, value in options.items()), *setting.settings, *more]
        spec |= {"settings": settings, "plain": setting.plain, "native": setting.native, "recorded": setting.recorded}
        return self._child(kind, name, spec)

    def learn_candidates(self, folder: Path) -> None:
        """Put candidate lists, learned from the training text, into a model folder that has none."""
        if not (folder / "candidates.safetensors").is_file():
            sides = [str(self.text / f"train.{language}") for language in self.tokens.languages]
            self._command("candidates", ["rnnsearch", "candidates", str(folder.resolve()), *sides])

    def decode(self, folder: Path, way: Way, name: str, cases: Sequence[Row], passes: int = 2) -> Row:
        """Translate the test set; adds BLEU to each case."""
        output = self.scratch / "found" / name
        output.mkdir(parents=True, exist_ok=True)
        spec = {"cases": cases, "passes": passes, "output": str(output)}
        row = self._search("decode", name, folder, way, spec)
        for case in cases:
            lines = (output / case["name"]).read_text(encoding="utf-8").splitlines()
            row[case["name"]]["bleu"] = self.tokens.bleu(lines)
        return row

    def one_by_one(self, folder: Path, way: Way, threads: int, sentences: int = 300) -> Row:
        """Latency of greedy search, a sentence at a time."""
        spec = {"threads": threads, "sentences": sentences, "warm": 20}
        return self._search("one_by_one", f"{way.name}-{threads}", folder, way, spec)

    def _search(self, kind: str, name: str, folder: Path, way: Way, spec: Row) -> Row:
        """A measurement of one way of searching in the test set."""
        source = str(self.text / f"test.{self.tokens.source}")
        spec |= {"model": str(folder), "source": source}
        spec |= {"precision": way.precision, "candidates": way.candidates, "native": way.native}
        return self._child(kind, name, spec)

    def start_up(self, folder: Path, repeats: int = 5) -> Row:
        """Seconds of `rnnsearch --help`, and of one sentence through the command line: medians of cold starts."""
        line = self.scratch / "one.txt"
        write_lines(line, (self.text / f"test.{self.tokens.source}").read_text(encoding="utf-8").splitlines()[:1])
        one = ["rnnsearch", "translate", str(folder), "-i", str(line), "--beam", "1"]
        row: Row = {}
        for name, command in {"help": ["rnnsearch", "--help"], "one_sentence": one}.items():
            ended = [self._command(name, command) for _ in range(repeats)]
            row[f"{name}_seconds"] = statistics.median(each.seconds for each in ended)
            row[f"{name}_peak_mib"] = max(each.peak_mib for each in ended)
        return row

    def limit(self, vocabulary: int, precisions: Sequence[str]) -> Row:
        """The matrix products of a mean update."""
        spec = {
            "sizes": asdict(self.sizes),
            "vocabulary": vocabulary,
            "counts": list(self.counts()),
            "precisions": list(precisions),
            "rounds": 0 if self.at_home else 5,
        }
        return self._child("limit", "limit", spec)

    def counts(self) -> Counts:
        """Real symbols of a mean update of the training set."""
        sides = ([len(line.split()) + 1 for line in self.tokens.lines("train", code)] for code in self.tokens.languages)
        whole = Counts.of(*sides)
        share = self.sizes.batch / whole.sentences
        return Counts(self.sizes.batch, *(round(share * number) for number in whole[1:]))

    def _child(self, kind: str, name: str, spec: Row) -> Row:
        """One measurement in a process of its own, with its peak memory."""
        spec = {"run": str(self.run_file), "threads": self.threads, "device": self.device, **spec}
        if self.at_home:
            return {**child.measure(kind, spec), "peak_mib": peak_mib()}
        return child.start(kind, name, spec, self.scratch / "logs")

    def _command(self, name: str, command: list[str]) -> Ended:
        """A command of the installed package, as a user would start it, by this Python."""
        log = self.scratch / "logs" / f"{name}.log"
        return run([sys.executable, "-m", *command], log, child.environment(self.threads), cwd=self.scratch)
