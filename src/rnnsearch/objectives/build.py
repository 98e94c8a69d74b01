"""From `[objective]` to penalties, and whether they fit the model and the data."""

from __future__ import annotations

from rnnsearch.config import ObjectiveConfig, RunConfig
from rnnsearch.data.catalog import CORPORA
from rnnsearch.errors import did_you_mean
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.auxiliary import BASELINES
from rnnsearch.models.build import unfit_options
from rnnsearch.models.decoders.decoder import Decoder
from rnnsearch.models.decoders.table import DECODERS
from rnnsearch.objectives.attention_priors import DoublyStochastic, GlobalFertility
from rnnsearch.objectives.penalty import Penalty
from rnnsearch.objectives.reinforce import Reinforce
from rnnsearch.objectives.supervised_attention import ALIGNMENT_LOSSES, SupervisedAttention


def penalties(config: ObjectiveConfig) -> list[tuple[float, Penalty]]:
    """The weighted penalties that the config asks for."""
    found: list[tuple[float, Penalty]] = []
    if config.doubly_stochastic is not None:
        found.append((config.doubly_stochastic, DoublyStochastic()))
    if config.fertility is not None:
        found.append((config.fertility.weight, GlobalFertility()))
    if config.supervision is not None:
        found.append((config.supervision.weight, SupervisedAttention(config.supervision)))
    if config.reinforce is not None:
        found.append((config.reinforce.weight, Reinforce(config.reinforce.entropy)))
    return found


def check(config: RunConfig) -> list[str]:
    """Every fault of `[objective]`, by itself and with the model and the data; empty if none."""
    faults = [*_names(config.objective), *_hard(config)]
    given = [name for name, value in config.objective if value is not None]
    decoder = DECODERS.get(config.model.decoder.type)
    if decoder is not None and not decoder.attends:
        what = f"the {decoder.name} decoder, which does not attend"
        faults += [f"objective.{name}: has no effect with {what}; remove it" for name in given]
    if config.objective.supervision is not None and not _aligned(config):
        needs = "needs word alignments of the training text: give data.alignments"
        faults.append(f"objective.supervision: {needs}, or a corpus that has them ({_aligned_corpora()})")
    faults += _read_words(config.objective, decoder)
    if config.training.metric == "aer":
        faults += _alignment_metric(config, decoder is not None and not decoder.attends)
    return faults


def _read_words(objective: ObjectiveConfig, decoder: type[Decoder] | None) -> list[str]:
    """The links of read words need a state that has read them."""
    if not objective.aligns_read_words or decoder is None or not decoder.attends_before_reading:
        return []
    able = ", ".join(name for name, kind in DECODERS.items() if kind.attends and not kind.attends_before_reading)
    what = f"the {decoder.name} decoder attends before it reads a word"
    return [f'objective.supervision.word: must be "predicted", for {what}; "read" needs one of {able}']


def _alignment_metric(config: RunConfig, blind: bool) -> list[str]:
    if blind:
        return [f'training.metric: "aer" needs attention, which the {config.model.decoder.type} decoder has not']
    data = config.data
    split_off = data.dev is None and data.alignments is not None
    if data.corpus is None and not split_off and data.dev_alignments is None:
        return ['training.metric: "aer" needs word alignments of the dev set: give data.dev_alignments']
    if data.corpus is not None and not _aligned(config):
        return [f'training.metric: "aer" needs a corpus with word alignments ({_aligned_corpora()})']
    return []


def _names(objective: ObjectiveConfig) -> list[str]:
    faults = []
    if objective.supervision is not None:
        faults += _unknown("objective.supervision.type", objective.supervision.type, list(ALIGNMENT_LOSSES))
    if objective.reinforce is not None:
        name = objective.reinforce.baseline
        wrong = _unknown("objective.reinforce.baseline", name, list(BASELINES))
        always = ("baseline", "weight", "entropy")
        faults += wrong or unfit_options(
            "objective.reinforce", objective.reinforce, BASELINES[name].options, always, f"the {name} baseline"
        )
    return faults


def _unknown(path: str, name: str, known: list[str]) -> list[str]:
    if name in known:
        return []
    return [f'{path}: must be one of {", ".join(known)}; got "{name}"{did_you_mean(name, known)}']


def _hard(config: RunConfig) -> list[str]:
    """Hard attention and REINFORCE need each other."""
    attention = config.model.attention
    if attention is None or attention.normaliser not in NORMALISERS:
        return []
    hard = NORMALISERS[attention.normaliser].draws_noise
    if hard and config.objective.reinforce is None:
        what = f"the {attention.normaliser} normaliser, whose draws have no gradient"
        return [f"objective.reinforce: must be given for {what}"]
    if config.objective.reinforce is not None and not hard:
        able = ", ".join(name for name, kind in NORMALISERS.items() if kind.draws_noise)
        what = f"the {attention.normaliser} normaliser, which draws nothing"
        return [f"objective.reinforce: has no effect with {what}; use model.attention.normaliser = {able}"]
    return []


def _aligned(config: RunConfig) -> bool:
    corpus = config.data.corpus
    if corpus is None:
        return config.data.alignments is not None
    return corpus not in CORPORA or CORPORA[corpus].aligned


def _aligned_corpora() -> str:
    return ", ".join(name for name, corpus in CORPORA.items() if corpus.aligned)
