"""Whether a language model's `[model]`, and the tables of its whole config, go together."""

from __future__ import annotations

from rnnsearch.config import RunConfig
from rnnsearch.config.init import NormalOptions
from rnnsearch.config.language import FeedForwardOptions, LanguageModelConfig, RecurrentOptions
from rnnsearch.models.cells import CELLS
from rnnsearch.systems.shared_checks import (
    against,
    idle,
    limits,
    parts_of_data,
    segmentation,
    softmaxes,
)

_KIND = "a language model"
_OF_WORDS = {"partition", "contrast"}
"""The objectives that are of symbols alone."""


def check_language(config: RunConfig, model: LanguageModelConfig) -> list[str]:
    """Every fault in the combinations of a config, each with its dotted path; empty if none."""
    return [
        *_one_side(config),
        *check_network(model),
        *_output(config, model),
        *_objective(config),
        *parts_of_data(config),
        *limits(config),
        *segmentation(config.text),
    ]


def _one_side(config: RunConfig) -> list[str]:
    """What translation alone has."""
    data, text, search = config.data, config.text, config.search
    faults = [] if not data.sources else [f"data.source: must not be given for {_KIND}, which has a target alone"]
    if config.training.metric != "nll":
        faults.append(f'training.metric: must be "nll" for {_KIND}; got "{config.training.metric}"')
    used = {
        "data.alignments": data.alignments is not None,
        "data.dev_alignments": data.dev_alignments is not None,
        "data.test_alignments": data.test_alignments is not None,
        "text.joint": bool(text.joint),
        "text.inline_terms": text.inline_terms is not None,
        "search.replace_unknown": search.replace_unknown != "none",
        "search.dictionary": search.dictionary is not None,
        "search.candidates": search.candidates > 0,
        "search.language_model": search.language_model is not None,
        "search.coverage_penalty": search.coverage_penalty > 0,
    }
    return faults + idle(_KIND, used)


def check_network(model: LanguageModelConfig) -> list[str]:
    """What of dropout, sharing and the init goes with the network."""
    network, dropout = model.network, model.dropout
    faults = idle(_KIND, {f"model.dropout.{name}": getattr(dropout, name) > 0 for name in ("annotations", "attention")})
    if not isinstance(network, RecurrentOptions):
        within = {f"model.dropout.{name}": getattr(dropout, name) > 0 for name in ("layer_outputs", "state")}
        faults += idle(f"a {network.type} network", within)
    elif not CELLS[network.cell].feeds_back:
        faults += idle(f"{network.cell} cells", {"model.dropout.state": dropout.state > 0})
    if not isinstance(network, RecurrentOptions) or network.layers == 1:
        faults += idle("a network of one layer", {"model.dropout.layers": dropout.layers > 0})
    if isinstance(model.init, NormalOptions):
        faults += idle(_KIND, {"model.init.alignment_scale": model.init.alignment_scale is not None})
    if model.tie != "none":
        shares = f'model.tie: "{model.tie}" shares the embedding with the output rows'
        if isinstance(network, FeedForwardOptions) and network.direct:
            faults.append(f"{shares}, which model.network.direct makes longer; remove one")
        elif network.size != model.embedding:
            must = f"model.network.size must equal model.embedding ({model.embedding})"
            faults.append(f"{shares}, so {must}; got {network.size}")
    return faults


def _output(config: RunConfig, model: LanguageModelConfig) -> list[str]:
    """What an output of several softmaxes does not go with."""
    kind, objective = model.output, config.objective
    if kind.type == "softmax":
        return []
    given = {
        "objective.partition": objective.partition is not None,
        "objective.contrast": objective.contrast is not None,
        "training.label_smoothing": config.training.label_smoothing > 0,
        f'model.tie = "{model.tie}"': model.tie != "none",
    }
    return against(f'model.output.type: "{kind.type}"', given) + softmaxes(kind, model.network.size, config.text)


def _objective(config: RunConfig) -> list[str]:
    """Objectives of a source, and what does not go with noise words."""
    objective = config.objective
    used = {f"objective.{name}": value is not None for name, value in objective if name not in _OF_WORDS}
    faults = idle(_KIND, used)
    drawn = config.text.drawn_by(config.text.types[1])
    if objective.partition is not None and drawn is not None:
        faults += idle(f"{drawn}, which cuts the text anew", {"objective.partition": True})
    if objective.contrast is not None:
        smoothed = config.training.label_smoothing > 0
        given = {"objective.partition": objective.partition is not None, "training.label_smoothing": smoothed}
        faults += against("objective.contrast:", given)
    return faults
