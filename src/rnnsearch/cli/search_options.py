"""The options of `translate` that say how it searches, and the search that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from rnnsearch.bulk import Counts
from rnnsearch.cli.io import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rnnsearch.metrics.consensus import Utility
    from rnnsearch.search.constraints import SearchOptions
    from rnnsearch.search.sampling import Variant
    from rnnsearch.translator.translation import Translation
    from rnnsearch.translator.translator import Translator

    Order = Callable[[Sequence[Sequence[Translation]]], list[list[Translation]]]


Sample = Annotated[
    bool, typer.Option("--sample", help="Draw each symbol; --beam is then the number of samples.  [default beam: 1]")
]
Temperature = Annotated[
    float | None, typer.Option(min=1e-3, max=1e3, help="Of samples: below 1 likelier ones, above 1 others.  [1]")
]
TopK = Annotated[int | None, typer.Option(min=1, help="Sample from so many likeliest symbols.  [all]")]
TopP = Annotated[
    float | None, typer.Option(min=1e-9, max=1.0, help="Sample from the fewest symbols of so much probability.  [1]")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Of samples.  [1]")]
Stochastic = Annotated[
    bool, typer.Option("--stochastic", help="Stochastic beam search: --beam samples, no two the same.")
]
Noisy = Annotated[
    int | None,
    typer.Option(min=2, help="So many chains, all but one with noise in the decoder's state; the likeliest is taken."),
]
Sigma = Annotated[
    float | None, typer.Option(min=0.0, max=1e3, help="The noise of noisy chains at the first symbol.  [0.3]")
]
Ban = Annotated[
    Path | None,
    typer.Option(help="Words and phrases, one a line, that no translation may hold.", show_default=False),
]
Groups = Annotated[
    int | None, typer.Option(min=2, help="Diverse beam search: so many groups share the beam evenly, and differ.")
]
Diversity = Annotated[
    float | None, typer.Option(min=0.0, help="What a symbol costs that a group before has taken at a step.  [0.5]")
]
NoRepeat = Annotated[
    int | None, typer.Option(min=0, help="No so many symbols in a row twice in a translation.  [default: the model's]")
]
Consensus = Annotated[
    Literal["chrf", "bleu"] | None,
    typer.Option("--mbr", help="Minimum Bayes risk: of all that is found, what is most like the others comes first."),
]
Chooser = Annotated[
    Path | None,
    typer.Option(
        help="What `rnnsearch reranker` has made: of all that is found, its choice comes first.", show_default=False
    ),
]
Weights = Annotated[str | None, typer.Option(help="Of several models, with commas: 0.5,0.3,0.2.  [equal]")]
Mean = Annotated[
    Literal["geometric", "arithmetic"] | None,
    typer.Option(help="How several models' probabilities become one.  [geometric]"),
]
LM = Annotated[
    Path | None,
    typer.Option(help="A language model's folder: its scores count, too (shallow fusion).", show_default=False),
]
LMWeight = Annotated[float | None, typer.Option(min=0.0, max=100.0, help="How much.  [default: the model's, or 0.1]")]

MinConfidence = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, help="Leave lines empty whose confidence is less (of a calibrated model)."),
]
Unsure = Annotated[
    Literal["empty", "mark"] | None, typer.Option(help="Such lines: empty, or marked by [?] before them.  [empty]")
]


UNSURE, WARNING, REPLACED = "unsure", "warning: ", "replaced: "
"""Counts; of the last two, with what it is behind it."""


class Surely:
    """What becomes of translations in a text that are not sure enough, or plainly wrong; `counts` has how many."""

    def __init__(self, least: float | None, unsure: Literal["empty", "mark"] | None, counts: Counts) -> None:
        self._least, self._marks, self._counts = least, unsure == "mark", counts

    def before(self, found: Translation) -> int | None:
        """How many words a translation's line has before it; None where the line is empty in its place."""
        if self._least is None or found.confidence is None or found.confidence >= self._least:
            return 0
        return 1 if self._marks else None

    def __call__(self, found: Translation, text: str) -> str:
        """The line of a translation."""
        from rnnsearch.translator.confidence import warnings

        for warning in warnings(found):
            self._counts[WARNING + warning] = self._counts.get(WARNING + warning, 0) + 1
        before = self.before(found)
        if before == 0:
            return text
        self._counts[UNSURE] = self._counts.get(UNSURE, 0) + 1
        return f"[?] {text}" if before else ""


