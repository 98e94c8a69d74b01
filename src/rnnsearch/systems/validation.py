"""The dev set during training: the objective's NLL of it, and whatever else a run measures there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

import torch

from rnnsearch.config import AttentionConfig, DataConfig, ModelConfig, RunConfig, TextConfig
from rnnsearch.config.decoders import StackOptions
from rnnsearch.config.encoders import ENCODERS, PyramidOptions, StackedOptions
from rnnsearch.config.language_model import FeedForwardOptions, LanguageModelConfig, RecurrentOptions
from rnnsearch.config.outputs import AdaptiveOptions, NormalOptions, OutputConfig
from rnnsearch.data.batches import Batch
from rnnsearch.data.corpora.catalog import CORPORA
from rnnsearch.models.attention.features import FEATURES
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.bridges import BRIDGES, Zero
from rnnsearch.models.cells import CELLS, GRU
from rnnsearch.models.decoders import DECODERS
from rnnsearch.models.encoders import Rationale, shapes
from rnnsearch.models.fusion import FUSIONS
from rnnsearch.models.memory import StateShape
from rnnsearch.objectives.loss import Model, Objective
from rnnsearch.utils.distributed import Processes

HIGHER_IS_BETTER = {"bleu"}
NLL = "nll"


class DevScore(NamedTuple):
    """nll: nats a sentence; per_word: nats a symbol (EOS counted); others: by metric, None where not measured."""

    nll: float
    per_word: float
    others: Mapping[str, float | None] = {}

    def cost(self, metric: str) -> float:
        """The score in the run's metric; the less, the better."""
        value = self.nll if metric == NLL else self.others[metric] or 0.0
        return -value if metric in HIGHER_IS_BETTER else value


class Assessor(ABC, Generic[Model]):
    """What the loop asks for dev scores."""

    @abstractmethod
    def score(self, model: Model, stop: Callable[[], bool]) -> DevScore | None:
        """The dev scores of a model; None if `stop` asked to leave between two batches, in any process."""


@dataclass(frozen=True)
class HeldOut(Generic[Model]):
    """Batches that are not trained on. Each process has its own of them."""

    objective: Objective[Model]
    batches: Sequence[Batch]
    sentences: int
    """Of all processes together."""
    tokens: int
    """The same: target symbols, EOS among them."""
    device: torch.device
    processes: Processes

    def nll(self, model: Model, stop: Callable[[], bool]) -> float | None:
        """-log p summed over the batches of all processes, in nats; None if `stop` asked to leave, in any of them."""
        total, left = torch.zeros((), device=self.device), False
        with torch.no_grad():
            for batch in self.batches:
                left = stop()
                if left:
                    break
                total += self.objective(model, batch.to(self.device), None).nll
        nll, leaving = self.processes.sum(float(total), float(left))
        return None if leaving else nll


Measure = Callable[[Model], float]


@dataclass(frozen=True)
class Validation(Assessor[Model]):
    """The NLL of held-out batches, and other measures by name; None for one that the run leaves out."""

    held_out: HeldOut[Model]
    measures: Mapping[str, Measure[Model] | None]

    def score(self, model: Model, stop: Callable[[], bool]) -> DevScore | None:
        nll = self.held_out.nll(model, stop)
        if nll is None:
            return None
        others = {name: None if measure is None else measure(model) for name, measure in self.measures.items()}
        return DevScore(nll / self.held_out.sentences, nll / self.held_out.tokens, others)


# Rules for every kind of model: data split, text options and the end of training.
#
# Each check returns a list of messages, one sentence per problem, which start with a dotted path.


def unused(context: str, used: Mapping[str, bool]) -> list[str]:
    """Return a message for each option that is used and has no effect in a context."""
    return [f"{path}: has no effect with {context}; remove it" for path, is_used in used.items() if is_used]


def conflicts(subject: str, used: Mapping[str, bool]) -> list[str]:
    """Return a message for each option that is used and is incompatible with the subject."""
    return [f"{subject} cannot be combined with {other}; remove one" for other, is_used in used.items() if is_used]


def check_data(config: RunConfig) -> list[str]:
    """Return every problem with the data split and the weights of training files."""
    return [*_check_dev_set(config), *_check_held_out(config), *_check_weights(config)]


