"""Rules for combining the options of a run file.

The schema validates each table by itself; this module finds combinations that cannot work or that
would silently do nothing. Most rules are rows of three tables:

- `CONFLICTS`: options that exclude each other.
- `NO_EFFECT`: options that have no effect in some context.
- `REQUIRED`: options that must be given in some context.

The other rules are the functions below the tables. All rules depend on the options and on the
traits of components (`ClassVar` attributes of their options classes), never on their
implementations, so that a run file can be checked without PyTorch. Each problem is one sentence
that starts with a dotted path.

`systems/validation.py` calls it for run files, `systems/folder.py`, `systems/engine_file.py` and
`importers/folder.py` for stored models, and `translator/loading.py` for search options. Tests:
tests/models/test_model_checks.py, and tests/properties/test_combinations.py, in which each combination is either
rejected here or trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from rnnsearch.config.attention import FEATURES, NORMALISERS, SCORES, WINDOWS, AttentionConfig
from rnnsearch.config.cells import BRIDGES, CELLS
from rnnsearch.config.data import TextConfig
from rnnsearch.config.decoders import DECODERS, StackOptions
from rnnsearch.config.encoders import ENCODERS, PyramidOptions, StackedOptions
from rnnsearch.config.language_model import FeedForwardOptions, LanguageModelConfig, RecurrentNetworkOptions
from rnnsearch.config.model import ModelConfig
from rnnsearch.config.options import Options
from rnnsearch.config.outputs import AdaptiveOptions, NormalOptions, OutputConfig
from rnnsearch.config.run_file import RunConfig

Condition = Callable[[RunConfig], bool]

CHARACTERS_PER_TOKEN = 5  # upper bound of the characters per word or subword in most languages

# Tables.

_SYMMETRY = "objective.symmetry, which swaps source and target"

CONFLICTS: dict[str, tuple[str, ...]] = {
    "data.target_only": ("text.annotation", "text.inline_terms", _SYMMETRY),
    "text.inline_terms": ('text.type = "words", which has no tokens for the term markers', _SYMMETRY),
    "text.annotation": ("model.pointer", "model.decoder.copies", "model.target_characters", _SYMMETRY),
    'text.annotation.type = "copyable"': ("model.source_characters",),
    "model.encoder.selects_words": ("objective.supervision", "search.coverage_penalty"),
    "model.decoder.copies": (
        "model.pointer",
        "model.target_characters",
        'model.attention.window = "wait-k"',
        "model.encoder.selects_words",
        _SYMMETRY,
    ),
    "model.output.predicts_class": (
        "model.lexical",
        "model.pointer",
        "model.decoder.copies",
        "model.tie",
        "objective.partition",
        "objective.contrast",
        "training.label_smoothing",
        _SYMMETRY,
    ),
    "model.source_characters": (_SYMMETRY,),
    "model.target_characters": (_SYMMETRY,),
    "model.pointer": ("model.encoder.selects_words", _SYMMETRY),
    "model.language_model": ("text.annotation, whose tokens a language model does not have", _SYMMETRY),
    "objective.partition": (_SYMMETRY,),
    "objective.contrast": (
        "model.pointer",
        "model.decoder.copies",
        "objective.partition",
        "objective.symmetry",
        "objective.reinforce",
        "objective.rationale",
        "training.label_smoothing",
    ),
    "objective.teacher": (
        "model.pointer",
        "model.decoder.copies",
        "objective.partition",
        "objective.contrast",
        "objective.symmetry",
        "data.target_only, because the teacher needs a source",
    ),
    "training.begin_from": (_SYMMETRY,),
}
"""Options and, for each, the options that it cannot be combined with.

