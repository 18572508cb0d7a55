"""Ratios that no update makes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.pair import Pair
from grpo_cli.commands.check.record_view import View

_BEYOND = 20.0
_ADVICE = (
    "missing log-probs must not be filled with 0.0; else look at alignment, masks and which "
    "weights computed them"
)
_MEANING = "A ratio is beyond e^±20, which no update makes."


def _look(pair: Pair) -> Iterator[Finding]:
    """A ratio beyond e^±20, which no update makes: zero-filled, misaligned or foreign log-probs."""
    if pair.to_reference:
        return
    bad = pair.size > _BEYOND
    if not bad.any():
        return
    every = pair.samples.sum(bad.astype(np.int64))
    for sample in np.flatnonzero(every).tolist():
        part = pair.tokens(sample)
        at = part.start + int(np.argmax(pair.size[part]))
        columns = (pair.first, pair.second)
        zeros = int(sum(np.count_nonzero(one[part][bad[part]] == 0.0) for one in columns))
        yield Finding(
            "error",
            f"|{pair}| is beyond {_BEYOND:g} at {int(every[sample]):,} of "
            f"{part.stop - part.start:,} tokens, at most {pair.log_ratio[at]:.4g}"
            + (f"; {zeros:,} of them are exactly 0.0" if zeros else ""),
            _ADVICE,
            {
                "columns": list(pair.names),
                "tokens": int(every[sample]),
                "of": part.stop - part.start,
                "log_ratio": float(pair.log_ratio[at]),
                "zeros": zeros,
            },
            **pair.view.place(at),
        )


def _look_at_given(view: View) -> Iterator[Finding]:
    """The same of ratios that the record gives itself."""
    ratios = view.column("ratios")
    if ratios is None:
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        bad = ~(np.abs(np.log(ratios)) <= _BEYOND)
    records = view.records.index[view.responses.index]
    for record in np.unique(records[bad]).tolist():
        within = records == record
        at = int(np.argmax(bad & within))
        yield Finding(
            "error",
            f"{view.key('ratios')} is {ratios[at]:g}, beyond e^±{_BEYOND:g}",
            "look at how the ratio was computed",
            {
                "tokens": int((bad & within).sum()),
                "of": int(within.sum()),
                "ratio": float(ratios[at]),
            },
            **view.place(at),
        )


RULES = (
    Rule(
        "extreme-ratio",
        ("error",),
        _MEANING,
        55,
        _look,
        pairs=True,
        about="other tokens and fillers",
        needs=("log_probs_old|log_probs_rollout",),
    ),
    Rule("extreme-ratio", ("error",), _MEANING, 60, _look_at_given),
)
