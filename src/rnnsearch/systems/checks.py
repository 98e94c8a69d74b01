"""Whether the parts of a translation model's `[model]`, and the tables of its whole config, go together: every fault in
one sentence with its dotted path."""

from __future__ import annotations

from collections.abc import Mapping

from rnnsearch.config import ModelConfig, RunConfig
from rnnsearch.config.decoders import StackOptions
from rnnsearch.config.encoders import ENCODERS, PyramidOptions, StackedOptions
from rnnsearch.config.init import NormalOptions
from rnnsearch.config.language import LanguageModelConfig
from rnnsearch.data.catalog import CORPORA
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.bridges import BRIDGES, Zero
from rnnsearch.models.cells import CELLS, GRU
from rnnsearch.models.decoders.table import DECODERS
from rnnsearch.models.encoders import shapes
from rnnsearch.models.memory import StateShape
from rnnsearch.systems.attention_checks import (
    CHOOSES,
    check_attention,
    check_coverage,
    check_drawn,
    check_rationale,
    chooses,
)
from rnnsearch.systems.fusion_checks import check_begun, check_inside, check_teacher
from rnnsearch.systems.language_checks import check_language
from rnnsearch.systems.shared_checks import (
    against,
    idle,
    limits,
    parts_of_data,
    segmentation,
    softmaxes,
    target_only,
    trained_alone,
)

_COPYNET = 'model.decoder.type = "copynet"'

LETTERS = 5
"""Characters that a word or subword has, or fewer, in most languages."""


def check(config: RunConfig) -> list[str]:
    """Every fault in the combinations of a config, each with its dotted path; empty if none."""
    if isinstance(config.model, LanguageModelConfig):
        return check_language(config, config.model)
    return [
        *_sides(config),
        *check_model(config),
        *_blind(config),
        *check_drawn(config),
        *check_coverage(config),
        *check_rationale(config),
        *_aligned(config),
        *parts_of_data(config),
        *target_only(config),
        *trained_alone(config),
        *limits(config),
        *_letters(config),
        *_partition(config),
        *_contrast(config),
        *_inline_terms(config),
        *_annotation(config),
        *check_begun(config),
        *check_teacher(config),
        *check_unknown(config),
    ]


def _sides(config: RunConfig) -> list[str]:
    """A translation model reads one language."""
    sources = config.data.sources
    got = ", ".join(f'"{source}"' for source in sources) or "none"
    return [] if len(sources) == 1 else [f"data.source: must be one language for a translation model; got {got}"]


def _what(model: ModelConfig) -> str:
    return f"the {model.decoder.type} decoder"


def _unseeing(model: ModelConfig, used: Mapping[str, bool]) -> list[str]:
    """`_idle` beside a decoder that does not attend; nothing beside another."""
    return [] if DECODERS[model.decoder.type].attends else idle(f"{_what(model)}, which does not attend", used)


def _blind(config: RunConfig) -> list[str]:
    """What has no effect on a model that does not attend, outside `[model]`."""
    own = {"partition", "contrast", "spelling", "rationale", "teacher"}  # of the likelihood itself
    used = {f"objective.{name}": value is not None for name, value in config.objective if name not in own}
    return _unseeing(config.translation, used | {"search.coverage_penalty": config.search.coverage_penalty > 0})


