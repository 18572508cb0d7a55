"""Other variants that give the numbers of records that differ: the loss may be another row's."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from grpo_cli.commands.solving import STD_EPS
from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.judging import Judged, Judging, Question, judge
from grpo_cli.engine.chunk import Chunk
from grpo_cli.engine.evaluator import Evaluator
from grpo_cli.errors import GrpoError
from grpo_cli.records import Record
from grpo_cli.variants import VARIANTS
from grpo_cli.variants.plan import Plan
from grpo_cli.variants.trainer import USUAL, Reading, completed

Settings = Mapping[str, object]

_CHANGES: Sequence[Settings] = (
    {"beta": 0.0},
    *({"std_eps": eps} for eps in STD_EPS),
    *({"beta": 0.0, "std_eps": eps} for eps in STD_EPS),
)
"""Usual settings in the place of a row's."""
_OF_ONE_LOSS = 1e-5
"""The relative tolerance of a lone loss, to which one of many rows comes near by chance."""
_MOST_PLANS = 2048
_PLANS: dict[tuple[str, bool, str], Plan | None] = {}
"""Plans that were made, by row, whether advantages are given, and flags: Python asks many times."""


class Rows:
    """The rows that give the numbers of all records which they were tried on.

    Each is tried as it is, with β = 0 and with the usual std_eps.

    Args:
        flags: what judges the records, with the flags.

    Attributes:
        plans: the rows that gave every record.
        given: the records that these gave.
    """

    def __init__(self, flags: Judging) -> None:
        self._flags = flags
        self.plans: Sequence[Plan] = ()
        self.given = 0
        self._has_failed = False

    def give(self, judged: Judged) -> bool:
        """Tries the rows on one more record that differs; whether one gives all it expects."""
        record = judged.record
        assert record is not None
        if self._has_failed:
            return False
        tried = self.plans
        if not self.given:
            tried = [*self._plans(record, judged.verdict.variant)]
        chunk = Chunk.of([record])
        with np.errstate(all="ignore"):  # a row need not make sense for this record
            self.plans = [plan for plan in tried if _gives(judged, record, chunk, plan)]
        self.given += bool(self.plans)
        self._has_failed = not self.plans
        return not self._has_failed

    @property
    def words(self) -> tuple[str, ...]:
        """The rows and their settings, as flags after ``-v``."""
        return tuple(shlex.join(replace(plan, batch="input").words[1:]) for plan in self.plans)

    def _plans(self, record: Record, own: str) -> Iterator[Plan]:
        """Yields the other rows as they are, then all with one usual setting, then with two."""
        usual = [row for _, row in USUAL.values()]
        names = sorted(VARIANTS, key=lambda name: name not in usual)
        fixed = {*self._flags.hyperparameters, *record.hyperparameters}
        made = ((name, self._plan(name, record, {})) for name in names)
        rows = {name: plan for name, plan in made if plan is not None}
        yield from (plan for name, plan in rows.items() if name != own)
        for change in (one for one in _CHANGES if fixed.isdisjoint(one)):
            for name, plan in rows.items():
                takes = change.keys() <= plan.takes()
                if takes and all(plan.values.get(key) != one for key, one in change.items()):
                    changed = self._plan(name, record, change)
                    if changed is not None:
                        yield changed

    def _plan(self, name: str, record: Record, change: Settings) -> Plan | None:
        """A row with the flags and another setting; None where it does not take the flags."""
        stages, given = self._flags.stages, {**self._flags.hyperparameters, **change}
        has_advantages = record.advantages is not None
        key = name, has_advantages, repr((stages, given))
        if key not in _PLANS:
            if len(_PLANS) >= _MOST_PLANS:
                _PLANS.clear()
            _PLANS[key] = None
            with suppress(GrpoError):
                _PLANS[key] = completed(
                    Reading(name),
                    advantages_given=has_advantages,
                    stages=stages,
                    hyperparameters=given,
                )
        return _PLANS[key]


def _gives(judged: Judged, record: Record, chunk: Chunk, plan: Plan) -> bool:
    within, verdict = judged.within, judged.verdict
    if [*verdict.compared] == ["loss"]:
        within = Tolerance(min(within.rtol, _OF_ONE_LOSS), within.atol, within.metrics)
    try:
        breakdown = chunk.run(Evaluator(plan).evaluate)
        (found,) = judge([Question(record, plan, ([*judged.wanted], []), within)], breakdown)
    except (GrpoError, ArithmeticError):
        return False
    if not isinstance(found, Judged):
        return False
    return found.verdict.agrees and {*verdict.compared} <= {*found.verdict.compared}
