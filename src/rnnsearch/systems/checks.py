"""Whether the tables of a whole config go together: every fault in one sentence with its dotted path."""

from __future__ import annotations

from rnnsearch.config import RunConfig
from rnnsearch.data.catalog import CORPORA
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.decoders.table import DECODERS
from rnnsearch.search.candidates import KEPT
from rnnsearch.systems.model_checks import check_model


def check(config: RunConfig) -> list[str]:
    """Every fault in the combinations of a config, each with its dotted path; empty if none."""
    return [
        *_sides(config),
        *check_model(config),
        *_blind(config),
        *_hard(config),
        *_aligned(config),
        *_dev_set(config),
        *_limits(config),
        *check_unknown(config),
    ]


def _sides(config: RunConfig) -> list[str]:
    """A translation model reads one language."""
    sources = config.data.sources
    got = ", ".join(f'"{source}"' for source in sources) or "none"
    return [] if len(sources) == 1 else [f"data.source: must be one language for a translation model; got {got}"]


def _blind(config: RunConfig) -> list[str]:
    """What has no effect on a model that does not attend."""
    if _attends(config):
        return []
    idle = [f"objective.{name}" for name, value in config.objective if value is not None]
    if config.search.coverage_penalty > 0:
        idle.append("search.coverage_penalty")
    what = f"the {config.model.decoder.type} decoder, which does not attend"
    return [f"{path}: has no effect with {what}; remove it" for path in idle]


def _attends(config: RunConfig) -> bool:
    return DECODERS[config.model.decoder.type].attends


def _hard(config: RunConfig) -> list[str]:
    """Hard attention and REINFORCE need each other."""
    attention, path = config.model.attention, "objective.reinforce"
    if attention is None:
        return []
    hard, what = NORMALISERS[attention.normaliser].draws_noise, f"the {attention.normaliser} normaliser"
    if hard and config.objective.reinforce is None:
        return [f"{path}: must be given for {what}, whose draws have no gradient"]
    if config.objective.reinforce is not None and not hard:
        able = ", ".join(name for name, kind in NORMALISERS.items() if kind.draws_noise)
        return [f"{path}: has no effect with {what}, which draws nothing; use model.attention.normaliser = {able}"]
    return []


def _aligned(config: RunConfig) -> list[str]:
    """What needs word alignments has some, and a decoder that can learn them."""
    data, supervision, faults = config.data, config.objective.supervision, []
    decoder = DECODERS[config.model.decoder.type]
    able = ", ".join(name for name, corpus in CORPORA.items() if corpus.aligned)
    aligned = data.alignments is not None
    if data.corpus is not None:
        aligned = data.corpus not in CORPORA or CORPORA[data.corpus].aligned
    if supervision is not None and not aligned:
        needs = "needs word alignments of the training text: give data.alignments"
        faults.append(f"objective.supervision: {needs}, or a corpus that has them ({able})")
    if config.objective.aligns_read_words and decoder.attends_before_reading:
        late = ", ".join(name for name, kind in DECODERS.items() if kind.attends and not kind.attends_before_reading)
        what = f"the {decoder.name} decoder attends before it reads a word"
        faults.append(f'objective.supervision.word: must be "predicted", for {what}; "read" needs one of {late}')
    if config.training.metric == "aer":
        dev_aligned = aligned if data.corpus is not None or data.dev is None else data.dev_alignments is not None
        if not decoder.attends:
            faults.append(f'training.metric: "aer" needs attention, which the {decoder.name} decoder has not')
        elif not dev_aligned and data.corpus is not None:
            faults.append(f'training.metric: "aer" needs a corpus with word alignments ({able})')
        elif not dev_aligned:
            faults.append('training.metric: "aer" needs word alignments of the dev set: give data.dev_alignments')
    return faults


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


def _limits(config: RunConfig) -> list[str]:
    """A schedule that ends with the run needs to know its end; candidates are kept up to a number."""
    training, faults = config.training, []
    limits = (training.max_epochs, training.max_updates, training.max_minutes)
    if training.schedule.type == "linear" and all(limit is None for limit in limits):
        faults.append("training.schedule.type: linear ends with the run; give max_epochs, max_updates or max_minutes")
    if config.search.candidates > KEPT:
        faults.append(f"search.candidates: must be at most {KEPT}; got {config.search.candidates}")
    return faults


def check_unknown(config: RunConfig) -> list[str]:
    """Every fault of the options for unknown words, by themselves and with the model; empty if none."""
    search, faults = config.search, []
    kind, path = search.replace_unknown, "search.replace_unknown"
    if kind != "none" and not _attends(config):
        what = f"the {config.model.decoder.type} decoder, which does not attend"
        faults.append(f"{path}: has no effect with {what}; remove it")
    if kind != "none" and config.text.type != "words":
        what = f'text.type = "{config.text.type}", whose vocabulary has a symbol for every text'
        faults.append(f"{path}: has no effect with {what}; remove it")
    if kind == "dictionary" and search.dictionary is None:
        faults.append('search.dictionary: must be given for replace_unknown = "dictionary"')
    if kind != "dictionary" and search.dictionary is not None:
        faults.append(f'search.dictionary: has no effect with replace_unknown = "{kind}"; remove it')
    return faults
