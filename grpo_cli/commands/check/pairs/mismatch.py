"""The engine that sampled and the trainer disagree about the same tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.pair import Pair

_MISMATCH, _LEAST = 1.05, 30
_LOW, _HIGH, _EFFECTIVE = 0.5, 2.0, 0.3


def _look(pair: Pair) -> Iterator[Finding]:
    """The mean of exp|log π_train − log π_rollout| exceeds 1.05, on 30 tokens or more.

    That is the bound above which NeMo-RL calls a sequence suspect (token_mult_prob_error). Told
    besides: whether the mean weight leaves 0.5 to 2 or the effective sample size falls below 30 %
    of the tokens, from where on verl's rollout correction is to reject; KL(rollout‖trainer) by k1
    and k3; and the tails, because means hide them.

    References:
        NeMo-RL, docs/guides/dtensor-tp-accuracy.md; verl, docs/algo/rollout_corr.md.
    """
    if not pair.to_engine or pair.equal.all():
        return
    n, error, _ = pair.moments(np.exp(np.minimum(pair.size, 50.0)))
    for sample in np.flatnonzero((n >= _LEAST) & (error > _MISMATCH)).tolist():
        yield _finding(pair, sample, float(error[sample]))


def _finding(pair: Pair, sample: int, error: float) -> Finding:
    part = pair.tokens(sample)
    change, size, weight = pair.log_ratio[part], pair.size[part], pair.weight[part]
    p50, p99, p999 = (float(value) for value in np.quantile(size, (0.5, 0.99, 0.999)))
    share = float(weight.sum()) ** 2 / (size.size * float(np.square(weight).sum()))
    k3 = float((np.expm1(np.minimum(change, 50.0)) - change).mean())
    mean = float(weight.mean())
    bad = not _LOW <= mean <= _HIGH or share < _EFFECTIVE
    return Finding(
        "warning",
        f"the engines differ: mean |{pair}| is {float(size.mean()):.3g} nats per token, mean "
        f"exp|·| {error:.4g} (bound 1.05), KL {k3:.3g}, effective sample size {share:.0%}, 99 % "
        f"within {p99:.3g}" + ("; weights are beyond what verl corrects" if bad else ""),
        "compare temperature, top-p, precision and weights of the two engines; --correction "
        "weighs or masks the tokens",
        {
            "columns": list(pair.names),
            "mean_abs": float(size.mean()),
            "mean_exp_abs": error,
            "mean_weight": mean,
            "kl_k1": float(-change.mean()),
            "kl_k3": k3,
            "effective_sample_size": share,
            "p50": p50,
            "p99": p99,
            "p999": p999,
            "max": float(size.max()),
            "tokens": size.size,
        },
        record=pair.record(sample),
    )


RULES = (
    Rule(
        "rollout-mismatch",
        ("warning",),
        "The engine that sampled and the trainer disagree beyond NeMo-RL's published bound.",
        80,
        _look,
        pairs=True,
        about="rollout mismatch",
        needs=("log_probs_rollout",),
    ),
)
