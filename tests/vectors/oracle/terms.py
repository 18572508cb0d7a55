"""The KL of each token, and the weights that make one number of all tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mpmath import exp, inf, mpf, nan

from vectors.oracle.batch import Batch, Token, Values, clamp
from vectors.oracle.policy import ratio

How = Mapping[str, Any]


def k1(x: mpf) -> mpf:
    return x


def k2(x: mpf) -> mpf:
    return x**2 / 2


def k3(x: mpf) -> mpf:
    return exp(-x) + x - 1


ESTIMATORS: dict[str, Callable[[mpf], mpf]] = {"k1": k1, "k2": k2, "k3": k3, "abs": abs}
"""Of x = log π_θ − log π_ref."""


def penalties(batch: Batch, choice: str, level: str, how: How) -> Values:
    return [[_weighed(t, r, choice, level, how) for t in r.tokens] for r in batch]


def _weighed(t: Token, r: Any, choice: str, level: str, how: How) -> mpf:
    value = estimate(t, choice, how)
    if how.get("kl_weight") != "ratio":
        return value
    at = "token" if how.get("kl-weight-level") == "the token's ratio" else level
    return ratio(t, r, at) * value


def estimate(t: Token, choice: str, how: How) -> mpf:
    """The estimate; ``k3+`` and the like have their value and the slope of k2."""
    inside, outside = how.get("kl_input_clamp"), how.get("kl_output_clamp")

    def of(log_prob: mpf, kind: str) -> mpf:
        x = log_prob - t.ref
        x = x if inside is None else clamp(x, -mpf(inside), inside)
        value = ESTIMATORS[kind](x)
        return value if outside is None else clamp(value, -mpf(outside), outside)

    if choice.endswith("+"):
        return of(t.frozen, choice[:-1]) + of(t.new, "k2") - of(t.frozen, "k2")
    return of(t.new, choice)


def weights(batch: Batch, choice: str, how: How) -> list[mpf]:
    """The weight of each token of a response, one number per response."""
    lengths = [mpf(len(r.tokens)) for r in batch]
    tokens = sum(lengths)
    if not tokens and choice != "sum":
        return [mpf(0)] * len(batch)
    counted = sum(1 for n in lengths if n or how.get("empty-response") != "left out")
    if choice == "response-mean":
        return [1 / (counted * n) if n else mpf(0) for n in lengths]
    if choice == "prompt-mean":
        return _per_prompt(batch, lengths)
    if choice == "bnpo":
        return _per_micro_batch(lengths, how.get("split") or [[[*range(len(batch))]]])
    scale = {
        "token-mean": tokens,
        "token-sum": counted,
        "token-sum-norm": counted * mpf(how.get("max_completion_length", 1)),
        "sum": mpf(1),
    }
    return [1 / mpf(scale[choice])] * len(batch)


def _per_micro_batch(lengths: list[mpf], split: Any) -> list[mpf]:
    """The mean over each micro-batch's tokens; micro-batches and ranks count alike."""
    parts = [part for rank in split for part in rank]
    tokens = {i: sum(lengths[j] for j in part) for part in parts for i in part}
    return [1 / (len(parts) * tokens[i]) if tokens[i] else mpf(0) for i in range(len(lengths))]


def _per_prompt(batch: Batch, lengths: list[mpf]) -> list[mpf]:
    groups = {r.group for r in batch}
    own = {g: sum(n for r, n in zip(batch, lengths, strict=True) if r.group == g) for g in groups}
    return [1 / (len(groups) * own[r.group]) if own[r.group] else mpf(0) for r in batch]


NOTHING = mpf(10) ** -25
"""What is nearer to 0 than this is the rounding of the oracle."""


def number(x: mpf) -> float | str:
    """The nearest double, or the word that JSON has for what is not finite."""
    if x != x or x in (nan, inf, -inf):
        return {"+inf": "inf"}.get(str(x), str(x))
    return float(x) + 0.0 if abs(x) > NOTHING else 0.0