An option is a dotted path, `path = "value"`, or the path of a trait (`model.decoder.copies` stands
for the types of `model.decoder` that copy). A reason may follow after a comma."""


class NoEffect(NamedTuple):
    """Options that have no effect in some context."""

    options: tuple[str, ...]
    """Dotted paths of the options."""
    when: Condition
    """Condition under which they have no effect."""
    context: str
    """The context, as in "has no effect with ..."; options in braces are replaced by their values."""


class Required(NamedTuple):
    """An option that must be given in some context."""

    option: str
    """Dotted path of the option."""
    when: Condition
    """Condition under which it must be given."""
    why: str
    """The context, as in "must be given for ..."; options in braces are replaced by their values."""


def _has_no_attention(config: RunConfig) -> bool:
    return not config.translation.decoder.attends


def _normaliser_needs_noise(config: RunConfig) -> bool:
    attention = config.translation.attention
    return attention is not None and NORMALISERS[attention.normaliser].needs_noise


def _trains_output_only(config: RunConfig) -> bool:
    fusion = config.translation.language_model
    return fusion is not None and fusion.trains_output_only


def _is_single_layer(config: RunConfig) -> bool:
    model = config.translation
    return len(model.encoder.layer_sizes) == 1 and model.decoder.depth == 1


def _has_no_stack(config: RunConfig) -> bool:
    model = config.translation
    return not isinstance(model.decoder, StackOptions) and not isinstance(
        model.encoder, StackedOptions | PyramidOptions
    )


def _has_no_recurrent_product(config: RunConfig) -> bool:
    model = config.translation
    decoder_cell = getattr(model.decoder, "cell", "gru")  # decoders without the option have a fixed GRU
    return not CELLS[model.encoder.cell].has_recurrent_product and not CELLS[decoder_cell].has_recurrent_product


NO_EFFECT: tuple[NoEffect, ...] = (
    NoEffect(
        ("data.dev_size", "data.test_size"),
        lambda config: config.data.corpus is not None,
        "data.corpus, because a listed corpus has its own split",
    ),
    NoEffect(("data.dev_size",), lambda config: config.data.corpus is None and config.data.dev is not None, "data.dev"),
    NoEffect(
        ("data.test_size",), lambda config: config.data.corpus is None and config.data.test is not None, "data.test"
    ),
    NoEffect(("text.joint",), lambda config: "words" in config.text.types, 'text.type = "words"'),
    NoEffect(("text.side_min_count",), lambda config: not config.text.joint, "two vocabularies"),
    NoEffect(
        ("text.side_min_count",),
        lambda config: bool(config.text.joint) and config.text.type not in ("bpe", "unigram"),
        'text.type = "{text.type}"',
    ),
    NoEffect(("text.bpe_dropout",), lambda config: "bpe" not in config.text.types, 'text.type = "{text.type}"'),
    NoEffect(
        ("text.unigram_sampling",), lambda config: "unigram" not in config.text.types, 'text.type = "{text.type}"'
    ),
    NoEffect(
        ("objective.partition",),
        lambda config: config.text.sampling_option(config.text.types[1]) is not None,
        "{sampling_option}, which changes the segmentation",
    ),
)
"""Rules for every model."""

TRANSLATION_NO_EFFECT: tuple[NoEffect, ...] = (
    NoEffect(
        (
            "model.attention",
            "model.lexical",
            "model.target_characters",
            "model.pointer",
            "model.dropout.annotations",
            "model.dropout.attention",
            "objective.doubly_stochastic",
            "objective.coverage",
            "objective.fertility",
            "objective.supervision",
            "objective.reinforce",
            "objective.symmetry",
            "search.coverage_penalty",
        ),
        _has_no_attention,
        "the {model.decoder.type} decoder, which has no attention",
    ),
    NoEffect(
        ("search.replace_unknown",),
        lambda config: _has_no_attention(config) and config.text.annotation is None,
        "the {model.decoder.type} decoder, which has no attention",
    ),
    NoEffect(("model.dropout.layers",), _is_single_layer, "an encoder and a decoder of one layer"),
    NoEffect(
        ("model.dropout.layer_outputs",),
        _has_no_stack,
        "a {model.encoder.type} encoder and a {model.decoder.type} decoder",
    ),
    NoEffect(("model.dropout.state",), _has_no_recurrent_product, "{model.encoder.cell} cells"),
    NoEffect(
        ("model.dropout.attention",),
        _normaliser_needs_noise,
        "the {model.attention.normaliser} normaliser, which is random already",
    ),
    NoEffect(
        ("model.source_characters",),
        lambda config: config.text.types[0] != "words",
        'text.type = "{text.types[0]}", whose vocabulary covers every word',
    ),
    NoEffect(
        ("model.target_characters",),
        lambda config: config.text.types[1] != "words",
        'text.type = "{text.types[1]}", whose vocabulary covers every word',
    ),
    NoEffect(
        ("model.pointer",),
        lambda config: _first_open_type(config.text) is not None,
        'text.type = "{open_type}", whose vocabulary covers every word',
    ),
    NoEffect(
        ("model.pointer",),
        lambda config: config.translation.target_characters is not None,
        "model.target_characters, which spells the words to copy",
    ),
    NoEffect(
        ("model.pointer",),
        _normaliser_needs_noise,
        "the {model.attention.normaliser} normaliser, which is not a distribution over positions",
    ),
    NoEffect(
        ("objective.spelling",),
        lambda config: config.translation.target_characters is None,
        "a model that does not spell words",
    ),
    NoEffect(
        (
            "objective.doubly_stochastic",
            "objective.coverage",
            "objective.fertility",
            "objective.supervision",
            "objective.spelling",
            "objective.reinforce",
            "objective.rationale",
        ),
        _trains_output_only,
        "{model.language_model.type} fusion, which trains only the output",
    ),
    NoEffect(
        ("training.label_smoothing",),
        lambda config: config.objective.teacher is not None and config.objective.teacher.weight == 1,
        "objective.teacher.weight = 1.0, which ignores the references",
    ),
    NoEffect(
        ("search.replace_unknown",),
        lambda config: _first_open_type(config.text) is not None,
        'text.type = "{open_type}", whose vocabulary covers every text',
    ),
    NoEffect(
        ("search.replace_unknown",),
        lambda config: config.search.replace_unknown == "copy" and config.translation.target_characters is not None,
        "a model that spells unknown words",
    ),
    NoEffect(
        ("search.dictionary",),
        lambda config: config.search.replace_unknown != "dictionary",
        'replace_unknown = "{search.replace_unknown}"',
    ),
)
"""Rules for translation models."""

LANGUAGE_MODEL_NO_EFFECT: tuple[NoEffect, ...] = (
    NoEffect(
        (
            "data.alignments",
            "data.dev_alignments",
            "data.test_alignments",
            "text.joint",
            "text.inline_terms",
            "objective.doubly_stochastic",
            "objective.coverage",
            "objective.fertility",
            "objective.supervision",
            "objective.spelling",
            "objective.reinforce",
            "objective.rationale",
            "objective.teacher",
            "objective.symmetry",
            "search.replace_unknown",
            "search.dictionary",
            "search.candidates",
            "search.language_model",
            "search.coverage_penalty",
        ),
        lambda _: True,
        "a language model",
    ),
)
"""Rules for language models."""

REQUIRED: tuple[Required, ...] = (
    Required(
        "model.attention", lambda config: config.translation.decoder.attends, "for the {model.decoder.type} decoder"
    ),
    Required(
        "objective.reinforce",
        lambda config: _samples_positions(config.translation),
        "for the {model.attention.normaliser} normaliser, whose samples have no gradient",
    ),
    Required(
        "objective.rationale",
        lambda config: config.translation.encoder.selects_words and not _trains_output_only(config),
        "for the {model.encoder.type} encoder, whose selection has no gradient",
    ),
    Required(
        "training.begin_from",
        _trains_output_only,
        "for {model.language_model.type} fusion, which does not train the decoder",
    ),
    Required(
        "search.dictionary",
        lambda config: config.search.replace_unknown == "dictionary",
        'for replace_unknown = "dictionary"',
    ),
)
"""Rules for translation models."""


# Checks of a whole config.


def check(config: RunConfig) -> list[str]:
    """Return every problem with the combination of options in a run file."""
    if isinstance(config.model, LanguageModelConfig):
        return _check_language_model(config, config.model)
    return [
        *_check_source(config),
        *_check_model(config),
        *_table_problems(config),
        *_check_hard_attention(config),
        *_check_coverage(config),
        *_check_rationale(config),
        *_check_attended_word(config),
        *_check_supervision(config),
        *_check_data(config),
        *_check_target_only(config),
        *_check_folder_options(config),
        *_check_limits(config),
        *_check_max_ratio(config),
    ]


def check_model(config: RunConfig) -> list[str]:
    """Return every problem with `[model]` and `[text]`, which also hold for the config of a model folder."""
    if isinstance(config.model, LanguageModelConfig):
        return _check_language_model(config, config.model)
    return [*_check_model(config), *_table_problems(config, ("model.", "text."))]


def check_unknown_words(config: RunConfig) -> list[str]:
    """Return every problem with the options that replace unknown words."""
    return _table_problems(config, ("search.replace_unknown", "search.dictionary"))


def _check_model(config: RunConfig) -> list[str]:
    model = config.translation
    messages = _check_alignment_scale(model)
    if model.decoder.attends and model.attention is not None:
        messages += _check_attention(model, model.attention)
    if not model.decoder.attends:
        messages += _check_sentence_vector(model)
    return [
        *messages,
        *_check_bridge(model),
        *_check_output(model.output, model.decoder.readout_size, config.text),
        *_check_tied_embeddings(model, config.text),
        *_check_fusion(model, config.text),
    ]


def _check_language_model(config: RunConfig, model: LanguageModelConfig) -> list[str]:
    messages = []
    if config.data.sources:
        messages.append("data.source: must not be given for a language model, which has only a target")
    if config.training.metric != "nll":
        messages.append(f'training.metric: must be "nll" for a language model; got "{config.training.metric}"')
    return [
        *messages,
        *_check_network(model),
        *_check_output(model.output, model.network.size, config.text),
        *_table_problems(config),
        *_check_data(config),
        *_check_limits(config),
    ]


# Evaluation of the tables.


def is_used(config: RunConfig, path: str) -> bool:
    """Return True if an option has another value than its default.

    The default counts as unused even if it is given, because the config of a model folder has all
    options. A trait is used if it is true.
    """
    *parents, name = path.split(".")
    table: Any = config
    for parent in parents:
        table = getattr(table, parent, None)
    value = getattr(table, name, None)
    field = type(table).model_fields.get(name) if table is not None else None
    default = None if field is None else field.default
    return value is not None and value is not False and value != default


def _holds(config: RunConfig, condition: str) -> bool:
    """Return True if an entry of `CONFLICTS` applies to a config."""
    path, equals, expected = condition.partition(",")[0].partition(" = ")
    if not equals:
        return is_used(config, path)
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name, None)
    value = value.name() if isinstance(value, Options) else value
    return bool(value == expected.strip('"'))


def _description(config: RunConfig, condition: str) -> str:
    """Return an entry of `CONFLICTS` with the path of a trait replaced by the option that has it."""
    path, comma, reason = condition.partition(",")
    parent, _, name = path.rpartition(".")
    value: Any = config
    for part in parent.split("."):
        value = getattr(value, part.partition(" ")[0], None)
    if isinstance(value, Options) and name not in type(value).model_fields and " = " not in path:
        path = f'{parent}.{value.key} = "{value.name()}"'
    return f"{path}{comma}{reason}"


def _no_effect_rules(config: RunConfig) -> Iterator[NoEffect]:
    yield from NO_EFFECT
    yield from LANGUAGE_MODEL_NO_EFFECT if isinstance(config.model, LanguageModelConfig) else TRANSLATION_NO_EFFECT


def _table_problems(config: RunConfig, prefixes: Sequence[str] = ("",)) -> list[str]:
    """Return the problems that the tables find with the options whose paths start with one of some prefixes."""
    values = {
        **dict(config),
        "open_type": _first_open_type(config.text),
        "sampling_option": config.text.sampling_option(config.text.types[1]),
    }
    selected = tuple(prefixes)
    messages = []
    if not isinstance(config.model, LanguageModelConfig):
        for option, when, why in REQUIRED:
            if option.startswith(selected) and when(config) and not is_used(config, option):
                messages.append(f"{option}: must be given {why.format(**values)}")
    for options, when, context in _no_effect_rules(config):
        used = [option for option in options if option.startswith(selected) and is_used(config, option)]
        if used and when(config):
            messages += no_effect(used, context.format(**values))
    for option, others in CONFLICTS.items():
        if option.startswith(selected) and _holds(config, option):
            subject = _description(config, option)
            for other in others:
                if _holds(config, other):
                    messages.append(f"{subject}: cannot be combined with {_description(config, other)}; remove one")
    return messages


def no_effect(options: Iterable[str], context: str) -> list[str]:
    """Return a message for each option that has no effect in a context."""
    return [f"{option}: has no effect with {context}; remove it" for option in options]


def _first_open_type(text: TextConfig) -> str | None:
    """Return the first text type whose vocabulary has no unknown words, or None if both have some."""
    return next((text_type for text_type in text.types if text_type != "words"), None)


# Rules for [data], [text], [training] and [search].


def _check_source(config: RunConfig) -> list[str]:
    sources = config.data.sources
    if len(sources) == 1:
        return []
    got = ", ".join(f'"{source}"' for source in sources) or "none"
    return [f"data.source: must be one language for a translation model; got {got}"]


def _check_data(config: RunConfig) -> list[str]:
    return [*_check_dev_set(config), *_check_weights(config)]


def _check_dev_set(config: RunConfig) -> list[str]:
    """Return a message for each option that needs a dev set, if there is none."""
    data = config.data
    if data.corpus is not None or data.dev is not None or data.dev_size > 0:
        return []
    options = ["training.patience", "training.average", "training.metric"]
    needing = [option for option in options if is_used(config, option)]
    if config.training.schedule.type == "plateau":
        needing.append("training.schedule.type")
    return [f"{option}: needs a dev set; give data.dev or data.dev_size" for option in needing]


def _check_weights(config: RunConfig) -> list[str]:
    shuffle = config.training.batch.shuffle
    fractions = [weight for weight in config.data.weights or [] if not weight.is_integer()]
    if shuffle == "epoch" or not fractions:
        return []
    why = f'with training.batch.shuffle = "{shuffle}", because all epochs then have the same pairs'
    return [f"data.weights: must be whole numbers {why}; got {fractions[0]:g}"]


def _check_target_only(config: RunConfig) -> list[str]:
    text = config.text
    if config.data.target_only == "copied" and not text.joint and text.tokenizers is None:
        return ['data.target_only: "copied" needs one vocabulary for both languages (text.joint = true)']
    return []


def _check_folder_options(config: RunConfig) -> list[str]:
    """Return a message for each search option that belongs in a model folder and not in a run file."""
    commands = {"search.language_model": "tune", "search.ensemble": "ensemble"}
    return [
        f"{option}: cannot be set in a run file; `rnnsearch {command}` writes it to a model folder; remove it"
        for option, command in commands.items()
        if is_used(config, option)
    ]


def _check_limits(config: RunConfig) -> list[str]:
    training = config.training
    limits = (training.max_epochs, training.max_updates, training.max_minutes)
    if training.schedule.type == "linear" and all(limit is None for limit in limits):
        return ["training.schedule.type: linear ends with the run; give max_epochs, max_updates or max_minutes"]
    return []


def _check_max_ratio(config: RunConfig) -> list[str]:
    """Return a message if translations from larger tokens into characters would be cut off."""
    source, target = config.text.types
    ratio = config.search.max_ratio
    if source == "characters" or target != "characters" or ratio >= CHARACTERS_PER_TOKEN:
        return []
    why = "for a target of characters, because it limits the characters per source token"
    return [f"search.max_ratio: must be at least {CHARACTERS_PER_TOKEN} {why}; got {ratio:g}"]


# Rules for [model].


def _check_attention(model: ModelConfig, attention: AttentionConfig) -> list[str]:
    """Return why the components of attention are incompatible, or else why their sizes do not match."""
    messages = _check_components(attention)
    if messages:
        return messages
    annotation_size = model.decoder.attended_size(model.encoder.annotation_size)
    problem = attention.score.size_problem(model.decoder.size, annotation_size)
    return [f"model.attention.{problem}"] if problem else []


def _check_components(attention: AttentionConfig) -> list[str]:
    score = attention.score
    window = attention.window
    name = attention.normaliser
    normaliser = NORMALISERS[name]
    path = "model.attention"
    messages = []
    if normaliser.package is not None and find_spec(normaliser.package) is None:
        needs = f"{name} needs the package {normaliser.package}, which is not installed"
        messages.append(f"{path}.normaliser: {needs}; install it with pip install {normaliser.package}")
    features = [feature.type for feature in attention.features]
    if features and not score.takes_features:
        supported = SCORES.names(lambda cls: cls.takes_features)
        why = f"need a score with a hidden layer, which the {score.type} score does not have"
        messages.append(f"{path}.features: {why}; use score = {supported}")
    for feature in sorted({feature for feature in features if features.count(feature) > 1}):
        messages.append(f'{path}.features: must be different from each other; got "{feature}" twice')
    if not normaliser.supports(type(window)):
        supported = WINDOWS.names(normaliser.supports)
        messages.append(f'{path}.window: must be {supported} with the {name} normaliser; got "{window.type}"')
    if normaliser.needs_noise and "heads" in score.option_fields():
        why = f"with the {name} normaliser, which selects one position per target token"
        messages.append(f'{path}.score: must have one head {why}; got "{score.type}"')
    return messages


def _check_alignment_scale(model: ModelConfig) -> list[str]:
    """Return a message if `model.init.alignment_scale` is missing or has no effect."""
    if not isinstance(model.init, NormalOptions):
        return []
    attention = model.attention if model.decoder.attends else None
    has_matrices = attention is not None and attention.score.has_parameters
    path = "model.init.alignment_scale"
    if has_matrices and model.init.alignment_scale is None:
        return [f"{path}: must be given for the normal init of this model"]
    if not has_matrices and model.init.alignment_scale is not None:
        return [f'{path}: has no effect with the normal init of this model; remove it (or set it to "unset")']
    return []


def _check_sentence_vector(model: ModelConfig) -> list[str]:
    """Return a message if the only context of a decoder is a sentence vector that the encoder does not have."""
    encoder = model.encoder
    why = f"for the {model.decoder.type} decoder, whose context is the encoder's last state"
    if isinstance(model.decoder, StackOptions):  # reads the encoder's last states through its bridge
        return []
    if not encoder.one_vector:
        supported = ENCODERS.names(lambda cls: cls.one_vector)
        return [f'model.encoder.type: must be {supported} {why}; got "{encoder.type}"']
    if isinstance(encoder, StackedOptions) and encoder.direction == "both":
        return [f'model.encoder.direction: must be forward or bottom {why}; got "both"']
    return []


def _check_bridge(model: ModelConfig) -> list[str]:
    decoder = model.decoder
    if not isinstance(decoder, StackOptions):
        return []
    bridge = BRIDGES[decoder.bridge]
    if not decoder.attends and not bridge.passes_source:
        why = f'"{decoder.bridge}" would hide the source from the {decoder.type} decoder'
        return [f'model.decoder.bridge: {why}; use "copy" or "learned"']
    reason = bridge.unsupported_reason(model.encoder.last_states, decoder.first_states)
    return [f"model.decoder.bridge: {reason}"] if reason else []


def _check_output(output: OutputConfig, readout_size: int, text: TextConfig) -> list[str]:
    """Return every problem of an adaptive softmax with the readout size and the vocabulary."""
    if not isinstance(output, AdaptiveOptions):
        return []
    messages = []
    if output.factor ** len(output.cutoffs) > readout_size:
        must = f"must leave at least 1 of the readout's {readout_size} units to the last group"
        messages.append(f"model.output.factor: {must}; got {output.factor:g} and {len(output.cutoffs)} groups")
    if text.types[1] != "words":
        messages.append('model.output.type: "adaptive" needs a vocabulary sorted by frequency (text.type = "words")')
    return messages


def _check_tied_embeddings(model: ModelConfig, text: TextConfig) -> list[str]:
    if model.tie == "none":
        return []
    option = model.decoder.readout_option
    size = model.decoder.readout_size
    tied = f'model.tie: "{model.tie}" shares the embeddings with the output layer'
    messages = []
    if option is None:
        messages.append(
            f"{tied}, which does not fit the two-part readout of the {model.decoder.type} decoder; remove it"
        )
    elif size != model.embedding:
        must = f"model.decoder.{option} must equal model.embedding ({model.embedding})"
        messages.append(f"{tied}, so {must}; got {size}")
    if model.tie == "all" and not text.joint:
        messages.append('model.tie: "all" needs one vocabulary for both languages: set text.joint = true')
    return messages


def _check_fusion(model: ModelConfig, text: TextConfig) -> list[str]:
    """Return every problem with `[model.language_model]`, including those of the language model's own `[model]`."""
    fusion = model.language_model
    if fusion is None:
        return []
    messages = []
    if not model.decoder.supports_fusion:
        supported = DECODERS.names(lambda cls: cls.supports_fusion)
        needs = f"needs a decoder with a layer between state and output ({supported})"
        messages.append(f'model.language_model: {needs}; got "{model.decoder.type}"')
    if fusion.model is not None:
        inner = [
            *_check_network(fusion.model),
            *_check_output(fusion.model.output, fusion.model.network.size, text),
        ]
        messages += [message.replace("model.", "model.language_model.model.", 1) for message in inner]
    return messages


