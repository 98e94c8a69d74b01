"""From a config to a model: names are looked up in the classes' own tables, combinations are checked there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel

from rnnsearch.config import ModelConfig, RunConfig
from rnnsearch.errors import ConfigError, did_you_mean
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.table import DECODERS
from rnnsearch.models.embeddings import Embedding
from rnnsearch.models.encoders import ENCODERS
from rnnsearch.models.initialise import INITS, generator
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel


def check(config: RunConfig) -> list[str]:
    """Every fault in the names and combinations of `[model]`, each with its dotted path; empty if none."""
    model = config.model
    names = [
        _unknown("model.encoder.type", model.encoder.type, ENCODERS),
        _unknown("model.encoder.cell", model.encoder.cell, CELLS),
        _unknown("model.decoder.type", model.decoder.type, DECODERS),
        _unknown("model.decoder.cell", model.decoder.cell, CELLS) if model.decoder.cell else None,
    ]
    if model.attention is not None:
        names += [
            _unknown("model.attention.score", model.attention.score, SCORES),
            _unknown("model.attention.window", model.attention.window, WINDOWS),
            _unknown("model.attention.normaliser", model.attention.normaliser, NORMALISERS),
        ]
    faults = [fault for fault in names if fault]
    return faults or [*_combinations(model), *_ties(config)]


def unfit_options(path: str, table: BaseModel, needs: Iterable[str], always: Iterable[str], what: str) -> list[str]:
    """Options of a table that the chosen class needs and lacks, or that it would ignore."""
    needs = set(needs)
    given = {key for key, value in table if value is not None} - set(always)
    missing = [f"{path}.{key}: must be given for {what}" for key in sorted(needs - given)]
    return missing + [
        f'{path}.{key}: has no effect with {what}; remove it (or say "unset")' for key in sorted(given - needs)
    ]


def _unknown(path: str, name: str, table: Mapping[str, object]) -> str | None:
    if name in table:
        return None
    return f'{path}: must be one of {", ".join(table)}; got "{name}"{did_you_mean(name, list(table))}'


def _combinations(model: ModelConfig) -> list[str]:
    decoder, encoder = DECODERS[model.decoder.type], ENCODERS[model.encoder.type]
    what = f"the {decoder.name} decoder"
    faults = unfit_options("model.decoder", model.decoder, decoder.options, ("type", "size", "first"), what)
    init = INITS[model.init.type]
    needs = init.options | (init.attention_options if decoder.attends else frozenset())
    faults += unfit_options("model.init", model.init, needs, ("type", "recurrent"), f"{init.name} init of this model")
    if decoder.attends and model.attention is None:
        faults.append(f"model.attention: must be given for {what}")
    if model.attention is not None:
        if decoder.attends:
            score = SCORES[model.attention.score]
            always = ("score", "window", "normaliser")
            faults += unfit_options(
                "model.attention", model.attention, score.options, always, f"the {score.name} score"
            )
        else:
            faults.append(f"model.attention: has no effect with {what}; remove it")
    if not decoder.attends and not encoder.one_vector:
        single = ", ".join(name for name, e in ENCODERS.items() if e.one_vector)
        faults.append(
            f"model.encoder.type: must be {single} for {what}, whose context is the encoder's last state; "
            f'got "{encoder.name}"'
        )
    if not decoder.attends and model.dropout.annotations > 0:
        faults.append(f"model.dropout.annotations: has no effect with {what}; remove it")
    return faults


def _ties(config: RunConfig) -> list[str]:
    model, faults = config.model, []
    if model.tie != "none" and model.decoder.maxout is not None and model.decoder.maxout != model.embedding:
        faults.append(
            f'model.tie: "{model.tie}" shares the embeddings with the output rows, so model.decoder.maxout must '
            f"equal model.embedding ({model.embedding}); got {model.decoder.maxout}"
        )
    if model.tie == "all" and not config.text.joint:
        faults.append('model.tie: "all" needs one vocabulary for both languages: set text.joint = true')
    if config.text.joint and config.text.type == "words":
        faults.append('text.joint: has no effect with text.type = "words"; remove it')
    return faults


def build(model: ModelConfig, source_vocabulary: int, target_vocabulary: int, seed: int | None) -> TranslationModel:
    """A model, its parameters drawn from `seed` (None: left to be filled). The config must have passed `check`."""
    zero = model.decoder.first == "zero"
    target = Embedding(target_vocabulary, model.embedding, zero_bos=zero)
    if model.tie == "all" and source_vocabulary != target_vocabulary:
        raise ConfigError(
            [f'model.tie: "all" needs equal vocabularies; got {source_vocabulary} and {target_vocabulary} symbols']
        )
    source = target if model.tie == "all" else Embedding(source_vocabulary, model.embedding)
    encoder = ENCODERS[model.encoder.type](CELLS[model.encoder.cell], model.embedding, model.encoder.size)
    decoder = DECODERS[model.decoder.type].make(model, encoder)
    output = Output(decoder.readout_size, target_vocabulary, tied=None if model.tie == "none" else target)
    built = TranslationModel(source, target, encoder, decoder, output, model.dropout)
    if seed is not None:
        built.initialise(INITS[model.init.type](model.init, generator(seed)))
    return built
