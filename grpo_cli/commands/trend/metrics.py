"""The table of metrics: what each is called, what it is made of, and how it is computed.

A new column of ``grpo trend`` is a line here. Order is the order in which they are printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from grpo_cli.commands.trend.measure import DECILES
from grpo_cli.commands.trend.responses import Responses
from grpo_cli.commands.trend.sums import Sums
from grpo_cli.engine.totals import Totals
from grpo_cli.objective.terms import KL


class Metric(NamedTuple):
    """One column.

    Attributes:
        name: what it is called in every format and flag.
        family: "signal" (what comes in), "update" (what is done with it), or "mismatch".
        read: its value of a step.
        spare: when a narrow terminal goes without it: the greatest first; 0: never.
        watched: whether onsets are looked for.
        worst: where to look when it goes wrong, of ``Step.worst``.
        log: whether it is positive and spans orders of magnitude.
    """

    name: str
    family: str
    read: Callable[[StepSums], float | None]
    spare: int = 0
    watched: bool = True
    worst: str | None = None
    log: bool = False


class StepSums:
    """The sums of a step, and what its responses say together."""

    def __init__(self, sums: Sums) -> None:
        self.sums = sums
        self.responses = Responses(sums.rows)

    @property
    def tokens(self) -> int:
        """The tokens that count."""
        return self.sums.counts["tokens"]


def _counted(read: Callable[[Totals], float]) -> Callable[[StepSums], float | None]:
    """A number of the totals; None where the objective cannot be evaluated, or has no token."""

    def value(step: StepSums) -> float | None:
        totals = step.sums.totals
        return read(totals) + 0.0 if totals is not None and totals.tokens else None

    return value


def _mean(name: str, over: str) -> Callable[[StepSums], float | None]:
    return lambda step: step.sums.mean(name, over)


def _kl(step: StepSums) -> float | None:
    totals = step.sums.totals
    known = totals is not None and totals.kl_known and KL in totals.terms
    return _counted(lambda totals: totals.value(KL))(step) if known else None


def _ess(step: StepSums) -> float | None:
    """(Σ ρ)² / (N·Σ ρ²)."""
    totals = step.sums.totals
    if totals is None or not totals.tokens:
        return None
    return _effective(totals.ratio.value(), step.sums.sums["ratio_squared"].value(), totals.tokens)


def _effective(total: float, square: float, count: int) -> float | None:
    if not (math.isfinite(total) and math.isfinite(square)) or not square:
        return None
    return total / count * (total / square)


def _ratio_tail(step: StepSums) -> float | None:
    logarithm = step.sums.tails["log_ratio"].quantile(0.999)
    if logarithm is None:
        return None
    return math.exp(logarithm) if logarithm < 700 else math.inf


def _negative_log_prob(step: StepSums) -> float | None:
    mean = step.sums.mean("log_prob", "log_prob")
    return None if mean is None else -mean + 0.0


# ---- the trainer against the engine: d = log π_trainer − log π_engine, of tokens that it sampled


def _mismatch(read: Callable[[Sums, int], float | None]) -> Callable[[StepSums], float | None]:
    def value(step: StepSums) -> float | None:
        count = step.sums.counts["mismatch"]
        return read(step.sums, count) if count else None

    return value


def _mismatch_k3(sums: Sums, count: int) -> float:
    """Mean of e^d − 1 − d."""
    return (sums.sums["mismatch_weight"].value() - sums.sums["mismatch_d"].value()) / count - 1.0


def _decile(number: int) -> Metric:
    name = f"decile_{number}"
    return Metric(f"mismatch.{name}", "mismatch", _mean(name, name), 40, False, "mismatch")


ALL = (
    Metric("reward_mean", "signal", lambda step: step.responses.reward_mean),
    Metric("reward_std", "signal", lambda step: step.responses.reward_std, 12),
    Metric("reward_group_std", "signal", lambda step: step.responses.reward_group_std, 10),
    Metric("groups_equal", "signal", lambda step: step.responses.share_of_groups(), 9),
    Metric("groups_all_0", "signal", lambda step: step.responses.all_wrong, 22),
    Metric("groups_all_1", "signal", lambda step: step.responses.all_right, 22),
    Metric("pass_at_1", "signal", lambda step: step.responses.pass_at_1, 24, False),
    Metric("pass_at_k", "signal", lambda step: step.responses.pass_at_k, 11),
    Metric("length_mean", "signal", lambda step: step.responses.length_mean, 0, True, "length"),
    Metric(
        "length_p95", "signal", lambda step: step.responses.length_quantile(0.95), 21, False, "length"
    ),
    Metric("at_longest", "signal", lambda step: step.responses.at_longest, 23, False, "length"),
    Metric("entropy", "signal", _mean("entropy", "entropy"), 5),
    Metric("nll", "signal", _negative_log_prob, 6),
    Metric("objective", "update", _counted(lambda totals: totals.objective), 30, False),
    Metric("loss", "update", _counted(lambda totals: -totals.objective), 1),
    Metric("kl", "update", _kl, 28, False, "kl", True),
    Metric("kl_k1", "update", _mean("kl_k1", "kl"), 29, False, "kl"),
    Metric("kl_k3", "update", _mean("kl_k3", "kl"), 3, True, "kl", True),
    Metric(
        "clip_low", "update", _counted(lambda one: one.clipped_low / one.tokens), 14, True, "ratio"
    ),
    Metric(
        "clip_high", "update", _counted(lambda one: one.clipped_high / one.tokens), 13, True, "ratio"
    ),
    Metric("gradient_norm", "update", _counted(lambda one: one.gradient_norm), 2, True, None, True),
    Metric("longest_quarter", "update", lambda step: step.responses.longest_quarter, 19),
    Metric(
        "ratio_mean",
        "update",
        _counted(lambda totals: totals.ratio.value() / totals.tokens),
        18,
        True,
        "ratio",
    ),
    Metric("ratio_p999", "update", _ratio_tail, 15, True, "ratio"),
    Metric("ess", "update", _ess, 17, True, "ratio"),
    Metric(
        "mismatch.k1",
        "mismatch",
        _mismatch(lambda sums, count: -sums.sums["mismatch_d"].value() / count + 0.0),
        16,
        True,
        "mismatch",
    ),
    Metric("mismatch.k3", "mismatch", _mismatch(_mismatch_k3), 4, True, "mismatch", True),
    Metric(
        "mismatch.chi2",
        "mismatch",
        _mismatch(lambda sums, count: sums.sums["mismatch_square"].value() / count - 1.0),
        25,
        False,
        "mismatch",
    ),
    Metric(
        "mismatch.ess",
        "mismatch",
        _mismatch(
            lambda sums, count: _effective(
                sums.sums["mismatch_weight"].value(), sums.sums["mismatch_square"].value(), count
            )
        ),
        20,
        True,
        "mismatch",
    ),
    Metric("mismatch.mean_abs", "mismatch", _mean("mismatch_size", "mismatch"), 8, True, "mismatch", True),
    Metric(
        "mismatch.p999",
        "mismatch",
        lambda step: step.sums.tails["mismatch"].quantile(0.999),
        7,
        True,
        "mismatch",
        True,
    ),
    *(_decile(number) for number in range(1, DECILES + 1)),
)
METRICS: Mapping[str, Metric] = {one.name: one for one in ALL}
COUNTS = ("records", "responses", "tokens")


def values(sums: Sums) -> dict[str, float | None]:
    """Every metric of a step; what is not finite is None."""
    step = StepSums(sums)
    found = {one.name: one.read(step) for one in ALL}
    return {
        name: None if value is None or not math.isfinite(value) else value
        for name, value in found.items()
    }