def _aligned(config: RunConfig) -> list[str]:
    """What needs word alignments has some, and a decoder that can learn them."""
    data, supervision, faults = config.data, config.objective.supervision, []
    decoder = DECODERS[config.translation.decoder.type]
    able = ", ".join(name for name, corpus in CORPORA.items() if corpus.aligned)
    by_hand = data.alignment_files is not None
    if data.corpus is not None:
        by_hand = data.corpus not in CORPORA or CORPORA[data.corpus].aligned
    if supervision is not None and not by_hand and data.alignments is None:
        needs = 'needs word alignments of the training text: give data.alignments (files, or "aligner")'
        faults.append(f"objective.supervision: {needs}, or a corpus that has them ({able})")
    if supervision is not None:
        drawn = dict.fromkeys(filter(None, map(config.text.drawn_by, config.text.types)))
        drawn |= {} if config.text.inline_terms is None else {"text.inline_terms": None}
        as_prepared = "links are between symbols as they were prepared; remove objective.supervision"
        faults += [f"{option}: {as_prepared}" for option in drawn]
        if supervision.unaligned == "end" and not config.translation.encoder.reads_end:
            what = '"end" needs an end symbol to attend to (model.encoder.reads_end = true)'
            faults.append(f"objective.supervision.unaligned: {what}")
    if config.aligns_read_words and (decoder.attends_before_reading or not decoder.attends):
        late = ", ".join(name for name, kind in DECODERS.items() if kind.attends and not kind.attends_before_reading)
        what = (
            f"the {decoder.name} decoder {'attends before it reads a word' if decoder.attends else 'has no attention'}"
        )
        option = "objective.supervision.word" if config.search.attended_word is None else "search.attended_word"
        faults.append(f'{option}: must be "predicted", for {what}; "read" needs one of {late}')
    if config.training.metric == "aer":
        dev_aligned = by_hand if data.corpus is not None or data.dev is None else data.dev_alignments is not None
        if not decoder.attends:
            faults.append(f'training.metric: "aer" needs attention, which the {decoder.name} decoder has not')
        elif not dev_aligned and data.corpus is not None:
            faults.append(f'training.metric: "aer" needs a corpus with word alignments ({able})')
        elif not dev_aligned:
            faults.append('training.metric: "aer" needs word alignments of the dev set: give data.dev_alignments')
    return faults


def _letters(config: RunConfig) -> list[str]:
    """A translation into characters has many for each word or subword that it is of."""
    letters = [kind == "characters" for kind in config.text.types]
    if letters != [False, True] or config.search.max_ratio >= LETTERS:
        return []
    must = f"must be at least {LETTERS} for a target of characters: translations have so many a source symbol at most"
    return [f"search.max_ratio: {must}; got {config.search.max_ratio:g}"]


def _partition(config: RunConfig) -> list[str]:
    """Parts are of the symbols that the corpus was cut into, in one direction."""
    if config.objective.partition is None:
        return []
    used, found = {"objective.partition": True}, []
    drawn = config.text.drawn_by(config.text.types[1])
    if drawn is not None:
        found += idle(f"{drawn}, which cuts the text anew", used)
    if config.objective.symmetry is not None:
        found += idle("objective.symmetry, which turns source and target about", used)
    return found


def _contrast(config: RunConfig) -> list[str]:
    """What words are told from noise by: scores of one softmax's symbols."""
    model, objective = config.translation, config.objective
    if objective.contrast is None:
        return []
    given = {
        **_copying(model),
        "objective.partition": objective.partition is not None,
        "objective.symmetry": objective.symmetry is not None,
        "objective.reinforce": objective.reinforce is not None,
        "objective.rationale": objective.rationale is not None,
        "training.label_smoothing": config.training.label_smoothing > 0,
    }
    if model.output.type != "softmax":
        given[f'model.output.type = "{model.output.type}"'] = True
    return against("objective.contrast:", given)


def _inline_terms(config: RunConfig) -> list[str]:
    """Marks are symbols of subwords and characters, on the side of the source."""
    if config.text.inline_terms is None:
        return []
    given = {
        'text.type = "words", which has no symbols for the marks': config.text.type == "words",
        "objective.symmetry, which turns source and target about": config.objective.symmetry is not None,
    }
    return against("text.inline_terms:", given)


def _annotation(config: RunConfig) -> list[str]:
    """Words that say where they come from are not copied or spelled as well."""
    model, told = config.translation, config.text.annotation
    if told is None:
        return []
    given = {
        **_copying(model),
        "model.target_characters": model.target_characters is not None,
        "objective.symmetry, which turns source and target about": config.objective.symmetry is not None,
    }
    if told.type == "copyable":
        given["model.source_characters"] = model.source_characters is not None
    return against("text.annotation:", given)


def _copying(model: ModelConfig) -> dict[str, bool]:
    """What copies from the source, by its path, and whether it is there."""
    return {"model.pointer": model.pointer is not None, _COPYNET: model.decoder.copies}


