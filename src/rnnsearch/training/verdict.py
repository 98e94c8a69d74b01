"""What a run's dev scores say of it at its end, in words: whether it was trained long enough, and what went wrong."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

FALLING = 0.005
"""Of the dev NLL in an epoch: what falls by less is as good as still."""
RISEN = 0.01
"""Of the dev NLL above its best: what has risen by less may be chance."""
UNKNOWN = 0.05
"""Of a side's symbols: fewer unknown ones are usual with whole words."""
LEAST = 3
"""Evaluations that anything can be told from."""
BETTER = "better (--resume with higher training limits)"


def verdicts(
    history: Sequence[Mapping[str, Any]], unknown: Mapping[str, float], text: str, early: bool = False
) -> list[str]:
    """Sentences on a run whose evaluations are `history`; `unknown`: the share of unknown symbols in a text by side;
    `text`: what that is; `early`: whether the learning rate has yet to be lowered (see `Schedule.early`)."""
    rows = [row for row in history if "averaged" not in row and math.isfinite(row["dev_nll_per_word"])]
    found = [_of_scores(rows, early)] if len(rows) >= LEAST else []
    for side, share in unknown.items():
        if share > UNKNOWN:
            found.append(f'{share:.0%} of the {text} in {side} are unknown words: use text.type = "bpe"')
    return found


def _of_scores(rows: Sequence[Mapping[str, Any]], early: bool) -> str:
    nll = [row["dev_nll_per_word"] for row in rows]
    number = nll.index(min(nll))
    best, last, since = rows[number], rows[-1], len(rows) - 1 - number
    fall = _fall(rows[: number + 1]) if number else 0.0
    if best is last and fall > FALLING:
        return f"the dev NLL was still falling at the end, by {fall:.1%} an epoch: a longer run would be {BETTER}"
    risen = last["dev_nll_per_word"] / best["dev_nll_per_word"] - 1
    if risen > RISEN and last["train_nll_per_word"] < best["train_nll_per_word"]:
        advice = "the best weights are kept; raise [model.dropout], or train on more text"
        return f"overfitted since epoch {best['epoch']:.3g}: the dev NLL has risen by {risen:.1%} since; {advice}"
    if fall > FALLING and since < LEAST:
        until = f"the dev NLL fell by {fall:.1%} an epoch until epoch {best['epoch']:.3g}, and not at {since} since"
        return f"{until}, which says little: a longer run may be {BETTER}"
    still = f"hardly falls any more ({fall:.1%} an epoch)"
    if best is not last:
        still = f"no longer falls (its best was after epoch {best['epoch']:.3g})"
    if early:
        return f"the dev NLL {still} at a learning rate that was still to be lowered: a longer run may be {BETTER}"
    return f"the dev NLL {still}: this run has converged"


def _fall(rows: Sequence[Mapping[str, Any]]) -> float:
    """The share by which the dev NLL fell in an epoch, over the last one or, where evaluations are farther apart, since
    the evaluation before the last."""
    last = rows[-1]
    before = next((row for row in reversed(rows[:-1]) if row["epoch"] <= last["epoch"] - 1), rows[0])
    share = 1 - last["dev_nll_per_word"] / before["dev_nll_per_word"]
    return float(share / max(last["epoch"] - before["epoch"], 1e-9))
