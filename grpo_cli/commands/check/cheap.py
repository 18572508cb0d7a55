"""What a cheap check would call an error, in one line, for commands that only pass by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.engine.chunk import Chunk

_CHEAP = frozenset({"filler", "unrelated", "extreme-ratio"})
_LEAST, _MOST = 24, 1 << 14
_PAIRS = (
    ("log_probs_new", "log_probs_old"),
    ("log_probs_old", "log_probs_rollout"),
    ("log_probs_new", "log_probs_rollout"),
)
_BEYOND, _BELOW, _DOUBT, _FEW, _LITTLE = 20.0, -50.0, -0.3, 3, 0.3


def cheap(chunk: Chunk) -> Iterator[str]:
    """The first error of fillers, unrelated columns and impossible ratios in the first record.

    A few reductions of its first 16,384 tokens; the rules of ``grpo check`` are loaded only where
    one of them may have something to say.
    """
    widths = _widths(chunk)
    tokens = int(widths.sum())
    names = dict.fromkeys(name for pair in _PAIRS for name in pair)
    found = {name: getattr(chunk.batch, name) for name in names}
    known = {name: column[:tokens] for name, column in found.items() if column is not None}
    if tokens >= _LEAST and any(
        _suspicious(known[one], known[other]) for one, other in _PAIRS if {one, other} <= {*known}
    ):
        yield from _said(known, widths)


def _widths(chunk: Chunk) -> I64:
    """Tokens of the first record's responses, as far as they are looked at."""
    widths = chunk.batch.responses.lengths[: int(chunk.batch.records.lengths[0])]
    before = np.cumsum(widths) - widths
    return np.minimum(widths, np.maximum(_MOST - before, 0))


def _suspicious(one: F64, other: F64) -> bool:
    """Whether a rule may find something: never false where one of them does over all tokens."""
    off = np.abs(one - other)
    if not off.any():
        return False
    if off.max() > _BEYOND or min(one.min(), other.min()) < _BELOW:
        return True
    for values, beside in ((one, other), (other, one)):
        if np.count_nonzero((values == 0.0) & (beside < _DOUBT)) >= _FEW:
            return True
    a, b = one - one.mean(), other - other.mean()
    return bool(a @ b < _LITTLE * np.sqrt((a @ a) * (b @ b)))


def _said(columns: Mapping[str, F64], widths: I64) -> Iterator[str]:
    from grpo_cli.commands.check.pair import Pair  # what is sane does without
    from grpo_cli.commands.check.record_view import View
    from grpo_cli.commands.check.rules import pair_rules

    view = View(
        places=(),
        values=(),
        counts=np.array([len(widths)]),
        widths=widths,
        columns=columns,
        mask=None,
        groups=np.zeros(len(widths), dtype=np.int64),
        names={},
    )
    for pair in view.pairs:
        told = Pair(view, pair)
        for rule in pair_rules():
            if rule.code not in _CHEAP:
                continue
            for finding in rule.look(told):
                yield f"{rule.code}: {finding.message} (grpo check says more)"
                return
