"""What `rnnsearch inspect` shows: a model's parts, how it was trained, what it scores; and how fast this machine is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rnnsearch.accel.registry import in_training
from rnnsearch.align.aligner import Aligner
from rnnsearch.config import ModelConfig, RunConfig, SearchConfig, dump
from rnnsearch.config.language_model import LanguageModelConfig
from rnnsearch.engine.file import damaged, header_of
from rnnsearch.ops import autotune
from rnnsearch.ops.autotune_cases import cases
from rnnsearch.ops.native.library import status
from rnnsearch.systems.card import measured, origin, statistics, training_facts
from rnnsearch.systems.engine_file import load_model
from rnnsearch.systems.folder import CONFIG, WEIGHTS
from rnnsearch.systems.pruning import read_pruned
from rnnsearch.systems.system import System
from rnnsearch.utils.files import sha256_of

Rows = Iterable[Sequence[str]]


def show(folder: Path, config: bool) -> None:
    """Print what is inside a model folder or an engine file, and its whole resolved `config`, too, where asked for."""
    system, out = load_model(folder), _console()
    known, scores = _said(folder) if folder.is_file() else (origin(folder), list(_scores(measured(folder))))
    known = {name.capitalize(): text for name, text in known.items()}
    out.print(Text(str(folder), "bold"), soft_wrap=True)
    out.print(_table("Model", ("", ""), _model(system, folder).items()))
    if trained := training_facts(folder):
        out.print(_table("Training", ("", ""), _training(trained, known).items()))
    if known and not trained:
        out.print(_table("Training data", ("", ""), known.items()))
    if scores:
        columns = ("test set", ">sentences", "search", "score", ">value", "signature")
        out.print(_table("Scores", columns, scores))
    out.print(_table("Parts", ("part", "shape", ">parameters", ">share"), _parts(system)))
    if config:
        text = dump(system.config) if folder.is_file() else (folder / CONFIG).read_text(encoding="utf-8")
        out.print(Text(text), soft_wrap=True)


def show_machine(threads: int | None) -> None:
    """Print what each kernel does here in native code and by the library, and which of them serves."""
    if threads is not None:
        torch.set_num_threads(threads)
    autotune.time_at_first_use(cases)
    found, out = autotune.table(), _console()
    out.print(_table("This machine", ("", ""), _machine(found).items()))
    timed = {way for case in found.cases for way in case.seconds}
    ways = [way for way in (autotune.NATIVE, autotune.TORCH, autotune.ONEDNN) if way in timed]
    columns = ("kernel", "type", "sizes", *(f">{way}, GFLOP/s" for way in ways), ">of the limit", "serves")
    out.print(_table("Kernels", columns, (_kernel(found, case, ways) for case in found.cases)))


def _machine(found: autotune.Table) -> dict[str, str]:
    limits = {kind: found.limit(kind) for kind in dict.fromkeys(case.kind for case in found.cases)}
    return {
        "Processor": found.key["processor"],
        "Threads": str(found.key["threads"]),
        "Library": f"torch {found.key['torch']}",
        "Native code": status(),
        "Limit": ", ".join(f"{kind} {limit:,.0f} GFLOP/s" for kind, limit in limits.items() if limit),
        "Kept in": str(autotune.kept_in(found.key)),
    }


def _kernel(found: autotune.Table, case: autotune.Timed, ways: Sequence[str]) -> Sequence[str]:
    serves = autotune.NATIVE if autotune.held() else found.way(case.kernel, case.kind)
    share = "" if case.kernel == autotune.SOFTMAX else f"{case.speed(serves) / found.limit(case.kind):.0%}"
    speeds = (f"{case.speed(way):,.1f}" if way in case.seconds else "" for way in ways)
    return case.kernel, case.kind, case.sizes, *speeds, share, serves


def _console() -> Console:
    """Where it is printed: no line of a file or a pipe is broken."""
    out = Console()
    return out if out.is_terminal else Console(width=200)


def _table(title: str, columns: Sequence[str], rows: Rows) -> Table:
    """A table without frames; a column whose name begins with `>` stands to the right."""
    style: dict[str, Any] = {"title_justify": "left", "title_style": "bold"}
    table = Table(title=f"\n{title}", box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns), **style)
    for name in columns:
        table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", header_style="dim")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # as plain text: brackets are no markup
    return table


def _model(system: System[Any], folder: Path) -> dict[str, str]:
    config, weights = system.config, folder if folder.is_file() else folder / WEIGHTS
    shown = {"words": "words", "bpe": "subwords (BPE)", "unigram": "subwords (unigram)", "characters": "characters"}
    size = f"{system.parameters:,} ({weights.stat().st_size / 1e6:.1f} MB)"
    if pruned := read_pruned(folder, system.model):
        size += f", of which {sum(int(mask.sum()) for mask in pruned.values()):,} are pruned"
    digest = {"SHA-256" if folder.is_file() else "Weights' SHA-256": sha256_of(weights)}
    if isinstance(config.model, LanguageModelConfig):
        network = config.model.network
        return {
            "Language": config.data.target,
            "Parameters": size,
            "Vocabulary": f"{len(system.target):,} symbols: {shown[config.text.types[1]]}",
            "Network": _part(network.type, network.model_dump(exclude={"type"}, exclude_none=True)),
            "In training": in_training(system.model),
            **digest,
        }
    units = " to ".join(dict.fromkeys(shown[kind] for kind in config.text.types))
    if config.text.types != ("words", "words"):
        units += ", joint" if config.text.joint else ", apart"
    return {
        "Languages": f"{config.data.source} → {config.data.target}",
        "Parameters": size,
        "Vocabulary": f"{len(system.source):,} source and {len(system.target):,} target symbols: {units}",
        **_layers(config.model),
        "Alignments": _alignments(system, folder),
        "Search": _search(config),
        **_together(config.search),
        "In training": in_training(system.model),
        "On this machine": system.fastest(config.search.precision).what,
        **digest,
    }


def _alignments(system: System[Any], folder: Path) -> str:
    """What they come from."""
    aligner = Aligner.find(folder)
    if aligner is None:
        return "by attention" if system.can("attend") else "none"
    pairs = sum(len(cut.lexicon.pairs) for cut in aligner.cuts)
    return f"by an aligner of {pairs:,} pairs of symbols; links have a weight of {aligner.threshold:g} or more"


def _layers(model: ModelConfig) -> dict[str, str]:
    """Encoder, attention and decoder in the run file's words."""
    attention = model.attention
    return {
        "Encoder": _part(model.encoder.type, model.encoder.model_dump(exclude={"type"}, exclude_none=True)),
        "Attention": "none"
        if attention is None
        else _part(attention.score.type, {k: v for k, v in attention.flat().items() if k != "score"}),
        "Decoder": _part(model.decoder.type, model.decoder.model_dump(exclude={"type"}, exclude_none=True)),
        **_unknown_words(model),
        **_inside(model),
    }


