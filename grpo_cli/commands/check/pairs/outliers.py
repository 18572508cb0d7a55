"""Single tokens that two columns see quite differently."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from grpo_cli.commands.check.finding import Finding, Rule
from grpo_cli.commands.check.pair import Pair

_LEAST = 100
_NATS = 3.8
_TIMES = 12.0
_MIDDLING = 0.5
_SHARE = 0.02


def _look(pair: Pair) -> Iterator[Finding]:
    """At most one token of 50 differs by more than 3.8 nats, and the others hardly at all.

    "Hardly": 98 % are below a twelfth of that, and no more tokens are between half a nat and it
    than beyond it. In mixtures of experts, which route some tokens differently, errors come in all
    sizes, and no token stands out like that.
    """
    if not pair.to_engine or pair.equal.all():
        return
    far = pair.size > _NATS
    every = pair.samples.sum(far.astype(np.int64))
    few = (every > 0) & (every <= _SHARE * pair.samples.lengths)
    for sample in np.flatnonzero(few & (pair.samples.lengths >= _LEAST)).tolist():
        part = pair.tokens(sample)
        size = pair.size[part]
        near = float(np.quantile(size, 0.98))
        out = size > max(_NATS, _TIMES * near)
        middling = np.count_nonzero(size > max(_MIDDLING, 3.0 * near)) - int(out.sum())
        if out.any() and middling <= out.sum():
            yield _finding(pair, part, out, near)


def _finding(pair: Pair, part: slice, out: np.ndarray, near: float) -> Finding:
    size = pair.size[part]
    at = part.start + int(np.argmax(size))
    tokens = int(out.sum())
    return Finding(
        "warning",
        f"{tokens:,} of {len(size):,} tokens differ far more than the rest, the worst by "
        f"{float(size.max()):.3g} nats ({pair} = {pair.log_ratio[at]:.4g}; 98 % are within "
        f"{near:.2g}): outliers",
        "look at these tokens: a special token that one side does not know, a row that was cut or "
        "joined, a wrong label; a correction (TIS, masks) hides them",
        {
            "columns": list(pair.names),
            "tokens": tokens,
            "of": len(size),
            "worst": float(pair.log_ratio[at]),
            "p98": near,
        },
        **pair.view.place(at),
    )


RULES = (
    Rule(
        "outliers",
        ("warning",),
        "A few tokens differ by nats between the engines while the others agree.",
        60,
        _look,
        pairs=True,
        about="rollout mismatch",
        needs=("log_probs_rollout",),
    ),
)
