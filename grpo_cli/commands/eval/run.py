"""An evaluation that prints its errors at its end, with notes on what its totals hide."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from grpo_cli.commands.eval.printing import Printing
from grpo_cli.commands.options.source import print_errors, print_skipped
from grpo_cli.engine import Evaluation, Reader
from grpo_cli.engine.facts import DEAD_ALONE
from grpo_cli.engine.rows.fields import OWN, Level
from grpo_cli.errors import GrpoError, InputError, UsageError
from grpo_cli.terminal.messages import print_error, say
from grpo_cli.terminal.numbers import counted, shell_line, shown
from grpo_cli.terminal.progress import Bar
from grpo_cli.variants.plan import Plan

BAD_INPUT = InputError.exit_code


class Run(Evaluation):
    """An evaluation that remembers the error at which it stopped, and prints those it skips.

    What came before an error is still printed, so the error is printed last (``finish``).

    Args:
        reader: the files.
        plan: which objective.
        as_json: whether errors are JSON.
        by_default: whether no variant was asked for.
        bar: what shows how far it is, until there is no more to evaluate.
        **options: those of ``Evaluation``.
    """

    def __init__(
        self,
        reader: Reader,
        plan: Plan,
        *,
        as_json: bool,
        by_default: bool = False,
        bar: Bar | None = None,
        **options: Any,
    ) -> None:
        super().__init__(reader, plan, progress=None if bar is None else bar.advance, **options)
        self._bar: AbstractContextManager[object] = nullcontext() if bar is None else bar
        self.plan, self.by_default = plan, by_default
        self._as_json = as_json
        self._printed = 0
        self._has_rows = False
        self._error: GrpoError | None = None

    def __iter__(self) -> Iterator[list[Any]]:
        try:
            with self._bar:
                for pieces in super().__iter__():
                    self._print_skipped()
                    self._has_rows = self._has_rows or bool(pieces)
                    yield pieces
        except UsageError:
            raise
        except GrpoError as error:
            self._error = error
        self._print_skipped()

    @property
    def notices(self) -> list[str]:
        """Sentences on the input and the numbers, each once."""
        return [*super().notices, *two_runs(self._reader)]

    @property
    def of_steps(self) -> bool:
        """Whether the records are of several steps, and no two files seem to be of two runs."""
        several = any(len(steps) > 1 for steps in self._reader.facts.steps.values())
        return several and not any(two_runs(self._reader))

    def _print_skipped(self) -> None:
        self._printed = print_errors(self.skipped, self._printed, as_json=self._as_json)

    @property
    def complete(self) -> bool:
        """Whether the whole input was evaluated, but for records that were to be skipped.

        Of a batch that was not read whole no total is printed: a script would take it for one.
        """
        return self._error is None

    @property
    def empty(self) -> bool:
        """Whether nothing could be evaluated: there is nothing to print."""
        failed = self._error is not None or self._printed > 0
        return failed and not self.total["records"]

    def in_table(self, printing: Printing) -> set[str | None]:
        """The sentences that the table of the totals has, if it is what is printed."""
        if printing.kind != "table":
            return set()
        chosen = printing.level == "batch" and printing.fields is not None
        lines = () if chosen else (self.other_row, self.pooled)
        return {self.ungrouped, *lines, *total_notes(self)}

    def finish(
        self,
        *,
        quiet: bool,
        printed: Collection[str | None] = (),
        more: Iterable[str] = (),
        of_rows: bool = False,
    ) -> int:
        """Prints the notes, ``more`` of them, then what went wrong; returns the exit code.

        Where an error left nothing to print, only ignored keys are noted: they may be its cause.

        Args:
            quiet: whether to print no notes.
            printed: sentences that are printed already.
            more: further notes.
            of_rows: whether rows of the records before an error were printed.
        """
        if not quiet:
            whole = self.complete or (of_rows and self._has_rows)
            found = (one for one in self.notices if whole or one.startswith(_CAUSES))
            totals = total_notes(self) if self.complete and not self.empty else ()
            for note in [*found, *totals, *more]:
                if note not in printed:
                    say(f"note: {note}")
        print_skipped(self.skipped, self.skipped.count + self.total["records"])
        if self._error is not None:
            if of_rows and not self._as_json and not quiet and self._has_rows:
                say(
                    "note: stopped at an error: the rows above are of the records before the "
                    "error, and there is no total (--on-error skip skips unreadable records)"
                )
            print_error(self._error, as_json=self._as_json)
            return self._error.exit_code
        return BAD_INPUT if self.skipped else 0


_CAUSES = "ignored"
"""How notes begin that may say why nothing could be evaluated."""

SUMMED = (
    "records have different denominators, so they are not one batch: the total is the sum over "
    "records; --batch step makes each step a batch, --batch record gives the mean over records"
)


def two_runs(reader: Reader) -> Iterator[str]:
    """That two files which are no parts of one run have the same step, if two do."""
    if not reader.facts.shared:
        return
    from grpo_cli.commands.trend.origins import run_of  # slow to import, and rarely needed

    for later, (first, step) in reader.facts.shared.items():
        if run_of(first) != run_of(later):
            compared = shell_line(["grpo", "trend", later, "--against", first])
            yield f"{first} and {later} both have step {step}; if they are two runs: {compared}"
            return


def total_notes(run: Evaluation) -> Iterator[str]:
    """One sentence for each thing that the totals hide, such as why a loss is 0."""
    total = run.total
    if not total["tokens"]:
        yield "no unmasked token, so J = 0"
        return
    if total["denominator"] is None:
        yield SUMMED
    if on_policy := total["on_policy_records"]:
        yield _on_policy(on_policy, total["records"], total["gradient_norm"])
    if (dead := total["dead_groups"]) and DEAD_ALONE not in (run.ungrouped or ""):
        yield _dead(dead, total["groups"], total["responses"])
    if empty := total["empty_responses"]:
        have = "has" if empty == 1 else "have"
        yield f"{_of(empty, total['responses'], 'response')} {have} no token that counts"


def _dead(dead: int, groups: int, responses: int) -> str:
    if dead == groups == responses > 1:
        return "every group has one response, so every advantage is 0 (--group-by FIELD joins rows)"
    if dead == groups:
        return "all groups are dead: every advantage is 0"
    are, its = ("is", "its") if dead == 1 else ("are", "their")
    return f"{_of(dead, groups, 'group')} {are} dead: all {its} advantages are 0"


def _on_policy(still: int, records: int, gradient_norm: float) -> str:
    if still == records:
        return (
            "on-policy (every ratio is exactly 1): judge by the gradient (norm "
            f"{shown(gradient_norm)}), not by the loss"
        )
    are = "is" if still == 1 else "are"
    return (
        f"{_of(still, records, 'record')} {are} on-policy (every ratio is exactly 1): there, "
        "judge by the gradient, not by the loss"
    )


def _of(part: int, whole: int, name: str) -> str:
    plural = "trajectories" if name == "trajectory" else ""
    return f"{part:,} of {counted(whole, name, plural)}"


ROWS: Mapping[Level, str] = {
    "record": "records",
    "trajectory": "trajectories",
    "response": "responses",
    "turn": "turns",
    "token": "tokens",
}
"""The level → what its rows are called."""


def rows_of(run: Run, level: Level) -> int:
    """How many rows of a level, which is not ``batch``, the records have."""
    return int(getattr(run.sums.batches.whole, ROWS[level]))


def row_notes(run: Run, printing: Printing) -> Iterator[str]:
    """How many rows ``--having`` left; that ``--only`` prints those of records, not the batch's."""
    if not run.complete:
        return
    if printing.having is not None and printing.level == "batch":
        batches = run.batches or [run.total]
        whole = counted(len(batches), "batch", "batches")
        yield f"--having keeps {len(printing.wanted(batches)):,} of {whole}"
    elif printing.having is not None:
        kept = _of(run.sums.shown, rows_of(run, printing.level), printing.level)
        yield f"--having keeps {kept}"
    elif printing.only is not None and printing.level == "record" and not printing.limit:
        rows = run.total["records"]
        if rows > 1 and not {*printing.names}.isdisjoint(OWN["batch"]):
            yield (
                f"--only printed {rows:,} lines, one for each record; "
                f"for the whole batch's: --level batch --only {printing.only}"
            )


def limited(
    run: Run, limit: int | None, count: Callable[[Any, int], tuple[Any, int]]
) -> Iterator[list[Any]]:
    """Yields the pieces of the first rows; the others are evaluated and not printed.

    Args:
        run: the evaluation.
        limit: how many rows are printed; 0 or None for all.
        count: returns the first rows of a piece, at most so many, and how many they are.
    """
    if not limit:
        yield from run
        return
    room = limit
    for pieces in run:
        first = []
        for piece in pieces if room > 0 else ():
            kept, rows = count(piece, room)
            first.append(kept)
            room -= rows
            if room <= 0:
                break
        yield first


def totals_of(run: Run, printing: Printing) -> list[dict[str, Any]]:
    """The rows of level ``batch``: one, or one for each value of the fields of ``--batch``."""
    whole = {"signature": run.signature, **run.total}
    rows: Sequence[Mapping[str, Any]] = run.batches if printing.by else [whole]
    fields = printing.names_of_totals(rows)
    rows = printing.wanted(rows)[: printing.limit or None]
    return [
        {name: {"variant": run.plan.variant, **row}.get(name) for name in fields} for row in rows
    ]
