"""Every wrong implementation."""

from __future__ import annotations

from dataclasses import replace

from trials.wrong.advantages import ADVANTAGES
from trials.wrong.clips import CLIPS
from trials.wrong.columns import COLUMNS
from trials.wrong.penalties import PENALTIES
from trials.wrong.ratios import RATIOS
from trials.wrong.reductions import REDUCTIONS
from trials.wrong.tokens import TOKENS

_STAGES = (
    (ADVANTAGES, r"^advantage"),
    (RATIOS, r"^(ratio|surrogate|policy)"),
    (CLIPS, r"^(surrogate|policy|clip)"),
    (PENALTIES, r"^kl"),
    (REDUCTIONS, r"^(aggregate|mask|accumulation|loss|sign)"),
    (TOKENS, r"^(aggregate|mask|tokens?)"),
    (COLUMNS, r"^(input|mask|tokens?|ratio|advantage|surrogate)"),
)


_ROWS = {
    "advantages negated": "advantage-sign",
    "advantages rolled by one row": "advantage-order",
    "advantages in reverse order": "advantage-order",
    "advantages whitened over the batch": "advantage-twice",
    "advantages clipped to ±0.5": "advantage-clipped",
    "advantages centred on the median": "advantage-offset",
    "advantages' absolute values": "advantage-one-sided",
    "only positive advantages": "advantage-one-sided",
    "the first response's advantage for all": "advantage-broadcast",
    "advantages weighted by length": "advantage-length",
    "advantages discounted by position": "advantage-discounted",
    "ddof 0": "std-ddof",
    "no std": "std-or-not",
    "variance for std": "scale-other",
    "rewards as they are": "centre",
    "not centred, but divided by the std": "centre",
    "median of the rewards for their mean": "centre",
    "leave-one-out mean, and divided by the std": "leave-one-out",
    "leave-one-out": "leave-one-out",
    "std of the batch": "std-level",
    "mean and std of the batch": "batch-as-one-group",
    "ratio inverted": "ratio-inverted",
    "old taken from new, detached": "old-ignored",
    "old taken from new, with its gradient": "ratio-one-gradient",
    "ratio to the reference": "ratio-policy",
    "sequence ratio for the token's": "ratio-level",
    "token ratio for the sequence's": "ratio-level",
    "product for the geometric mean": "ratio-of-sums",
    "ratio detached": "ratio-detached",
    "log-prob for the ratio": "log-prob-for-ratio",
    "1 + log ratio for the ratio": "ratio-without-exp",
    "cispo's weight with its gradient": "cispo-weight-gradient",
    "cispo's bound at 1 + ε": "cispo-bound",
    "cispo without its bound": "cispo-uncapped",
    "max for min": "clip-greater",
    "no min": "clip-both",
    "no clip": "clip-unused",
    "no lower clip": "clip-one-side",
    "no upper clip": "clip-one-side",
    "epsilon_low and epsilon_high swapped": "epsilon-swapped",
    "epsilon_low on both sides": "epsilon-high",
    "half the epsilon": "epsilon-other",
    "twice the epsilon": "epsilon-other",
    "lower bound 1/(1 + ε)": "epsilon-reciprocal",
    "clip in log space": "clip-log-space",
    "clip straight-through": "clip-through",
    "KL reversed": "kl-reversed",
    "−β": "kl-sign",
    "KL without gradient": "kl-detached",
    "KL missing": "kl-dropped",
    "β twice as large": "kl-beta",
    "β of 0.025": "kl-beta",
    "k1 for k3": "kl-estimator",
    "k2 for k3": "kl-estimator",
    "|log ratio| for k3": "kl-estimator",
    "KL to the old policy": "kl-of-old",
    "KL without its weight": "kl-weight",
    "KL with a weight": "kl-weight",
    "KL's weight without gradient": "kl-weight-gradient",
    "KL added after the mean": "kl-aggregate",
    "mean over responses for another reduction": "token-for-response-mean",
    "mean over the micro-batch's tokens": "token-for-response-mean",
    "sum over tokens": "denominator-missing",
    "sum over tokens, mean over responses": "denominator-other",
    "constant length for the denominator": "constant-length",
    "mean over padded positions": "padded-length",
    "the longest response for the constant length": "padded-length",
    "local count of tokens for the generation batch's": "local-count",
    "masked tokens in the denominator": "truncated-in-denominator",
    "B − 1 for B": "one-less",
    "not divided by the accumulation steps": "accumulation-missing",
    "divided by the accumulation steps twice": "accumulation-twice",
    "a plain factor of 1.7": "factor",
    "a plain factor of 0.3": "factor",
    "the objective for the loss": "loss-sign",
    "the loss right, its gradient four times as large": "gradient-factor",
    "the gradient right, the loss four times as large": "loss-factor",
    "last tokens dropped": "edge-token",
    "first tokens dropped": "edge-token",
    "last tokens doubled": "edge-token",
    "one token dropped": "token-lost",
    "one token doubled": "token-lost",
    "a response dropped": "response-lost",
    "a response doubled": "response-lost",
}
"""What is planted → its row in the package's catalogue, where it does not say it itself."""

MISTAKES = tuple(
    replace(one, stage=one.stage or stage, row=one.row or _ROWS[one.name])
    for family, stage in _STAGES
    for one in family
)
