"""The records of a step in two runs, each beside its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from grpo_cli.records import Record

Pair = tuple[Record | None, Record | None]


class Paired(NamedTuple):
    """Pairs, None in the place of what only one run has; ``note`` says what was done for it."""

    pairs: list[Pair]
    note: str = ""


def paired(ours: Sequence[Record], theirs: Sequence[Record]) -> Paired:
    """By id where every record has one of its own; else in their order.

    Where the order does not fit, by what was sampled: a run whose rollouts came in another order,
    or that lost some, is still the same run.
    """
    mine, yours = (_named(records, lambda one: one.id) for records in (ours, theirs))
    if mine and yours and mine.keys() & yours.keys():
        return Paired([*_by_name(mine, yours)])
    mine, yours = _named(ours, _sampled), _named(theirs, _sampled)
    in_order = [*mine] == [*yours]
    alike = mine.keys() <= yours.keys() or mine.keys() >= yours.keys()
    if not mine or not yours or in_order or not alike:
        return Paired([*zip_longest(ours, theirs)])
    return Paired([*_by_name(mine, yours)], "records are paired by what was sampled")


def _named(
    records: Sequence[Record], name: Callable[[Record], Hashable]
) -> Mapping[Hashable, Record]:
    """The records by their names; none where two have the same, or one has none."""
    named = {name(one): one for one in records}
    return {} if None in named or len(named) < len(records) else named


def _by_name(mine: Mapping[Hashable, Record], yours: Mapping[Hashable, Record]) -> Iterator[Pair]:
    yield from ((one, yours.get(name)) for name, one in mine.items())
    yield from ((None, other) for name, other in yours.items() if name not in mine)


def _sampled(record: Record) -> Hashable:
    """What was sampled: tokens, or else what stands for them."""
    rows = record.token_ids if record.tokens is None else record.tokens
    if rows is not None:
        return tuple(map(tuple, rows))
    column = record.columns.get("log_probs_rollout", record.columns.get("log_probs_new"))
    return column if isinstance(column, bytes) else None
