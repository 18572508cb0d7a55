"""The run of ``grpo verify``: the records of files, each judged as what its framework says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpo_cli.commands.options.objective import StageOptions
from grpo_cli.commands.options.source import tell_notes
from grpo_cli.commands.verify.causes.memory import Memory
from grpo_cli.commands.verify.compare import Tolerance
from grpo_cli.commands.verify.verdict import Verdict, judge
from grpo_cli.engine import Reader
from grpo_cli.errors import InputError
from grpo_cli.records import Raw, Record
from grpo_cli.terminal.messages import say, tell
from grpo_cli.variants.trainer import Chosen, choose, completed

NO = 1
_ROWS = 5


class Verification:
    """The records of files, each judged; remembers what there is to tell afterwards."""

    def __init__(
        self, variant: str, stages: StageOptions, within: Tolerance, reader: Reader, most: int
    ) -> None:
        self._variant = variant
        self._stages = stages
        self._within = within
        self._reader = reader
        self._good = 0
        self.silent = 0
        self.rows_taken: dict[str, int] = {}
        self.ignored: dict[str, None] = {}
        self.rounded: dict[str, str] = {}
        self._memory = Memory(most)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The verdict of each record that expects anything."""
        for raw, record in self._reader.records():
            try:
                verdict = self._judge(raw, record)
            except InputError as error:
                self._reader.bad(error)
                continue
            self._good += 1
            if verdict is not None:
                self.ignored |= dict.fromkeys(verdict.ignored)
                self.rounded |= verdict.rounded
                yield verdict.row()

    def _judge(self, raw: Raw, record: Record) -> Verdict | None:
        if record.expected is None:
            self.silent += 1
            return None
        chosen = self._choose(raw, record)
        self.rows_taken[chosen.words] = self.rows_taken.get(chosen.words, 0) + 1
        plan = completed(
            chosen,
            advantages_given=record.advantages is not None,
            stages=self._stages.stages,
            hyperparameters=self._stages.hyperparameters,
        )
        return judge(record, plan, self._within, self._memory.causes)

    def _choose(self, raw: Raw, found: Record) -> Chosen:
        framework = raw.value.get("framework")
        if self._variant or not isinstance(framework, dict):
            return Chosen(self._variant or "grpo")
        try:
            return choose(framework)
        except InputError as error:
            raise InputError(
                error.message,
                path=found.prefix + error.path,
                source=found.source,
                line=found.line,
            ) from None

    @property
    def skipped(self) -> list[InputError]:
        """The records that could not be read or evaluated."""
        return self._reader.skipped

    @property
    def _count(self) -> int:
        """All records, those that could not be read among them."""
        return self._good + len(self.skipped)

    def tell(self, *, as_json: bool, quiet: bool) -> None:
        """Says what was taken for granted."""
        for error in self.skipped:
            tell(error, as_json=as_json)
        if self.skipped:
            say(f"skipped {len(self.skipped)} of {self._count} records")
        tell_notes(self._reader.notices, quiet=quiet)
        if quiet:
            return
        if not self._variant:
            self._tell_rows()
        if self.silent and self.silent < self._count:
            say(f'note: {self.silent} of {self._count} records have no "expected"')
        if self.ignored:
            say(f"note: not compared: {', '.join(self.ignored)}")
        for key, name in self.rounded.items():
            say(f"note: {key} was rounded to {name}, and is compared as far as that goes")
        if left := self._memory.left_out:
            say(f"note: no cause was searched for in {left} differing records (--causes N does)")

    def _tell_rows(self) -> None:
        for words, count in list(self.rows_taken.items())[:_ROWS]:
            say(f"note: {count} record{'' if count == 1 else 's'} evaluated as {words}")
        if (more := sum(list(self.rows_taken.values())[_ROWS:])) > 0:
            say(f"note: … and {more} more otherwise (see the signatures of --json)")

    def document(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Everything as ``--json`` prints it."""
        return {
            "agrees": all(row["agrees"] for row in rows),
            "rtol": self._within.rtol,
            "atol": self._within.atol,
            "verified": len(rows),
            "differing": sum(not row["agrees"] for row in rows),
            "without_expected": self.silent,
            "records": rows,
        }

    def code(self, rows: list[dict[str, Any]]) -> int:
        """The exit code."""
        if not all(row["agrees"] for row in rows):
            return NO
        return InputError.exit_code if self.skipped else 0