def _inside(model: ModelConfig) -> dict[str, str]:
    """The language model inside, where there is one."""
    told = model.language_model
    if told is None:
        return {}
    network = told.trained.network
    options = network.model_dump(exclude={"type"}, exclude_none=True)
    return {"Language model": f"{told.type} fusion of {_part(network.type, options)}"}


def _unknown_words(model: ModelConfig) -> dict[str, str]:
    """What becomes of words that the vocabulary lacks, where something does."""
    read, written, found = model.source_characters, model.target_characters, {}
    if read is not None:
        found["Source characters"] = _part(read.type, read.model_dump(exclude={"type"}))
    if written is not None:
        found["Unknown words"] = _part("spelled", written.model_dump())
    if model.pointer is not None:
        found["Unknown words"] = _part("pointed at", model.pointer.model_dump())
    if model.decoder.copies:
        found["Unknown words"] = "copied"
    return found


USUAL = {"reads_end": True, "attentional": "tanh"}
"""Options that are shown where they say something else; others where they say anything."""


def _part(name: str, options: dict[str, Any]) -> str:
    told = {key for key, value in options.items() if (value != USUAL[key] if key in USUAL else value)}
    given = [key for key in sorted(options, key=lambda key: (key != "cell", key == "first")) if key in told]
    shown = (f"{key} {', '.join(options[key]) if isinstance(options[key], list) else options[key]}" for key in given)
    return f"{name} ({', '.join(shown)})"