def _check_dev_set(config: RunConfig) -> list[str]:
    data = config.data
    training = config.training
    if data.corpus is not None or data.dev is not None or data.dev_size > 0:
        return []
    needing = {
        "training.patience": training.patience is not None,
        "training.average": training.average > 0,
        "training.schedule.type": training.schedule.type == "plateau",
        "training.metric": training.metric != "nll",
    }
    return [f"{path}: needs a dev set; give data.dev or data.dev_size" for path, used in needing.items() if used]


def _check_held_out(config: RunConfig) -> list[str]:
    data = config.data
    messages = []
    for split, files in (("dev", data.dev), ("test", data.test)):
        option = f"{split}_size"
        # The default is accepted, because the config in a model folder has all options.
        used = {f"data.{option}": getattr(data, option) != DataConfig.model_fields[option].default}
        if data.corpus is not None:
            messages += unused("data.corpus, because a listed corpus has its own split", used)
        elif files is not None:
            messages += unused(f"data.{split}", used)
    return messages


def _check_weights(config: RunConfig) -> list[str]:
    weights = config.data.weights or []
    shuffle = config.training.batch.shuffle
    fractions = [weight for weight in weights if not weight.is_integer()]
    if shuffle == "epoch" or not fractions:
        return []
    why = f'with training.batch.shuffle = "{shuffle}", because all epochs then have the same pairs'
    return [f"data.weights: must be whole numbers {why}; got {fractions[0]:g}"]


def check_target_only(config: RunConfig) -> list[str]:
    """Return every problem with text in the target language only."""
    mode = config.data.target_only
    text = config.text
    if mode is None:
        return []
    used = {
        "text.annotation": text.annotation is not None,
        "text.inline_terms": text.inline_terms is not None,
        "objective.symmetry, which swaps source and target": config.objective.symmetry is not None,
    }
    messages = conflicts("data.target_only:", used)
    if mode == "copied" and not text.joint and text.tokenizers is None:
        messages.append('data.target_only: "copied" needs one vocabulary for both languages (text.joint = true)')
    return messages


def check_folder_options(config: RunConfig) -> list[str]:
    """Return a message for each search option that belongs in a model folder and not in a run file."""
    search = config.search
    options = {"language_model": (search.language_model, "tune"), "ensemble": (search.ensemble, "ensemble")}
    return [
        f"search.{name}: cannot be set in a run file; `rnnsearch {command}` writes it to a model folder; remove it"
        for name, (value, command) in options.items()
        if value is not None
    ]


def check_limits(config: RunConfig) -> list[str]:
    """Return a message if a schedule ends with the run and the run has no limit."""
    training = config.training
    limits = (training.max_epochs, training.max_updates, training.max_minutes)
    if training.schedule.type == "linear" and all(limit is None for limit in limits):
        return ["training.schedule.type: linear ends with the run; give max_epochs, max_updates or max_minutes"]
    return []


def check_segmentation(text: TextConfig) -> list[str]:
    """Return a message for each text option that has no effect on text of this type."""
    messages = []
    if "words" in text.types:
        messages += unused('text.type = "words"', {"text.joint": bool(text.joint)})
    side_min_count = {"text.side_min_count": text.side_min_count is not None}
    if not text.joint:
        messages += unused("two vocabularies", side_min_count)
    elif text.type not in ("bpe", "unigram"):
        messages += unused(f'text.type = "{text.type}"', side_min_count)
    if "bpe" not in text.types:
        messages += unused(f'text.type = "{text.type}"', {"text.bpe_dropout": text.bpe_dropout > 0})
    if "unigram" not in text.types:
        used = {"text.unigram_sampling": text.unigram_sampling is not None}
        messages += unused(f'text.type = "{text.type}"', used)
    return messages


def check_softmaxes(output: OutputConfig, readout: int, text: TextConfig) -> list[str]:
    """Return every problem of an output layer with the readout size and the vocabulary."""
    if not isinstance(output, AdaptiveOptions):
        return []
    messages = []
    if output.factor ** len(output.cutoffs) > readout:
        must = f"must leave at least 1 of the readout's {readout} units to the last group"
        messages.append(f"model.output.factor: {must}; got {output.factor:g} and {len(output.cutoffs)} groups")
    if text.types[1] != "words":
        messages.append('model.output.type: "adaptive" needs a vocabulary sorted by frequency (text.type = "words")')
    return messages


# Rules for `[model.attention]` and the objectives that train attention.

RATIONALE_ENCODER = f'model.encoder.type = "{Rationale.name}"'


