"""The table of metrics: what each is called, what it is made of, and how it is computed.

A new column of ``grpo trend`` is a line here. Order is the order in which they are printed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from grpo_cli.commands.trend.responses import Responses
from grpo_cli.commands.trend.sums import DECILES, EACH, StepSums
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
        drift: in which direction a drift is a finding: "up", "down", or "" for neither, since a
            healthy run learns. A shift is one in either.
        whole: whether it is a whole number.
        needs: what records must have for it.
    """

    name: str
    family: str
    read: Callable[[StepValues], float | None]
    spare: int = 0
    watched: bool = True
    worst: str | None = None
    log: bool = False
    drift: str = ""
    whole: bool = False
    needs: str = ""

    @property
    def usual(self) -> bool:
        """Whether it is shown unasked."""
        return self.spare < _ASKED


_ASKED = 23
"""The ``spare`` from which a column is shown only where it is asked for."""


class StepValues:
    """The sums of a step as numbers, and its responses."""

    def __init__(self, sums: StepSums) -> None:
        self.file, self.key, self.worst = sums.file, sums.key, sums.worst
        self.totals, self.counts, self.extremes = sums.totals, sums.counts, sums.extremes
        self.tails = sums.tails
        self.responses = Responses(sums.rows)
        self.sums = sums.sums.values()

    @cached_property
    def objective(self) -> float | None:
        """J of the step; None where it cannot be evaluated, or has no token."""
        return _counted(lambda totals: totals.objective)(self)

    @cached_property
    def ratio(self) -> float:
        """Σ ρ."""
        return 0.0 if self.totals is None else self.totals.ratio.value()

    def mean(self, name: str, over: str) -> float | None:
        """A sum divided by a count; None where nothing was counted."""
        count = self.counts[over]
        return self.sums[name] / count if count else None

    def quantile(self, name: str, share: float) -> float | None:
        """A quantile of a distribution; None where there is none of it."""
        return self.tails[name].quantile(share) if name in self.tails else None


def _counted(read: Callable[[Totals], float]) -> Callable[[StepValues], float | None]:
    """A number of the totals; None where the objective cannot be evaluated, or has no token."""

    def value(step: StepValues) -> float | None:
        totals = step.totals
        return read(totals) + 0.0 if totals is not None and totals.tokens else None

    return value


def _mean(name: str, over: str) -> Callable[[StepValues], float | None]:
    return lambda step: step.mean(name, over)


def _share(part: str, whole: str) -> Callable[[StepValues], float | None]:
    def value(step: StepValues) -> float | None:
        counts = step.counts
        return counts[part] / counts[whole] if counts[whole] else None

    return value


def _loss(step: StepValues) -> float | None:
    return None if step.objective is None else -step.objective + 0.0


def _ratio_mean(step: StepValues) -> float | None:
    return _counted(lambda totals: step.ratio / totals.tokens)(step)


def _kl(step: StepValues) -> float | None:
    totals = step.totals
    known = totals is not None and totals.kl_known and bool(totals.sums(KL))
    return _counted(lambda totals: totals.value(KL))(step) if known else None


def _ess(step: StepValues) -> float | None:
    """(Σ ρ)² / (N·Σ ρ²)."""
    totals = step.totals
    if totals is None or not totals.tokens:
        return None
    return _effective(step.ratio, step.sums["ratio_squared"], totals.tokens)


def _effective(total: float, square: float, count: int) -> float | None:
    if not (math.isfinite(total) and math.isfinite(square)) or not square:
        return None
    return total / count * (total / square)


def _ratio_tail(step: StepValues) -> float | None:
    logarithm = step.quantile("log_ratio", 0.999)
    if logarithm is None:
        return None
    return math.exp(logarithm) if logarithm < 700 else math.inf


def _negative_log_prob(step: StepValues) -> float | None:
    mean = step.mean("log_prob", "log_prob")
    return None if mean is None else -mean + 0.0


# ---- the trainer against the engine: d = log π_trainer − log π_engine, of tokens that it sampled


def _mismatch(
    read: Callable[[StepValues, int], float | None],
) -> Callable[[StepValues], float | None]:
    def value(step: StepValues) -> float | None:
        count = step.counts["mismatch"]
        return read(step, count) if count else None

    return value


def _mismatch_k1(step: StepValues, count: int) -> float:
    """Mean of −d: of KL(engine ‖ trainer)."""
    return -step.sums["mismatch_d"] / count + 0.0


def _mismatch_k3(step: StepValues, count: int) -> float:
    """Mean of e^d − 1 − d, of the same."""
    return (step.sums["mismatch_weight"] - step.sums["mismatch_d"]) / count - 1.0


def _mismatch_chi2(step: StepValues, count: int) -> float:
    """Mean of e^2d, less 1."""
    return step.sums["mismatch_square"] / count - 1.0


def _mismatch_ess(step: StepValues, count: int) -> float | None:
    """(Σ e^d)² / (N·Σ e^2d)."""
    return _effective(step.sums["mismatch_weight"], step.sums["mismatch_square"], count)


OBJECTIVE = "the columns of the objective"
"""What the numbers of the update need; which of them is missing, the evaluation says."""


