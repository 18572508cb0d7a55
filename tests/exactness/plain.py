"""Six objectives in plain Python, one token after the other, written from the papers' formulas.

It shares nothing with the package, so that a mistake would have to be made twice. A record is
``new``, ``old``, ``ref`` (lists of lists), ``rewards`` and ``groups`` (one per response), nothing
masked. Beside every number stands the magnitude that its tolerance is relative to: the sum of the
absolute values of what was added up or subtracted to make it.

Sources: GRPO arXiv 2402.03300; Dr. GRPO 2503.20783; DAPO 2503.14476, its token mean taken over the
whole batch; GSPO 2507.18071; CISPO 2506.13585 with ScaleRL's window [0, 5] (2510.13786); TRL
1.16.0's GRPOTrainer with β: its KL is multiplied by the ratio, and differentiated with it.
"""

from __future__ import annotations

from math import exp, fsum, sqrt
from typing import Any, NamedTuple


class Rule(NamedTuple):
    """What a variant does: window of the ratio, β, what is added to the std, the mean."""

    low: float
    high: float
    beta: float = 0.0
    std_eps: float | None = 1e-8
    mean: str = "response"


RULES = {
    "grpo": Rule(0.2, 0.2, beta=0.04),
    "dr": Rule(0.2, 0.2, std_eps=None, mean="sum"),
    "dapo": Rule(0.2, 0.28, mean="token"),
    "gspo": Rule(3e-4, 4e-4),
    "cispo": Rule(1.0, 4.0, mean="token"),
    "trl/grpo": Rule(0.2, 0.2, beta=0.04, std_eps=1e-4),
}
Record = dict[str, Any]


def advantages(record: Record, rule: Rule) -> list[tuple[float, float]]:
    """(r − r̄) / (σ + ε) in each group, or r − r̄; with magnitudes."""
    groups: dict[Any, list[float]] = {}
    for group, reward in zip(record["groups"], record["rewards"], strict=True):
        groups.setdefault(group, []).append(reward)
    found = []
    for group, reward in zip(record["groups"], record["rewards"], strict=True):
        every = groups[group]
        mean, largest = fsum(every) / len(every), max(map(abs, every))
        if max(every) == min(every):
            found.append((0.0, 0.0))
        elif rule.std_eps is None:
            found.append((reward - mean, largest))
        else:
            std = sqrt(fsum((r - mean) ** 2 for r in every) / (len(every) - 1)) + rule.std_eps
            found.append(((reward - mean) / std, largest / std * (1 + largest / std)))
    return found


def tokens_of(at: int, record: Record, variant: str, advantage: tuple[float, float]) -> list[Any]:
    """Of each token: log ratio, ratio, clip, s, k, ∂s, β·∂k, and the magnitudes of s and β·k."""
    rule, (A, size) = RULES[variant], advantage  # noqa: N806 - as in the formulas
    news, olds, refs = record["new"][at], record["old"][at], record["ref"][at]
    logs = [new - old for new, old in zip(news, olds, strict=True)]
    if variant == "gspo" and logs:
        logs = [fsum(logs) / len(logs)] * len(logs)
    rows = []
    for log, new, ref in zip(logs, news, refs, strict=True):
        ratio = exp(log)
        inside = min(max(ratio, 1 - rule.low), 1 + rule.high)
        s, slope, side = min(ratio * A, inside * A), ratio * A, 0
        if variant == "cispo":
            s, slope, side = inside * A * new, inside * A, (inside < ratio) - (inside > ratio)
            side = side if A else 0
        elif inside * A < ratio * A:
            slope, side = 0.0, 1 if ratio > 1 else -1
        k, k_slope, k_size = 0.0, 0.0, 0.0
        if rule.beta:
            k, k_slope = exp(ref - new) - (ref - new) - 1, 1 - exp(ref - new)
            k_size = exp(ref - new) + abs(ref - new) + 1
        if variant == "trl/grpo":
            k, k_slope, k_size = ratio * k, ratio * (k + k_slope), 2 * ratio * k_size
        s_size = max(ratio, 1.0) * max(size, abs(A)) * max(1.0, -new)
        sizes = (s_size, max(k_size, abs(k_slope)))
        rows.append((log, ratio, side, s, k, slope, rule.beta * k_slope, *sizes))
    return rows


def weights(lengths: list[int], rule: Rule) -> list[float]:
    """What a token of each response weighs."""
    if rule.mean == "token":
        return [1 / max(1, sum(lengths))] * len(lengths)
    each = [1 / max(1, length) if rule.mean == "response" else 1.0 for length in lengths]
    return [one / len(lengths) for one in each]