def check_unknown(config: RunConfig) -> list[str]:
    """Every fault of the options for unknown words, by themselves and with the model; empty if none."""
    search, kind, path = config.search, config.search.replace_unknown, "search.replace_unknown"
    faults = []
    if kind != "none":
        other = next((kind for kind in config.text.types if kind != "words"), "words")
        subwords = f'text.type = "{other}", whose vocabulary has a symbol for every text'
        if config.text.annotation is None:
            faults += _unseeing(config.translation, {path: True})
        faults += idle(subwords, {path: other != "words"})
    if kind == "copy":
        faults += idle("a model that spells unknown words", {path: config.translation.target_characters is not None})
    if kind == "dictionary" and search.dictionary is None:
        faults.append('search.dictionary: must be given for replace_unknown = "dictionary"')
    unread = {"search.dictionary": kind != "dictionary" and search.dictionary is not None}
    return faults + idle(f'replace_unknown = "{kind}"', unread)


def check_model(config: RunConfig) -> list[str]:
    """Every fault in the combinations of `[model]`; empty if none."""
    if isinstance(config.model, LanguageModelConfig):
        return check_language(config, config.model)
    model = config.model
    own = [*_init(model), *_attends(config), *_bridge(model), *_dropout(model), *_output(config)]
    return [*own, *_ties(config), *segmentation(config.text), *_spelled(config), *check_inside(config)]


def _init(model: ModelConfig) -> list[str]:
    """Matrices of an alignment model need a scale where the init has one for them."""
    if not isinstance(model.init, NormalOptions):
        return []
    aligns = DECODERS[model.decoder.type].attends and model.attention is not None
    draws = aligns and model.attention is not None and SCORES[model.attention.score.type].draws
    path = "model.init.alignment_scale"
    if draws and model.init.alignment_scale is None:
        return [f"{path}: must be given for the normal init of this model"]
    if not draws and model.init.alignment_scale is not None:
        return [f'{path}: has no effect with the normal init of this model; remove it (or say "unset")']
    return []


def _attends(config: RunConfig) -> list[str]:
    """A decoder with attention and `[model.attention]` need each other; without it, one vector is all there is."""
    model = config.translation
    if DECODERS[model.decoder.type].attends:
        if model.attention is None:
            return [f"model.attention: must be given for {_what(model)}"]
        return check_attention(model, model.attention)
    used = {"model.attention": model.attention is not None, "model.lexical": model.lexical}
    used["model.target_characters"] = model.target_characters is not None
    used["model.pointer"] = model.pointer is not None
    used["model.dropout.annotations"] = model.dropout.annotations > 0
    used["model.dropout.attention"] = model.dropout.attention > 0
    return [*_unseeing(model, used), *_one_vector(model)]


def _one_vector(model: ModelConfig) -> list[str]:
    """Without attention and a bridge the encoder must give one vector."""
    reader, encoder = f"{_what(model)}, whose context is the encoder's last state", model.encoder
    if isinstance(model.decoder, StackOptions):
        return []
    if not encoder.one_vector:
        able = ", ".join(name for name, kind in ENCODERS.items() if kind.one_vector)
        return [f'model.encoder.type: must be {able} for {reader}; got "{encoder.type}"']
    if isinstance(encoder, StackedOptions) and encoder.direction == "both":
        return [f'model.encoder.direction: must be forward or bottom for {reader}; got "both"']
    return []


def _bridge(model: ModelConfig) -> list[str]:
    """A bridge must fit the states on both its sides."""
    decoder = model.decoder
    if not isinstance(decoder, StackOptions):
        return []
    if not DECODERS[decoder.type].attends and decoder.bridge == Zero.name:
        blind = f'"zero" would leave {_what(model)} without any sight of the source'
        return [f'model.decoder.bridge: {blind}; use "copy" or "learned"']
    layers = (StateShape(CELLS[decoder.cell].state, decoder.size),) * decoder.layers
    fault = BRIDGES[decoder.bridge].fault(shapes(model.encoder), layers)
    return [f"model.decoder.bridge: {fault}"] if fault else []


