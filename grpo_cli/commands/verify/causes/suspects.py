"""A record that differs, which is evaluated when a cause is tried on it."""

from __future__ import annotations

from functools import cached_property

from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.judging import Judged
from grpo_cli.records import Record


class Suspect:
    """A record that differs, as it was judged."""

    def __init__(self, judged: Judged, record: Record) -> None:
        self._record, self._plan, self._tolerance = record, judged.plan, judged.within

    @cached_property
    def case(self) -> Case:
        """The record, evaluated."""
        return Case.of(self._record, self._plan, self._tolerance)
