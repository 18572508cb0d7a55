"""The first error in a chunk, by three rules of ``check``, in one line, for other commands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, starmap

import numpy as np

from grpo_cli.batch import F64, Segments
from grpo_cli.engine.chunk import Chunk

_RULES = ("filler", "unrelated", "log-base", "extreme-ratio")
PER_NAT = {2: 1.0 / math.log(2.0), 10: 1.0 / math.log(10.0)}
"""Base of a logarithm → by what it multiplies natural ones. It is here since this loads little."""
_NEAR_BASE = 0.15
_LEAST, _MOST = 24, 1 << 14
_BEYOND, _BELOW, _DOUBT, _LEAST_FILLED, _LITTLE = 20.0, -50.0, -0.3, 3, 0.3


def first_error(chunk: Chunk) -> Iterator[str]:
    """Yields the first error of ``_RULES`` in the first record's first 16,384 tokens, if any.

    Some reductions decide whether the rules of ``grpo check`` are loaded at all: they take 16 µs
    of a record of 154 tokens, where loading the rules takes 10 ms.
    """
    widths = chunk.batch.responses.lengths[: int(chunk.batch.records.lengths[0])]
    widths = np.clip(_MOST - (np.cumsum(widths) - widths), 0, widths)
    tokens = int(widths.sum())
    names = ("log_probs_new", "log_probs_old", "log_probs_rollout")
    columns = {name: getattr(chunk.batch, name) for name in names}
    columns = {name: values[:tokens] for name, values in columns.items() if values is not None}
    if tokens < _LEAST or not any(starmap(_suspicious, combinations(columns.values(), 2))):
        return
    from grpo_cli.commands.check.pair import Pair  # not loaded for sane records
    from grpo_cli.commands.check.samples import find_in_pairs
    from grpo_cli.commands.check.tokens import Tokens

    rows = Segments(widths)
    record = Tokens(
        places=(),
        names={},
        counts=np.array([len(widths)]),
        lengths=widths,
        positions=np.arange(tokens) - rows.spread(rows.starts),
        columns=columns,
        samples=np.zeros(1, dtype=np.int64),
    )
    for rule, finding in find_in_pairs((Pair(record, names) for names in record.pairs), _RULES):
        yield f"{rule.describe(finding)[0]} (run grpo check for all findings)"
        return


def _suspicious(first: F64, second: F64) -> bool:
    """Whether a rule may find an error: never False if one does over all tokens."""
    size = np.abs(first - second)
    if not size.any():
        return False
    if size.max() > _BEYOND or min(first.min(), second.min()) < _BELOW:
        return True
    for values, others in ((first, second), (second, first)):
        if np.count_nonzero((values == 0.0) & (others < _DOUBT)) >= _LEAST_FILLED:
            return True
    scale = float(first.sum()) / (float(second.sum()) or -1.0)
    factors = (one for per_nat in PER_NAT.values() for one in (per_nat, 1.0 / per_nat))
    if any(abs(scale / factor - 1.0) < _NEAR_BASE for factor in factors):
        return True
    a, b = first - first.mean(), second - second.mean()
    return bool(a @ b < _LITTLE * np.sqrt((a @ a) * (b @ b)))
