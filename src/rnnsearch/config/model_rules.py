"""Rules for `[model]`: sizes and compatibility of the components of a model.

`rules.py` has the other rules of a run file and calls these. These rules depend on the options and on the traits of
components, never on their implementations. A message is the dotted path of an option, a colon, and the problem with
what to do: "model.tie: must be ...; got ...". Tests: tests/models/test_model_checks.py,
tests/properties/test_combinations.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from rnnsearch.config.attention import NORMALISERS, SCORES, WINDOWS, AttentionConfig
from rnnsearch.config.cells import BRIDGES, CELLS
from rnnsearch.config.data import CONTEXT_SUFFIX, TextConfig
from rnnsearch.config.decoders import DECODERS, StackOptions
from rnnsearch.config.encoders import ENCODERS, EncoderConfig, SourceCharactersConfig, StackedOptions
from rnnsearch.config.language_model import FeedForwardOptions, LanguageModelConfig, RecurrentNetworkOptions
from rnnsearch.config.model import ModelConfig
from rnnsearch.config.outputs import AdaptiveOptions, NormalOptions, OutputConfig


def check_translation_model(model: ModelConfig, text: TextConfig) -> list[str]:
    """Return every problem with the sizes and the compatibility of the components of a translation model."""
    messages = _check_alignment_scale(model)
    if model.decoder.attends and model.attention is not None:
        messages += _check_attention(model, model.attention)
    if not model.decoder.attends:
        messages += _check_sentence_vector(model)
    return [
        *messages,
        *_check_hierarchical_encoders(model),
        *_check_bridge(model),
        *_check_output(model.output, model.decoder.readout_size, text),
        *_check_tied_embeddings(model, text),
        *_check_composition(model.source_characters, "model.source_characters", model.embedding),
        *_check_fusion(model, text),
        *_check_sources(model),
    ]


def check_language_model(model: LanguageModelConfig, text: TextConfig) -> list[str]:
    """Return every problem with the sizes and the compatibility of the components of a language model."""
    return [
        *_check_network(model),
        *_check_language_context(model),
        *_check_composition(model.characters, "model.characters", model.embedding),
        *_check_output(model.output, model.network.size, text),
    ]


def _check_composition(options: SourceCharactersConfig | None, path: str, size: int) -> list[str]:
    """Return why words cannot be composed to vectors of this size."""
    problem = None if options is None else options.size_problem(size)
    return [] if problem is None else [f"{path}.{problem}"]


def _check_language_context(model: LanguageModelConfig) -> list[str]:
    """Return why the network cannot read the summary of previous sentences."""
    if model.context is None:
        return []
    if not isinstance(model.network, RecurrentNetworkOptions):
        return [f'model.context: needs a recurrent network; got "{model.network.type}"']
    if model.context.fusion == "late" and model.network.cell != "lstm":
        return [f'model.context.fusion: "late" needs model.network.cell = "lstm"; got "{model.network.cell}"']
    return []


def no_effect(options: Iterable[str], context: str, remedy: str = "remove it") -> list[str]:
    """Return a message for each option that has no effect in a context."""
    return [f"{option}: has no effect {context}; {remedy}" for option in options]


def _check_attention(model: ModelConfig, attention: AttentionConfig) -> list[str]:
    """Return why the components of attention are incompatible, or else why their sizes do not match."""
    messages = _check_components(attention)
    if messages:
        return messages
    problems: dict[str, None] = {}
    for encoder in model.encoders.values():
        annotation_size = model.decoder.attended_size(encoder.annotation_size)
        if problem := attention.score.size_problem(model.decoder.size, annotation_size):
            problems[f"model.attention.{problem}"] = None
    return list(problems)


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


def _check_hierarchical_encoders(model: ModelConfig) -> list[str]:
    """Return a message for each encoder of whole sentences that is not for a stream of previous sentences."""
    messages = []
    for path, encoder in model.encoders.items():
        if encoder.reads_sentences and not path.endswith(CONTEXT_SUFFIX):
            where = f'[model.sources.encoders."NAME{CONTEXT_SUFFIX}"]'
            messages.append(f'{path}.type: "{encoder.type}" is only for streams of previous sentences, in {where}')
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
    why = f"for the {model.decoder.type} decoder, whose context is the encoder's last state"
    if isinstance(model.decoder, StackOptions):  # reads the encoder's last states through its bridge
        return []
    messages = []
    for path, encoder in model.encoders.items():
        if not encoder.one_vector:
            supported = ENCODERS.names(lambda cls: cls.one_vector and not cls.reads_sentences)
            messages.append(f'{path}.type: must be {supported} {why}; got "{encoder.type}"')
        elif isinstance(encoder, StackedOptions) and encoder.direction == "both":
            messages.append(f'{path}.direction: must be forward or bottom {why}; got "both"')
    return messages


def _check_bridge(model: ModelConfig) -> list[str]:
    decoder = model.decoder
    if not isinstance(decoder, StackOptions):
        return []
    bridge = BRIDGES[decoder.bridge]
    if not decoder.attends and (not bridge.passes_source or bridge.reads_annotations):
        hidden = "most of the source" if bridge.passes_source else "the source"
        why = f'"{decoder.bridge}" would hide {hidden} from the {decoder.type} decoder'
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
    if model.tie == "all" and not text.joint and text.tokenizers is None:
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
    if fusion.model is not None and fusion.model.characters is not None:
        context = "inside a translation model, which has the composed vectors in a table"
        messages += no_effect(["model.language_model.model.characters"], context)
    if fusion.model is not None:
        inner = check_language_model(fusion.model, text)
        messages += [message.replace("model.", "model.language_model.model.", 1) for message in inner]
    return messages


def _check_sources(model: ModelConfig) -> list[str]:
    """Return every problem of the combination of several sources with decoder and encoders."""
    options = model.sources
    if options is None:
        return []
    decoder = model.decoder
    path = "model.sources"
    messages = []
    if not decoder.reads_several_sources:
        supported = DECODERS.names(lambda cls: cls.reads_several_sources)
        messages.append(f'{path}: needs a decoder that can read several sources ({supported}); got "{decoder.type}"')
    if isinstance(decoder, StackOptions) and BRIDGES[decoder.bridge].reads_annotations:
        messages.append(f'{path}: cannot be combined with model.decoder.bridge = "{decoder.bridge}"; remove one')
    if not decoder.attends and getattr(options, "contexts", None) == "mean":
        context = f"with the {decoder.type} decoder, which has no attention"
        messages += no_effect([f"{path}.contexts"], context)
    has_memory_cells = CELLS[model.encoder.cell].carries == ("h", "c")
    if options.needs_memory_cells and not (decoder.reads_last_states and has_memory_cells):
        cells = CELLS.names(lambda cls: cls.carries == ("h", "c"))
        needs = f"needs encoders with memory cells ({cells}) and a decoder that a bridge starts from them"
        messages.append(f'{path}.type: "{options.type}" {needs}; got "{model.encoder.cell}" and "{decoder.type}"')
    for encoder_path, encoder in model.encoders.items():
        if encoder.selects_words:
            messages.append(f'{encoder_path}.type: "{encoder.type}" cannot be combined with {path}; remove one')
        if encoder is not model.encoder:
            messages += [f"{encoder_path}.{problem}" for problem in _size_problems(model, encoder)]
    return messages


def _size_problems(model: ModelConfig, encoder: EncoderConfig) -> list[str]:
    """Return why the outputs of a source's encoder cannot be combined with those of `model.encoder`."""
    options = model.sources
    default = model.encoder
    assert options is not None
    if model.decoder.reads_last_states and encoder.last_states != default.last_states:
        return ["size: last states must have the layers, sizes and types of model.encoder, because they are combined"]
    averages_annotations = model.decoder.attends and options.averages_contexts
    sizes = []
    if options.needs_equal_sizes:
        sizes.append((encoder.size, default.size))
    if averages_annotations:
        sizes.append((encoder.annotation_size, default.annotation_size))
    different = [f"got {size} and {wanted}" for size, wanted in sizes if size != wanted]
    return [f"size: must give vectors of the size of model.encoder, for a mean; {got}" for got in different[:1]]