def _dropout(model: ModelConfig) -> list[str]:
    """Dropout between layers needs some, on what they give a stack, and on what cells feed back cells that do."""
    shares = model.dropout
    one = len(model.encoder.layer_sizes) == model.decoder.depth == 1
    faults = idle("an encoder and a decoder of one layer", {"model.dropout.layers": one and shares.layers > 0})
    stack = isinstance(model.decoder, StackOptions) or isinstance(model.encoder, StackedOptions | PyramidOptions)
    without = f"a {model.encoder.type} encoder and a {model.decoder.type} decoder"
    faults += idle(without, {"model.dropout.layer_outputs": not stack and shares.layer_outputs > 0})
    cells = {side.model_dump().get("cell", GRU.name) for side in (model.encoder, model.decoder)}
    feeds_back = any(CELLS[cell].feeds_back for cell in cells)
    return faults + idle(f"{', '.join(cells)} cells", {"model.dropout.state": not feeds_back and shares.state > 0})


def _output(config: RunConfig) -> list[str]:
    """What an output of several softmaxes does not go with."""
    model, kind = config.translation, config.translation.output
    if kind.type == "softmax":
        return []
    given = {
        "model.lexical": model.lexical,
        **_copying(model),
        "objective.partition": config.objective.partition is not None,
        "objective.symmetry": config.objective.symmetry is not None,
        "training.label_smoothing": config.training.label_smoothing > 0,
        f'model.tie = "{model.tie}"': model.tie != "none",
    }
    faults = against(f'model.output.type: "{kind.type}"', given)
    return faults + softmaxes(kind, model.decoder.readout_size, config.text)


def _ties(config: RunConfig) -> list[str]:
    """Shared embeddings need a readout of their size, and all of them one vocabulary."""
    model, text, faults = config.translation, config.text, []
    option, size = model.decoder.readout_option, model.decoder.readout_size
    shares = f'model.tie: "{model.tie}" shares the embeddings with the output rows'
    if model.tie != "none" and option is None:
        faults.append(f"{shares}, which {_what(model)}'s two-part readout does not fit; remove it")
    elif model.tie != "none" and size != model.embedding:
        must = f"model.decoder.{option} must equal model.embedding ({model.embedding})"
        faults.append(f"{shares}, so {must}; got {size}")
    if model.tie == "all" and not text.joint:
        faults.append('model.tie: "all" needs one vocabulary for both languages: set text.joint = true')
    return faults


def _spelled(config: RunConfig) -> list[str]:
    """Words alone have characters, and the spelling of some a weight."""
    model, objective, faults = config.translation, config.objective, []
    of_sides = model.source_characters, model.target_characters
    names = "model.source_characters", "model.target_characters"
    if model.pointer is not None:
        faults += _points(config)
    if model.decoder.copies:
        faults += _copies(config)
    used = {name: options is not None for name, options in zip(names, of_sides, strict=True)}
    for name, kind in zip(names, config.text.types, strict=True):
        if kind != "words":
            faults += idle(f'text.type = "{kind}", whose symbols can spell every word', {name: used[name]})
    if objective.symmetry is not None:
        faults += idle("objective.symmetry, which turns source and target about", used)
    if model.target_characters is None:
        faults += idle("a model that spells no words", {"objective.spelling": objective.spelling is not None})
    return faults


def _points(config: RunConfig) -> list[str]:
    """What a pointer needs, and what it does not go with."""
    model, pointer = config.translation, {"model.pointer": True}
    symbols = next((kind for kind in config.text.types if kind != "words"), "words")
    faults = idle(f'text.type = "{symbols}", whose symbols can spell every word', {"model.pointer": symbols != "words"})
    if config.objective.symmetry is not None:
        faults += idle("objective.symmetry, which turns source and target about", pointer)
    if model.target_characters is not None:
        faults += idle("model.target_characters, which spells what it would copy", pointer)
    if model.attention is not None and NORMALISERS[model.attention.normaliser].draws_noise:
        faults += idle(f"the {model.attention.normaliser} normaliser, which is no distribution over places", pointer)
    return faults + against("model.pointer:", {CHOOSES: chooses(model)})


def _copies(config: RunConfig) -> list[str]:
    """What a decoder that copies does not go with: others that copy or spell, and not to know the whole source."""
    model = config.translation
    given = {
        "model.pointer": model.pointer is not None,
        "model.target_characters": model.target_characters is not None,
        'model.attention.window = "wait-k"': model.attention is not None and model.attention.window.type == "wait-k",
        "objective.symmetry": config.objective.symmetry is not None,
        CHOOSES: chooses(model),
    }
    return against(f"{_COPYNET}:", given)