def _search(config: RunConfig) -> str:
    search = config.search
    more = f", unknown words: {search.replace_unknown}" if search.replace_unknown != "none" else ""
    norm = f" ({search.length_norm})" if search.length_norm != "power" else ""
    stop = f", stop {search.stop}" if search.stop != "bound" else ""
    return f"beam {search.beam}, length penalty {search.length_penalty:g}{norm}{stop}{more}"


def _together(search: SearchConfig) -> dict[str, str]:
    """What else the folder holds that translates with its model."""
    rows = {}
    if (made := search.ensemble) is not None:
        weights = ", ".join(f"{weight:g}" for weight in made.weights)
        rows["Ensemble"] = (
            f"{len(made.weights)} models, of which the first is shown; {made.mean} mean, weights {weights}"
        )
    if search.language_model is not None:
        rows["Beside it"] = f"a language model, with a weight of {search.language_model_weight:g}"
    return rows


def _training(facts: dict[str, Any], known: dict[str, str]) -> dict[str, str]:
    data, learned = facts["data"], statistics(facts, "")
    both = {"train": learned.train_nll, "dev": learned.dev_nll}
    nll = [f"{name} {value:.2f}" for name, value in both.items() if value is not None]
    rows = {
        **known,
        "Training pairs": f"{data['pairs']:,}" if "pairs" in data else "",
        "Corpus' SHA-256": str(data.get("sha256", "")),
        "Updates": f"{facts['updates']:,} ({facts['epochs']:.1f} epochs, {facts['hours']:.2f} hours)",
        "On": f"{facts['device']}, {facts['precision']}, torch {facts['torch']}, {facts['date']}",
        "NLL a sentence": ", ".join(nll),
    }
    return {name: value for name, value in rows.items() if value}


def _said(path: Path) -> tuple[dict[str, str], list[Sequence[str]]]:
    """What an engine file says of its corpus, and rows of its scores. Errors: ModelError for what is none of these."""
    header = header_of(path)
    try:
        known = {str(name): str(text) for name, text in dict(header.get("about", {})).items()}
        return known, list(_scores([dict(one) for one in header.get("scores", [])]))
    except (KeyError, TypeError, ValueError, IndexError):
        raise damaged(path) from None


def _scores(scores: list[dict[str, Any]]) -> Rows:
    for one in scores:
        for n, score in enumerate(one["scores"]):
            about = (one["set"], f"{one['sentences']:,}", one["search"]) if n == 0 else ("", "", "")
            yield *about, score["name"], f"{score['value']:.2f}", score["signature"]


def _parts(system: System[Any]) -> Rows:
    """Every parameter under the part of the model that it belongs to, with the parts' sums."""
    parameters = dict(system.model.named_parameters())
    for part in dict.fromkeys(name.partition(".")[0] for name in parameters):
        inside = {name: p for name, p in parameters.items() if name.partition(".")[0] == part}
        count = sum(p.numel() for p in inside.values())
        yield part, "", f"{count:,}", f"{count / system.parameters:.1%}"
        for name, p in inside.items():
            yield f"  {name}", " x ".join(str(n) for n in p.shape), f"{p.numel():,}", ""
    yield "all", "", f"{system.parameters:,}", "100.0%"
