"""The run of ``grpo verify``: the records of files, each judged as what its framework says."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grpo_cli.commands.options.source import tell_errors, tell_notes, tell_skipped
from grpo_cli.commands.verify.causes.case import Case
from grpo_cli.commands.verify.causes.search import Memory, pattern
from grpo_cli.commands.verify.compare import Difference
from grpo_cli.commands.verify.judging import Judged, Judging
from grpo_cli.commands.verify.verdict import Verdict
from grpo_cli.engine import Reader
from grpo_cli.engine.references import References, without_kl
from grpo_cli.engine.skipped import Skipped
from grpo_cli.errors import InputError
from grpo_cli.objective.kl.estimate import NO_REFERENCE
from grpo_cli.terminal.messages import say
from grpo_cli.terminal.numbers import shown
from grpo_cli.variants.plan import Plan

NO = 1
_ROWS = 5


@dataclass
class Metric:
    """A metric that differs though it decides nothing: where it first did, and in how many records.

    Attributes:
        first: how it differed there.
        name: the id of that record.
        count: of records.
    """

    first: Difference
    name: object
    count: int = 0

    @property
    def words(self) -> str:
        """In how many records, and the two numbers of the first."""
        records = f"{self.count} record{'' if self.count == 1 else 's'}"
        first = self.first
        return f"{records} ({shown(self.name)}: yours {first.expected:g}, grpo's {first.got:g})"


class Verification:
    """Judges the records of files; remembers what there is to say afterwards.

    Causes are searched for here, in the order of the records, so that what is remembered from one
    to the next does not depend on how the work was shared out.
    """

    def __init__(self, judging: Judging, reader: Reader, most: int) -> None:
        self._judging = judging
        self._reader = reader
        self._memory = Memory(most)
        self._good = 0
        self.without_expected = 0
        self.undefined = 0
        self.rows_taken: dict[str, int] = {}
        self.ignored: dict[str, None] = {}
        self.rounded: dict[str, str] = {}
        self._references = References()
        self._without_kl: list[Plan] = []
        self.metrics: dict[str, Metric] = {}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields the verdict of each record that expects anything."""
        for _, outcome in self._reader.map(self._judging):
            self._references.merge(outcome.references)
            self._references.check()
            self._reader.leave_out(outcome.skipped)
            for item in outcome.items:
                self._good += 1
                if item is None:
                    self.without_expected += 1
                    continue
                self.undefined += bool(item.verdict.undefined)
                if item.verdict.compared:
                    yield self._row(item)
        if not self._count and self._reader.reading.selects:
            raise self._reader.nothing()

    def _row(self, item: Judged) -> dict[str, Any]:
        verdict, plan = item.verdict, item.plan
        if NO_REFERENCE.name in verdict.signature:
            self._without_kl.append(plan)
        words = shlex.join(plan.words)
        self.rows_taken[words] = self.rows_taken.get(words, 0) + 1
        self.ignored |= dict.fromkeys(verdict.ignored)
        self.rounded |= verdict.rounded
        for metric in verdict.metrics:
            self.metrics.setdefault(metric.key, Metric(metric, verdict.record.name)).count += 1
        return (verdict if verdict.agrees else self._explained(verdict, plan)).row()

    def _explained(self, verdict: Verdict, plan: Plan) -> Verdict:
        """Adds why a record differs, or what is known of that."""
        case = Case.of(verdict.record, plan, self._judging.within)
        with np.errstate(all="ignore"):  # what is tried need not make sense for this record
            found = self._memory.causes(case)
            known = pattern(case) if found == [] else ""
        return replace(verdict, causes=tuple(found or ()), pattern=known)

    @property
    def skipped(self) -> Skipped:
        """The records that could not be read or evaluated."""
        return self._reader.skipped

    @property
    def _count(self) -> int:
        """All records, those that could not be read among them."""
        return self._good + len(self.skipped)

    def tell(self, *, as_json: bool, quiet: bool) -> None:
        """Prints notes on what was assumed, skipped and ignored."""
        tell_errors(self.skipped, as_json=as_json)
        tell_skipped(self.skipped, self._count)
        tell_notes(self._reader.notes() | without_kl(self._without_kl), quiet=quiet)
        if quiet:
            return
        if not self._judging.variant:
            self._tell_rows()
        if self.without_expected and self.without_expected < self._count:
            say(f'note: {self.without_expected} of {self._count} records have no "expected"')
        if self.undefined:
            some = "1 record" if self.undefined == 1 else f"{self.undefined} records"
            say(f"note: no token counts in {some}: your loss is NaN (0/0), grpo's 0; not compared")
        if self.ignored:
            say(f"note: not compared: {', '.join(self.ignored)}")
        for key, name in self.rounded.items():
            say(f"note: {key} was rounded to {name}, and is compared as far as that goes")
        for key, metric in self.metrics.items():
            say(f"note: {key} differs in {metric.words}; a metric alone fails no record")
        if left := self._memory.left_out:
            say(f"note: no cause was searched for in {left} differing records (--causes N does)")

    def _tell_rows(self) -> None:
        for words, count in list(self.rows_taken.items())[:_ROWS]:
            say(f"note: {count} record{'' if count == 1 else 's'} evaluated as {words}")
        if (more := sum(list(self.rows_taken.values())[_ROWS:])) > 0:
            say(f"note: … and {more} more otherwise (see the signatures of --json)")

    def document(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns everything as ``--json`` prints it."""
        return {
            "agrees": all(row["agrees"] for row in rows),
            "rtol": self._judging.within.rtol,
            "atol": self._judging.within.atol,
            "verified": len(rows),
            "differing": sum(not row["agrees"] for row in rows),
            "without_expected": self.without_expected,
            "metrics_differ": {key: metric.count for key, metric in self.metrics.items()},
            "undefined": self.undefined,
            "records": rows,
        }

    def code(self, rows: list[dict[str, Any]]) -> int:
        """The exit code."""
        if not all(row["agrees"] for row in rows):
            return NO
        return InputError.exit_code if self.skipped else 0