def check_attention(model: ModelConfig, attention: AttentionConfig) -> list[str]:
    """Return every reason why the components of attention are incompatible, or their sizes do not match."""
    if messages := _check_components(attention):
        return messages
    annotation_size = model.decoder.attended_size(model.encoder.annotation_size)
    problem = attention.score.size_problem(model.decoder.size, annotation_size)
    return [f"model.attention.{problem}"] if problem else []


def _check_components(attention: AttentionConfig) -> list[str]:
    score = SCORES[attention.score.type]
    window = WINDOWS[attention.window.type]
    normaliser = NORMALISERS[attention.normaliser]
    path = "model.attention"
    messages = [problem for problem in (normaliser.unsupported_reason(),) if problem]
    names = [feature.type for feature in attention.features]
    if names and not score.takes_features:
        supported = ", ".join(name for name, cls in SCORES.items() if cls.takes_features)
        why = f"need a score with a hidden layer, which the {score.name} score does not have"
        messages.append(f"{path}.features: {why}; use score = {supported}")
    for name in sorted({name for name in names if names.count(name) > 1}):
        messages.append(f'{path}.features: must be different from each other; got "{name}" twice')
    if not normaliser.supports(window):
        supported = ", ".join(name for name, cls in WINDOWS.items() if normaliser.supports(cls))
        messages.append(
            f'{path}.window: must be {supported} with the {normaliser.name} normaliser; got "{window.name}"'
        )
    if normaliser.draws_noise and "heads" in attention.score.option_fields():
        why = f"with the {normaliser.name} normaliser, which selects one position per target token"
        messages.append(f'{path}.score: must have one head {why}; got "{score.name}"')
    return messages


def check_hard_attention(config: RunConfig) -> list[str]:
    """Return a message if only one of hard attention and `[objective.reinforce]` is used."""
    attention = config.translation.attention
    path = "objective.reinforce"
    if attention is None:
        return []
    normaliser = NORMALISERS[attention.normaliser]
    description = f"the {attention.normaliser} normaliser"
    if normaliser.hard and config.objective.reinforce is None:
        return [f"{path}: must be given for {description}, whose samples have no gradient"]
    if normaliser.draws_noise and config.translation.dropout.attention > 0:
        return unused(f"{description}, which is random already", {"model.dropout.attention": True})
    if config.objective.reinforce is not None and not normaliser.hard:
        supported = ", ".join(name for name, cls in NORMALISERS.items() if cls.hard)
        use = f"use model.attention.normaliser = {supported}"
        return [f"{path}: has no effect with {description}, which does not sample; {use}"]
    return []


def check_coverage(config: RunConfig) -> list[str]:
    """Return a message if `objective.coverage` is used without a feature that measures untranslated words."""
    attention = config.translation.attention
    if config.objective.coverage is None or attention is None:
        return []
    if any(FEATURES[feature.type].says_what_is_left for feature in attention.features):
        return []
    supported = ", ".join(name for name, cls in FEATURES.items() if cls.says_what_is_left)
    return [f"objective.coverage: has no effect without a feature that learns coverage; use one of {supported}"]


def selects_words(model: ModelConfig) -> bool:
    """Return True if the encoder selects the words that it reads."""
    return model.encoder.type == Rationale.name


def check_rationale(config: RunConfig) -> list[str]:
    """Return every problem of an encoder that selects words, or of its objective without it."""
    model = config.translation
    objective = config.objective
    path = "objective.rationale"
    if not selects_words(model):
        if objective.rationale is None:
            return []
        why = f"has no effect with the {model.encoder.type} encoder, which reads every word"
        return [f"{path}: {why}; use {RATIONALE_ENCODER}"]
    fusion = model.language_model
    encoder_is_trained = fusion is None or not FUSIONS[fusion.type].output_alone
    if objective.rationale is None and encoder_is_trained:
        return [f"{path}: must be given for the {Rationale.name} encoder, whose selection has no gradient"]
    used = {
        "objective.supervision": objective.supervision is not None,
        "search.coverage_penalty": config.search.coverage_penalty > 0,
    }
    return conflicts(f"{RATIONALE_ENCODER}:", used)


# Rules for the config of a language model.

_LANGUAGE_MODEL = "a language model"
_TARGET_OBJECTIVES = {"partition", "contrast"}  # objectives that need no source


def check_language(config: RunConfig, model: LanguageModelConfig) -> list[str]:
    """Return every problem of a language model's config, each with its dotted path."""
    return [
        *_check_source_options(config),
        *check_network(model),
        *_check_language_model_output(config, model),
        *_check_objective(config),
        *check_data(config),
        *check_limits(config),
        *check_segmentation(config.text),
    ]


