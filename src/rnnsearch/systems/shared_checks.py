"""Checks of what systems of every kind have: text, dev set, the end of a run; and how a fault is said."""

from __future__ import annotations

from collections.abc import Mapping

from rnnsearch.config import DataConfig, RunConfig, TextConfig
from rnnsearch.config.outputs import AdaptiveOptions, OutputConfig


def idle(what: str, used: Mapping[str, bool]) -> list[str]:
    """A fault of each option that is used and has no effect with something."""
    return [f"{path}: has no effect with {what}; remove it" for path, on in used.items() if on]


def against(what: str, used: Mapping[str, bool]) -> list[str]:
    """A fault of each option that is used and does not go with something."""
    return [f"{what} does not go with {other}; remove one" for other, on in used.items() if on]


def parts_of_data(config: RunConfig) -> list[str]:
    """What is split off, and what an epoch has of the rest, whatever is trained."""
    return [*_dev_set(config), *_held_out(config), *_mixture(config)]


def _dev_set(config: RunConfig) -> list[str]:
    """Options that need a dev set, where there is to be none."""
    data, training = config.data, config.training
    if data.corpus is not None or data.dev is not None or data.dev_size > 0:
        return []
    needing = {
        "training.patience": training.patience is not None,
        "training.average": training.average > 0,
        "training.schedule.type": training.schedule.type == "plateau",
        "training.metric": training.metric != "nll",
    }
    return [f"{path}: needs a dev set; give data.dev or data.dev_size" for path, used in needing.items() if used]


def _held_out(config: RunConfig) -> list[str]:
    """Sizes of what is split off, where nothing is. The usual ones pass: a run's own config says all that it has."""
    data, faults = config.data, []
    for part, given in (("dev", data.dev), ("test", data.test)):
        option = f"{part}_size"
        told = {f"data.{option}": getattr(data, option) != DataConfig.model_fields[option].default}
        if data.corpus is not None:
            faults += idle("data.corpus, for a listed corpus brings its own split", told)
        elif given is not None:
            faults += idle(f"data.{part}, which is given", told)
    return faults


def _mixture(config: RunConfig) -> list[str]:
    """What is drawn anew for each epoch, and epochs that are all the same."""
    weights, shuffle = config.data.weights or [], config.training.batch.shuffle
    if shuffle == "epoch" or all(weight.is_integer() for weight in weights):
        return []
    why = f'with training.batch.shuffle = "{shuffle}", for all epochs then have the same pairs'
    return [f"data.weights: must be whole numbers {why}; got {next(w for w in weights if not w.is_integer()):g}"]


def target_only(config: RunConfig) -> list[str]:
    """Text without a source has no words to point to and no other direction; its copy has symbols of the target."""
    kind, text = config.data.target_only, config.text
    if kind is None:
        return []
    given = {
        "text.annotation": text.annotation is not None,
        "text.inline_terms": text.inline_terms is not None,
        "objective.symmetry, which turns source and target about": config.objective.symmetry is not None,
    }
    faults = against("data.target_only:", given)
    if kind == "copied" and not text.joint and text.tokenizers is None:
        faults.append('data.target_only: "copied" needs one vocabulary for both languages (text.joint = true)')
    return faults


def trained_alone(config: RunConfig) -> list[str]:
    """What a model folder has, and no run file."""
    search = config.search
    made_by = {"language_model": (search.language_model, "tune"), "ensemble": (search.ensemble, "ensemble")}
    return [
        f"search.{name}: belongs into the folder of a trained model, where `rnnsearch {command}` puts it; remove it"
        for name, (value, command) in made_by.items()
        if value is not None
    ]


def limits(config: RunConfig) -> list[str]:
    """A schedule that ends with the run needs to know its end."""
    training = config.training
    limits = (training.max_epochs, training.max_updates, training.max_minutes)
    if training.schedule.type == "linear" and all(limit is None for limit in limits):
        return ["training.schedule.type: linear ends with the run; give max_epochs, max_updates or max_minutes"]
    return []


def segmentation(text: TextConfig) -> list[str]:
    """What has no effect on text of some types."""
    faults = []
    if "words" in text.types:
        faults += idle('text.type = "words"', {"text.joint": bool(text.joint)})
    if not text.joint:
        faults += idle("two vocabularies", {"text.side_min_count": text.side_min_count is not None})
    elif text.type not in ("bpe", "unigram"):
        faults += idle(f'text.type = "{text.type}"', {"text.side_min_count": text.side_min_count is not None})
    if "bpe" not in text.types:
        faults += idle(f'text.type = "{text.type}"', {"text.bpe_dropout": text.bpe_dropout > 0})
    if "unigram" not in text.types:
        faults += idle(f'text.type = "{text.type}"', {"text.unigram_sampling": text.unigram_sampling is not None})
    return faults


def softmaxes(output: OutputConfig, readout: int, text: TextConfig) -> list[str]:
    """What an output of several softmaxes needs of its readout and its symbols."""
    faults = []
    if isinstance(output, AdaptiveOptions) and output.factor ** len(output.cutoffs) > readout:
        wanted = f"leave the last group a number of the readout's {readout}"
        faults.append(f"model.output.factor: must {wanted}; got {output.factor:g} and {len(output.cutoffs)} groups")
    if isinstance(output, AdaptiveOptions) and text.types[1] != "words":
        faults.append('model.output.type: "adaptive" needs symbols in order of frequency (text.type = "words")')
    return faults