def _check_network(model: LanguageModelConfig) -> list[str]:
    """Return every problem of a language model's network with dropout, initialisation and tied embeddings."""
    network = model.network
    used = [name for name, rate in model.dropout if rate > 0]

    def unused_rates(names: tuple[str, ...], context: str) -> list[str]:
        return no_effect([f"model.dropout.{name}" for name in names if name in used], f"with {context}")

    messages = unused_rates(("annotations", "attention", "feeding"), "a language model")
    if not isinstance(network, RecurrentNetworkOptions):
        messages += unused_rates(("layer_outputs", "state"), f"a {network.type} network")
    elif not CELLS[network.cell].has_recurrent_product:
        messages += unused_rates(("state",), f"{network.cell} cells")
    if not isinstance(network, RecurrentNetworkOptions) or network.layers == 1:
        messages += unused_rates(("layers",), "a network of one layer")
    if isinstance(model.init, NormalOptions) and model.init.alignment_scale is not None:
        messages += no_effect(["model.init.alignment_scale"], "with a language model")
    if model.tie != "none":
        tied = f'model.tie: "{model.tie}" shares the embedding with the output layer'
        if isinstance(network, FeedForwardOptions) and network.direct:
            messages.append(f"{tied}, whose input model.network.direct enlarges; remove one")
        elif network.size != model.embedding:
            must = f"model.network.size must equal model.embedding ({model.embedding})"
            messages.append(f"{tied}, so {must}; got {network.size}")
    return messages