def _check_source_options(config: RunConfig) -> list[str]:
    """Return a message for each option that only translation has."""
    data = config.data
    text = config.text
    search = config.search
    messages = []
    if data.sources:
        messages.append(f"data.source: must not be given for {_LANGUAGE_MODEL}, which has only a target")
    if config.training.metric != "nll":
        messages.append(f'training.metric: must be "nll" for {_LANGUAGE_MODEL}; got "{config.training.metric}"')
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
    return messages + unused(_LANGUAGE_MODEL, used)


def check_network(model: LanguageModelConfig) -> list[str]:
    """Return every problem of dropout, tied embeddings and initialisation with the network."""
    network = model.network
    dropout = model.dropout

    def rates(*names: str) -> dict[str, bool]:
        return {f"model.dropout.{name}": getattr(dropout, name) > 0 for name in names}

    messages = unused(_LANGUAGE_MODEL, rates("annotations", "attention"))
    if not isinstance(network, RecurrentOptions):
        messages += unused(f"a {network.type} network", rates("layer_outputs", "state"))
    elif not CELLS[network.cell].feeds_back:
        messages += unused(f"{network.cell} cells", rates("state"))
    if not isinstance(network, RecurrentOptions) or network.layers == 1:
        messages += unused("a network of one layer", rates("layers"))
    if isinstance(model.init, NormalOptions):
        messages += unused(_LANGUAGE_MODEL, {"model.init.alignment_scale": model.init.alignment_scale is not None})
    if model.tie != "none":
        tied = f'model.tie: "{model.tie}" shares the embedding with the output layer'
        if isinstance(network, FeedForwardOptions) and network.direct:
            messages.append(f"{tied}, whose input model.network.direct enlarges; remove one")
        elif network.size != model.embedding:
            must = f"model.network.size must equal model.embedding ({model.embedding})"
            messages.append(f"{tied}, so {must}; got {network.size}")
    return messages


def _check_language_model_output(config: RunConfig, model: LanguageModelConfig) -> list[str]:
    output = model.output
    objective = config.objective
    if output.type == "softmax":
        return []
    used = {
        "objective.partition": objective.partition is not None,
        "objective.contrast": objective.contrast is not None,
        "training.label_smoothing": config.training.label_smoothing > 0,
        f'model.tie = "{model.tie}"': model.tie != "none",
    }
    messages = conflicts(f'model.output.type: "{output.type}"', used)
    return messages + check_softmaxes(output, model.network.size, config.text)


def _check_objective(config: RunConfig) -> list[str]:
    objective = config.objective
    used = {f"objective.{name}": value is not None for name, value in objective if name not in _TARGET_OBJECTIVES}
    messages = unused(_LANGUAGE_MODEL, used)
    sampling = config.text.sampling_option(config.text.types[1])
    if objective.partition is not None and sampling is not None:
        messages += unused(f"{sampling}, which changes the segmentation", {"objective.partition": True})
    if objective.contrast is not None:
        used = {
            "objective.partition": objective.partition is not None,
            "training.label_smoothing": config.training.label_smoothing > 0,
        }
        messages += conflicts("objective.contrast:", used)
    return messages


# Rules for the trained models that a run uses: a warm start, a language model in the model, a teacher.


def check_warm_start(config: RunConfig) -> list[str]:
    """Return every problem with `training.begin_from`, and with what deep fusion leaves to train."""
    fusion = config.translation.language_model
    begin_from = config.training.begin_from
    symmetry = {"objective.symmetry, which swaps source and target": config.objective.symmetry is not None}
    messages = conflicts("training.begin_from:", symmetry) if begin_from is not None else []
    if fusion is None:
        return messages
    messages += conflicts("model.language_model:", symmetry)
    if not FUSIONS[fusion.type].output_alone:
        return messages
    if begin_from is None:
        why = f"for {fusion.type} fusion, which does not train the decoder"
        messages.append(f"training.begin_from: must be given {why}")
    allowed = {"partition", "contrast", "symmetry", "teacher"}  # objectives of the trained output layer
    used = {f"objective.{name}": value is not None for name, value in config.objective if name not in allowed}
    return messages + unused(f"{fusion.type} fusion, which trains only the output", used)


