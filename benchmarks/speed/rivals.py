"""The rivals, trained and timed by the scripts of `--peers`, none of whose code is here."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Row, run
from benchmarks.speed.tokens import Tokens, own_tokens


@dataclass(frozen=True)
class Rival:
    """One script with one setting. `context_fed`: the context (or h~) feeds back into the decoder's state."""

    name: str
    title: str
    script: str
    log: str
    """Where the script logs training, below the rivals' own folder."""
    context_fed: bool = True
    edits: tuple[tuple[str, str], ...] = ()
    """Of its settings, other words for some: of another model than the one that all train."""


LEAST = 150
"""Updates under which a script's log holds too few points for a speed."""
FOUR_EPOCHS = 1816
"""Updates after which OpenNMT-py without input feeding has been seen to reach 35.5 BLEU (beam 5)."""
FAMILIES = {
    "onmt": (
        Rival("onmt-nofeed", "OpenNMT-py, no input feeding", "onmt.sh", "run/onmt.feed0/train.log", context_fed=False),
        Rival("onmt", "OpenNMT-py, input feeding", "onmt.sh", "run/onmt.feed1/train.log"),
    ),
    "joeynmt": (Rival("joeynmt", "JoeyNMT, input feeding", "joeynmt.sh", "run/joey/train.log"),),
    "eole": (Rival("eole", "Eole, input feeding", "eole.sh", "run/eole/train.log"),),
}
"""What `--rivals` takes, and the rows that each stands for."""
SHARED = Path(__file__).resolve().parents[3] / "shared"
"""Beside this checkout."""


def chosen(names: str) -> list[Rival]:
    """The rivals of a comma-separated list. Errors: ValueError for another name."""
    wanted = [name.strip() for name in names.split(",") if name.strip() and name.strip() != "none"]
    for name in wanted:
        if name not in FAMILIES:
            raise ValueError(f"--rivals must be some of {', '.join(FAMILIES)}, or none; got {name}")
    return [rival for name in wanted for rival in FAMILIES[name]]


def scripts(given: Path | None) -> Path:
    """The folder of the rivals' scripts: `--peers`, else PEERS_SCRIPTS, else ../shared/peers beside this checkout.

    Errors: ValueError, one sentence, where there is none.
    """
    named = given or Path(os.environ.get("PEERS_SCRIPTS") or SHARED / "peers")
    if not (named / "lib.sh").is_file():
        raise ValueError(
            f"--peers must be the folder of the rivals' scripts (onmt.sh, joeynmt.sh, eole.sh, prep.sh, lib.sh); "
            f"got {named}; --rivals none measures rnnsearch alone"
        )
    return named


def home() -> Path:
    """Where the scripts install and run: PEERS, as they read it."""
    return Path(os.environ.get("PEERS") or Path.home() / ".cache" / "rnnsearch-peers")


def tokens(peers: Path | None, raw: Path | None, own: Path | None) -> Tokens:
    """The tokens that the rivals read, made by their `prep.sh` where that is not done; or, without rivals, tokens of
    our own, made in the folder `own`.

    Errors: ValueError, one sentence, where neither tokens nor scripts nor text are there.
    """
    folder, text = home() / "data" / "bpe8k", raw or SHARED / "data" / "multi30k-en-de"
    if not (text / "train.en").is_file():
        raise ValueError(f"--data must be the folder of Multi30k's text (train.en, train.de, val.*, ...); got {text}")
    if not (folder / "vocab.de.txt").is_file():
        if own is not None:
            return own_tokens(text, own)
        _run("prep", scripts(peers) / "prep.sh", [], {"RAW": str(text)})
    return Tokens(folder, text, home() / "tools" / "bin")


def _run(name: str, script: Path, arguments: list[str], more: Mapping[str, str]) -> str:
    """What a script printed; its log is beside what it installs."""
    home().mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PEERS": str(home()), **more}
    return run(["bash", str(script), *arguments], home() / f"{name}.log", environment).output


