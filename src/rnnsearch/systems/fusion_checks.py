"""Whether what a run has of trained models (one that it begins from, a language model inside, a teacher) goes together
with the rest."""

from __future__ import annotations

from rnnsearch.config import RunConfig
from rnnsearch.models.decoders.table import DECODERS
from rnnsearch.models.fusion import FUSIONS
from rnnsearch.systems.language_checks import check_network
from rnnsearch.systems.shared_checks import against, idle, softmaxes


def check_begun(config: RunConfig) -> list[str]:
    """What a run begins from, and what deep fusion leaves to be trained."""
    told, begin, objective = config.translation.language_model, config.training.begin_from, config.objective
    turned = {"objective.symmetry, which turns source and target about": objective.symmetry is not None}
    faults = against("training.begin_from:", turned) if begin is not None else []
    if told is None:
        return faults
    faults += against("model.language_model:", turned)
    if not FUSIONS[told.type].output_alone:
        return faults
    if begin is None:
        faults.append(f"training.begin_from: must be given for {told.type} fusion, which leaves the decoder as it is")
    own = {"partition", "contrast", "symmetry", "teacher"}  # not of what is fixed
    used = {f"objective.{name}": value is not None for name, value in objective if name not in own}
    return faults + idle(f"{told.type} fusion, which trains the output alone", used)


def check_teacher(config: RunConfig) -> list[str]:
    """A teacher's distribution is one over all symbols of the target, given a source."""
    objective = config.objective
    if objective.teacher is None:
        return []
    given = {
        "a model that copies from the source": config.translation.copies,
        "objective.partition": objective.partition is not None,
        "objective.contrast": objective.contrast is not None,
        "objective.symmetry": objective.symmetry is not None,
        "data.target_only, text for which a teacher has no source": config.data.target_only is not None,
    }
    faults = against("objective.teacher:", given)
    if objective.teacher.weight == 1:
        smoothed = {"training.label_smoothing": config.training.label_smoothing > 0}
        faults += idle("objective.teacher.weight = 1.0, which leaves the references out", smoothed)
    return faults


def check_inside(config: RunConfig) -> list[str]:
    """What a language model inside needs of the decoder, and whether it is one."""
    model, told = config.translation, config.translation.language_model
    if told is None:
        return []
    faults = []
    if DECODERS[model.decoder.type].layer is None:
        able = ", ".join(name for name, kind in DECODERS.items() if kind.layer is not None)
        what = f"a decoder with a layer between state and output ({able})"
        faults.append(f'model.language_model: needs {what}; got "{model.decoder.type}"')
    if config.text.annotation is not None:
        faults.append(
            "model.language_model: does not go with text.annotation, whose marks it does not know; remove one"
        )
    if told.model is not None:
        own = [*check_network(told.model), *softmaxes(told.model.output, told.model.network.size, config.text)]
        faults += [fault.replace("model.", "model.language_model.model.", 1) for fault in own]
    return faults