def check_teacher(config: RunConfig) -> list[str]:
    """Return every problem with `[objective.teacher]`, which needs a distribution over all target tokens."""
    objective = config.objective
    if objective.teacher is None:
        return []
    used = {
        "a model that copies from the source": config.translation.copies,
        "objective.partition": objective.partition is not None,
        "objective.contrast": objective.contrast is not None,
        "objective.symmetry": objective.symmetry is not None,
        "data.target_only, because the teacher needs a source": config.data.target_only is not None,
    }
    messages = conflicts("objective.teacher:", used)
    if objective.teacher.weight == 1:
        smoothing = {"training.label_smoothing": config.training.label_smoothing > 0}
        messages += unused("objective.teacher.weight = 1.0, which ignores the references", smoothing)
    return messages


def check_fusion(config: RunConfig) -> list[str]:
    """Return every problem with `[model.language_model]`, including those of the language model's own config."""
    model = config.translation
    fusion = config.translation.language_model
    if fusion is None:
        return []
    messages = []
    if DECODERS[model.decoder.type].layer is None:
        supported = ", ".join(name for name, cls in DECODERS.items() if cls.layer is not None)
        what = f"a decoder with a layer between state and output ({supported})"
        messages.append(f'model.language_model: needs {what}; got "{model.decoder.type}"')
    if config.text.annotation is not None:
        other = "text.annotation, whose tokens a language model does not have"
        messages += conflicts("model.language_model:", {other: True})
    if fusion.model is not None:
        inner = [
            *check_network(fusion.model),
            *check_softmaxes(fusion.model.output, fusion.model.network.size, config.text),
        ]
        messages += [message.replace("model.", "model.language_model.model.", 1) for message in inner]
    return messages


# Rules for the combinations of options in a config, each problem one sentence with its dotted path.

_COPYNET = 'model.decoder.type = "copynet"'
_SYMMETRY = "objective.symmetry, which swaps source and target"

CHARACTERS_PER_TOKEN = 5
"""Upper bound of the characters per word or subword in most languages."""


def check(config: RunConfig) -> list[str]:
    """Return every problem with the combinations of options in a config, each with its dotted path."""
    if isinstance(config.model, LanguageModelConfig):
        return check_language(config, config.model)
    return [
        *_check_source(config),
        *check_model(config),
        *_check_attention_options(config),
        *check_hard_attention(config),
        *check_coverage(config),
        *check_rationale(config),
        *_check_alignments(config),
        *check_data(config),
        *check_target_only(config),
        *check_folder_options(config),
        *check_limits(config),
        *_check_length_limit(config),
        *_check_partition(config),
        *_check_contrast(config),
        *_check_inline_terms(config),
        *_check_annotation(config),
        *check_warm_start(config),
        *check_teacher(config),
        *check_unknown(config),
    ]


def _check_source(config: RunConfig) -> list[str]:
    sources = config.data.sources
    got = ", ".join(f'"{source}"' for source in sources) or "none"
    return [] if len(sources) == 1 else [f"data.source: must be one language for a translation model; got {got}"]


def _decoder_name(model: ModelConfig) -> str:
    return f"the {model.decoder.type} decoder"


def _unused_without_attention(model: ModelConfig, used: Mapping[str, bool]) -> list[str]:
    """Return a message for each option that is used, if the decoder has no attention."""
    if DECODERS[model.decoder.type].attends:
        return []
    return unused(f"{_decoder_name(model)}, which has no attention", used)


def _check_attention_options(config: RunConfig) -> list[str]:
    """Return a message for each option outside of `[model]` that has no effect without attention."""
    independent = {"partition", "contrast", "spelling", "rationale", "teacher"}
    used = {f"objective.{name}": value is not None for name, value in config.objective if name not in independent}
    used["search.coverage_penalty"] = config.search.coverage_penalty > 0
    return _unused_without_attention(config.translation, used)


