"""Records alike that surely differ: where, many at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from grpo_cli.batch import F64
from grpo_cli.commands.verify.compare import Difference, Tolerance
from grpo_cli.commands.verify.precision import precision
from grpo_cli.commands.verify.together import Beside, Flags, besides
from grpo_cli.commands.verify.verdict import Verdict, Wanted
from grpo_cli.objective.breakdown import Breakdown
from grpo_cli.records import Record
from grpo_cli.variants.plan import Plan


def differing(
    records: Sequence[Record],
    wanted: Sequence[Wanted],
    plan: Plan,
    breakdown: Breakdown,
    tolerance: Tolerance,
) -> list[Verdict | None]:
    """The verdict on each record that surely differs; None for the others."""
    columns = besides(records, [one[0] for one in wanted], breakdown, tolerance)
    if columns is None:
        return [None] * len(records)
    sure = np.ones(len(records), dtype=np.bool_)
    far: list[tuple[Beside, F64, Flags]] = []
    for column in columns:
        found = column.found(breakdown)
        near = column.near(found, tolerance)
        doubtful = column.near(found, tolerance, 1.001) & ~column.near(found, tolerance, 0.999)
        sure &= ~column.any(doubtful)
        far.append((column, found, ~near))
    for at, record in enumerate(records):
        sure[at] = sure[at] and not any(map(precision, _values(record, wanted[at])))
    verdicts = _first(records, wanted, plan, breakdown, far)
    return [verdict if fine else None for verdict, fine in zip(verdicts, sure, strict=True)]


def _values(record: Record, wanted: Wanted) -> Iterator[F64]:
    for one in wanted[0]:
        if one.level == "token" and record.mask is not None:
            yield one.values[np.frombuffer(record.mask, dtype=np.bool_)]
        else:
            yield one.values


def _first(
    records: Sequence[Record],
    wanted: Sequence[Wanted],
    plan: Plan,
    breakdown: Breakdown,
    far: Sequence[tuple[Beside, F64, Flags]],
) -> list[Verdict | None]:
    differences: list[list[Difference]] = [[] for _ in records]
    for column, found, off in far:
        places = np.flatnonzero(off)
        owners, firsts = np.unique(column.owner[places], return_index=True)
        counts = np.bincount(column.owner, off, len(records)).astype(int).tolist()
        told = np.bincount(column.owner, column.told, len(records)).astype(int).tolist()
        for owner, at in zip(owners.tolist(), places[firsts].tolist(), strict=True):
            response, token = _place(column.of.level, at, owner, breakdown)
            differences[owner].append(
                Difference(
                    column.of.key,
                    column.of.stage,
                    response,
                    token,
                    float(column.values[at]),
                    float(found[at]),
                    counts[owner],
                    told[owner],
                )
            )
    signature = breakdown.objective.signature
    return [
        Verdict(
            record,
            plan.variant,
            signature,
            tuple(one.key for one in keys[0]),
            tuple(keys[1]),
            first=found[0],
            also=tuple(one.key for one in found[1:]),
        )
        if found
        else None
        for record, keys, found in zip(records, wanted, differences, strict=True)
    ]


def _place(level: str, at: int, owner: int, breakdown: Breakdown) -> tuple[int | None, int | None]:
    if level == "record":
        return None, None
    batch = breakdown.batch
    first = int(batch.records.starts[owner])
    if level == "response":
        return at - first, None
    response = int(batch.responses.index[at])
    within = response - first
    if batch.positions is not None:
        return within, int(batch.positions[at])
    return within, at - int(batch.responses.starts[response])
