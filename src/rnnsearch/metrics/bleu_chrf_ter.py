"""BLEU, chrF and TER through sacreBLEU (Post, 2018), over raw (detokenised, cased) text.

Every corpus score carries sacreBLEU's signature, without which a BLEU score means little. Scores run
from 0 to 100; for TER, an error rate that may pass 100, less is better.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from rnnsearch.errors import DataError
from rnnsearch.text.languages import unspaced

References = Sequence[Sequence[str]]
"""Further references of the same sentences, set by set."""
Goal = Literal["bleu", "chrf"]
"""What settings and weights are chosen by."""
GOALS: dict[Goal, str] = {"bleu": "BLEU", "chrf": "chrF2"}
"""What sacreBLEU calls them."""


@dataclass(frozen=True)
class CorpusScore:
    """One metric's value for a corpus."""

    name: str
    """`BLEU`, `chrF2` or `TER`, as sacreBLEU calls them."""
    value: float
    signature: str

    @property
    def lower_is_better(self) -> bool:
        """True of error rates."""
        return self.name == "TER"

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.2f} ({self.signature})"


def bleu_tokeniser(language: str = "") -> str:
    """The name of sacreBLEU's tokeniser for a target language: `13a`, or one for text without spaces, which 13a would
    take for one word a sentence."""
    measure = unspaced(language)
    return "13a" if measure is None else measure.bleu


def make_metrics(language: str = "") -> dict[str, Metric]:
    """Fresh sacreBLEU metrics by name. `force` leaves out a message on stderr: see `looks_tokenised`."""
    tokeniser = bleu_tokeniser(language)
    asian = unspaced(language) is not None
    return {
        "BLEU": BLEU(tokenize=tokeniser, force=True),
        "chrF2": CHRF(),
        # Tercom splits Asian characters only where it normalises.
        "TER": TER(normalized=asian, asian_support=asian),
    }


def looks_tokenised(lines: Sequence[str]) -> bool:
    """True where most sentences end in " .", as tokenised text does: its BLEU is no plain text's BLEU."""
    stops = [line for line in lines if line.endswith(".")]
    return len(stops) >= 10 and 2 * sum(line.endswith(" .") for line in stops) > len(stops)


def check_lines(hypotheses: Sequence[str], references: Sequence[str], name: str = "hypotheses") -> None:
    """Raise DataError unless there is one hypothesis a reference, and at least one of them."""
    if len(hypotheses) != len(references):
        raise DataError(
            f"{name} and references must have the same number of lines; got {len(hypotheses)} and {len(references)}"
        )
    if not references:
        raise DataError("there must be at least one sentence to score; got none")


def all_references(references: Sequence[str], more: References) -> list[Sequence[str]]:
    """All sets of references. Errors: DataError where one has another number of lines than the first."""
    for other in more:
        check_lines(other, references, "further references")
    return [references, *more]


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], language: str = "", more: References = ()
) -> list[CorpusScore]:
    """BLEU, chrF and TER of a corpus against one reference a sentence, or with `more` sets of them against several.

    `language`, the target's code, chooses BLEU's tokeniser; the signature says which, and how many references.
    Errors: DataError for different numbers of lines, or none.
    """
    check_lines(hypotheses, references)
    sets, scores = all_references(references, more), []
    for name, metric in make_metrics(language).items():
        value = metric.corpus_score(hypotheses, sets).score
        scores.append(CorpusScore(name, _within(value, name), str(metric.get_signature())))
    return scores


def corpus_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str = "", more: References = ()
) -> float:
    """BLEU alone, quickly: for the dev set during training.

    Errors: DataError for different numbers of lines, or none.
    """
    check_lines(hypotheses, references)
    metric = BLEU(tokenize=bleu_tokeniser(language), force=True)
    return _within(metric.corpus_score(hypotheses, all_references(references, more)).score, "BLEU")


def sentence_chrf(hypothesis: str, reference: str) -> float:
    """chrF of one sentence (chrF2: characters, no words, beta 2)."""
    return _within(_sentence_chrf_metric().sentence_score(hypothesis, [reference]).score, "chrF2")


@lru_cache(maxsize=1)
def _sentence_chrf_metric() -> CHRF:
    return CHRF()


def _within(value: float, name: str) -> float:
    """sacreBLEU's value without the rounding that can put a perfect BLEU at 100.00000000000004."""
    return float(value) if name == "TER" else min(float(value), 100.0)