def _check_alignments(config: RunConfig) -> list[str]:
    """Return a message for each option that needs word alignments that do not exist, or that cannot be learned."""
    data = config.data
    decoder = DECODERS[config.translation.decoder.type]
    aligned_corpora = ", ".join(name for name, corpus in CORPORA.items() if corpus.aligned)
    manual = data.alignment_files is not None
    if data.corpus is not None:
        manual = data.corpus not in CORPORA or CORPORA[data.corpus].aligned
    messages = _check_supervision(config, manual, aligned_corpora)
    if config.aligns_previous_word and (decoder.attends_before_reading or not decoder.attends):
        supported = ", ".join(name for name, cls in DECODERS.items() if cls.attends and not cls.attends_before_reading)
        reason = "attends before it reads a word" if decoder.attends else "has no attention"
        why = f"because the {decoder.name} decoder {reason}"
        option = "objective.supervision.word" if config.search.attended_word is None else "search.attended_word"
        messages.append(f'{option}: must be "predicted", {why}; "read" needs one of {supported}')
    if config.training.metric == "aer":
        # A listed corpus, and held-out training pairs, have alignments if the training text has.
        dev_aligned = manual if data.corpus is not None or data.dev is None else data.dev_alignments is not None
        if not decoder.attends:
            messages.append(f'training.metric: "aer" needs attention, which the {decoder.name} decoder does not have')
        elif not dev_aligned and data.corpus is not None:
            messages.append(f'training.metric: "aer" needs a corpus with word alignments ({aligned_corpora})')
        elif not dev_aligned:
            messages.append('training.metric: "aer" needs word alignments of the dev set: give data.dev_alignments')
    return messages


def _check_supervision(config: RunConfig, manual: bool, aligned_corpora: str) -> list[str]:
    supervision = config.objective.supervision
    text = config.text
    messages = []
    if supervision is None:
        return []
    if not manual and config.data.alignments is None:
        needs = 'needs word alignments of the training text: give data.alignments (files, or "aligner")'
        messages.append(f"objective.supervision: {needs}, or a corpus that has them ({aligned_corpora})")
    changing = dict.fromkeys(filter(None, map(text.sampling_option, text.types)))
    if text.inline_terms is not None:
        changing["text.inline_terms"] = None
    why = "alignment links refer to the tokens of the prepared data; remove objective.supervision"
    messages += [f"{option}: {why}" for option in changing]
    if supervision.unaligned == "end" and not config.translation.encoder.reads_end:
        needs = '"end" needs an end token to attend to (model.encoder.reads_end = true)'
        messages.append(f"objective.supervision.unaligned: {needs}")
    return messages


def _check_length_limit(config: RunConfig) -> list[str]:
    """Return a message if translations into characters would be cut off."""
    characters = [text_type == "characters" for text_type in config.text.types]
    if characters != [False, True] or config.search.max_ratio >= CHARACTERS_PER_TOKEN:
        return []
    why = "for a target of characters, because it limits the characters per source token"
    got = f"{config.search.max_ratio:g}"
    return [f"search.max_ratio: must be at least {CHARACTERS_PER_TOKEN} {why}; got {got}"]


def _check_partition(config: RunConfig) -> list[str]:
    """Return every problem with `objective.partition`, which needs a fixed segmentation and a single direction."""
    if config.objective.partition is None:
        return []
    used = {"objective.partition": True}
    messages = []
    sampling = config.text.sampling_option(config.text.types[1])
    if sampling is not None:
        messages += unused(f"{sampling}, which changes the segmentation", used)
    if config.objective.symmetry is not None:
        messages += unused(_SYMMETRY, used)
    return messages


def _check_contrast(config: RunConfig) -> list[str]:
    """Return every problem with `[objective.contrast]`, which needs the scores of a single softmax."""
    model = config.translation
    objective = config.objective
    if objective.contrast is None:
        return []
    used = {
        **_copying(model),
        "objective.partition": objective.partition is not None,
        "objective.symmetry": objective.symmetry is not None,
        "objective.reinforce": objective.reinforce is not None,
        "objective.rationale": objective.rationale is not None,
        "training.label_smoothing": config.training.label_smoothing > 0,
    }
    if model.output.type != "softmax":
        used[f'model.output.type = "{model.output.type}"'] = True
    return conflicts("objective.contrast:", used)


def _check_inline_terms(config: RunConfig) -> list[str]:
    if config.text.inline_terms is None:
        return []
    used = {
        'text.type = "words", which has no tokens for the term markers': config.text.type == "words",
        _SYMMETRY: config.objective.symmetry is not None,
    }
    return conflicts("text.inline_terms:", used)


def _check_annotation(config: RunConfig) -> list[str]:
    model = config.translation
    annotation = config.text.annotation
    if annotation is None:
        return []
    used = {
        **_copying(model),
        "model.target_characters": model.target_characters is not None,
        _SYMMETRY: config.objective.symmetry is not None,
    }
    if annotation.type == "copyable":
        used["model.source_characters"] = model.source_characters is not None
    return conflicts("text.annotation:", used)


def _copying(model: ModelConfig) -> dict[str, bool]:
    """Return the options that copy words from the source, each with True if it is used."""
    return {"model.pointer": model.pointer is not None, _COPYNET: model.decoder.copies}