def _check_network(model: LanguageModelConfig) -> list[str]:
    """Return every problem of a language model's network with dropout, initialisation and tied embeddings."""
    network = model.network
    used = [name for name, rate in model.dropout if rate > 0]

    def unused_rates(names: tuple[str, ...], context: str) -> list[str]:
        return no_effect([f"model.dropout.{name}" for name in names if name in used], context)

    messages = unused_rates(("annotations", "attention"), "a language model")
    if not isinstance(network, RecurrentNetworkOptions):
        messages += unused_rates(("layer_outputs", "state"), f"a {network.type} network")
    elif not CELLS[network.cell].has_recurrent_product:
        messages += unused_rates(("state",), f"{network.cell} cells")
    if not isinstance(network, RecurrentNetworkOptions) or network.layers == 1:
        messages += unused_rates(("layers",), "a network of one layer")
    if isinstance(model.init, NormalOptions) and model.init.alignment_scale is not None:
        messages += no_effect(["model.init.alignment_scale"], "a language model")
    if model.tie != "none":
        tied = f'model.tie: "{model.tie}" shares the embedding with the output layer'
        if isinstance(network, FeedForwardOptions) and network.direct:
            messages.append(f"{tied}, whose input model.network.direct enlarges; remove one")
        elif network.size != model.embedding:
            must = f"model.network.size must equal model.embedding ({model.embedding})"
            messages.append(f"{tied}, so {must}; got {network.size}")
    return messages


