"""Rules for combining the options of a run file.

The schema validates each table by itself; this module finds combinations that cannot work or that
would silently do nothing. Most rules are rows of tables:

- `CONFLICTS`: options that exclude each other.
- `NO_EFFECT`: options that have no effect in some context.
- `REQUIRED`: options that must be given in some context.
- `INVALID`: values that do not fit the rest of the config.

The other rules are the functions below the tables, and those in `model_rules.py` for the sizes and
the compatibility of a model's components. All rules depend on the options and on the
traits of components (`ClassVar` attributes of their options classes), never on their
implementations, so that a run file can be checked without PyTorch. Each problem is one sentence
that starts with a dotted path.

`check` is for run files, `check_model` for stored models, and `check_unknown_words` for search options.

Tests: tests/models/test_model_checks.py, and tests/properties/test_combinations.py, in which each combination is either
rejected here or trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rnnsearch.config.attention import FEATURES, NORMALISERS
from rnnsearch.config.cells import CELLS
from rnnsearch.config.data import LANGUAGE_TAGS, TextConfig
from rnnsearch.config.decoders import DECODERS, StackOptions
from rnnsearch.config.encoders import ENCODERS, PyramidOptions, StackedOptions
from rnnsearch.config.language_model import LanguageModelConfig
from rnnsearch.config.model import MultiwayConfig
from rnnsearch.config.model_rules import check_language_model, check_translation_model, no_effect
from rnnsearch.config.options import Options
from rnnsearch.config.run_file import RunConfig
from rnnsearch.config.sequence import GreedyActorOptions, ReadWriteOptions

Condition = Callable[[RunConfig], bool]

CHARACTERS_PER_TOKEN = 5  # upper bound of the characters per word or subword in most languages

# Tables.

_SYMMETRY = "objective.symmetry, which swaps source and target"

_READS_MORE = (
    "text.annotation",
    "text.inline_terms",
    "model.source_characters",
    "model.pointer",
    "model.decoder.copies",
    "model.encoder.selects_words",
    "objective.supervision",
)
"""Options that a model cannot have if it reads tokens before a source sentence."""

CONFLICTS: dict[str, tuple[str, ...]] = {
    "data.arrays": (
        'model.kind = "multiway"',
        "data.corpus",
        "data.target_only",
        "data.documents",
        "data.context",
        "data.alignments",
        "text.inline_terms",
        "text.annotation",
        "model.source_characters",
        "model.pointer",
        "model.decoder.copies",
        'model.tie = "all"',
        "model.encoder.selects_words",
        "objective.supervision",
        _SYMMETRY,
        "search.candidates",
    ),
    "data.context": ("search.averaging",),
    'data.context.type = "concatenation"': (
        *_READS_MORE,
        "search.coverage_penalty, which would require translations of the context",
        _SYMMETRY,
    ),
    "data.tag": (
        *_READS_MORE,
        "data.context",
        "data.target_only",
        "model.sources",
        "search.coverage_penalty, which would require a translation of the tag",
        _SYMMETRY,
    ),
    'model.sharing.decoders = "all"': ("search.coverage_penalty, which would require a translation of the tag",),
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
        "objective.shortlist",
        "objective.contrast",
        "training.label_smoothing",
        _SYMMETRY,
    ),
    "model.characters": ("model.tie", "model.context"),
    "model.source_characters": (_SYMMETRY,),
    "model.target_characters": (_SYMMETRY,),
    "model.pointer": ("model.encoder.selects_words", _SYMMETRY),
    "model.language_model": ("text.annotation, whose tokens a language model does not have", _SYMMETRY),
    "model.sources": (
        'model.tie = "all"',
        "model.lexical",
        "model.source_characters",
        "model.target_characters",
        "model.pointer",
        "text.annotation",
        "text.inline_terms",
        "data.target_only",
        "data.alignments",
        'data.context.type = "concatenation"',
        "objective.doubly_stochastic",
        "objective.coverage",
        "objective.fertility",
        "objective.supervision",
        "objective.reinforce",
        "objective.teacher",
        "search.replace_unknown",
        "search.coverage_penalty",
        'training.metric = "aer"',
        _SYMMETRY,
    ),
    "objective.partition": (_SYMMETRY,),
    "objective.shortlist": (
        "model.pointer",
        "model.decoder.copies",
        "objective.partition",
        "objective.contrast",
        "objective.symmetry",
        "objective.reinforce",
        "objective.rationale",
        "training.label_smoothing",
    ),
    "objective.contrast": (
        "model.pointer",
        "model.decoder.copies",
        "objective.partition",
        "objective.symmetry",
        "objective.reinforce",
        "objective.rationale",
        "training.label_smoothing",
    ),
    "objective.sequence": (
        "data.arrays",
        "model.sources",
        "model.target_characters",
        "model.pointer",
        "model.decoder.copies",
        "model.encoder.selects_words",
        "model.language_model",
        "model.output.predicts_class",
        "objective.partition",
        "objective.shortlist",
        "objective.contrast",
        "objective.reinforce",
        "text.annotation",
        _SYMMETRY,
    ),
    "objective.teacher": (
        "model.pointer",
        "model.decoder.copies",
        "objective.partition",
        "objective.shortlist",
        "objective.contrast",
        "objective.symmetry",
        "data.target_only, because the teacher needs a source",
    ),
    "training.begin_from": (_SYMMETRY,),
    'model.kind = "multiway"': (
        "data.context",
        "data.tag",
        "data.target_only",
        "data.alignments",
        "text.annotation",
        "text.inline_terms",
        "model.source_characters",
        "model.target_characters",
        "model.pointer",
        "model.sources",
        "model.decoder.copies",
        "model.encoder.selects_words",
        "model.output.predicts_class",
        "model.language_model",
        "objective.fertility",
        "objective.supervision",
        "objective.reinforce",
        "objective.partition",
        "objective.shortlist",
        "objective.contrast",
        "objective.sequence",
        "objective.teacher",
        _SYMMETRY,
        'training.transfer.source = "dictionary"',
        'training.transfer.target = "dictionary"',
        "training.keep_zeros",
        'training.metric = "aer"',
        "search.dictionary",
        "search.candidates",
    ),
    "training.batch.temperature": ('training.batch.shuffle = "once"',),
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
    """The context that follows "has no effect".

    Options in braces, such as {model.encoder.type}, are replaced by their values, and so are the names in
    `_table_problems`, such as {open_type}.
    """
    remedy: str = "remove it"
    """The change that the user should make; braces as in `context`."""


class Required(NamedTuple):
    """An option that must be given in some context."""

    option: str
    """Dotted path of the option."""
    when: Condition
    """Condition under which it must be given."""
    why: str
    """The context, as in "must be given for ..."; braces as in `NoEffect`."""


class Invalid(NamedTuple):
    """A value that does not fit the rest of the config."""

    option: str
    """Dotted path of the option."""
    when: Condition
    """Condition under which the value is not valid."""
    problem: str
    """The problem and the valid values; braces as in `NoEffect`."""


def _is_multiway(config: RunConfig) -> bool:
    return isinstance(config.model, MultiwayConfig)


def _shares_decoders(config: RunConfig) -> bool:
    return isinstance(config.model, MultiwayConfig) and config.model.sharing.decoders == "all"


def _shares_everything(config: RunConfig) -> bool:
    return isinstance(config.model, MultiwayConfig) and set(dict(config.model.sharing).values()) == {"all"}


def _has_one_source(config: RunConfig) -> bool:
    """Return True if the kind of model reads one language."""
    return config.translation.sources is None and not _is_multiway(config)


def _has_no_attention(config: RunConfig) -> bool:
    return not config.translation.decoder.attends


def _normaliser_needs_noise(config: RunConfig) -> bool:
    """Return True for normalisers that are random in training, whose weights are then no distribution."""
    attention = config.translation.attention
    return attention is not None and NORMALISERS[attention.normaliser].needs_noise


def _samples_positions(config: RunConfig) -> bool:
    attention = config.translation.attention
    return attention is not None and NORMALISERS[attention.normaliser].samples


def _encoders_without_source(config: RunConfig) -> list[str]:
    """Return the names in `[model.sources.encoders]` that are no sources."""
    options = None if isinstance(config.model, LanguageModelConfig) else config.model.sources
    return [] if options is None else [name for name in options.encoders if name not in config.data.source_streams]


def _has_no_coverage_feature(config: RunConfig) -> bool:
    attention = config.translation.attention
    return attention is not None and not any(feature.tracks_untranslated for feature in attention.features)


def _trains_output_only(config: RunConfig) -> bool:
    fusion = config.translation.language_model
    return fusion is not None and fusion.trains_output_only


def _trains_actor(config: RunConfig) -> bool:
    return isinstance(config.objective.sequence, GreedyActorOptions)


def _trains_agent(config: RunConfig) -> bool:
    return isinstance(config.objective.sequence, ReadWriteOptions)


def _generates(config: RunConfig) -> bool:
    """Return True if the model is trained on translations that it generates from the sources."""
    return config.objective.sequence is not None and config.objective.sequence.generates


def _supports_actor(config: RunConfig) -> bool:
    """Return True if the decoder has one state vector that an actor can change."""
    decoder = config.translation.decoder
    cell = getattr(decoder, "cell", None)
    return decoder.supports_actor and cell is not None and "h" in CELLS[cell].carries


def _is_single_layer(config: RunConfig) -> bool:
    model = config.translation
    layers = max(len(encoder.layer_sizes) for encoder in model.encoders.values())
    return layers == 1 and model.decoder.depth == 1


def _has_no_stack(config: RunConfig) -> bool:
    model = config.translation
    return not isinstance(model.decoder, StackOptions) and not any(
        isinstance(encoder, StackedOptions | PyramidOptions) for encoder in model.encoders.values()
    )


def _has_no_recurrent_product(config: RunConfig) -> bool:
    model = config.translation
    decoder_cell = getattr(model.decoder, "cell", "gru")  # decoders without the option have a fixed GRU
    return not CELLS[model.encoder.cell].has_recurrent_product and not CELLS[decoder_cell].has_recurrent_product


NO_EFFECT: tuple[NoEffect, ...] = (
    NoEffect(
        ("data.dev_size", "data.test_size"),
        lambda config: config.data.corpus is not None,
        "with data.corpus, because a listed corpus has its own split",
    ),
    NoEffect(
        ("data.dev_size",), lambda config: config.data.corpus is None and config.data.dev is not None, "with data.dev"
    ),
    NoEffect(
        ("data.test_size",),
        lambda config: config.data.corpus is None and config.data.test is not None,
        "with data.test",
    ),
    NoEffect(
        ("text.joint",),
        lambda config: config.data.arrays is not None and len(config.data.text_languages) == 1,
        "with one language of text",
    ),
    NoEffect(("text.joint",), lambda config: "words" in config.text.types, 'with text.type = "words"'),
    NoEffect(("text.side_min_count",), lambda config: not config.text.joint, "with two vocabularies"),
    NoEffect(
        ("text.side_min_count",),
        lambda config: bool(config.text.joint) and config.text.type not in ("bpe", "unigram"),
        'with text.type = "{text.type}"',
    ),
    NoEffect(
        ("text.vocabulary", "text.min_count"),
        lambda config: config.text.tokenizers is not None and not _learned_tokenizers(config),
        "with text.tokenizers for all languages",
    ),
    NoEffect(
        ("text.target_vocabulary",),
        lambda config: config.text.tokenizer_folder(config.data.target) is not None,
        "with text.tokenizers.{data.target}",
    ),
    NoEffect(("text.bpe_dropout",), lambda config: "bpe" not in config.text.types, 'with text.type = "{text.type}"'),
    NoEffect(
        ("text.unigram_sampling",), lambda config: "unigram" not in config.text.types, 'with text.type = "{text.type}"'
    ),
    NoEffect(
        ("objective.partition", "objective.shortlist"),
        lambda config: config.text.sampling_option(config.text.types[1]) is not None,
        "with {sampling_option}, which changes the segmentation",
    ),
    NoEffect(
        (
            "data.directions",
            "data.tasks",
            "training.batch.temperature",
            "training.direction_patience",
            "training.save_directions",
            "training.transfer.languages",
        ),
        lambda config: not _is_multiway(config),
        'with model.kind = "{model.kind}"',
    ),
)
"""Rules for every model."""


def _ignores_references(config: RunConfig) -> bool:
    """Return True if the loss does not depend on the likelihood of the references."""
    sequence = config.objective.sequence
    return sequence is not None and sequence.likelihood == 0 and not sequence.includes_likelihood


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
        "with the {model.decoder.type} decoder, which has no attention",
    ),
    NoEffect(
        ("search.replace_unknown",),
        lambda config: _has_no_attention(config) and config.text.annotation is None,
        "with the {model.decoder.type} decoder, which has no attention",
    ),
    NoEffect(
        ("search.replace_unknown",),
        lambda config: config.data.arrays is not None,
        "with data.arrays, which have no words",
    ),
    NoEffect(
        ("model.dropout.feeding",),
        lambda config: not config.translation.decoder.feeds_back,
        "with the {model.decoder.type} decoder, which reads no vector again",
    ),
    NoEffect(
        ("training.clip_embeddings",), lambda config: config.training.clip_norm is None, "without training.clip_norm"
    ),
    NoEffect(("model.dropout.layers",), _is_single_layer, "with an encoder and a decoder of one layer"),
    NoEffect(
        ("model.dropout.layer_outputs",),
        _has_no_stack,
        "with a {model.encoder.type} encoder and a {model.decoder.type} decoder",
    ),
    NoEffect(("model.dropout.state",), _has_no_recurrent_product, "with {model.encoder.cell} cells"),
    NoEffect(
        ("model.dropout.attention",),
        _normaliser_needs_noise,
        "with the {model.attention.normaliser} normaliser, which is random already",
    ),
    NoEffect(
        ("model.source_characters",),
        lambda config: config.text.types[0] != "words",
        'with text.type = "{text.types[0]}", whose vocabulary covers every word',
    ),
    NoEffect(
        ("model.target_characters",),
        lambda config: config.text.types[1] != "words",
        'with text.type = "{text.types[1]}", whose vocabulary covers every word',
    ),
    NoEffect(
        ("model.target_characters.reads_hidden",),
        lambda config: not config.translation.decoder.feeds_attentional_state,
        "with the {model.decoder.type} decoder, which does not feed h~_t back",
    ),
    NoEffect(
        ("model.pointer",),
        lambda config: _first_open_type(config.text) is not None,
        'with text.type = "{open_type}", whose vocabulary covers every word',
    ),
    NoEffect(
        ("model.pointer",),
        lambda config: config.translation.target_characters is not None,
        "with model.target_characters, which spells the words to copy",
    ),
    NoEffect(
        ("model.pointer",),
        _normaliser_needs_noise,
        "with the {model.attention.normaliser} normaliser, which is not a distribution over positions",
    ),
    NoEffect(
        ("objective.reinforce",),
        lambda config: config.translation.attention is not None and not _samples_positions(config),
        "with the {model.attention.normaliser} normaliser, which does not sample",
        "use model.attention.normaliser = {sampling_normalisers}",
    ),
    NoEffect(
        ("objective.coverage",),
        _has_no_coverage_feature,
        "without a feature that learns coverage",
        "use one of {coverage_features}",
    ),
    NoEffect(
        ("objective.rationale",),
        lambda config: not config.translation.encoder.selects_words,
        "with the {model.encoder.type} encoder, which reads every word",
        'use model.encoder.type = "{selecting_encoders}"',
    ),
    NoEffect(
        ("objective.spelling",),
        lambda config: config.translation.target_characters is None,
        "with a model that does not spell words",
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
        "with {model.language_model.type} fusion, which trains only the output",
    ),
    NoEffect(
        (
            "objective.doubly_stochastic",
            "objective.coverage",
            "objective.fertility",
            "objective.supervision",
            "objective.teacher",
        ),
        _ignores_references,
        "with objective.sequence.likelihood = 0.0, which leaves the loss of the references out",
    ),
    NoEffect(
        ("training.label_smoothing",),
        _ignores_references,
        "with objective.sequence.likelihood = 0.0, which leaves the loss of the references out",
        "set it to 0.0",
    ),
    NoEffect(
        ("objective.sequence.likelihood",),
        _trains_agent,
        "with {objective.sequence.type}, which does not train the translation model",
    ),
    NoEffect(
        ("training.label_smoothing",),
        lambda config: config.objective.teacher is not None and config.objective.teacher.weight == 1,
        "with objective.teacher.weight = 1.0, which ignores the references",
    ),
    NoEffect(
        ("search.replace_unknown",),
        lambda config: _first_open_type(config.text) is not None,
        'with text.type = "{open_type}", whose vocabulary covers every text',
    ),
    NoEffect(
        ("search.replace_unknown",),
        lambda config: config.search.replace_unknown == "copy" and config.translation.target_characters is not None,
        "with a model that spells unknown words",
    ),
    NoEffect(("search.averaging",), lambda config: config.translation.sources is None, "without [model.sources]"),
    NoEffect(
        ("search.dictionary",),
        lambda config: config.search.replace_unknown != "dictionary",
        'with replace_unknown = "{search.replace_unknown}"',
    ),
)
"""Rules for translation models."""

LANGUAGE_MODEL_NO_EFFECT: tuple[NoEffect, ...] = (
    NoEffect(
        (
            "data.alignments",
            "data.tag",
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
            "objective.sequence",
            "objective.symmetry",
            "training.transfer.source",
            "search.replace_unknown",
            "search.dictionary",
            "search.candidates",
            "search.language_model",
            "search.coverage_penalty",
            "search.averaging",
        ),
        lambda _: True,
        "with a language model",
    ),
    NoEffect(
        ("model.characters",),
        lambda config: config.text.types[1] != "words",
        'with text.type = "{text.types[1]}", whose vocabulary covers every word',
    ),
)
"""Rules for language models."""

REQUIRED: tuple[Required, ...] = (
    Required(
        "model.attention", lambda config: config.translation.decoder.attends, "for the {model.decoder.type} decoder"
    ),
    Required(
        "objective.reinforce",
        _samples_positions,
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
        "training.begin_from",
        lambda config: _trains_actor(config) or _trains_agent(config),
        "for {objective.sequence.type}, which does not train the translation model",
    ),
    Required(
        "search.dictionary",
        lambda config: config.search.replace_unknown == "dictionary",
        'for replace_unknown = "dictionary"',
    ),
)
"""Rules for translation models."""


def _has_no_limit(config: RunConfig) -> bool:
    training = config.training
    return all(limit is None for limit in (training.max_epochs, training.max_updates, training.max_minutes))


def _may_cut_off_characters(config: RunConfig) -> bool:
    """Return True if translations from larger tokens into characters would be cut off."""
    source, target = config.text.types
    return source != "characters" and target == "characters" and config.search.max_ratio < CHARACTERS_PER_TOKEN


def _learned_tokenizers(config: RunConfig) -> list[str]:
    """Return the languages whose tokenizers are learned."""
    return [language for language in config.data.languages if config.text.tokenizer_folder(language) is None]


def _names_other_languages(config: RunConfig) -> bool:
    """Return True if `text.tokenizers` has a language that the data do not have."""
    folders = config.text.tokenizers
    return isinstance(folders, dict) and not folders.keys() <= {*config.data.languages}


INVALID: tuple[Invalid, ...] = (
    Invalid(
        "text.tokenizers",
        _names_other_languages,
        "must have only languages of [data] ({languages}); got {tokenizer_languages}",
    ),
    Invalid(
        "training.schedule.type",
        lambda config: config.training.schedule.type == "linear" and _has_no_limit(config),
        "linear ends with the run; give max_epochs, max_updates or max_minutes",
    ),
)
"""Rules for every model."""

TRANSLATION_INVALID: tuple[Invalid, ...] = (
    Invalid(
        "data.context.type",
        lambda config: bool(config.data.context_streams) and config.translation.sources is None,
        '"streams" needs [model.sources], which combines the sentence with its context',
    ),
    Invalid(
        "data.source",
        lambda config: bool(config.data.context_streams) and len(config.data.sources) > 1,
        "must be one language with data.context; got {sources}",
    ),
    Invalid(
        "data.source",
        lambda config: len(config.data.sources) != 1 and _has_one_source(config),
        "must be one language for a translation model without [model.sources]; got {sources}",
    ),
    Invalid(
        "data.source",
        lambda config: not config.data.sources and config.translation.sources is not None,
        "must be at least one language for a model with [model.sources]; got none",
    ),
    Invalid(
        "model.sources.encoders",
        lambda config: bool(_encoders_without_source(config)),
        "must be those of languages in data.source ({source_streams}); got {encoders_without_source}",
    ),
    Invalid(
        "data.source",
        lambda config: not config.data.sources and _is_multiway(config),
        "must be at least one language for a multi-way model; got none",
    ),
    Invalid(
        "model.decoder.type",
        lambda config: _is_multiway(config) and _has_no_attention(config),
        "a multi-way model shares its attention, which the {model.decoder.type} decoder does not have",
    ),
    Invalid(
        "model.tie",
        lambda config: _is_multiway(config) and config.translation.tie == "all" and not _shares_everything(config),
        'must be "none" or "target" for a multi-way model with separate embeddings per language; got "all" (set both '
        'options of model.sharing to "all")',
    ),
    Invalid(
        "model.sharing.decoders",
        lambda config: _shares_decoders(config) and not config.text.joint and config.text.tokenizers is None,
        '"all" needs one vocabulary for all languages (text.joint = true)',
    ),
    Invalid(
        "data.directions",
        lambda config: _shares_decoders(config) and len(config.data.written_languages) > len(LANGUAGE_TAGS),
        f'must have at most {len(LANGUAGE_TAGS)} target languages with model.sharing.decoders = "all"',
    ),
    Invalid(
        "data.tasks.language_model",
        lambda config: _shares_decoders(config) and config.data.tasks is not None and bool(config.data.tasks.modelled),
        'cannot be combined with model.sharing.decoders = "all", whose decoder needs a source with a tag; remove one',
    ),
    Invalid(
        "data.target_only",
        lambda config: (
            config.data.target_only == "copied"
            and not config.text.joint
            and not isinstance(config.text.tokenizers, str)
        ),
        '"copied" needs one vocabulary for both languages (text.joint = true)',
    ),
    Invalid(
        "model.attention.normaliser",
        lambda config: _generates(config) and _normaliser_needs_noise(config),
        "{model.attention.normaliser} cannot be combined with objective.sequence.type = "
        '"{objective.sequence.type}", whose translations have no noise in attention and thus no gradient; remove one',
    ),
    Invalid(
        "data.target_only",
        lambda config: _generates(config) and config.data.target_only == "null",
        '"null" cannot be combined with objective.sequence.type = "{objective.sequence.type}", which would translate '
        "empty sources; remove one",
    ),
    Invalid(
        "objective.sequence.type",
        lambda config: _trains_actor(config) and not _supports_actor(config),
        "{objective.sequence.type} needs the decoder bahdanau, bahdanau-tanh or cohn, with another cell than ssru; got "
        "{model.decoder.type}",
    ),
    Invalid(
        "training.metric",
        lambda config: config.training.metric == "reward" and not _trains_agent(config),
        '"reward" needs objective.sequence.type = "read-write"',
    ),
    Invalid(
        "training.metric",
        lambda config: config.training.metric != "reward" and _trains_agent(config) and _has_dev_set(config),
        'must be "reward" with objective.sequence.type = "{objective.sequence.type}", which does not change the '
        'model; got "{training.metric}"',
    ),
    Invalid(
        "training.metric",
        lambda config: config.training.metric == "aer" and _has_no_attention(config),
        '"aer" needs attention, which the {model.decoder.type} decoder does not have',
    ),
    Invalid(
        "search.max_ratio",
        _may_cut_off_characters,
        f"must be at least {CHARACTERS_PER_TOKEN} for a target of characters, because it limits the characters per "
        "source token; got {search.max_ratio:g}",
    ),
    Invalid(
        "search.length_penalty",
        lambda config: not config.objective.normalises_scores and config.search.length_penalty > 0,
        'must be 0 with objective.sequence.type = "{objective.sequence.type}", whose scores are not normalised; got '
        "{search.length_penalty:g}",
    ),
    Invalid(
        "search.stop",
        lambda config: not config.objective.normalises_scores and config.search.stop != "top",
        'must be "top" with objective.sequence.type = "{objective.sequence.type}", whose search in training stops so; '
        'got "{search.stop}"',
    ),
    Invalid(
        "training.metric",
        lambda config: not config.objective.normalises_scores and config.training.metric == "nll",
        'must be "bleu" or "aer" with objective.sequence.type = "{objective.sequence.type}", which does not lower the '
        'NLL; got "nll"',
    ),
    Invalid(
        "search.language_model",
        lambda config: is_used(config, "search.language_model"),
        "cannot be set in a run file; `rnnsearch tune` writes it to a model folder; remove it",
    ),
    Invalid(
        "search.ensemble",
        lambda config: is_used(config, "search.ensemble"),
        "cannot be set in a run file; `rnnsearch ensemble` writes it to a model folder; remove it",
    ),
)
"""Rules for translation models."""

LANGUAGE_MODEL_INVALID: tuple[Invalid, ...] = (
    Invalid(
        "data.context.type",
        lambda config: config.data.context is not None and not config.data.context_streams,
        'must be "streams" for a language model; got "{data.context.type}"',
    ),
    Invalid(
        "data.context",
        lambda config: bool(config.data.context_streams) and not is_used(config, "model.context"),
        "has no effect without model.context",
    ),
    Invalid(
        "model.context",
        lambda config: is_used(config, "model.context") and config.data.context is None,
        'needs data.context, with type = "streams"',
    ),
    Invalid(
        "data.source",
        lambda config: bool(config.data.sources),
        "must not be given for a language model, which has only a target",
    ),
    Invalid(
        "training.metric",
        lambda config: config.training.metric != "nll",
        'must be "nll" for a language model; got "{training.metric}"',
    ),
)
"""Rules for language models."""


# Checks of a whole config.


def check(config: RunConfig) -> list[str]:
    """Return every problem with the combination of options in a run file."""
    if isinstance(config.model, LanguageModelConfig):
        return [
            *check_language_model(config.model, config.text),
            *_table_problems(config),
            *_check_dev_set(config),
            *_check_weights(config),
        ]
    return [
        *check_translation_model(config.translation, config.text),
        *_check_arrays(config),
        *_table_problems(config),
        *_check_attended_word(config),
        *_check_supervision(config),
        *_check_agent(config),
        *_check_dev_set(config),
        *_check_weights(config),
    ]


def check_model(config: RunConfig) -> list[str]:
    """Return every problem with `[model]` and `[text]`, which also hold for the config of a model folder.

    For a language model, all rules are checked.
    """
    if isinstance(config.model, LanguageModelConfig):
        return check(config)
    return [
        *check_translation_model(config.translation, config.text),
        *_check_arrays(config),
        *_table_problems(config, ("model.", "text.")),
    ]


def check_unknown_words(config: RunConfig) -> list[str]:
    """Return every problem with the options that replace unknown words."""
    return _table_problems(config, ("search.replace_unknown", "search.dictionary"))


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


def _invalid_rules(config: RunConfig) -> Iterator[Invalid]:
    yield from INVALID
    yield from LANGUAGE_MODEL_INVALID if isinstance(config.model, LanguageModelConfig) else TRANSLATION_INVALID


def _table_problems(config: RunConfig, prefixes: Sequence[str] = ("",)) -> list[str]:
    """Return the problems that the tables find with the options whose paths start with one of some prefixes."""
    values = {
        **dict(config),
        "open_type": _first_open_type(config.text),
        "sampling_option": config.text.sampling_option(config.text.types[1]),
        "sources": ", ".join(f'"{source}"' for source in config.data.sources) or "none",
        "languages": ", ".join(config.data.languages),
        "tokenizer_languages": ", ".join(config.text.tokenizers if isinstance(config.text.tokenizers, dict) else ()),
        "source_streams": ", ".join(f'"{name}"' for name in config.data.source_streams),
        # Computed here, because extensions register further components.
        "sampling_normalisers": NORMALISERS.names(lambda cls: cls.samples),
        "coverage_features": FEATURES.names(lambda cls: cls.tracks_untranslated),
        "encoders_without_source": ", ".join(_encoders_without_source(config)),
        "selecting_encoders": ENCODERS.names(lambda cls: cls.selects_words),
    }
    selected = tuple(prefixes)
    messages = []
    if not isinstance(config.model, LanguageModelConfig):
        for option, when, why in REQUIRED:
            if option.startswith(selected) and when(config) and not is_used(config, option):
                messages.append(f"{option}: must be given {why.format(**values)}")
    for options, when, context, remedy in _no_effect_rules(config):
        used = [option for option in options if option.startswith(selected) and is_used(config, option)]
        if used and when(config):
            messages += no_effect(used, context.format(**values), remedy.format(**values))
    for option, when, problem in _invalid_rules(config):
        if option.startswith(selected) and when(config):
            messages.append(f"{option}: {problem.format(**values)}")
    for option, others in CONFLICTS.items():
        if option.startswith(selected) and _holds(config, option):
            subject = _description(config, option)
            for other in others:
                if _holds(config, other):
                    messages.append(f"{subject}: cannot be combined with {_description(config, other)}; remove one")
    return messages


def _first_open_type(text: TextConfig) -> str | None:
    """Return the first text type whose vocabulary has no unknown words, or None if both have some."""
    return next((text_type for text_type in text.types if text_type != "words"), None)


# Other rules for [data] and [training].


def _check_arrays(config: RunConfig) -> list[str]:
    """Return a message for each option of the encoder that refers to an end token, which arrays do not have."""
    if config.data.arrays is None:
        return []
    encoder = config.translation.encoder
    options = {"reverse": getattr(encoder, "reverse", False), "reads_end = false": not encoder.reads_end}
    why = "cannot be combined with data.arrays, which have no end token; remove one"
    return [f"model.encoder.{option}: {why}" for option, is_used in options.items() if is_used]


def _has_dev_set(config: RunConfig) -> bool:
    data = config.data
    return data.corpus is not None or data.dev is not None or data.dev_size > 0


def _check_dev_set(config: RunConfig) -> list[str]:
    """Return a message for each option that needs a dev set, if there is none."""
    if _has_dev_set(config):
        return []
    options = ["training.patience", "training.average", "training.metric"]
    options += ["training.direction_patience", "training.save_directions"]
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


# Other rules for [objective] and [search].


def _check_attended_word(config: RunConfig) -> list[str]:
    """Return a message if attention should belong to the word just read and cannot."""
    decoder = config.translation.decoder
    if not config.aligns_previous_word or (decoder.attends and not decoder.query_precedes_word):
        return []
    supported = DECODERS.names(lambda cls: cls.attends and not cls.query_precedes_word)
    reason = "attends before it reads a word" if decoder.attends else "has no attention"
    why = f"because the {decoder.type} decoder {reason}"
    option = "objective.supervision.word" if config.search.attended_word is None else "search.attended_word"
    return [f'{option}: must be "predicted", {why}; "read" needs one of {supported}']


def _check_agent(config: RunConfig) -> list[str]:
    """Return every reason why an agent cannot decide when the model reads: the model reads ahead."""
    if not _trains_agent(config):
        return []
    model = config.translation
    needs = []
    if not model.encoder.reads_forward:
        needs.append(
            'an encoder that reads forward: model.encoder.type = "unidirectional", or "stacked" with direction = '
            '"forward", and without reverse'
        )
    if not model.decoder.starts_at_zero or _has_no_attention(config):
        needs.append('a decoder with attention that starts at zero: model.decoder.bridge = "zero", or type = "cohn"')
    attention = model.attention
    if attention is not None and attention.score.reads_ahead:
        needs.append(f"another score than {attention.score.type}, which reads later words")
    if attention is not None and attention.features:
        needs.append("attention without features, which have values for words that have not been read")
    if config.data.context is not None:
        needs.append("a source without previous sentences; remove data.context")
    assert config.objective.sequence is not None
    return [f"objective.sequence.type: {config.objective.sequence.type} needs {need}" for need in needs]


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
