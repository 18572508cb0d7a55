"""The first error in a chunk, by three rules of ``check``, in one line, for other commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from grpo_cli.batch import F64, I64
from grpo_cli.engine.chunk import Chunk

_RULES = frozenset({"filler", "unrelated", "extreme-ratio"})
_LEAST, _MOST = 24, 1 << 14
_PAIRS = (
    ("log_probs_new", "log_probs_old"),
    ("log_probs_old", "log_probs_rollout"),
    ("log_probs_new", "log_probs_rollout"),
)
_BEYOND, _BELOW, _DOUBT, _LEAST_FILLED, _LITTLE = 20.0, -50.0, -0.3, 3, 0.3


def first_error(chunk: Chunk) -> Iterator[str]:
    """Yields the first error of ``_RULES`` in the first record's first 16,384 tokens, if any.

    A few reductions decide whether the rules of ``grpo check`` are loaded at all: they take 16 µs
    of a record of 154 tokens, where loading the rules takes 10 ms.
    """
    widths = _widths(chunk)
    tokens = int(widths.sum())
    names = dict.fromkeys(name for pair in _PAIRS for name in pair)
    columns = {name: getattr(chunk.batch, name) for name in names}
    columns = {name: values[:tokens] for name, values in columns.items() if values is not None}
    if tokens >= _LEAST and any(
        _suspicious(columns[first], columns[second])
        for first, second in _PAIRS
        if {first, second} <= {*columns}
    ):
        yield from _first_error(columns, widths)


def _widths(chunk: Chunk) -> I64:
    """[R] the tokens of the first record's responses, up to 16,384 in all."""
    widths = chunk.batch.responses.lengths[: int(chunk.batch.records.lengths[0])]
    before = np.cumsum(widths) - widths
    return np.minimum(widths, np.maximum(_MOST - before, 0))


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
    a, b = first - first.mean(), second - second.mean()
    return bool(a @ b < _LITTLE * np.sqrt((a @ a) * (b @ b)))


def _first_error(columns: Mapping[str, F64], widths: I64) -> Iterator[str]:
    from grpo_cli.commands.check.pair import Pair  # not loaded for sane records
    from grpo_cli.commands.check.record_view import Tokens
    from grpo_cli.commands.check.rules import rules_of

    starts = np.cumsum(widths) - widths
    view = Tokens(
        places=(),
        names={},
        counts=np.array([len(widths)]),
        lengths=widths,
        positions=np.arange(widths.sum()) - np.repeat(starts, widths),
        columns=columns,
        samples=np.zeros(1, dtype=np.int64),
    )
    rules = [rule for rule in rules_of("pair") if rule.code in _RULES]
    for names in view.pairs:
        pair = Pair(view, names)
        for rule in rules:
            for finding in rule.find(pair):
                yield f"{rule.code}: {finding.message} (grpo check says more)"
                return
