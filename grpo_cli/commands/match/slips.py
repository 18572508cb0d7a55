"""Mistakes that ``verify`` knows, tried where no convention gives a logged loss."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from grpo_cli.commands.match.answer import Mistaken
from grpo_cli.commands.match.question import LoggedNumber
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.search import explained
from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.expected import read_expectations
from grpo_cli.engine import Reader
from grpo_cli.errors import GrpoError, InputError
from grpo_cli.records import Record
from grpo_cli.records.parse.assemble import join
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import Plan, plan

_MOST = 1 << 16
"""Tokens of records on which mistakes are tried: a second's work."""
_PLAIN = ("grpo", "dr", "dapo")
"""Variants in which mistakes are looked for, after the one that the records or the flags name."""


def find_mistakes(base: Plan, source: Reader, target: LoggedNumber) -> tuple[Mistaken, ...]:
    """Returns the mistakes that give the number, of the first variant of which one does.

    Args:
        base: what is known of the objective.
        source: the records, which are one batch.
        target: the number.
    """
    record = _joined(record for _, record in source.records())
    if record is None:
        return ()
    record = replace(record, expected={target.name: target.value})
    rows = [base.variant] if base.asked else [source.facts.named or "", base.variant, *_PLAIN]
    for row in dict.fromkeys(rows):
        if row not in VARIANTS:
            continue
        meant = plan(
            row, stages=base.swapped, hyperparameters=base.flags, batch="record", strict=False
        )
        with suppress(GrpoError), np.errstate(all="ignore"):  # what is tried need not make sense
            case = Case.of([record], [read_expectations(record)[0]], meant, Tolerance())
            causes = explained(case).causes
            if causes:
                return tuple(Mistaken(row, one.mistake, one.words) for one in causes)
    return ()


def _joined(records: Iterable[Record]) -> Record | None:
    """Returns records as one; None where they differ in layout, or are too many."""
    batch, tokens = [], 0
    for one in records:
        batch.append(one)
        tokens += sum(one.widths)
        if tokens > _MOST:  # the rest need not be read
            return None
    with suppress(InputError):
        return join(batch) if batch else None
    return None