def check_unknown(config: RunConfig) -> list[str]:
    """Return every problem with the options for unknown words, by themselves and with the model."""
    search = config.search
    mode = config.search.replace_unknown
    path = "search.replace_unknown"
    messages = []
    if mode != "none":
        open_types = [text_type for text_type in config.text.types if text_type != "words"]
        if config.text.annotation is None:
            messages += _unused_without_attention(config.translation, {path: True})
        if open_types:
            context = f'text.type = "{open_types[0]}", whose vocabulary covers every text'
            messages += unused(context, {path: True})
    if mode == "copy":
        target_characters = config.translation.target_characters is not None
        messages += unused("a model that spells unknown words", {path: target_characters})
    if mode == "dictionary" and search.dictionary is None:
        messages.append('search.dictionary: must be given for replace_unknown = "dictionary"')
    dictionary = {"search.dictionary": mode != "dictionary" and search.dictionary is not None}
    return messages + unused(f'replace_unknown = "{mode}"', dictionary)


def check_model(config: RunConfig) -> list[str]:
    """Return every problem with the combinations of options in `[model]`."""
    if isinstance(config.model, LanguageModelConfig):
        return check_language(config, config.model)
    model = config.model
    return [
        *_check_init(model),
        *_check_decoder(config),
        *_check_bridge(model),
        *_check_dropout(model),
        *_check_output(config),
        *_check_tied_embeddings(config),
        *check_segmentation(config.text),
        *_check_characters(config),
        *check_fusion(config),
    ]


def _check_init(model: ModelConfig) -> list[str]:
    """Return a message if `alignment_scale` is missing or unused."""
    if not isinstance(model.init, NormalOptions):
        return []
    attends = DECODERS[model.decoder.type].attends and model.attention is not None
    has_matrices = attends and model.attention is not None and SCORES[model.attention.score.type].draws
    path = "model.init.alignment_scale"
    if has_matrices and model.init.alignment_scale is None:
        return [f"{path}: must be given for the normal init of this model"]
    if not has_matrices and model.init.alignment_scale is not None:
        return [f'{path}: has no effect with the normal init of this model; remove it (or set it to "unset")']
    return []


def _check_decoder(config: RunConfig) -> list[str]:
    """Return every problem of the decoder with attention, or with the encoder if it has none."""
    model = config.translation
    if DECODERS[model.decoder.type].attends:
        if model.attention is None:
            return [f"model.attention: must be given for {_decoder_name(model)}"]
        return check_attention(model, model.attention)
    used = {
        "model.attention": model.attention is not None,
        "model.lexical": model.lexical,
        "model.target_characters": model.target_characters is not None,
        "model.pointer": model.pointer is not None,
        "model.dropout.annotations": model.dropout.annotations > 0,
        "model.dropout.attention": model.dropout.attention > 0,
    }
    return [*_unused_without_attention(model, used), *_check_sentence_vector(model)]


def _check_sentence_vector(model: ModelConfig) -> list[str]:
    """Return a message if a decoder without attention and bridge has an encoder without a sentence vector."""
    why = f"for {_decoder_name(model)}, whose context is the encoder's last state"
    encoder = model.encoder
    if isinstance(model.decoder, StackOptions):
        return []
    if not encoder.has_sentence_vector:
        supported = ", ".join(name for name, cls in ENCODERS.items() if cls.has_sentence_vector)
        return [f'model.encoder.type: must be {supported} {why}; got "{encoder.type}"']
    if isinstance(encoder, StackedOptions) and encoder.direction == "both":
        return [f'model.encoder.direction: must be forward or bottom {why}; got "both"']
    return []


def _check_bridge(model: ModelConfig) -> list[str]:
    decoder = model.decoder
    if not isinstance(decoder, StackOptions):
        return []
    if not DECODERS[decoder.type].attends and decoder.bridge == Zero.name:
        why = f'"zero" would hide the source from {_decoder_name(model)}'
        return [f'model.decoder.bridge: {why}; use "copy" or "learned"']
    layers = (StateShape(CELLS[decoder.cell].state, decoder.size),) * decoder.layers
    problem = BRIDGES[decoder.bridge].unsupported_reason(shapes(model.encoder), layers)
    return [f"model.decoder.bridge: {problem}"] if problem else []


