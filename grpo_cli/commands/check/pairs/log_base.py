"""A column in another base of logarithms than the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.pair import Pair
from grpo_cli.commands.check.record_view import View

_LEAST, _LEAST_ENTROPIES = 24, 64
_BASES = {"2": 1.0 / math.log(2.0), "10": 1.0 / math.log(10.0)}
_WITHIN = 0.04
_LEFT = 0.25
_STRAIGHT = 0.7


def _look(pair: Pair) -> Iterator[Finding]:
    """One column is the other times 1.4427 or 0.4343, with no offset.

    The median of b/a over tokens with |a| > 0.05 is within 4 % of the factor, the factor takes
    three quarters of the difference away, and the difference is proportional to the log-probs
    (corr(a + b, a − b)² above 0.7): a temperature bends that line, a base does not.
    """
    clear = (pair.first < -0.05) & (pair.second < -0.02)
    ratio = np.divide(pair.second, pair.first, out=np.zeros_like(pair.first), where=clear)
    n, mean, _ = pair.moments(ratio, clear)
    for sample in np.flatnonzero(n >= _LEAST).tolist():
        if abs(math.log(mean[sample])) > 0.2:
            yield from _of_sample(pair, sample, clear)


def _of_sample(pair: Pair, sample: int, clear: np.ndarray) -> Iterator[Finding]:
    part = pair.tokens(sample)
    kept = clear[part]
    a, b = pair.first[part][kept], pair.second[part][kept]
    factor = float(np.median(b / a))
    with np.errstate(invalid="ignore"):  # of a difference that is one number
        straight = np.square(np.corrcoef(a + b, a - b)[0, 1])
    if not straight >= _STRAIGHT:
        return
    for base, per_nat in _BASES.items():
        for at, wanted in ((1, per_nat), (0, 1.0 / per_nat)):
            left = float(np.mean(np.abs(b - wanted * a)))
            if abs(factor / wanted - 1.0) > _WITHIN or left > _LEFT * np.mean(np.abs(b - a)):
                continue
            yield Finding(
                "error",
                f"{pair.keys[at]} is in base {base}: {pair.keys[1]} is {factor:.4f} times "
                f"{pair.keys[0]}",
                f"multiply it by ln {base} = {math.log(float(base)):.4f}: log-probs are natural "
                "logarithms here",
                {
                    "columns": list(pair.names),
                    "base": int(base),
                    "factor": factor,
                    "culprit": pair.names[at],
                },
                record=pair.record(sample),
            )
            return


def _look_at_entropies(view: View) -> Iterator[Finding]:
    """All columns in base 2 or 10, seen beside the entropies, which are in nats.

    Of tokens drawn from a policy at temperature 1 the mean of −log p is the mean entropy. Where
    the two differ by the factor of a base, within 10 % and by 6 standard errors, it is the base.
    """
    entropies, new = view.column("entropies"), view.log_probs.get("log_probs_new")
    if entropies is None or new is None:
        return
    ends = np.cumsum(view.tokens)
    for record in np.flatnonzero(view.tokens >= _LEAST_ENTROPIES).tolist():
        part = slice(int(ends[record] - view.tokens[record]), int(ends[record]))
        h, cost = entropies[part], -new[part]
        if not np.isfinite([h, cost]).all():
            continue
        over, mean = cost - h, float(h.mean())
        if mean <= 0.0 or not _alike(view, part, cost):
            continue  # a temperature on one side, which moves the mean too
        error = float(over.std(ddof=1)) / math.sqrt(len(h))
        factor = float(cost.mean()) / mean
        for base, per_nat in _BASES.items():
            if abs(factor / per_nat - 1.0) < 0.1 and abs(factor - 1.0) * mean > 6.0 * error:
                yield Finding(
                    "error",
                    f"the mean −log p is {factor:.3f} times the mean entropy: base {base}",
                    f"multiply the log-probs by ln {base}, or the entropies are in another base",
                    {
                        "columns": ["log_probs_new", "entropies"],
                        "base": int(base),
                        "factor": factor,
                    },
                    record=record,
                )


def _alike(view: View, part: slice, cost: np.ndarray) -> bool:
    """Whether the other columns have the same mean, as they do in one base."""
    means = [float(column[part].mean()) for column in view.log_probs.values()]
    return max(means) - min(means) < 0.05 * float(cost.mean())


_MEANING = "Log-probs are in base 2 or 10 instead of e."

RULES = (
    Rule(
        "log-base",
        ("error",),
        _MEANING,
        40,
        _look,
        pairs=True,
        about="shifts and bases",
        needs=("log_probs_old|log_probs_ref|log_probs_rollout",),
    ),
    Rule("log-base", ("error",), _MEANING, 90, _look_at_entropies),
)
