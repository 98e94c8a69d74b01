"""The names and combinations of `[model]`: what the classes' own tables allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel

from rnnsearch.config import EncoderConfig, ModelConfig, RunConfig
from rnnsearch.errors import did_you_mean
from rnnsearch.models.attention.compatibility import length_faults, piece_faults, size_faults
from rnnsearch.models.attention.features import FEATURES
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.bridges import BRIDGES, Zero
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.table import DECODERS
from rnnsearch.models.encoders import ENCODERS
from rnnsearch.models.initialise import INITS
from rnnsearch.models.memory import StateShape


def check(config: RunConfig) -> list[str]:
    """Every fault in the names and combinations of `[model]`, each with its dotted path; empty if none."""
    model = config.model
    names = [
        _unknown("model.encoder.type", model.encoder.type, ENCODERS),
        _unknown("model.encoder.cell", model.encoder.cell, CELLS),
        _unknown("model.decoder.type", model.decoder.type, DECODERS),
        _unknown("model.decoder.cell", model.decoder.cell, CELLS) if model.decoder.cell else None,
        _unknown("model.decoder.bridge", model.decoder.bridge, BRIDGES) if model.decoder.bridge else None,
    ]
    if model.attention is not None:
        names += [
            _unknown("model.attention.score", model.attention.score, SCORES),
            _unknown("model.attention.window", model.attention.window, WINDOWS),
            _unknown("model.attention.normaliser", model.attention.normaliser, NORMALISERS),
            *(_unknown("model.attention.features", name, FEATURES) for name in model.attention.features),
        ]
    faults = [fault for fault in names if fault]
    return faults or [*_combinations(config), *_ties(config)]


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


def _combinations(config: RunConfig) -> list[str]:
    model = config.model
    decoder, encoder = DECODERS[model.decoder.type], ENCODERS[model.encoder.type]
    what = f"the {decoder.name} decoder"
    faults = _encoder(model.encoder) + _decoder(model) + _dropout(model)
    init = INITS[model.init.type]
    aligns = decoder.attends and model.attention is not None and SCORES[model.attention.score].draws
    needs = init.options | (init.attention_options if aligns else frozenset())
    faults += unfit_options("model.init", model.init, needs, ("type", "recurrent"), f"{init.name} init of this model")
    if decoder.attends and model.attention is None:
        faults.append(f"model.attention: must be given for {what}")
    if model.attention is not None and not decoder.attends:
        faults.append(f"model.attention: has no effect with {what}; remove it")
    elif model.attention is not None:
        faults += _attention(config)
    if not decoder.attends and "bridge" not in decoder.options:
        reader = f"{what}, whose context is the encoder's last state"
        fault = encoder.one_vector_fault(model.encoder, reader)
        if not encoder.one_vector:
            single = ", ".join(name for name, e in ENCODERS.items() if e.one_vector)
            fault = f'model.encoder.type: must be {single} for {reader}; got "{encoder.name}"'
        faults += [] if fault is None else [fault]
    if not decoder.attends and model.lexical:
        faults.append(f"model.lexical: has no effect with {what}, for it reads the attended source words; remove it")
    if not decoder.attends and model.dropout.annotations > 0:
        faults.append(f"model.dropout.annotations: has no effect with {what}; remove it")
    return faults


def _encoder(options: EncoderConfig) -> list[str]:
    """Faults of `[model.encoder]`."""
    encoder = ENCODERS[options.type]
    always = {"type", "cell", "size", *encoder.optional}
    faults = unfit_options("model.encoder", options, encoder.options, always, f"the {encoder.name} encoder")
    return faults or encoder.faults(options)


def _dropout(model: ModelConfig) -> list[str]:
    """Faults of the shares of `[model.dropout]` that need a place in encoder or decoder."""
    if model.dropout.layers > 0 and (model.encoder.layers or 1) == (model.decoder.layers or 1) == 1:
        return ["model.dropout.layers: has no effect with an encoder and a decoder of one layer; remove it"]
    return []


def _decoder(model: ModelConfig) -> list[str]:
    """Faults of `[model.decoder]`."""
    options, decoder = model.decoder, DECODERS[model.decoder.type]
    what = f"the {decoder.name} decoder"
    always = {"type", "size", "first", *decoder.optional}
    faults = unfit_options("model.decoder", options, decoder.options, always, what)
    if options.layers is not None and options.residual_from is not None and options.residual_from > options.layers:
        got = f"model.decoder.layers ({options.layers}); got {options.residual_from}"
        faults.append(f"model.decoder.residual_from: must be at most {got}")
    if options.bridge is not None and "bridge" in decoder.options:
        fault = None
        if not decoder.attends and options.bridge == Zero.name:
            fault = f'"zero" would leave {what} without any sight of the source; use "copy" or "learned"'
        elif options.cell is not None and options.layers is not None:
            shapes = (StateShape(CELLS[options.cell].state, options.size),) * options.layers
            fault = BRIDGES[options.bridge].fault(ENCODERS[model.encoder.type].shapes_of(model.encoder), shapes)
        if fault is not None:
            faults.append(f"model.decoder.bridge: {fault}")
    return faults


def _attention(config: RunConfig) -> list[str]:
    model, attention = config.model, config.model.attention
    assert attention is not None
    score, window = SCORES[attention.score], WINDOWS[attention.window]
    needs = score.options.union(window.options, *(FEATURES[name].options for name in attention.features))
    parts = [f"the {score.name} score", f"the {window.name} window", *attention.features]
    always = ("score", "window", "normaliser", "features")
    faults = unfit_options("model.attention", attention, needs, always, ", ".join(parts)) + piece_faults(attention)
    if faults:
        return faults
    encoded = ENCODERS[model.encoder.type].annotation_size_of(model.encoder)
    annotation_size = DECODERS[model.decoder.type].attended_size(model, encoded)
    sizes = size_faults(attention, model.decoder.size, annotation_size)
    return sizes + length_faults(attention, config.training.max_length)


def _ties(config: RunConfig) -> list[str]:
    model, faults = config.model, []
    decoder = DECODERS[model.decoder.type]
    shares = f'model.tie: "{model.tie}" shares the embeddings with the output rows'
    if model.tie != "none" and decoder.readout_option is None:
        faults.append(f"{shares}, which the {decoder.name} decoder's two-part readout does not fit; remove it")
    elif model.tie != "none":
        size = getattr(model.decoder, decoder.readout_option or "size")
        if size is not None and size != model.embedding:
            must = f"model.decoder.{decoder.readout_option} must equal model.embedding ({model.embedding})"
            faults.append(f"{shares}, so {must}; got {size}")
    if model.tie == "all" and not config.text.joint:
        faults.append('model.tie: "all" needs one vocabulary for both languages: set text.joint = true')
    if config.text.joint and config.text.type == "words":
        faults.append('text.joint: has no effect with text.type = "words"; remove it')
    return faults