def _check_dropout(model: ModelConfig) -> list[str]:
    """Return a message for each dropout rate that has no effect on the encoder and the decoder."""
    dropout = model.dropout
    single = len(model.encoder.layer_sizes) == model.decoder.depth == 1
    messages = unused("an encoder and a decoder of one layer", {"model.dropout.layers": single and dropout.layers > 0})
    stacked = isinstance(model.decoder, StackOptions) or isinstance(model.encoder, StackedOptions | PyramidOptions)
    components = f"a {model.encoder.type} encoder and a {model.decoder.type} decoder"
    messages += unused(components, {"model.dropout.layer_outputs": not stacked and dropout.layer_outputs > 0})
    cells = {component.model_dump().get("cell", GRU.name) for component in (model.encoder, model.decoder)}
    feeds_back = any(CELLS[cell].feeds_back for cell in cells)
    state = {"model.dropout.state": not feeds_back and dropout.state > 0}
    return messages + unused(f"{', '.join(cells)} cells", state)


def _check_output(config: RunConfig) -> list[str]:
    model = config.translation
    output = config.translation.output
    if output.type == "softmax":
        return []
    used = {
        "model.lexical": model.lexical,
        **_copying(model),
        "objective.partition": config.objective.partition is not None,
        "objective.symmetry": config.objective.symmetry is not None,
        "training.label_smoothing": config.training.label_smoothing > 0,
        f'model.tie = "{model.tie}"': model.tie != "none",
    }
    messages = conflicts(f'model.output.type: "{output.type}"', used)
    return messages + check_softmaxes(output, model.decoder.readout_size, config.text)


def _check_tied_embeddings(config: RunConfig) -> list[str]:
    model = config.translation
    text = config.text
    messages = []
    option = model.decoder.readout_option
    size = model.decoder.readout_size
    tied = f'model.tie: "{model.tie}" shares the embeddings with the output layer'
    if model.tie != "none" and option is None:
        messages.append(f"{tied}, which does not fit the two-part readout of {_decoder_name(model)}; remove it")
    elif model.tie != "none" and size != model.embedding:
        must = f"model.decoder.{option} must equal model.embedding ({model.embedding})"
        messages.append(f"{tied}, so {must}; got {size}")
    if model.tie == "all" and not text.joint:
        messages.append('model.tie: "all" needs one vocabulary for both languages: set text.joint = true')
    return messages


def _check_characters(config: RunConfig) -> list[str]:
    """Return every problem of models that read, spell or copy unknown words."""
    model = config.translation
    objective = config.objective
    messages = []
    if model.pointer is not None:
        messages += _check_pointer(config)
    if model.decoder.copies:
        messages += _check_copynet(config)
    used = {
        "model.source_characters": model.source_characters is not None,
        "model.target_characters": model.target_characters is not None,
    }
    for (path, is_used), text_type in zip(used.items(), config.text.types, strict=True):
        if text_type != "words":
            messages += unused(f'text.type = "{text_type}", whose vocabulary covers every word', {path: is_used})
    if objective.symmetry is not None:
        messages += unused(_SYMMETRY, used)
    if model.target_characters is None:
        messages += unused("a model that does not spell words", {"objective.spelling": objective.spelling is not None})
    return messages


def _check_pointer(config: RunConfig) -> list[str]:
    model = config.translation
    pointer = {"model.pointer": True}
    messages = []
    open_types = [text_type for text_type in config.text.types if text_type != "words"]
    if open_types:
        messages += unused(f'text.type = "{open_types[0]}", whose vocabulary covers every word', pointer)
    if config.objective.symmetry is not None:
        messages += unused(_SYMMETRY, pointer)
    if model.target_characters is not None:
        messages += unused("model.target_characters, which spells the words to copy", pointer)
    if model.attention is not None and NORMALISERS[model.attention.normaliser].draws_noise:
        normaliser = f"the {model.attention.normaliser} normaliser"
        messages += unused(f"{normaliser}, which is not a distribution over positions", pointer)
    return messages + conflicts("model.pointer:", {RATIONALE_ENCODER: selects_words(model)})


def _check_copynet(config: RunConfig) -> list[str]:
    """Return every problem of a decoder that copies, which needs the whole source and no other way to copy."""
    model = config.translation
    used = {
        "model.pointer": model.pointer is not None,
        "model.target_characters": model.target_characters is not None,
        'model.attention.window = "wait-k"': model.attention is not None and model.attention.window.type == "wait-k",
        "objective.symmetry": config.objective.symmetry is not None,
        RATIONALE_ENCODER: selects_words(model),
    }
    return conflicts(f"{_COPYNET}:", used)
