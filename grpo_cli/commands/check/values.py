"""Columns whose values cannot be log-probs at all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.check.finding import Finding
from grpo_cli.commands.check.record_view import LOG_PROBS, View


def not_finite(view: View) -> Iterator[Finding]:
    """NaN or ±inf where a token counts: every formula is undefined there."""
    for name in LOG_PROBS:
        values = view.column(name)
        if values is None or np.isfinite(values).all():
            continue
        bad = ~np.isfinite(values)
        at = int(np.argmax(bad))
        yield Finding(
            "not-finite",
            "error",
            f"{view.key(name)} is {values[at]:g} at {int(bad.sum()):,} of {values.size:,} tokens",
            "find out why the engine returned none; mask these tokens or drop the rows, and never "
            "fill them with 0.0, which means probability 1",
            {"column": name, "tokens": int(bad.sum()), "of": values.size},
            **view.place(at),
        )


def probabilities(view: View) -> Iterator[Finding]:
    """Values above 0, which no log-prob has: probabilities, or log-probs without their sign.

    The logarithm of a probability is at most 0, so a single value above 0 is proof. All of them
    in [0, 1] are probabilities; all >= 0 with some above 1 are −log p; a mixture is neither.
    """
    for name in LOG_PROBS:
        values = view.column(name)
        if values is None:
            continue
        finite = values[np.isfinite(values)]
        positive = finite > 0.0
        if not positive.any():
            continue
        words, advice = _reading(finite)
        at = int(np.argmax(values > 0.0))
        yield Finding(
            "probabilities",
            "error",
            f"{view.key(name)} has {int(positive.sum()):,} of {values.size:,} values above 0; "
            f"{words}",
            advice,
            {
                "column": name,
                "above_0": int(positive.sum()),
                "of": values.size,
                "min": float(finite.min()),
                "max": float(finite.max()),
            },
            **view.place(at),
        )


def _reading(values: F64) -> tuple[str, str]:
    if values.min() >= 0.0 and values.max() <= 1.0:
        return "all are in [0, 1]: probabilities", "take the natural logarithm when dumping"
    if values.min() >= 0.0:
        return "none is below 0: −log p, a loss", "negate them when dumping"
    return (
        "log-probs never are",
        "dump log_softmax(logits) of the token taken: neither logits nor scores; a tiny excess "
        "comes from a log-sum-exp in low precision (clamp at 0)",
    )
