"""The complete check of a run file: `config.rules`, and the rule that needs the list of corpora.

`training/run.py` exports `check`, which the command line calls before any work. It reports all problems at once and
never raises. Tests: `tests/test_presets.py`, `tests/properties/test_combinations.py`; those of the rules are in
`tests/test_config.py`.
"""

from __future__ import annotations

from rnnsearch.config import RunConfig, rules
from rnnsearch.config.language_model import LanguageModelConfig
from rnnsearch.data.corpora.catalog import CORPORA


def check(config: RunConfig) -> list[str]:
    """Return every problem with the combination of options in a run file, each with its dotted path."""
    return [*rules.check(config), *_check_alignments(config)]


def _check_alignments(config: RunConfig) -> list[str]:
    """Return a message for each option that needs word alignments, if there are none."""
    data = config.data
    if isinstance(config.model, LanguageModelConfig):
        return []
    aligned_corpora = ", ".join(name for name, corpus in CORPORA.items() if corpus.aligned)
    train_is_aligned = data.alignment_files is not None
    if data.corpus is not None:
        # The name of an unknown corpus is reported when the corpus is prepared.
        train_is_aligned = data.corpus not in CORPORA or CORPORA[data.corpus].aligned
    messages = []
    if config.objective.supervision is not None and not train_is_aligned and data.alignments is None:
        needs = 'needs word alignments of the training text: give data.alignments (files, or "aligner")'
        messages.append(f"objective.supervision: {needs}, or a corpus that has them ({aligned_corpora})")
    if config.training.metric == "aer" and config.translation.decoder.attends:
        # A listed corpus, and held-out training pairs, have alignments if the training text has.
        has_own_dev = data.corpus is None and data.dev is not None
        dev_is_aligned = data.dev_alignments is not None if has_own_dev else train_is_aligned
        if not dev_is_aligned and data.corpus is not None:
            messages.append(f'training.metric: "aer" needs a corpus with word alignments ({aligned_corpora})')
        elif not dev_is_aligned:
            messages.append('training.metric: "aer" needs word alignments of the dev set: give data.dev_alignments')
    return messages