def _columns(
    family: str, needs: str, worst: str | None = None, prefix: str = ""
) -> Callable[..., Metric]:
    """A constructor of metrics of one family that need the same columns of records."""

    def make(
        name: str, read: Callable[[StepValues], float | None], spare: int, **more: Any
    ) -> Metric:
        return Metric(prefix + name, family, read, spare, worst=worst, needs=needs, **more)

    return make


_of_reward = _columns("signal", "rewards")
_of_groups = _columns("signal", "rewards in groups of two and more")
_of_answers = _columns("signal", "rewards that are 0 or 1")
_of_update = _columns("update", OBJECTIVE)
_of_gradient = _columns("update", OBJECTIVE, "gradient")
_of_length = _columns("signal", "tokens", "length")
_of_kl = _columns("update", "log_probs_ref", "kl")
_of_ratio = _columns("update", OBJECTIVE, "ratio")
_of_mismatch = _columns("mismatch", "log_probs_rollout", "mismatch", "mismatch.")

ALL = (
    # ---- what comes in
    _of_reward("reward_mean", lambda step: step.responses.reward_mean, 0, drift="down"),
    _of_reward("reward_std", lambda step: step.responses.reward_std, 13),
    _of_groups("reward_group_std", lambda step: step.responses.reward_group_std, 11),
    _of_groups("groups_equal", lambda step: step.responses.share_of_groups(), 10),
    _of_answers("groups_all_0", lambda step: step.responses.all_wrong, 26),
    _of_answers("groups_all_1", lambda step: step.responses.all_right, 25),
    _of_answers("pass_at_1", lambda step: step.responses.pass_at_1, 28, watched=False),
    _of_answers("pass_at_k", lambda step: step.responses.pass_at_k, 12),
    _of_length("length_mean", lambda step: step.responses.length_mean, 0, drift="up"),
    _of_length(
        "length_p95",
        lambda step: step.responses.length_quantile(0.95),
        24,
        watched=False,
        whole=True,
    ),
    _of_length("at_longest", lambda step: step.responses.at_longest, 27, watched=False),
    Metric("truncated", "signal", _share("cut_off", "endings"), 9, needs="finish_reasons"),
    Metric(
        "repetition",
        "signal",
        _mean("repetition", "repetition"),
        22,
        drift="up",
        needs="tokens or token_ids",
    ),
    Metric("entropy", "signal", _mean("entropy", "entropy"), 5, drift="up", needs="entropies"),
    Metric("nll", "signal", _negative_log_prob, 6, worst="nll", drift="up", needs="log_probs_new"),
    # ---- what is done with it
    _of_update("objective", lambda step: step.objective, 33, watched=False),
    _of_gradient("loss", _loss, 1),
    _of_kl("kl", _kl, 31, watched=False),
    _of_kl("kl_k1", _mean("kl_k1", "kl"), 32, watched=False),
    _of_kl("kl_k3", _mean("kl_k3", "kl"), 3, log=True),
    _of_ratio(
        "clip_low", _counted(lambda totals: totals.clipped_low / totals.tokens), 15, drift="up"
    ),
    _of_ratio(
        "clip_high", _counted(lambda totals: totals.clipped_high / totals.tokens), 14, drift="up"
    ),
    _of_update("gradient_norm", _counted(lambda one: one.gradient_norm), 2, log=True, drift="up"),
    _of_update("longest_quarter", lambda step: step.responses.longest_quarter, 21),
    _of_ratio("ratio_mean", _ratio_mean, 19),
    _of_ratio("ratio_p999", _ratio_tail, 16, drift="up"),
    _of_ratio("ess", _ess, 18, drift="down"),
    # ---- the trainer against the engine
    Metric(
        "staleness", "mismatch", _share("lag", "versions"), 20, drift="up", needs="weight_versions"
    ),
    _of_mismatch("k1", _mismatch(_mismatch_k1), 17, drift="up"),
    _of_mismatch("k3", _mismatch(_mismatch_k3), 4, log=True, drift="up"),
    _of_mismatch("chi2", _mismatch(_mismatch_chi2), 29, watched=False),
    _of_mismatch("ess", _mismatch(_mismatch_ess), 23, drift="down"),
    _of_mismatch("mean_abs", _mean("mismatch_size", "mismatch"), 8, log=True, drift="up"),
    _of_mismatch("mult", _mean("mismatch_both", "mismatch"), 30, watched=False),
    _of_mismatch("p999", lambda step: step.quantile("mismatch", 0.999), 7, log=True),
    *(_of_mismatch(name, _mean(name, name), 34, watched=False) for name in DECILES),
)
METRICS: Mapping[str, Metric] = {one.name: one for one in ALL}
MEAN = "/mean"
_FUNCTION = re.compile(r"rewards/(.+)/mean")


def metric(name: str) -> Metric | None:
    """The column of that name: of the table, or the mean of one of several reward functions."""
    if name in METRICS or not _FUNCTION.fullmatch(name):
        return METRICS.get(name)
    return Metric(name, "signal", lambda _: None, drift="down")


def functions(step: Mapping[str, object]) -> list[str]:
    """The columns of a step that are of single reward functions, as TRL calls them."""
    return [name for name in step if name not in METRICS]


def values(step: StepValues) -> dict[str, float | None]:
    """Every metric of a step, then those of single reward functions."""
    found = {one.name: one.read(step) for one in ALL}
    for name in step.counts:
        if name.startswith(EACH):
            found[name + MEAN] = step.mean(name, name)
    return found
