"""Columns whose values cannot be log-probs, or entropies, at all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from grpo_cli.batch import F64
from grpo_cli.commands.check.record_view import LOG_PROBS, View
from grpo_cli.commands.check.rule import Finding, rule

_ROUNDING = 1e-4


def _records_with(view: View, bad: NDArray[np.bool_]) -> list[tuple[int, slice]]:
    """The records with a bad token, and their tokens."""
    if not bad.any():
        return []
    hits = np.unique(view.records.index[view.responses.index[bad]])
    ends = np.cumsum(view.tokens)
    return [(at, slice(int(ends[at] - view.tokens[at]), int(ends[at]))) for at in hits.tolist()]


@rule("not-finite", "error", "NaN or infinity where a token counts.", rank=10, explains=True)
def find_non_finite(view: View) -> Iterator[Finding]:
    """NaN or ±inf where a token counts: every formula is undefined there."""
    for name in LOG_PROBS:
        values = view.column(name)
        if values is None:
            continue
        bad = ~np.isfinite(values)
        for _, part in _records_with(view, bad):
            at = part.start + int(np.argmax(bad[part]))
            count, of = int(bad[part].sum()), part.stop - part.start
            yield Finding(
                "error",
                f"{view.key(name)} is {values[at]:g} at {count:,} of {of:,} tokens",
                "find out why the engine returned none; mask these tokens or drop the rows, and "
                "never fill them with 0.0, which means probability 1",
                {"column": name, "tokens": count, "of": of},
                **view.place(at),
            )


@rule(
    "probabilities",
    "error",
    "Log-probs above 0: probabilities, −log p, or fillers.",
    rank=11,
    explains=True,
)
def find_positive_log_probs(view: View) -> Iterator[Finding]:
    """Values above 0, which no log-prob has: probabilities, or log-probs without their sign.

    The logarithm of a probability is at most 0, so a single value above 0 is proof. All of them
    in [0, 1] are probabilities; all >= 0 with some above 1 are −log p; a mixture is neither.
    """
    for name in LOG_PROBS:
        values = view.column(name)
        if values is None:
            continue
        above = (values > 0.0) & (values < np.inf)
        for _, part in _records_with(view, above):
            yield _describe_positive(view, name, values[part], above[part], part.start)


def _describe_positive(
    view: View, name: str, values: F64, above: NDArray[np.bool_], start: int
) -> Finding:
    finite, positive = values[np.isfinite(values)], values[above]
    words, advice = _explain_positive(finite, positive)
    return Finding(
        "error",
        f"{view.key(name)} has {len(positive):,} of {len(values):,} values above 0; {words}",
        advice,
        {
            "column": name,
            "above_0": len(positive),
            "of": len(values),
            "min": float(finite.min()),
            "max": float(finite.max()),
        },
        **view.place(start + int(np.argmax(above))),
    )


def _explain_positive(values: F64, positive: F64) -> tuple[str, str]:
    if values.min() >= 0.0 and values.max() <= 1.0:
        return "all are in [0, 1]: probabilities", "take the natural logarithm when dumping"
    if values.min() >= 0.0:
        return "none is below 0: −log p, a loss", "negate them when dumping"
    if len(positive) > 1 and (positive == positive[0]).all():
        return (
            f"each of them is {positive[0]:g}: padding that was filled with {positive[0]:g}",
            "such a filler (TRL's INVALID_LOGPROB is 1.0) is for masked tokens: write the mask too",
        )
    return (
        "log-probs never are",
        "dump log_softmax(logits) of the token taken: neither logits nor scores; a tiny excess "
        "comes from a log-sum-exp in low precision (clamp at 0)",
    )


@rule("negative-entropy", "error", "Entropies below 0.", rank=12)
def find_negative_entropies(view: View) -> Iterator[Finding]:
    """Entropies below 0 by more than rounding, which no entropy of a distribution over words is."""
    values = view.column("entropies")
    if values is None:
        return
    negative = values < -_ROUNDING
    for _, part in _records_with(view, negative):
        low = negative[part]
        same = np.unique(values[part][low])
        filled = f", all of them {same[0]:g}: a filler" if len(same) == 1 else ""
        yield Finding(
            "error",
            f"{view.key('entropies')} is negative at {int(low.sum()):,} of {len(low):,} tokens"
            f"{filled}; an entropy is at least 0",
            "take −Σ p·log p over the words, not −log p of fillers (padding filled with a log-prob "
            'of 1.0 has an "entropy" of −1), and mask the padding',
            {"tokens": int(low.sum()), "of": len(low), "min": float(same[0])},
            **view.place(part.start + int(np.argmax(low))),
        )
