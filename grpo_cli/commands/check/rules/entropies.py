"""Entropies against log-probs: what one distribution allows, token by token and on average."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.check.record_view import View
from grpo_cli.commands.check.rule import Finding, rule

_LEAST_TOKENS = 64
_COPIED, _COPY = 0.99, 1e-4
_BELOW, _OFTEN, _TOO_OFTEN = 0.5, 0.1, 0.3
_SIGMAS, _AWAY, _WITHIN = 6.0, 1.2, 0.1
_SURE, _TEMPERED = 0.3, 0.8
_STRAIGHT, _SPREAD, _SLOPES = 0.8, 1.2, (0.6, 1.1)
_BASES = {2: 1.0 / math.log(2.0), 10: 1.0 / math.log(10.0)}


class _Sample(NamedTuple):
    """One record: −log p of the tokens taken, the entropies, and whether columns have one mean."""

    record: int
    cost: F64
    entropy: F64
    agree: bool

    @property
    def factor(self) -> float:
        """The mean −log p over the mean entropy; 1 if they may be equal.

        Of tokens drawn from a policy they have one mean.
        """
        over, mean = self.cost - self.entropy, float(self.entropy.mean())
        error = float(over.std(ddof=1)) / math.sqrt(len(over))
        sure = mean > 0.0 and abs(float(over.mean())) > _SIGMAS * error
        return float(self.cost.mean()) / mean if sure and self.agree else 1.0

    @property
    def low(self) -> float:
        """The share of tokens whose entropy is below half of the least that their p allows."""
        p = np.exp(-self.cost)
        least = self.cost * p - (1.0 - p) * np.log(np.maximum(1.0 - p, 1e-300))
        return float(np.mean((self.entropy < _BELOW * least) & (least > 1e-3)))

    @property
    def slope(self) -> float:
        """Of log H on log(−log p), where the likeliest token was taken.

        About 0.9 in one distribution, whatever the base, and 0.9 T where the log-probs alone are
        at T. It is 1 where the two do not correlate, or all tokens are about as sure.
        """
        taken = (self.cost > 1e-6) & (self.cost < _SURE) & (self.entropy > 1e-6)
        if np.count_nonzero(taken) < _LEAST_TOKENS / 4:
            return 1.0
        x, y = np.log(self.cost[taken]), np.log(self.entropy[taken])
        x, y = x - x.mean(), y - y.mean()
        straight = float(x @ y) > _STRAIGHT * math.sqrt(float(x @ x) * float(y @ y))
        if not straight or x.std() < _SPREAD:
            return 1.0
        return float(y.std() / x.std())  # both are measured with errors


def _samples(view: View) -> Iterator[_Sample]:
    entropies, new = view.columns.get("entropies"), view.log_probs.get("log_probs_new")
    if entropies is None or new is None:
        return
    for record in np.flatnonzero(view.tokens >= _LEAST_TOKENS).tolist():
        part = view.tokens_of(record)
        cost, entropy = -new[part], entropies[part]
        if np.isfinite([cost, entropy]).all() and (entropy >= 0.0).all():
            means = [float(column[part].mean()) for column in view.log_probs.values()]
            agree = max(means) - min(means) < 0.05 * float(cost.mean())
            yield _Sample(record, cost, entropy, agree)


@rule("log-base")
def find_log_bases_by_entropy(view: View) -> Iterator[Finding]:
    """Finds records all of whose columns are in base 2 or 10, by their entropies in nats."""
    for one in _samples(view):
        base = _base_of(one)
        if base:
            yield Finding(
                f"the mean −log p is {one.factor:.3f} times the mean entropy: base {base}",
                f"multiply the log-probs by ln {base}, unless the entropies are in another base",
                {"columns": ["log_probs_new", "entropies"], "base": base, "factor": one.factor},
                record=one.record,
            )


def _base_of(one: _Sample) -> int:
    fits = [base for base, per_nat in _BASES.items() if abs(one.factor / per_nat - 1.0) < _WITHIN]
    right = _SLOPES[0] < one.slope < _SLOPES[1] and one.low < _TOO_OFTEN
    return fits[0] if fits and right else 0


@rule("entropies")
def find_wrong_entropies(view: View) -> Iterator[Finding]:
    """Finds entropies that are not of the distribution from which the tokens were drawn.

    They are −log p at 99 of 100 tokens. Or their mean is not that of −log p, by 6 standard errors
    and a fifth, which is an info where top-p may have cut unlikely words off. Or 1 of 10 is less
    than half of −p·log p − (1 − p)·log(1 − p), the least where a word has probability p.
    """
    for one in _samples(view):
        size = np.maximum(one.cost, one.entropy)
        equal = np.mean(np.abs(one.cost - one.entropy) <= _COPY * size + 1e-9)
        factor, low = one.factor, one.low
        name, evidence = view.key("entropies"), {"factor": factor, "slope": one.slope}
        if equal > _COPIED:
            yield Finding(
                f"{name} equal −log p of the token that was taken, at {equal:.0%} of the tokens",
                "take −Σ p·log p over the vocabulary: −log p of one token is no entropy, though "
                "its mean over many tokens is near it",
                {"share": float(equal)},
                one.record,
            )
        elif max(factor, 1.0 / factor) > _AWAY and not _base_of(one):
            yield Finding(
                f"{name} are of another temperature than the log-probs: the mean −log p is "
                f"{factor:.3f} times the mean entropy, {'sharper' if factor < 1.0 else 'flatter'} "
                "logits",
                "divide the logits by the sampling temperature before both the entropies and the "
                "log-probs; top-p or top-k sampling has this effect too",
                evidence,
                one.record,
                severity="warning" if factor > 1.0 or one.slope < _TEMPERED else "info",
            )
        elif low > _OFTEN:
            yield Finding(
                f"{name} are too small at {low:.0%} of {len(one.cost):,} tokens: a distribution in "
                "which the token has this probability has a greater entropy",
                "compute entropy and log-prob of a token from the same logits: look for a shift, "
                "another order of rows, or another temperature",
                {"share": low, "tokens": len(one.cost)},
                one.record,
            )
