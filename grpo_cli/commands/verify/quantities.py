"""The quantities that a record may expect, under the names that ``expected`` may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from grpo_cli.batch import F64
from grpo_cli.commands.verify.metrics import METRICS
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.objective.terms import KL, POLICY


@dataclass(frozen=True)
class Quantity:
    """A number, or one per token, that a record may expect.

    Attributes:
        keys: what ``expected`` may call it.
        stage: the stage that makes it.
        tokens: a breakdown's value of it per token [N], or None where it has none.
        whole: its value for the whole record, or None.
    """

    keys: tuple[str, ...]
    stage: str
    tokens: Callable[[Breakdown], F64 | None]
    whole: Callable[[Breakdown], float | None]


def nothing(_: Breakdown) -> None:
    """What no breakdown has."""


def _scalar(values: F64) -> float:
    return float(values[0])


def _mean_ratio(breakdown: Breakdown) -> float | None:
    return float(breakdown.ratio.mean()) if breakdown.ratio.size else None


def _logged(name: str, stage: str) -> Quantity:
    """A metric under our own name, as ``eval`` prints it."""
    return Quantity((name,), stage, nothing, METRICS[name])


QUANTITIES = (
    Quantity(("advantages", "advantage"), "advantage", lambda b: b.advantage, nothing),
    Quantity(("log_ratio", "log_ratios"), "ratio", lambda b: b.log_ratio, nothing),
    Quantity(("ratio", "ratios"), "ratio", lambda b: b.ratio, _mean_ratio),
    Quantity(("surrogate",), "surrogate", lambda b: b.surrogate, nothing),
    Quantity(("kl",), "kl", lambda b: b.kl, lambda b: _scalar(b.record_value(KL))),
    Quantity(("weight", "weights"), "aggregate", lambda b: b.token_weight, nothing),
    Quantity(("contribution", "contributions"), "aggregate", lambda b: b.contribution, nothing),
    Quantity(("gradient",), "gradient", lambda b: b.gradient, nothing),
    Quantity(("loss_gradient",), "gradient", lambda b: -b.gradient, nothing),
    _logged("clip_fraction", "surrogate"),
    _logged("clip_fraction_low", "surrogate"),
    _logged("clip_fraction_high", "surrogate"),
    _logged("ratio_mean", "ratio"),
    _logged("ratio_min", "ratio"),
    _logged("ratio_max", "ratio"),
    _logged("gradient_norm", "gradient"),
    Quantity(("policy",), "policy", nothing, lambda b: _scalar(b.record_value(POLICY))),
    Quantity(("policy_loss",), "policy", nothing, lambda b: -_scalar(b.record_value(POLICY))),
    Quantity(("kl_loss",), "kl", nothing, lambda b: _scalar(b.record_value(KL))),
    Quantity(("objective",), "objective", nothing, lambda b: _scalar(b.record_objective)),
    Quantity(("loss",), "loss", nothing, lambda b: -_scalar(b.record_objective)),
)
"""In the order of the stages."""

KEYS = (*(key for quantity in QUANTITIES for key in quantity.keys), "metrics")
"""What ``expected`` may have."""
