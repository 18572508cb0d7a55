"""Ratios taken wrongly, or without their gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import numpy as np

from grpo_cli.commands.verify.causes.case import Case, Cause, swapped
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.choice import Bound, Choice
from grpo_cli.objective.results import Ratio
from grpo_cli.variants import bind


def ratios(case: Case) -> Iterator[Cause]:
    """The ratio inverted, to another policy, or held constant."""
    batch, own = case.batch, case.objective.ratio
    if batch.ratios is None:
        for column, words in _INSTEAD.items():
            if getattr(batch, column) is not None:
                yield Cause("ratio", words, partial(_to, column=column))
                if own.name != "token":
                    said = f"{words}, token by token"
                    yield Cause("ratio", said, partial(_to, column=column, ratio=_TOKEN))
    yield swapped(
        "ratio", "ratio inverted: π_old/π_θ where π_θ/π_old is meant", _made(own, _turned)
    )
    yield swapped(
        "ratio",
        "old log-probs taken from the new ones with their gradient: "
        "the ratio is 1 and no gradient comes through",
        _made(own, _level),
    )
    yield swapped(
        "ratio", "ratio detached (stop-gradient): nothing flows through it", _made(own, _detached)
    )


_INSTEAD = {
    "log_probs_new": "ratio taken as 1: old := new",
    "log_probs_ref": "ratio to the reference where π_old is meant (ref for old)",
    "log_probs_rollout": "ratio to the rollout engine's log-probs where π_old is meant",
}


_TOKEN = bind("ratio", "token")


def _to(case: Case, column: str, **stages: Bound) -> Breakdown:
    batch = replace(case.batch, log_probs_old=getattr(case.batch, column))
    return case.evaluated(batch, **stages)


def _turned(ratio: Ratio) -> Ratio:
    """The inverse of a ratio, whose slope is the other way round too."""
    return Ratio(-ratio.log_ratio, np.exp(-ratio.log_ratio), lambda s: ratio.pull(-s))


def _level(ratio: Ratio) -> Ratio:
    return Ratio(np.zeros_like(ratio.log_ratio), np.ones_like(ratio.ratio), np.zeros_like)


def _detached(ratio: Ratio) -> Ratio:
    return ratio._replace(pull=np.zeros_like)


def _made(own: Bound, change: Any) -> Bound:
    """The same ratio with its outcome changed."""

    @wraps(own.choice.function)
    def made(*columns: Any, **values: Any) -> Ratio:
        changed: Ratio = change(own.choice.function(*columns, **values))
        return changed

    return Bound(own.name, Choice(made, own.choice.defaults), own.values)
