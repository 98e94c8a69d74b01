"""Other toolkits, trained and timed by the external scripts of `--peers`."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Row, run
from benchmarks.speed.tokens import Tokens, make_tokens


@dataclass(frozen=True)
class Rival:
    """One script with one setting."""

    name: str
    title: str
    script: str
    log: str
    """Path of the script's training log in the folder where the scripts run."""
    context_fed: bool = True
    """True if the context (or h~) feeds back into the decoder's state."""
    edits: tuple[tuple[str, str], ...] = ()
    """Replacements in the script's settings, to train another architecture."""


MIN_UPDATES = 150  # with fewer updates, a script's log has too few points to compute a speed
FOUR_EPOCHS = 1816  # updates after which OpenNMT-py without input feeding reaches about 35.5 BLEU (beam 5)
FAMILIES = {
    "onmt": (
        Rival("onmt-nofeed", "OpenNMT-py, no input feeding", "onmt.sh", "run/onmt.feed0/train.log", context_fed=False),
        Rival("onmt", "OpenNMT-py, input feeding", "onmt.sh", "run/onmt.feed1/train.log"),
    ),
    "joeynmt": (Rival("joeynmt", "JoeyNMT, input feeding", "joeynmt.sh", "run/joey/train.log"),),
    "eole": (Rival("eole", "Eole, input feeding", "eole.sh", "run/eole/train.log"),),
}
"""Rivals by value of `--rivals`."""
SHARED = Path(__file__).resolve().parents[3] / "shared"
"""Default folder of scripts and data, next to this checkout."""


def choose(names: str) -> list[Rival]:
    """Return the rivals of a comma-separated list.

    Raises:
        ValueError: A name is unknown.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip() and name.strip() != "none"]
    for name in wanted:
        if name not in FAMILIES:
            raise ValueError(f"--rivals must be some of {', '.join(FAMILIES)}, or none; got {name}")
    return [rival for name in wanted for rival in FAMILIES[name]]


def scripts(folder: Path | None) -> Path:
    """Return the folder of the rivals' scripts: `--peers`, PEERS_SCRIPTS or ../shared/peers next to this checkout.

    Raises:
        ValueError: The folder has no scripts.
    """
    folder = folder or Path(os.environ.get("PEERS_SCRIPTS") or SHARED / "peers")
    if not (folder / "lib.sh").is_file():
        raise ValueError(
            f"--peers must be the folder of the rivals' scripts (onmt.sh, joeynmt.sh, eole.sh, prep.sh, lib.sh); "
            f"got {folder}; --rivals none measures only rnnsearch"
        )
    return folder


def home() -> Path:
    """Return the folder where the scripts install and run, from PEERS as in the scripts."""
    return Path(os.environ.get("PEERS") or Path.home() / ".cache" / "rnnsearch-peers")


def load_tokens(peers: Path | None, raw: Path | None, token_folder: Path | None) -> Tokens:
    """Return the rivals' tokens, created by their `prep.sh` if necessary.

    Args:
        peers: Folder of the rivals' scripts.
        raw: Folder of the text.
        token_folder: Without rivals, the folder for tokens to use if the rivals' tokens do not exist.

    Raises:
        ValueError: The text or the scripts are missing.
    """
    folder = home() / "data" / "bpe8k"
    text = text_folder(raw)
    if not (folder / "vocab.de.txt").is_file():
        if token_folder is not None:
            return make_tokens(text, token_folder)
        _run_script("prep", scripts(peers) / "prep.sh", [], {"RAW": str(text)})
    return Tokens(folder, text, home() / "tools" / "bin")


def text_folder(raw: Path | None) -> Path:
    """Return the folder of Multi30k's text: `raw`, or ../shared/data next to this checkout.

    Raises:
        ValueError: The text is missing.
    """
    text = raw or SHARED / "data" / "multi30k-en-de"
    if not (text / "train.en").is_file():
        raise ValueError(f"--data must be the folder of Multi30k's text (train.en, train.de, val.*, ...); got {text}")
    return text


def _run_script(name: str, script: Path, arguments: list[str], variables: Mapping[str, str]) -> str:
    """Run a script and return its output. Its log is written to the folder where it installs."""
    home().mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PEERS": str(home()), **variables}
    return run(["bash", str(script), *arguments], home() / f"{name}.log", environment).output


def measure(rival: Rival, peers: Path, updates: int, threads: int, raw: Path, one_by_one: int = 200) -> Row:
    """Install a rival if necessary, train it for `updates`, decode the test set and return the results."""
    if rival.edits:
        peers = _edit_settings(rival, peers)
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    environment = {**limits, "FEED": str(int(rival.context_fed)), "N1": str(one_by_one), "RAW": str(raw)}
    output = _run_script(rival.name, peers / rival.script, ["", str(updates)], environment)
    (home() / f"{rival.name}.out").write_text(output, encoding="utf-8")
    row = {**parse(output), "updates": updates}
    log_file = home() / rival.log
    count = parse_parameters(log_file.read_text(encoding="utf-8", errors="replace")) if log_file.is_file() else None
    return row if count is None else {**row, "parameters": count}


def _edit_settings(rival: Rival, peers: Path) -> Path:
    """Copy the scripts and apply the rival's replacements to the settings.

    Raises:
        ValueError: The settings do not contain a text to replace.
    """
    folder = home() / "edited" / rival.name
    shutil.copytree(peers, folder, dirs_exist_ok=True)
    settings = folder / Path(rival.script).with_suffix(".yaml")
    text = (peers / settings.name).read_text(encoding="utf-8")
    for old, new in rival.edits:
        if old not in text:
            raise ValueError(f"{settings.name} of --peers must contain {old!r}")
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
    """Parse the output of a script: training speed, wall time and memory, decoding speeds, and BLEU.

    Raises:
        RuntimeError: A part of the script failed or its results are missing.
    """
    timed = list(TIMED.finditer(output))
    failed = [match["log"] for match in timed if match["rc"] != "0"]
    decoded = {match["name"]: match for match in DECODED.finditer(output)}
    last = re.search(r"^train_tgt_tok_per_s=(?P<rate>[\d.]+)", output, re.MULTILINE)
    if failed or not timed or last is None or len(decoded) < 3:
        problem = f"it failed: see {failed[0]}" if failed else "its last line or a decoding is missing"
        raise RuntimeError(f"a rival's script must print its timings; {problem}:\n{output[-2000:]}")
    bleu = re.search(r"^BLEU greedy: (?P<greedy>[\d.]+) +beam5: (?P<beam>[\d.]+)", output, re.MULTILINE)
    row: Row = {
        "train_tokens_per_second": float(last["rate"]),
        "train_seconds": float(timed[0]["wall"]),
        "train_peak_mib": float(timed[0]["rss"]),
        "one_sentence_seconds": min(float(match["one"]) for match in decoded.values()),
        "bleu_greedy": float(bleu["greedy"]) if bleu else None,
        "bleu_beam": float(bleu["beam"]) if bleu else None,
    }
    for key, name in (("g64", "greedy"), ("b64", "beam"), ("g1", "one_by_one")):
        row[f"{name}_tokens_per_second"] = float(decoded[key]["rate"])
        row[f"{name}_sentences_per_second"] = float(decoded[key]["speed"])
    row["one_by_one_ms"] = float(decoded["g1"]["ms"])
    return row


def parse_parameters(log: str) -> int | None:
    """Return the number of parameters in a training log, or None if there is none."""
    match = re.search(r"(?:number of parameters|Total params)[: ]+([\d,]+)", log)
    return int(match[1].replace(",", "")) if match else None