# Rules for [objective].


def _samples_positions(model: ModelConfig) -> bool:
    return model.attention is not None and NORMALISERS[model.attention.normaliser].samples


def _check_hard_attention(config: RunConfig) -> list[str]:
    """Return a message if `[objective.reinforce]` is given and attention does not sample positions."""
    attention = config.translation.attention
    if config.objective.reinforce is None or attention is None or _samples_positions(config.translation):
        return []
    supported = NORMALISERS.names(lambda cls: cls.samples)
    context = f"the {attention.normaliser} normaliser, which does not sample"
    return [f"objective.reinforce: has no effect with {context}; use model.attention.normaliser = {supported}"]


def _check_coverage(config: RunConfig) -> list[str]:
    """Return a message if `objective.coverage` is given and no attention feature learns coverage."""
    attention = config.translation.attention
    if config.objective.coverage is None or attention is None:
        return []
    if any(feature.tracks_untranslated for feature in attention.features):
        return []
    supported = FEATURES.names(lambda cls: cls.tracks_untranslated)
    return [f"objective.coverage: has no effect without a feature that learns coverage; use one of {supported}"]


def _check_rationale(config: RunConfig) -> list[str]:
    """Return a message if `[objective.rationale]` is given and the encoder does not select words."""
    encoder = config.translation.encoder
    if config.objective.rationale is None or encoder.selects_words:
        return []
    supported = ENCODERS.names(lambda cls: cls.selects_words)
    context = f"the {encoder.type} encoder, which reads every word"
    return [f'objective.rationale: has no effect with {context}; use model.encoder.type = "{supported}"']


