"""Advantages and rewards on scales that do not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.groups.advantages import discordant, records, stride
from grpo_cli.commands.check.record_view import View

_LARGE = 5.0
_ALONE = 1000.0


def _scale(view: View) -> Iterator[Finding]:
    """|A| beyond what group statistics give.

    A standardised advantage of G responses is at most (G − 1)/√G; r − r̄ at most the range of the
    rewards. Reported from five times the larger of √G and that range; without rewards, from 1000.
    """
    values = view.advantages
    if values is None or not len(values):
        return
    size = np.abs(values)
    bound = np.full(view.records.count, _ALONE)
    if view.summed is not None:
        low = np.minimum.reduceat(view.summed, view.records.starts)
        high = np.maximum.reduceat(view.summed, view.records.starts)
        most = np.zeros(view.records.count)
        np.maximum.at(most, view.records.index, np.sqrt(view.sizes[view.groups]))
        bound = _LARGE * np.maximum(np.maximum(most, 2.8), high - low)
    greatest = np.maximum.reduceat(size, view.records.starts)
    for record in np.flatnonzero(greatest > bound).tolist():
        start = int(view.records.starts[record])
        if _is_strided(view, record):
            continue  # said already, and the scale with it
        row = int(np.argmax(size[start : start + int(view.counts[record])]))
        value = float(values[start + row])
        infinite = abs(value) >= 1e4
        reading = "; 1/eps, as a leave-one-out std of 0 gives" if infinite else ""
        yield Finding(
            "error" if infinite else "warning",
            f"an advantage is {value:.4g}, on a scale far too large for its rewards (|A| up to "
            f"{float(bound[record]):.3g} can be){reading}",
            "look at what the rewards are divided by: a std of 0 plus a tiny eps (set std_min, or "
            "let such groups be 0), or of other units",
            {"advantage": value, "bound": float(bound[record])},
            record,
            row,
        )


def _is_strided(view: View, record: int) -> bool:
    if view.rewards is None or view.rewards.ndim > 1:
        return False
    given = dict(records(view)).get(record)
    return given is not None and bool(discordant(given)) and bool(stride(given))


def _functions(view: View) -> Iterator[Finding]:
    """Several reward functions of which one is on another scale: the others hardly matter.

    The greatest |reward| of one function is three times that of any other and its spread too.
    """
    if view.rewards is None or view.rewards.ndim < 2 or view.rewards.shape[1] < 2:
        return
    for record, (start, count) in enumerate(
        zip(view.records.starts.tolist(), view.counts.tolist(), strict=True)
    ):
        rows = np.nan_to_num(view.rewards[start : start + count])
        sizes = np.abs(rows).max(axis=0)
        spreads = rows.std(axis=0)
        order = np.argsort(sizes)
        most, second = int(order[-1]), int(order[-2])
        times = float(sizes[most] / sizes[second]) if sizes[second] > 0.0 else math.inf
        wider = float(spreads[most]) >= 2.0 * float(np.delete(spreads, most).max())
        if sizes[second] > 0.0 and times >= 2.5 and (wider or times >= 10.0):
            yield Finding(
                "info",
                f"reward function {most} is on another scale: up to {sizes[most]:.3g}, {times:.1f} "
                "times the next; it outweighs the others",
                "weigh the functions, or normalise each in its group first (GDPO: --advantage "
                "decoupled)",
                {"function": most, "largest": sizes.tolist(), "spreads": spreads.tolist()},
                record,
            )


RULES = (
    Rule(
        "advantage-scale",
        ("error", "warning"),
        "An advantage is too large for its rewards, as from a std of 0.",
        61,
        _scale,
    ),
    Rule("reward-scale", ("info",), "Reward functions are on unequal scales.", 62, _functions),
)
