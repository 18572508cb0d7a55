"""Faults in the ratio, the surrogate, the KL and the correction."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..plain import Plain

Right = Callable[..., Tensor]
Form = dict[str, Callable[..., Any]]
Forms = dict[str, list[Form]]


def having(x: SimpleNamespace, **columns: Any) -> SimpleNamespace:
    """The batch with other columns, from here on."""
    vars(x).update(columns)
    return x


def choosing(x: SimpleNamespace, **choices: str) -> SimpleNamespace:
    """The batch with other choices, from here on."""
    return having(x, choices={**x.choices, **choices})


# ---- the ratio -----------------------------------------------------------------------------------


def _to_engine(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    old = x.old
    found = right(having(x, old=old if x.log_probs_rollout is None else x.log_probs_rollout))
    x.old = old
    return found


def _to_reference(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    return right(having(x, old=x.old if x.log_probs_ref is None else x.log_probs_ref))


def _over_width(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    sequence = x.choices["ratio"].startswith("sequence")
    return right(x) * (loss.lengths(x) / x.keep.shape[1] if sequence else 1)


def _steep(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    found = right(x)
    slope = loss.lengths(x) if x.choices["ratio"] == "sequence" else 1
    return found.detach() + (found - found.detach()) * slope


def _clamped(limit: float) -> Form:
    def gmpo(loss: Plain, right: Right, x: SimpleNamespace, a: Tensor) -> Tensor:
        change = loss.difference(x, x.new, x.old).clamp(-limit, limit)
        return right(having(x, old=x.new - change), a)

    return {"log_ratio": lambda loss, right, x: right(x).clamp(-limit, limit), "gmpo": gmpo}


def _no_gradient_at_1(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    rho = right(x)
    return torch.where(rho == 1, rho.detach(), rho)


RATIOS: Forms = {
    "ratio-of-sums": [{"log_ratio": lambda loss, right, x: right(choosing(x, ratio="product"))}],
    "ratio-inverted": [{"log_ratio": lambda loss, right, x: -right(x)}],
    "ratio-policy": [{"log_ratio": _to_reference}, {"log_ratio": _to_engine}],
    "ratio-level": [
        {"log_ratio": lambda loss, right, x: right(choosing(x, ratio="token"))},
        {"log_ratio": lambda loss, right, x: right(choosing(x, ratio="sequence"))},
        {
            "log_ratio": lambda loss, right, x: right(
                choosing(x, ratio="product") if x.choices["ratio"] == "sequence" else x
            )
        },
    ],
    "ratio-width": [{"log_ratio": _over_width}],
    "ratio-slope": [{"log_ratio": _steep}],
    "ratio-detached": [{"ratio": lambda loss, right, x: right(x).detach() + 0 * x.new}],
    "ratio-without-exp": [
        {"ratio": lambda loss, right, x: 1 + loss.log_ratio(x)},
        {"ratio": lambda loss, right, x: loss.log_ratio(x)},
    ],
    "ratio-base": [{"ratio": lambda loss, right, x: torch.exp2(loss.log_ratio(x))}],
    "ratio-clamped": [_clamped(10.0), _clamped(5.0), _clamped(2.0)],
    "ratio-one-gradient": [
        {
            "ratio": _no_gradient_at_1,
            "reinforce": lambda loss, right, x, a: right(x, a).detach() + x.new * 0,
        }
    ],
    "old-ignored": [{"ratio": lambda loss, right, x: right(having(x, old=x.new.detach()))}],
    "log-prob-for-ratio": [{"clip": lambda loss, right, x, a: loss.reinforce(x, a)}],
}


# ---- the surrogate -------------------------------------------------------------------------------


def _clip(
    bounds: Callable[[float, float], tuple[float, float]] = lambda low, high: (1 - low, 1 + high),
    joined: Callable[[Tensor, Tensor], Tensor] = torch.minimum,
) -> Form:
    """The clip with other bounds (of ε_low and ε_high), or put together otherwise."""

    def clip(loss: Plain, right: Right, x: SimpleNamespace, a: Tensor) -> Tensor:
        rho = loss.ratio(x)
        free = rho.clamp(max=x.how["delta"]) * a if "delta" in x.how else rho * a
        edges = bounds(x.how["epsilon_low"], x.how["epsilon_high"])
        return loss.dual(x, joined(free, rho.clamp(*edges) * a), a)

    return {"clip": clip}


def _bounded(loss: Plain, x: SimpleNamespace) -> Tensor:
    return loss.ratio(x).clamp(1 - x.how["epsilon_low"], 1 + x.how["epsilon_high"])


def _one_epsilon(loss: Plain, right: Right, x: SimpleNamespace, a: Tensor) -> Tensor:
    return right(having(x, how=x.how | {"epsilon_low": 0.2, "epsilon_high": 0.2}), a)


def _no_dual(loss: Plain, right: Right, x: SimpleNamespace, a: Tensor) -> Tensor:
    kept = {key: value for key, value in x.how.items() if key not in ("dual_clip", "delta")}
    return right(having(x, how=kept), a)


def _dual_added(loss: Plain, right: Right, x: SimpleNamespace, value: Tensor, a: Tensor) -> Tensor:
    if "delta" in x.how:
        return value
    return torch.where(a < 0, torch.maximum(value, x.how.get("dual_clip", 3.0) * a), value)


def _dual_values(loss: Plain, right: Right, x: SimpleNamespace) -> dict[str, Tensor]:
    found = dict(right(x))
    if "dual_clip" in x.how:
        found["dual_clip_fraction"] = (loss.ratio(x) > x.how["dual_clip"]).to(loss.dtype)
    return found


def _gradient_cut(loss: Plain, right: Right, x: SimpleNamespace, a: Tensor) -> Tensor:
    rho, term = loss.ratio(x).detach(), right(x, a)
    inside = (rho >= 1 - x.how["epsilon_low"]) & (rho <= 1 + x.how["epsilon_high"])
    return torch.where(inside, term, term.detach())


def _two_sided(loss: Plain, right: Right, x: SimpleNamespace, a: Tensor) -> Tensor:
    d = loss.difference(x, x.new, x.old).clamp(-x.how["epsilon_low"], x.how["epsilon_high"])
    return ((d.sum(1, keepdim=True) / loss.lengths(x)).exp() * a).expand_as(d)


SURROGATES: Forms = {
    "minimum-before-advantage": [
        {
            "clip": lambda loss, right, x, a: loss.dual(
                x, torch.minimum(loss.ratio(x), _bounded(loss, x)) * a, a
            )
        }
    ],
    "clip-unused": [
        {
            "clip": lambda loss, right, x, a: loss.dual(x, loss.ratio(x) * a, a),
            "driven": lambda loss, right, x, a: torch.zeros_like(x.keep),
            "covariance": lambda loss, right, x, a: torch.zeros_like(right(x, a)),
        }
    ],
    "clip-greater": [_clip(joined=torch.maximum)],
    "clip-both": [_clip(joined=lambda free, bounded: bounded)],
    "clip-through": [
        _clip(joined=lambda free, bounded: free + (torch.minimum(free, bounded) - free).detach())
    ],
    "clip-zeroed": [_clip(joined=lambda free, bounded: torch.where(bounded < free, 0.0, free))],
    "clip-one-side": [
        _clip(lambda low, high: (0.0, 1 + high)),
        _clip(lambda low, high: (1 - low, math.inf)),
    ],
    "clip-log-space": [_clip(lambda low, high: (math.exp(-low), math.exp(high)))],
    "epsilon-swapped": [_clip(lambda low, high: (1 - high, 1 + low))],
    "epsilon-other": [
        _clip(lambda low, high: (1 - low / 2, 1 + high / 2)),
        _clip(lambda low, high: (1 - low * 2, 1 + high * 2)),
    ],
    "epsilon-reciprocal": [_clip(lambda low, high: (1 / (1 + high), 1 + high))],
    "epsilon-high": [
        {"clip": _one_epsilon},
        _clip(lambda low, high: (1 - low, 1 + low)),
        _clip(lambda low, high: (1 - high, 1 + high)),
    ],
    "dual-clip-positive": [
        {
            "dual": lambda loss, right, x, value, a: (
                torch.maximum(value, x.how["dual_clip"] * a) if "dual_clip" in x.how else value
            ),
            "values": _dual_values,
        }
    ],
    "dual-clip-dropped": [
        {"clip": _no_dual},
        {"dual": lambda loss, right, x, value, a: value},
    ],
    "dual-clip-added": [{"dual": _dual_added}],
    "dppo-both-sides": [{"driven": lambda loss, right, x, a: torch.ones_like(x.keep)}],
    "gmpo-two-sided": [{"gmpo": _two_sided}],
    "advantage-dropped": [{"sapo": lambda loss, right, x, a: -right(x, a) / a}],
    "cispo-gradient-cut": [{"cispo": _gradient_cut}],
    "cispo-weight-gradient": [
        {
            "cispo": lambda loss, right, x, a: _bounded(loss, x) * loss.reinforce(x, a),
            "vespo": lambda loss, right, x, a: loss.phi(x, a) * loss.reinforce(x, a),
        }
    ],
    "cispo-uncapped": [
        {"cispo": lambda loss, right, x, a: loss.ratio(x).detach() * loss.reinforce(x, a)}
    ],
    "cispo-bound": [
        {
            "cispo": lambda loss, right, x, a: (
                loss.ratio(x).clamp(1 - x.how["epsilon_low"], x.how["epsilon_high"]).detach()
                * loss.reinforce(x, a)
            )
        }
    ],
    "cispo-as-ratio": [
        {
            "cispo": lambda loss, right, x, a: torch.minimum(
                loss.ratio(x) * a, _bounded(loss, x) * a
            )
        },
        {"cispo": lambda loss, right, x, a: _bounded(loss, x) * a},
    ],
}


# ---- the KL --------------------------------------------------------------------------------------


def _other_gradient(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    value, slope = right(x), loss.reference_gap(x)
    other = slope if x.choices["kl"] in ("k2", "k3") else slope**2 / 2
    return value.detach() + other - other.detach()


def _weighted(weight: Callable[[Plain, SimpleNamespace], Tensor]) -> Form:
    """The KL with another weight, where it has one."""

    def penalty(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
        if x.how.get("kl_weight") != "ratio":
            return loss.estimate(x)
        return weight(loss, x) * loss.estimate(x)

    return {"penalty": penalty}


def _token_ratio(loss: Plain, x: SimpleNamespace) -> Tensor:
    return loss.difference(x, x.new, x.old).exp()


def _estimator(kind: str) -> Form:
    return {"penalty": lambda loss, right, x: right(choosing(x, kl=kind))}


def _bound(step: str, limit: float) -> Form:
    return {step: lambda loss, right, x: right(x).clamp(-limit, limit)}


def _own_mean(counted: Callable[[Plain, SimpleNamespace], Tensor | int]) -> Form:
    """The KL with a mean of its own."""

    def whole(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
        if x.choices["kl"] == "none":
            return right(x)
        choices = x.choices
        policy = right(choosing(x, kl="none"))
        x.choices = choices
        own = (loss.chosen(x, loss.penalty(x)) / counted(loss, x)).sum()
        share = len(x.keep) / x.step.responses * x.step.ranks
        return policy + x.how["beta"] * own * share

    return {"loss": whole}


def _penalty_scaled(by: float) -> Form:
    """The KL times a factor, in the loss or in the reward."""
    return {
        "penalty": lambda loss, right, x: right(x) * by,
        "scores": lambda loss, right, x: x.rewards + (right(x) - x.rewards) * by,
    }


KLS: Forms = {
    "kl-reversed": [
        {
            "reference_gap": lambda loss, right, x: -right(x),
            "scores": lambda loss, right, x: 2 * x.rewards - right(x),
        }
    ],
    "kl-dropped": [_penalty_scaled(0)],
    "kl-sign": [_penalty_scaled(-1)],
    "kl-beta": [_penalty_scaled(0.4)],
    "kl-gradient": [{"penalty": _other_gradient}],
    "kl-detached": [{"penalty": lambda loss, right, x: right(x).detach()}],
    "kl-of-old": [{"reference_gap": lambda loss, right, x: loss.difference(x, x.new, x.old)}],
    "kl-weight": [
        {"penalty": lambda loss, right, x: loss.estimate(x)},
        {"penalty": lambda loss, right, x: _token_ratio(loss, x) * loss.estimate(x)},
    ],
    "kl-weight-gradient": [_weighted(lambda loss, x: _token_ratio(loss, x).detach())],
    "kl-weight-level": [_weighted(lambda loss, x: loss.ratio(x))],
    "kl-estimator": [_estimator(kind) for kind in ("k1", "k2", "k3", "abs")],
    "kl-square": [
        {"estimate": lambda loss, right, x: loss.reference_gap(x) ** 2},
        {"estimate": lambda loss, right, x: right(x) * (2 if x.choices["kl"] == "k2" else 1)},
    ],
    "kl-clamp": [
        _bound("estimate", 5),
        _bound("estimate", 10),
        _bound("reference_gap", 10),
        _bound("reference_gap", 5),
    ],
    "kl-aggregate": [
        _own_mean(lambda loss, x: x.keep.sum().clamp(min=1)),
        _own_mean(lambda loss, x: x.keep.numel()),
        _own_mean(lambda loss, x: loss.lengths(x) * len(x.keep)),
    ],
}


# ---- the correction and the entropy --------------------------------------------------------------


def _on_kl(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    return right(x) * (1 if x.choices["correction"] == "none" else loss.correction(x))


def _live(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    term = loss.term(x, x.advantages[:, None])
    if x.choices["correction"] == "none":
        return -term
    return -term * loss.correction(having(x, old=x.old + x.new - x.new.detach()))


def _live_of_new(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    term = loss.term(x, x.advantages[:, None])
    return -term if x.choices["correction"] == "none" else -term * loss.correction(x)


def _from_new(loss: Plain, right: Right, x: SimpleNamespace) -> Tensor:
    return loss.difference(x, x.new.detach(), x.log_probs_rollout)


def _sum_of_ratios(loss: Plain, right: Right, x: SimpleNamespace, level: str) -> Tensor:
    if level != "sequence":
        return right(x, level)
    own = torch.where(x.keep, loss.engine_gap(x).exp(), 0.0)
    return own.sum(1, keepdim=True).expand_as(own)


def _mean_for_product(loss: Plain, right: Right, x: SimpleNamespace, level: str) -> Tensor:
    swap = {"sequence": "geometric", "geometric": "sequence"}
    return right(x, swap.get(level, level))


CORRECTIONS: Forms = {
    "correction-on-kl": [{"penalty": _on_kl}],
    "correction-dropped": [{"correction": lambda loss, right, x: torch.ones_like(x.new)}],
    "correction-mean-left": [{"mean_weight": lambda loss, right, x, weight: torch.ones(())}],
    "correction-gradient": [
        {"policy": _live},
        {
            "policy": _live_of_new,
            "engine_gap": lambda loss, right, x: loss.difference(x, x.new, x.log_probs_rollout),
        },
    ],
    "correction-of-new": [
        {
            "engine_gap": _from_new,
            "off_policy": lambda loss, right, x: _from_new(loss, right, x).exp(),
        }
    ],
    "correction-sum-of-ratios": [{"sequence_weight": _sum_of_ratios}],
    "correction-product-or-mean": [
        {
            "sequence_weight": _mean_for_product,
            "log_ratio": lambda loss, right, x: right(
                choosing(x, ratio="sequence") if x.choices["ratio"] == "product" else x
            ),
        }
    ],
    "entropy-dropped": [{"heights": lambda loss, right, x: right(x) * 0}],
    "entropy-sign": [{"heights": lambda loss, right, x: -right(x)}],
    "entropy-masked": [{"heights": lambda loss, right, x: x.entropies}],
}