def _check_attended_word(config: RunConfig) -> list[str]:
    """Return a message if attention should belong to the word just read, or measure AER, and cannot."""
    decoder = config.translation.decoder
    messages = []
    if config.aligns_previous_word and (decoder.query_precedes_word or not decoder.attends):
        supported = DECODERS.names(lambda cls: cls.attends and not cls.query_precedes_word)
        reason = "attends before it reads a word" if decoder.attends else "has no attention"
        why = f"because the {decoder.type} decoder {reason}"
        option = "objective.supervision.word" if config.search.attended_word is None else "search.attended_word"
        messages.append(f'{option}: must be "predicted", {why}; "read" needs one of {supported}')
    if config.training.metric == "aer" and not decoder.attends:
        messages.append(f'training.metric: "aer" needs attention, which the {decoder.type} decoder does not have')
    return messages


def _check_supervision(config: RunConfig) -> list[str]:
    """Return every problem with `[objective.supervision]`, except for missing word alignments."""
    supervision = config.objective.supervision
    text = config.text
    if supervision is None:
        return []
    changing = [text.sampling_option(text_type) for text_type in text.types]
    if text.inline_terms is not None:
        changing.append("text.inline_terms")
    why = "alignment links refer to the tokens of the prepared data; remove objective.supervision"
    messages = [f"{option}: {why}" for option in dict.fromkeys(changing) if option is not None]
    if supervision.unaligned == "end" and not config.translation.encoder.reads_end:
        needs = '"end" needs an end token to attend to (model.encoder.reads_end = true)'
        messages.append(f"objective.supervision.unaligned: {needs}")
    return messages
