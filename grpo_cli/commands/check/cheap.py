"""What a cheap check would call an error, in one line, for commands that only pass by."""

from __future__ import annotations

import numpy as np

from grpo_cli.commands.check.finding import Rule
from grpo_cli.commands.check.pair import Pair
from grpo_cli.commands.check.pairs import extreme, filler, unrelated
from grpo_cli.commands.check.record_view import LOG_PROBS, View
from grpo_cli.engine.chunk import Chunk

_RULES: tuple[Rule, ...] = (*filler.RULES, *unrelated.RULES, *extreme.RULES[:1])
_LEAST = 24


def cheap(chunk: Chunk) -> str | None:
    """The first error of fillers, unrelated columns and impossible ratios; None if there is none.

    A few passes over the columns of a chunk, whose records are taken for one sample.
    """
    batch = chunk.batch
    columns = {name: getattr(batch, name) for name in LOG_PROBS}
    known = {name: column for name, column in columns.items() if column is not None}
    if known.get("log_probs_old") is known.get("log_probs_new"):
        known.pop("log_probs_old", None)
    if batch.responses.total < _LEAST or len(known) < 2:
        return None
    names = chunk.records[0].names if chunk.records else {}
    view = View(
        places=(),
        values=(),
        counts=np.array([batch.responses.count]),
        widths=batch.responses.lengths,
        columns=known,
        mask=None,
        groups=np.zeros(batch.responses.count, dtype=np.int64),
        names=names,
    )
    for pair in view.pairs:
        told = Pair(view, pair)
        for rule in _RULES:
            for finding in rule.look(told):
                return f"{rule.code}: {finding.message} (grpo check says more)"
    return None