def measure(rival: Rival, peers: Path, updates: int, threads: int, raw: Path, one_by_one: int = 200) -> Row:
    """Install where needed, train for `updates`, decode the test set; what the script found."""
    if rival.edits:
        peers = _edited(rival, peers)
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    environment = {**limits, "FEED": str(int(rival.context_fed)), "N1": str(one_by_one), "RAW": str(raw)}
    output = _run(rival.name, peers / rival.script, ["", str(updates)], environment)
    (home() / f"{rival.name}.out").write_text(output, encoding="utf-8")
    row, log = {**parse(output), "updates": updates}, home() / rival.log
    count = parameters(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else None
    return row if count is None else {**row, "parameters": count}


def _edited(rival: Rival, peers: Path) -> Path:
    """A copy of the scripts with the rival's own settings. Errors: ValueError where they have no such words."""
    folder = home() / "edited" / rival.name
    shutil.copytree(peers, folder, dirs_exist_ok=True)
    settings = folder / Path(rival.script).with_suffix(".yaml")
    text = (peers / settings.name).read_text(encoding="utf-8")
    for old, new in rival.edits:
        if old not in text:
            raise ValueError(f"{settings.name} of --peers must hold {old!r}")
        text = text.replace(old, new)
    settings.write_text(text, encoding="utf-8")
    return folder


TIMED = re.compile(
    r"^# timed rc=(?P<rc>\d+) wall=(?P<wall>[\d.]+)s cpu=(?P<cpu>[\d.]+)s maxrss=(?P<rss>\d+)MiB "
    r"foreign_cpu=(?P<foreign>-?[\d.]+)s log=(?P<log>\S+)",
    re.MULTILINE,
)
DECODED = re.compile(
    r"^(?P<name>g64|b64|g1): (?P<sentences>\d+) sents (?P<tokens>\d+) hyp-tokens full=(?P<full>[\d.]+)s "
    r"one-sentence=(?P<one>[\d.]+)s -> (?P<speed>[\d.]+) sent/s (?P<rate>\d+) tok/s (?P<ms>[\d.]+) ms/sent",
    re.MULTILINE,
)


def parse(output: str) -> Row:
    """What a script printed: training speed, wall time and memory, decoding by kind, BLEU.

    Errors: RuntimeError where a part of it failed or is missing.
    """
    timed = list(TIMED.finditer(output))
    failed = [found["log"] for found in timed if found["rc"] != "0"]
    decoded = {found["name"]: found for found in DECODED.finditer(output)}
    last = re.search(r"^train_tgt_tok_per_s=(?P<rate>[\d.]+)", output, re.MULTILINE)
    if failed or not timed or last is None or len(decoded) < 3:
        missing = f"it failed: see {failed[0]}" if failed else "its last line or a decoding is missing"
        raise RuntimeError(f"a rival's script must print its timings; {missing}:\n{output[-2000:]}")
    bleu = re.search(r"^BLEU greedy: (?P<greedy>[\d.]+) +beam5: (?P<beam>[\d.]+)", output, re.MULTILINE)
    row: Row = {
        "train_tokens_per_second": float(last["rate"]),
        "train_seconds": float(timed[0]["wall"]),
        "train_peak_mib": float(timed[0]["rss"]),
        "one_sentence_seconds": min(float(found["one"]) for found in decoded.values()),
        "bleu_greedy": float(bleu["greedy"]) if bleu else None,
        "bleu_beam": float(bleu["beam"]) if bleu else None,
    }
    for key, name in (("g64", "greedy"), ("b64", "beam"), ("g1", "one_by_one")):
        row[f"{name}_tokens_per_second"] = float(decoded[key]["rate"])
        row[f"{name}_sentences_per_second"] = float(decoded[key]["speed"])
    row["one_by_one_ms"] = float(decoded["g1"]["ms"])
    return row


def parameters(log: str) -> int | None:
    """The number of parameters that a training log names, None where it names none."""
    found = re.search(r"(?:number of parameters|Total params)[: ]+([\d,]+)", log)
    return int(found[1].replace(",", "")) if found else None