def check_surely(least: float | None, unsure: str | None, format: str) -> None:
    """Errors: BadParameter for options without effect."""
    if unsure is not None and least is None:
        raise typer.BadParameter("--unsure has no effect without --min-confidence")
    if least is not None and format != "text":
        raise typer.BadParameter("--min-confidence needs --format text; json has the confidence of each line")


def tell_surely(least: float | None, unsure: str | None, counts: Counts) -> None:
    """Say how many there were."""
    if least is not None:
        became = "marked" if unsure == "mark" else "empty"
        say(f"{counts.get(UNSURE, 0):,.0f} lines below a confidence of {least:g}: {became}")
    warned = {name.removeprefix(WARNING): count for name, count in counts.items() if name.startswith(WARNING)}
    if warned:
        each = ", ".join(f"{count:,.0f} {what}" for what, count in sorted(warned.items()))
        say(f"translations that look wrong: {each} (`warnings` of --format json)")


def tell_replaced(counts: Counts) -> None:
    """Say how many unknown words were replaced, and by what."""
    told = {"dictionary": "by the dictionary", "copy": "copied", "spelled": "spelled"}
    found = {how: counts[REPLACED + by] for by, how in told.items() if REPLACED + by in counts}
    if found:
        each = ", ".join(f"{count:,.0f} {how}" for how, count in found.items())
        say(f"{sum(found.values()):,.0f} unknown words replaced: {each}")


class MoreWays(NamedTuple):
    """What `translate` has and other commands that draw samples have not."""

    groups: int | None
    diversity: float | None
    stochastic: bool
    noisy: int | None
    sigma: float | None


def asked_variant(
    sample: bool,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    more: MoreWays | None = None,
) -> Variant | None:
    """The search that is asked for, if it is no plain beam. Errors: BadParameter for options without effect."""
    from rnnsearch.search import noisy, sampling, stochastic

    asked = more or MoreWays(None, None, stochastic=False, noisy=None, sigma=None)
    ways = {
        "--sample": sample,
        "--stochastic": asked.stochastic,
        "--groups": asked.groups is not None,
        "--noisy": asked.noisy is not None,
    }
    chosen = [way for way, given in ways.items() if given]
    if len(chosen) > 1:
        raise typer.BadParameter(f"{chosen[0]} and {chosen[1]} are two ways to search; choose one")
    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    given = {name: value for name, value in drawn.items() if value is not None}
    random = "--sample" if more is None else "--sample, --stochastic"
    needs = {"temperature": random, "top_k": "--sample", "top_p": "--sample"}
    needs |= {"seed": random if more is None else f"{random}, --noisy", "diversity": "--groups", "sigma": "--noisy"}
    for name, value in {**drawn, "diversity": asked.diversity, "sigma": asked.sigma}.items():
        if value is not None and not {*chosen} & {*needs[name].split(", ")}:
            without = " or ".join(needs[name].split(", "))
            raise typer.BadParameter(f"--{name.replace('_', '-')} has no effect without {without}")
    if sample:
        return sampling.Sampling(**given)  # type: ignore[arg-type]
    if asked.stochastic:
        return stochastic.Stochastic(**given)  # type: ignore[arg-type]
    if asked.groups is not None:
        return sampling.Diverse(asked.groups, **({} if asked.diversity is None else {"strength": asked.diversity}))
    if asked.noisy is not None:
        chosen_by = {"sigma": asked.sigma, "seed": seed}
        return noisy.Noisy(asked.noisy, **{k: v for k, v in chosen_by.items() if v is not None})  # type: ignore[arg-type]
    return None


def read_banned(path: Path | None) -> list[str]:
    """The phrases of a file, one a line; empty lines count for nothing. Errors: DataError for an unfit file."""
    from rnnsearch.data.corpus import read_lines
    from rnnsearch.errors import DataError

    if path is None:
        return []
    phrases = [line.strip() for line in read_lines(path) if line.strip()]
    if not phrases:
        raise DataError(f"{path}: must hold phrases, one a line; got none")
    return phrases


