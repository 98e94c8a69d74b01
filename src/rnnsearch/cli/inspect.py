"""Output of `rnnsearch inspect`: a model's components, training and scores; the speed of kernels on this machine.

The command is in `evaluate.py`. The output is for people and may change. A damaged folder must give an error of one
sentence. Tests: tests/commands/test_machine.py, tests/commands/test_export.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rnnsearch.accel.registry import describe_training
from rnnsearch.align.aligner import Aligner
from rnnsearch.config import ModelConfig, RunConfig, SearchConfig, dump
from rnnsearch.config.language_model import LanguageModelConfig
from rnnsearch.data.tasks import task_ratios
from rnnsearch.engine.file import damaged_error, read_header
from rnnsearch.errors import RnnsearchError
from rnnsearch.models.multiway import LanguageModules, count_language_parameters
from rnnsearch.ops import autotune
from rnnsearch.ops.autotune_cases import cases
from rnnsearch.ops.native.library import status
from rnnsearch.systems.card import awaits_aligner, load_origin, load_scores, load_training_facts, statistics
from rnnsearch.systems.engine_file import load_model
from rnnsearch.systems.folder import CONFIG, WEIGHTS
from rnnsearch.systems.multiway import MultiwaySystem
from rnnsearch.systems.pruning import read_pruned
from rnnsearch.systems.system import System
from rnnsearch.text.normalization import NONE
from rnnsearch.utils.files import sha256_of

Rows = Iterable[Sequence[str]]

FILE_WIDTH = 200  # no line is wrapped in a file or a pipe
TEXT_TYPE_NAMES = {
    "words": "words",
    "bpe": "subwords (BPE)",
    "unigram": "subwords (unigram)",
    "characters": "characters",
}
UNSHOWN_VALUES = {"reads_end": True, "attentional": "tanh", "projection": True}
"""Options that are shown only if they have another value. All other options are shown unless they are false or zero."""


def print_model(path: Path, with_config: bool) -> None:
    """Print what a model folder or an engine file contains.

    Args:
        path: A model folder or an engine file; a file's header holds what a folder's extra files do.
        with_config: Print the resolved config, too.
    """
    system = load_model(path, multiway=True)
    is_engine_file = path.is_file()
    if is_engine_file:
        origin, scores = _read_header(path)
    else:
        origin = load_origin(path)
        scores = list(_score_rows(load_scores(path)))
    origin = {name.capitalize(): text for name, text in origin.items()}
    console = _output_console()
    console.print(Text(str(path), "bold"), soft_wrap=True)
    console.print(_table("Model", ("", ""), _model_rows(system, path).items()))
    training = load_training_facts(path)
    if training:
        console.print(_table("Training", ("", ""), _training_rows(training, origin).items()))
    elif origin:
        console.print(_table("Training data", ("", ""), origin.items()))
    if scores:
        columns = ("test set", ">sentences", "search", "score", ">value", "signature")
        console.print(_table("Scores", columns, scores))
    if isinstance(system, MultiwaySystem):
        language_columns = ("language", ">tokens", ">parameters as source", ">as target")
        console.print(_table("Languages", language_columns, _language_rows(system)))
    component_columns = ("component", "shape", ">parameters", ">fraction")
    console.print(_table("Components", component_columns, _component_rows(system)))
    if with_config:
        config = dump(system.config) if is_engine_file else (path / CONFIG).read_text(encoding="utf-8")
        console.print(Text(config), soft_wrap=True)


def print_machine(threads: int | None) -> None:
    """Print the speed of each kernel in native code and in the libraries, and which implementation is used."""
    if threads is not None:
        torch.set_num_threads(threads)
    autotune.register_cases(cases)
    timings = autotune.table()
    console = _output_console()
    console.print(_table("This machine", ("", ""), _machine_rows(timings).items()))
    timed = {implementation for case in timings.timings for implementation in case.seconds}
    implementations = [name for name in (autotune.NATIVE, autotune.TORCH, autotune.ONEDNN) if name in timed]
    speeds = [f">{name}, GFLOP/s" for name in implementations]
    columns = ("kernel", "type", "sizes", *speeds, ">of the limit", "used")
    rows = [_kernel_row(timings, case, implementations) for case in timings.timings]
    console.print(_table("Kernels", columns, rows))


def _machine_rows(timings: autotune.TimingTable) -> dict[str, str]:
    limits = []
    for dtype in dict.fromkeys(case.dtype for case in timings.timings):
        limit = timings.peak_gflops(dtype)
        if limit:
            limits.append(f"{dtype} {limit:,.0f} GFLOP/s")
    return {
        "Processor": timings.key["processor"],
        "Threads": str(timings.key["threads"]),
        "Library": f"torch {timings.key['torch']}",
        "Native code": status(),
        "Limit": ", ".join(limits),
        "Stored in": _stored_in(timings),
    }


def _stored_in(timings: autotune.TimingTable) -> str:
    try:
        path = autotune.table_path(timings.key)
    except RnnsearchError:  # there is no cache folder
        return "-"
    return str(path) if path.is_file() else "-"


def _kernel_row(timings: autotune.TimingTable, case: autotune.Timing, implementations: Sequence[str]) -> Sequence[str]:
    used = autotune.NATIVE if autotune.native_is_forced() else timings.fastest(case.kernel, case.dtype)
    fraction = ""
    if case.kernel != autotune.SOFTMAX:
        fraction = f"{case.gflops(used) / timings.peak_gflops(case.dtype):.0%}"
    speeds = []
    for name in implementations:
        speeds.append(f"{case.gflops(name):,.1f}" if name in case.seconds else "")
    return (case.kernel, case.dtype, case.sizes, *speeds, fraction, used)


# Tables.


def _output_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=FILE_WIDTH)


def _table(title: str, columns: Sequence[str], rows: Rows) -> Table:
    """Return a table without borders; a column whose name starts with ">" is right-aligned."""
    style: dict[str, Any] = {"title_justify": "left", "title_style": "bold"}
    table = Table(title=f"\n{title}", box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns), **style)
    for name in columns:
        table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", header_style="dim")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text, because brackets in a string would be markup
    return table


# Models.


def _model_rows(system: System[Any], path: Path) -> dict[str, str]:
    config = system.config
    weights = path if path.is_file() else path / WEIGHTS
    parameters = f"{system.num_parameters:,} ({weights.stat().st_size / 1e6:.1f} MB)"
    pruned = read_pruned(path, system.model)
    if pruned:
        parameters += f", {sum(int(mask.sum()) for mask in pruned.values()):,} of them pruned"
    digest = {"SHA-256" if path.is_file() else "SHA-256 of weights": sha256_of(weights)}
    if isinstance(config.model, LanguageModelConfig):
        network = config.model.network
        return {
            "Language": config.data.target,
            "Parameters": parameters,
            "Vocabulary": f"{len(system.target):,} tokens: {TEXT_TYPE_NAMES[config.text.types[1]]}",
            **_normalization_row(system),
            **_characters_row(config.model),
            "Network": _described(network),
            **_context_row(config),
            "In training": describe_training(system.model),
            **digest,
        }
    name = "Languages"
    languages = f"{', '.join(config.data.sources)} → {config.data.target}"
    tasks = ", ".join(f"{task.name} ({ratio:g})" for task, ratio in task_ratios(config.data.tasks).items())
    if isinstance(system, MultiwaySystem):
        name = "Directions"
        languages = ", ".join(direction.name for direction in system.directions)
        # All directions have the same components.
        system = system.select(system.directions[0])
    text_types = " to ".join(dict.fromkeys(TEXT_TYPE_NAMES[text_type] for text_type in config.text.types))
    if config.text.types != ("words", "words"):
        text_types += ", joint" if config.text.joint else ", separate"
    return {
        name: languages,
        **({"Further tasks (ratio)": tasks} if tasks else {}),
        "Parameters": parameters,
        "Vocabulary": _vocabularies(system, text_types),
        **_normalization_row(system),
        **_architecture_rows(config.translation),
        **_context_row(config),
        "Alignments": _alignments(system, path),
        "Search": _search(config),
        **_companion_rows(config.search),
        "In training": describe_training(system.model),
        "On this machine": system.fast_scorer(config.search.precision).description,
        **digest,
    }


def _vocabularies(system: System[Any], text_types: str) -> str:
    """Return the sizes of the vocabularies, or the shape of the arrays that the model reads."""
    sizes = []
    for source in system.direction.sources:
        array = system.arrays.get(source)
        if array is None:
            sizes.append(f"{len(system.stream_tokenizer(source)):,}")
        else:
            grid = "" if array.grid is None else f", {array.grid[0]} x {array.grid[1]} regions"
            sizes.append(f"arrays of {array.features:,} features{grid}")
    if system.source_array is not None:
        text_types = TEXT_TYPE_NAMES[system.config.text.types[1]]
        return f"{sizes[0]}; {len(system.target):,} target tokens: {text_types}"
    return f"{' and '.join(sizes)} source and {len(system.target):,} target tokens: {text_types}"


def _normalization_row(system: System[Any]) -> dict[str, str]:
    """Return how text is normalised, if it is."""
    level = system.target.normalization.level
    return {} if level == NONE else {"Normalisation": f"{level}, text in capital letters in ordinary letter case"}


def _architecture_rows(model: ModelConfig) -> dict[str, str]:
    """Return the components of a translation model, in the words of the run file."""
    attention = "none"
    if model.attention is not None:
        options = {name: value for name, value in model.attention.flat().items() if name != "score"}
        attention = _component(model.attention.score.type, options)
    rows = {
        "Encoder": _described(model.encoder),
        "Attention": attention,
        "Decoder": _described(model.decoder),
        **_unknown_word_rows(model),
    }
    if model.sources is not None:
        # Encoders of single sources are in the table of components.
        combination = model.sources
        contexts = "averaged" if combination.averages_contexts else "concatenated"
        rows["Sources"] = f"{combination.type} of last states, {contexts} contexts"
    fused = model.language_model
    if fused is not None:
        rows["Language model"] = f"{fused.type} fusion of {_described(fused.trained.network)}"
    return rows


def _context_row(config: RunConfig) -> dict[str, str]:
    """Return which previous sentences of a document the model reads, if it reads any."""
    context = config.data.context
    if context is None:
        return {}
    row = f"{context.type}, {context.sentences} previous sentence{'s' * (context.sentences > 1)}"
    if config.data.context_streams:
        row += f" ({', '.join(config.data.context_streams)})"
    if isinstance(config.model, LanguageModelConfig) and config.model.context is not None:
        row += f", {config.model.context.fusion} fusion"
    return {"Context": row}


def _characters_row(model: LanguageModelConfig) -> dict[str, str]:
    """Return how a language model composes words of their characters, if it does."""
    return {} if model.characters is None else {"Characters": _described(model.characters)}


def _unknown_word_rows(model: ModelConfig) -> dict[str, str]:
    """Return how the model treats words outside its vocabulary."""
    rows = {}
    if model.source_characters is not None:
        rows["Source characters"] = _described(model.source_characters)
    if model.target_characters is not None:
        rows["Unknown words"] = _component("spelled", model.target_characters.model_dump())
    if model.pointer is not None:
        rows["Unknown words"] = _component("pointer", model.pointer.model_dump())
    if model.decoder.copies:
        rows["Unknown words"] = "copied"
    return rows


def _described(component: Any) -> str:
    """Return a component of the run file with its options."""
    return _component(component.type, component.model_dump(exclude={"type"}, exclude_none=True))


def _component(name: str, options: dict[str, Any]) -> str:
    """Return a component and those of its options that are worth showing.

    The option `cell` comes first and the option named `first` last.
    """
    shown = []
    for option in sorted(options, key=lambda option: (option != "cell", option == "first")):
        value = options[option]
        is_shown = value != UNSHOWN_VALUES[option] if option in UNSHOWN_VALUES else value
        if is_shown:
            text = ", ".join(value) if isinstance(value, list) else value
            shown.append(f"{option} {text}")
    return f"{name} ({', '.join(shown)})"


def _alignments(system: System[Any], path: Path) -> str:
    """Return the source of word alignments."""
    aligner = Aligner.find(path)
    if aligner is None:
        later = (
            "; `rnnsearch train` learns the word aligner after the model" if awaits_aligner(path, system.config) else ""
        )
        return f"by attention{later}" if system.can("attend") else f"none{later}"
    pairs = sum(len(cut.lexicon.pairs) for cut in aligner.segmentations)
    return f"by an aligner of {pairs:,} token pairs; {aligner.rule}"


def _search(config: RunConfig) -> str:
    search = config.search
    text = f"beam {search.beam}, length penalty {search.length_penalty:g}"
    if search.length_norm != "power":
        text += f" ({search.length_norm})"
    if search.stop != "bound":
        text += f", stop {search.stop}"
    if search.replace_unknown != "none":
        text += f", unknown words: {search.replace_unknown}"
    return text


def _companion_rows(search: SearchConfig) -> dict[str, str]:
    """Return the other models of the folder that take part in the search."""
    rows = {}
    ensemble = search.ensemble
    if ensemble is not None:
        weights = ", ".join(f"{weight:g}" for weight in ensemble.weights)
        rows["Ensemble"] = (
            f"{len(ensemble.weights)} models, the first is shown; {ensemble.mean} mean, weights {weights}"
        )
    if search.language_model is not None:
        rows["Shallow fusion"] = f"with a language model of weight {search.language_model_weight:g}"
    return rows


def _language_rows(system: MultiwaySystem) -> Rows:
    """Yield the numbers of parameters of each language of a multi-way model, and of the attention of all."""
    counts = count_language_parameters(system.model)
    for language in system.config.data.languages:
        source, target = (counts[role].get(language) for role in ("source", "target"))
        if source is not None or target is not None:
            cells = ["-" if count is None else f"{count:,}" for count in (source, target)]
            yield language, f"{len(system.tokenizers[language]):,}", *cells
    yield "shared by all", "", f"{sum(parameter.numel() for parameter in system.model.shared_parameters):,}", ""


def _component_rows(system: System[Any]) -> Rows:
    """Yield each component of the model with its number of parameters, followed by its parameters."""
    parameters = dict(system.model.named_parameters())

    def component_of(name: str) -> str:
        container, _, rest = name.partition(".")
        # A component of each language, such as encoders.de.
        is_language = isinstance(getattr(system.model, container), LanguageModules)
        return f"{container}.{rest.partition('.')[0]}" if is_language else container

    for component in dict.fromkeys(map(component_of, parameters)):
        members = {name: tensor for name, tensor in parameters.items() if component_of(name) == component}
        count = sum(tensor.numel() for tensor in members.values())
        yield component, "", f"{count:,}", f"{count / system.num_parameters:.1%}"
        for name, tensor in members.items():
            yield f"  {name}", " x ".join(str(size) for size in tensor.shape), f"{tensor.numel():,}", ""
    yield "all", "", f"{system.num_parameters:,}", "100.0%"


# Training and scores.


def _training_rows(facts: dict[str, Any], origin: dict[str, str]) -> dict[str, str]:
    data = facts["data"]
    learned = statistics(facts, name="")  # the name is not shown
    losses = []
    for name, loss in {"train": learned.train_nll, "dev": learned.dev_nll}.items():
        if loss is not None:
            losses.append(f"{name} {loss:.2f}")
    rows = {
        **origin,
        "Training pairs": f"{data['pairs']:,}" if "pairs" in data else "",
        "SHA-256 of corpus": str(data.get("sha256", "")),
        "Updates": f"{facts['updates']:,} ({facts['epochs']:.1f} epochs, {facts['hours']:.2f} hours)",
        "Trained on": f"{facts['device']}, {facts['precision']}, torch {facts['torch']}, {facts['date']}",
        "NLL per sentence": ", ".join(losses),
    }
    return {name: value for name, value in rows.items() if value}


def _read_header(path: Path) -> tuple[dict[str, str], list[Sequence[str]]]:
    """Return the origin of the data and the rows of scores in an engine file; raise ModelError if it is damaged."""
    header = read_header(path)
    try:
        origin = {str(name): str(text) for name, text in dict(header.get("about", {})).items()}
        return origin, list(_score_rows([dict(test_set) for test_set in header.get("scores", [])]))
    except (KeyError, TypeError, ValueError, IndexError):
        raise damaged_error(path) from None


def _score_rows(test_sets: list[dict[str, Any]]) -> Rows:
    """Yield one row per score; test set and search are in the first row of each test set only."""
    for test_set in test_sets:
        for position, score in enumerate(test_set["scores"]):
            about = ("", "", "")
            if position == 0:
                about = (test_set["set"], f"{test_set['sentences']:,}", test_set["search"])
            yield *about, score["name"], f"{score['value']:.2f}", score["signature"]