def asked_weights(given: str | None) -> list[float] | None:
    """The numbers of `--weights`. Errors: BadParameter for other text."""
    try:
        return None if given is None else [float(weight) for weight in given.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--weights must be numbers with commas between; got {given}") from None


def asked_order(
    translator: Translator,
    options: SearchOptions,
    mbr: Utility | None,
    reranker: Path | None,
    device: str,
    beam: int | None,
) -> tuple[SearchOptions, Order | None]:
    """What is to put n-best lists into another order than the search, if anything; and the options with a beam that a
    reranker can choose from, where no `beam` was asked for. Errors: BadParameter for two ways, and where there is
    nothing to choose from; ModelError as in `load_reranker`, and for one of other languages."""
    if mbr is not None and reranker is not None:
        raise typer.BadParameter("--mbr and --reranker are two ways to choose; take one")
    if reranker is not None:
        from rnnsearch.translator.rerank import load_reranker

        chooser = load_reranker(reranker, device)
        chooser.require(translator)
        options = chooser.wide_enough(options) if beam is None else options
        return _several(options, "--reranker"), chooser.ordered
    if mbr is not None:
        return _several(options, "--mbr"), lambda lists: [translator.by_consensus(own, options, mbr) for own in lists]
    return options, None


def _several(options: SearchOptions, needed: str) -> SearchOptions:
    """The options, if they find several translations. Errors: BadParameter where they do not."""
    if options.beam == 1:
        raise typer.BadParameter(f"{needed} needs several translations to choose from: a --beam of 2 or more")
    return options


def finder(
    by: Translator | GivenTerms, options: SearchOptions, batch: int, order: Order | None
) -> Callable[[list[str]], list[list[Translation]]]:
    """What finds the n best translations of some texts: of all that a beam finds, where there is an order."""
    if order is None:
        return lambda texts: by.n_best(texts, options, batch)
    found = replace(options, n_best=options.beam)
    return lambda texts: [own[: options.n_best] for own in order(by.n_best(texts, found, batch))]


def every_one(options: SearchOptions) -> SearchOptions:
    """The options, but all that a beam finds is asked for. Errors: BadParameter where that is one translation."""
    return replace(_several(options, "--interpolate"), n_best=options.beam)


# `--glossary`: the terms of a file, forced upon translations or put into the source texts.

TERMS, MET = "terms inline", "terms met"
"""Counts."""


class GivenTerms:
    """The terms of a glossary file, for one model: inline where it reads them so, unless they are to be forced."""

    def __init__(self, path: Path, translator: Translator, options: SearchOptions, force: bool, counts: Counts) -> None:
        """Leaves out what the model cannot be forced to write, which is said. `counts` has how many of those inline
        there were. Errors: BadParameter for a beam that can force none; RnnsearchError for another search that forces
        none, and a term that holds a banned phrase; DataError for an unfit file."""
        from rnnsearch.search.unknown_words import read_dictionary
        from rnnsearch.text.terms import Glossary

        self._translator, self._inline = translator, translator.reads_terms and not force
        if not self._inline and options.beam == 1 and options.variant is None:
            raise typer.BadParameter("--glossary needs a beam of 2 or more")
        entries = read_dictionary(path)
        written = entries
        if not self._inline:
            written = {source: target for source, target in entries.items() if translator.demands.writes(target)}
        if len(written) < len(entries):
            lacking = next(target for source, target in entries.items() if source not in written)
            count = f"{len(entries) - len(written):,} of {len(entries):,}"
            say(f'{path}: {count} terms left out: the model has no symbol for a word of them (like "{lacking}")')
        if not self._inline:  # what cannot be is said now, not where the first term turns up
            translator.demands.phrases([list(written.values())], options)
        self._glossary, self._counts = Glossary(written), counts

    def n_best(self, texts: Sequence[str], options: SearchOptions, size: int) -> list[list[Translation]]:
        """As `Translator.n_best`, under the terms of each text."""
        if not self._inline:
            return self._translator.n_best(texts, options, size, terms=[self._glossary.terms(text) for text in texts])
        told = [self._translator.with_terms(text, self._glossary) for text in texts]
        found = self._translator.n_best(told, options, size)
        self._count(texts, found)
        return found

    def _count(self, texts: Sequence[str], found: Sequence[Sequence[Translation]]) -> None:
        from rnnsearch.text.terms import stands_in, words_of

        asked, met = self._counts.get(TERMS, 0), self._counts.get(MET, 0)
        for text, best in zip(texts, found, strict=True):
            words = words_of(best[0].text)
            each = [stands_in(words_of(term), words, exactly=True) for term in self._glossary.terms(text)]
            asked, met = asked + len(each), met + sum(each)
        self._counts[TERMS], self._counts[MET] = asked, met


def tell_terms(counts: Counts) -> None:
    """Say how many terms came out as they stand in the glossary; of forced ones all do."""
    if TERMS in counts:
        asked, met = counts[TERMS], counts[MET]
        say(f"{asked:,.0f} terms, of which {met:,.0f} stand in the translations as the glossary has them")
